"""A look under limits skips full keys cheaply, and finds the same jobs as the simple statement, which is kept here."""

from __future__ import annotations

import random
import re
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, insert, text
from support.counted import counted
from support.databases import opened
from support.postgres import OWNER

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import effects, jobs, pauses, schedules
from cronjobs.engine.probe.sql_text import either
from cronjobs.engine.rules.concurrency import Candidate, Full, Limit, full
from cronjobs.engine.store import claims
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.engine.store.concurrency import full_parameters
from cronjobs.engine.store.sql import AMONG_IDS, among, group_value, is_postgresql, run

pytestmark = pytest.mark.connects_as(OWNER)  # who may write schedules

BEFORE = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
PREFIXES = ["a", "a:", "b:", "é%_'\"\\", "c:", "d:", "e:"]
KEYS = [None, None, "", "a", "a:1", "A:1", "a:2", "b:", "b:1", "é%_'\"\\1", "e", "c:1", "d:1", "e:1", "e:2"]

# The former claim under limits, which filtered rows under a full limit like any others.
BEGINS_FULL_SQLITE = (
    "EXISTS (SELECT 1 FROM json_each(:full_prefixes) p WHERE substr(j.concurrency_key, 1, length(p.value)) = p.value)"
)
BEGINS_FULL_POSTGRESQL = (
    "j.concurrency_key ^@ ANY(ARRAY(SELECT json_array_elements_text(CAST(:full_prefixes AS json))))"
)
BEGINS_FULL = either(postgresql=BEGINS_FULL_POSTGRESQL, sqlite=BEGINS_FULL_SQLITE)
IS_FULL = f"j.concurrency_key IS NOT NULL AND (j.concurrency_key {among('full_keys')} OR {BEGINS_FULL})"
PLAINLY = f" AND NOT ({IS_FULL}) AND NOT (j.id {AMONG_IDS})"


def look_plainly(
    connection: Connection, parameters: dict[str, Any], admission: ClaimFilter, found: dict[str, str], taken: list[int]
) -> list[Candidate]:
    parameters = parameters | found | {"ids": group_value(connection, taken)}
    if not is_postgresql(connection):
        rows = claims._due_sqlite(connection, parameters, admission, PLAINLY)
    else:
        statement = claims._picked_anywhere(PLAINLY) if admission.many_queues else claims.PICKED_POSTGRESQL
        for due in (claims._DUE_PLAIN, claims._DUE_TIMED):
            statement = statement.replace(due, due + PLAINLY)
        rows = list(run(connection, statement + claims._SEEN, **parameters).all())
    return [Candidate(row.id, row.concurrency_key, bool(row.no_prefetch)) for row in rows]


def fill(database: Database, dice: random.Random, count: int) -> list[int]:
    """Any waiting jobs, and a few that run; the ids of those that wait."""
    with database.write() as connection:
        connection.execute(insert(pauses).values(scope="queue", name="held"))
        for name in ("one", "two"):
            definition = {"job": "t", "overlap": dice.choice(["skip", "allow"])}
            here = {"name": name, "definition": definition, "fingerprint": "f", "seen_until": BEFORE}
            connection.execute(insert(schedules).values(**here))
        ids = []
        for _ in range(count):
            row: dict[str, Any] = {
                "job_type": dice.choice(["t", "t", "t", "u", "gone"]),
                "queue": dice.choice(["default", "default", "mail", "held"]),
                "priority": dice.choice([1, 1, 1, 5]),
                "status": dice.choice(["queued", "failed"]),
                "run_at": BEFORE + dice.choice([0, 0, 0, 1, 2, 3, 10**8]) * SECOND,
                "timeout_s": dice.choice([None, None, None, 10.0, 100.0, 3000.0]),
                "losses": int(dice.random() < 0.1),
                "concurrency_key": dice.choice(KEYS),
                "schedule": dice.choice(["one", "two"]) if dice.random() < 0.1 else None,
            }
            ids.append(connection.execute(insert(jobs).values(**row).returning(jobs.c.id)).scalar_one())
            if dice.random() < 0.1:
                begun = {"job_id": ids[-1], "key": f"e{ids[-1]}", "attempt": 1, "state": "begun", "begun_at": BEFORE}
                connection.execute(insert(effects).values(**begun))
        if dice.random() < 0.5:
            lease = {"status": "running", "attempts": 1, "locked_by": "r", "locked_until": BEFORE + 10**8 * SECOND}
            connection.execute(insert(jobs).values(job_type="t", schedule="one", **lease))
    return ids


