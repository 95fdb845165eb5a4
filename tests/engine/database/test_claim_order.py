"""A claim takes the first due jobs by (priority, run_at, id), whatever their types and queues, on both databases."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from sqlalchemy import insert, select, update

from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.store.claims import ClaimFilter, claim
from cronjobs.engine.store.sql import database_now

TYPES = ("t.a", "t.b", "t.c")
LEASE = timedelta(seconds=60)


def add(database: Database, chance: random.Random, count: int) -> list[int]:
    """Due jobs of random types, queues and priorities; return their ids in the order of their turn."""
    with database.write() as connection:
        now = database_now(connection)
        rows = [
            {
                "job_type": chance.choice(TYPES),
                "queue": chance.choice(("default", "mail")),
                "priority": chance.choice((5, 5, 5, 0)),
                "timeout_s": chance.choice((None, None, 3.0)),
                "run_at": now - timedelta(seconds=chance.randint(1, 20)),
            }
            for _ in range(count)
        ]
        connection.execute(insert(jobs), rows)
        found = connection.execute(select(jobs.c.id).order_by(jobs.c.priority, jobs.c.run_at, jobs.c.id))
        return list(found.scalars())


def take(database: Database, limit: int, free: int = 1_000_000) -> list[int]:
    admission = ClaimFilter(known=TYPES, fitting=TYPES, remaining_s=10, free=free)
    with database.write() as connection:
        return [job.id for job in claim(connection, limit=limit, locked_by="me", lease=LEASE, admission=admission).jobs]


@pytest.mark.parametrize("seed", range(8))
def test_types_and_queues_take_their_turns(database: Database, seed: int) -> None:
    chance = random.Random(seed)
    order = add(database, chance, 30)
    while order:
        limit = chance.randint(1, 7)
        assert take(database, limit) == order[:limit]
        order = order[limit:]
    assert take(database, 5) == []


def test_a_long_backlog_of_one_type_hides_no_other(database: Database) -> None:
    with database.write() as connection:
        now = database_now(connection)
        for number in range(8):
            row = {"job_type": TYPES[number % 2], "run_at": now - timedelta(seconds=20 - number)}
            connection.execute(insert(jobs).values(row))
    assert take(database, 4) == [1, 2, 3, 4]
    assert take(database, 4) == [5, 6, 7, 8]


def test_a_careful_job_ends_the_row_of_those_taken_ahead_in_their_order(database: Database) -> None:
    order = add(database, random.Random(3), 10)
    with database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == order[4]).values(losses=1))
    assert take(database, 10, free=2) == order[:4]
    assert take(database, 10, free=2) == order[4:]


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_others_hold_are_stepped_over_and_nobody_goes_away_empty(postgres_migrated: str, seed: int) -> None:
    """Whoever claims at the same moment takes the same first rows: then the next ones are taken, of any lane."""
    database = Database(parse_url(postgres_migrated))
    chance = random.Random(seed)
    try:
        order = add(database, chance, 20)
        held = order[: chance.randint(1, 15)]
        with database.write() as other:
            other.execute(select(jobs.c.id).where(jobs.c.id.in_(held)).with_for_update(key_share=True)).all()
            free = [job_id for job_id in order if job_id not in held]
            taken = take(database, 5)
            assert len(taken) == 5
            assert set(taken) <= set(free)
            rest = take(database, 20)
            assert sorted([*taken, *rest]) == sorted(free)
        assert sorted(take(database, 20)) == sorted(held)
    finally:
        database.close()
