"""A claim whose COMMIT got no answer: the claimed jobs are read from the rows, and no begun job is begun again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select

from cronjobs.clock import SYSTEM
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.rules.lease import Lease, lease_of
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.engine.tick.turn import Batch, BatchResult, Writer
from cronjobs.errors import CommitUnconfirmed

MINUTE = timedelta(minutes=1)
ADMISSION = ClaimFilter(known=["t"], fitting=["t"], remaining_s=50)


def turn(writer: Writer, room: int = 0, *, held: Sequence[Lease] = (), given_up: Sequence[Lease] = ()) -> BatchResult:
    unsettled = writer.claim_unsettled
    order = Batch(
        0.0, (), (), held, renew=False, room=room, admission=ADMISSION, unsettled=unsettled, given_up=given_up
    )
    return writer.write(order)


def test_only_what_was_never_known_of_is_taken_up(database: Database) -> None:
    row: dict[str, Any] = {"job_type": "t", "run_at": SYSTEM.now() - MINUTE}
    with database.write() as connection:
        connection.execute(insert(jobs), [row] * 4)
    writer = Writer(database, SYSTEM, "r", MINUTE, before_writing=lambda _: None)
    held, given_up, new, again = claimed = list(turn(writer, room=4).claimed)
    ends = leases_end(database)
    before = lease_of(again)._replace(attempt=again.attempt - 1)  # its release was written, and the answer lost, too

    writer.claim_unsettled, writer.lease = True, 2 * MINUTE
    settled = turn(writer, held=[lease_of(held), before], given_up=[lease_of(given_up)]).settled

    assert settled == [new, again]
    assert not writer.claim_unsettled
    renewed = [job.id for job in claimed if leases_end(database)[job.id] > ends[job.id]]
    assert renewed == [new.id, again.id]


def test_what_somebody_has_locked_is_found_and_not_begun(postgres_migrated: str) -> None:
    database = Database(parse_url(postgres_migrated))
    with database.write() as connection:
        connection.execute(insert(jobs), [{"job_type": "t", "run_at": SYSTEM.now() - MINUTE}] * 2)
    writer = Writer(database, SYSTEM, "r", MINUTE, before_writing=lambda _: None)
    locked, free = turn(writer, room=2).claimed
    writer.claim_unsettled = True
    with database.engine.begin() as psql:
        psql.execute(select(jobs.c.id).where(jobs.c.id == locked.id).with_for_update())
        found = turn(writer)
    assert (found.settled, found.unsure) == ([free], [locked])
    database.close()


def test_what_no_standby_confirmed_is_known_all_the_same(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with database.write() as connection:
        connection.execute(insert(jobs), [{"job_type": "t", "run_at": SYSTEM.now() - MINUTE}] * 3)
    writer = Writer(database, SYSTEM, "r", MINUTE, before_writing=lambda _: None)
    [before] = turn(writer, room=1).claimed
    write = database.write

    @contextmanager
    def unconfirmed(**options: Any) -> Iterator[Connection]:
        with write(**options) as connection:
            yield connection
        raise CommitUnconfirmed("db")

    monkeypatch.setattr(database, "write", unconfirmed)
    writer.claim_unsettled = True
    with pytest.raises(CommitUnconfirmed):
        turn(writer, room=2)
    assert not writer.claim_unsettled
    assert [job.id for job in writer.unconfirmed] == [before.id, 2, 3]
    monkeypatch.undo()
    turn(writer)
    assert writer.unconfirmed == []


def leases_end(database: Database) -> dict[int, datetime]:
    with database.read() as connection:
        return {row.id: row.locked_until for row in connection.execute(select(jobs.c.id, jobs.c.locked_until))}
