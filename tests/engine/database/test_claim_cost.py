"""A claim takes the same number of database steps, however many jobs are finished, due later or due now."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import pytest
from sqlalchemy import Connection, insert

from cronjobs.clock import SYSTEM
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.store import claims
from cronjobs.engine.store.claims import Claim, ClaimFilter
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.tick.turn import Batch, Writer

HOUR = timedelta(hours=1)


def add(database: Database, count: int, priority: int, due_in: timedelta, **columns: object) -> None:
    row = {"job_type": "t", "priority": priority, "run_at": SYSTEM.now() + due_in} | columns
    with database.write() as connection:
        connection.execute(insert(jobs), [row] * count)


def test_long_jobs_are_claimed_only_where_a_type_or_a_row_may_be_long(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed: list[Collection[str]] = []

    def claim(connection: Connection, *, admission: ClaimFilter, **_: object) -> Claim:
        claimed.append(admission.fitting)
        return Claim(database_now(connection), [], False)

    monkeypatch.setattr(claims, "claim", claim)
    writer = Writer(database, SYSTEM, "r", HOUR, before_writing=lambda _: None)

    def look(*long_types: str) -> int:
        before = len(claimed)
        long = ClaimFilter(known=["t", *long_types], fitting=long_types, remaining_s=-1, longest_s=18)
        order = Batch(
            0.0, (), (), (), renew=False, room=0, admission=long, long=long, long_jobs=2, long_room=5, host="h"
        )
        writer.write(order)
        return len(claimed) - before

    add(database, 1, 5, -HOUR)
    add(database, 1, 5, -HOUR, timeout_s=99, status="succeeded", finished_at=SYSTEM.now())
    assert look() == 0
    assert look("t.long") == 1
    add(database, 1, 5, HOUR, timeout_s=99)
    assert look() == 1


def steps(database: Database, limits: tuple[Limit, ...]) -> int:
    """How many hundreds of instructions SQLite's machine takes for a claim of four."""
    counted: list[None] = []
    admission = ClaimFilter(known=["t"], fitting=["t"], remaining_s=50, limits=limits)
    with database.write() as connection:
        raw = connection.connection.dbapi_connection
        assert raw is not None
        raw.set_progress_handler(lambda: counted.append(None), 100)
        found = claims.claim(connection, limit=4, locked_by="r", lease=HOUR, admission=admission)
        raw.set_progress_handler(None, 0)
    assert len(found.jobs) == 4
    return len(counted)


@pytest.mark.parametrize("limits", [(), (Limit("smtp:", most=4),)], ids=["without limits", "with limits"])
def test_on_sqlite_a_claim_takes_no_more_steps_the_more_there_is(
    sqlite_migrated: str, limits: tuple[Limit, ...]
) -> None:
    database = Database(parse_url(f"sqlite:///{sqlite_migrated}"))
    add(database, 1, 0, HOUR)
    add(database, 10, 9, -HOUR)
    before = steps(database, limits)
    finished = {"status": "succeeded", "finished_at": SYSTEM.now()}
    add(database, 3000, 5, -HOUR, **finished)
    add(database, 3000, 0, HOUR)
    add(database, 3000, 9, -HOUR)
    after = steps(database, limits)
    database.close()
    assert after <= before * 1.2 + 1
