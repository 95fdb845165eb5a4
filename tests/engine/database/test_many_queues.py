"""If jobs wait in very many queues, a claim reads all of them once, and takes the same jobs as queue by queue."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, insert, select

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs, pauses, schedules
from cronjobs.engine.probe.idle_conditions import MANY_QUEUES
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.store import ticks
from cronjobs.engine.store.claims import ClaimFilter, claim
from cronjobs.engine.store.sql import database_now

KNOWN = ("t.a", "t.b", "t.long")
QUEUES = ("default", "mail", "paused", "été")
LEASE = timedelta(seconds=60)


def some_rows(chance: random.Random, now: Any) -> list[dict[str, Any]]:
    def row() -> dict[str, Any]:
        return {
            "job_type": chance.choice((*KNOWN, "t.unknown")),
            "queue": chance.choice(QUEUES),
            "priority": chance.choice((5, 5, 0, 9)),
            "timeout_s": chance.choice((None, None, 3.0, 30.0, 900.0)),
            "run_at": now - timedelta(seconds=chance.choice((-60, *range(1, 20)))),
            "losses": chance.choice((0, 0, 0, 1)),
            "schedule": chance.choice((None, None, "nightly", "hourly")),
            "concurrency_key": chance.choice((None, None, "one")),
        }

    return [row() for _ in range(chance.randint(1, 40))]


def claims_of(database: Database, rows: list[dict[str, Any]], admission: ClaimFilter, limit: int) -> list[list[int]]:
    """Claim again and again until nothing is left; return what each claim took, as indexes into *rows*."""
    with database.write() as connection:
        connection.execute(delete(jobs))
        connection.execute(insert(jobs), rows)
        number = {job_id: n for n, job_id in enumerate(connection.scalars(select(jobs.c.id).order_by(jobs.c.id)))}
    found: list[list[int]] = []
    while not found or found[-1]:
        with database.write() as connection:
            taken = claim(connection, limit=limit, locked_by="me", lease=LEASE, admission=admission)
        found.append([number[job.id] for job in taken.jobs])
    return found


@pytest.mark.parametrize("seed", range(25))
def test_it_takes_what_a_claim_by_lanes_takes(database: Database, seed: int) -> None:
    chance = random.Random(seed)
    with database.write() as connection:
        now = database_now(connection)
        connection.execute(insert(pauses).values(scope="queue", name="paused"))
        definition = {"overlap": chance.choice(("allow", "skip")), "job": "t.a"}
        row = {"name": "hourly", "definition": definition, "fingerprint": "f", "seen_until": now}
        connection.execute(insert(schedules).values(row))
    rows = some_rows(chance, now)
    admission = ClaimFilter(
        known=KNOWN,
        fitting=KNOWN[:2],
        remaining_s=10,
        longest_s=chance.choice((60, 1e300)),
        queue=chance.choice((None, None, "mail", "été")),
        no_prefetch=chance.choice(((), ("t.b",))),
        free=chance.choice((1, 3, 1_000_000)),
        limits=chance.choice(((), (Limit("one", 1),))),
        runnable=chance.choice((None, KNOWN)),
    )
    limit = chance.randint(1, 8)
    by_lanes = claims_of(database, rows, admission, limit)
    many = ClaimFilter(**(vars(admission) | {"many_queues": True}))
    assert claims_of(database, rows, many, limit) == by_lanes


@pytest.mark.parametrize(
    ("seconds", "paused", "queues", "expected"),
    [
        (-1, False, MANY_QUEUES, (True, False, True)),
        (60, False, MANY_QUEUES, (False, False, True)),
        (-1, True, MANY_QUEUES, (False, True, True)),
        (-1, False, MANY_QUEUES - 1, (True, False, False)),
        (-1, True, MANY_QUEUES - 1, (False, True, False)),
    ],
)
def test_a_tick_s_first_look_notices_very_many_queues(
    database: Database, seconds: int, paused: bool, queues: int, expected: tuple[bool, bool, bool]
) -> None:
    """Only the last queue has a job that may be due."""
    with database.write() as connection:
        now = database_now(connection)
        later = now + timedelta(days=1)
        rows = [{"job_type": "t.a", "queue": f"q{n:05}", "run_at": later} for n in range(queues)]
        rows[-1]["run_at"] = now + timedelta(seconds=seconds)
        connection.execute(insert(jobs), rows)
        if paused:
            connection.execute(insert(pauses).values(scope="all", name=""))
    with database.read() as connection:
        seen = ticks.overview(connection, host="alpha", place="alpha:", fingerprint="f")
    assert (seen.jobs_due, seen.paused_due, seen.many_queues) == expected