def any_admission(dice: random.Random) -> ClaimFilter:
    return ClaimFilter(
        known=["t", "u"],
        fitting=dice.choice([["t", "u"], ["t"], []]),
        remaining_s=dice.choice([-1, 50]),
        longest_s=dice.choice([1000, 1e300]),
        queue=dice.choice([None, None, "mail"]),
        no_prefetch=dice.choice([[], ["u"]]),
        expected=dice.choice([[], ["t"]]),
        limits=[Limit(prefix, most=1) for prefix in PREFIXES],
        runnable=dice.choice([None, ["t", "u"]]),
        many_queues=dice.random() < 0.2,
    )


def any_full(dice: random.Random) -> Full:
    prefixes = dice.sample(PREFIXES, dice.choice([0, 1, 1, 2, 3, 4, 6]))
    keys = dice.sample([key for key in KEYS if key is not None], dice.choice([0, 0, 1, 4]))
    return Full(frozenset(prefixes), frozenset(keys))


@pytest.mark.parametrize("seed", range(8))
def test_a_look_finds_what_the_plain_statement_finds_in_its_order(database: Database, seed: int) -> None:
    dice = random.Random(seed)
    ids = fill(database, dice, dice.choice([12, 40, 80]))
    found = 0
    with ExitStack() as stack:
        if not database.is_sqlite:  # another session has some rows
            other = stack.enter_context(database.write())
            locked = dice.sample(ids, dice.choice([0, 0, 3, len(ids) // 3]))
            other.execute(text("SELECT id FROM cronjobs_jobs WHERE id = ANY(:ids) FOR UPDATE"), {"ids": locked})
        connection = stack.enter_context(database.write())
        for _ in range(12):
            admission, room = any_admission(dice), dice.choice([1, 2, 4, 20, 200])
            taken = dice.sample(ids, dice.choice([0, 0, 1, 4]))
            full_now = full_parameters(connection, any_full(dice))
            parameters = claims._parameters(connection, room, admission)
            expected = look_plainly(connection, parameters, admission, full_now, taken)
            assert claims._look(connection, parameters, admission, full_now, taken) == expected
            found += len(expected)
    assert found


@pytest.mark.parametrize("found", [0, 1])
def test_on_postgresql_a_look_reads_what_is_full_once(postgres_migrated: str, found: int) -> None:
    """On SQLite it is one statement for each lane anyway."""
    rows, limits = 500, [Limit("a:", most=0)]
    given = {"job_type": "t", "run_at": BEFORE}
    with opened(postgres_migrated) as database:
        with database.write() as connection:
            many = [given | {"concurrency_key": "a:1"}] * rows
            connection.execute(insert(jobs), [*many, *[given | {"concurrency_key": None}] * found, *many])
        with counted(database) as work, database.write() as connection:
            admission = ClaimFilter(known=["t"], fitting=["t"], remaining_s=50, limits=limits)
            parameters = claims._parameters(connection, 4, admission)
            is_full = full_parameters(connection, full(limits, {}))
            assert len(claims._look(connection, parameters, admission, is_full, [])) == found
    [plan] = [each.plan for each in work.statements if "picked AS" in each.sql]
    stepped_over = sum(map(int, re.findall(r"Rows Removed by Filter: (\d+)", plan)))
    assert 2 * rows <= stepped_over < 2 * rows + 10


def test_a_full_prefix_and_a_full_key_are_what_python_says_they_are(database: Database) -> None:
    """However many prefixes are full: the first ones are compared one by one."""
    with database.write() as connection:
        given = {"job_type": "t", "run_at": BEFORE}
        connection.execute(insert(jobs), [given | {"concurrency_key": key} for key in KEYS])
        for many in range(len(PREFIXES) + 1):
            limits = [Limit(prefix, most=0) for prefix in PREFIXES[:many]]
            admission = ClaimFilter(known=["t"], fitting=["t"], remaining_s=50, limits=limits)
            parameters = claims._parameters(connection, 100, admission)
            seen = claims._look(connection, parameters, admission, full_parameters(connection, full(limits, {})), [])
            left = [key for key in KEYS if key is None or not key.startswith(tuple(PREFIXES[:many]))]
            assert [candidate.concurrency_key for candidate in seen] == left
