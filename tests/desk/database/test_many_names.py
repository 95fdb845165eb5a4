"""However many queues and job types enqueuers invent, commands read and list a bounded number of them, and a sum."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert
from support.cases import judge as judged
from support.lookingrows import NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows

from cronjobs.desk.insight import waiting
from cronjobs.desk.insight.judged_types import JudgedTypes
from cronjobs.desk.insight.waiting import what_waits
from cronjobs.desk.store import workload
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.testing import FakeClock

MANY = 1_200
HOUR = timedelta(hours=1)
LONGEST = 900


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def flooded(database: Database, rows: Rows) -> Database:
    """Due jobs of very many types and queues, as a stranger could add them, and one real queue, which has a cap."""
    rows.tick(did={}, job_types="known")
    many = [
        {"job_type": f"{n:05}".ljust(LONGEST, "x"), "queue": f"{n:05}".ljust(LONGEST, "q"), "run_at": ago(minutes=9)}
        for n in range(MANY)
    ]
    real = [{"job_type": "mail.send", "queue": "zmail", "run_at": ago(minutes=1)}]
    with database.write() as connection:
        connection.execute(insert(tables.jobs), [*many, *real])
        connection.execute(insert(tables.queues), [{"name": "zmail", "max_waiting": 1, "on_full": "drop"}])
    return database


@pytest.mark.slow
def test_status_names_some_and_counts_the_rest(flooded: Database, cronjobs: Cronjobs) -> None:
    answer = cronjobs("status", "--json")
    seen = answer.json
    assert len(answer.out) < 5_000_000
    assert (len(seen["waiting"]["queues"]), seen["waiting"]["more_queues"]) == (
        workload.MOST_QUEUES,
        MANY + 1 - 1000,
    )
    assert len(seen["unresolved"]) == waiting.MOST_TYPES
    named = sum(each["waiting"] for each in seen["unresolved"])
    assert seen["more_unresolved"]["waiting"] + named >= MANY
    assert seen["waiting"]["due"] == MANY + 1
    kinds = Counter(each["key"].partition(":")[0] for each in seen["findings"])
    assert kinds["unresolved"] == waiting.MOST_TYPES + 1
    assert "full:zmail" in [each["key"] for each in seen["findings"]], "a cap is watched, whatever else there is"
    assert f"and {MANY + 1 - 1000:,} smaller queues" in cronjobs("status").out


def test_what_was_read_and_what_was_counted_are_all_there_is(
    database: Database, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random names, with limits that they pass: the sums are those of a reader without limits."""

    settings = Settings(Path("cronjobs.yaml"), Path())

    def case(random: random.Random) -> None:
        with database.write() as connection:
            connection.execute(tables.jobs.delete())
            for _ in range(random.randint(0, 25)):
                status = random.choice(["queued", "failed"])
                at = NOW + timedelta(minutes=random.randint(-20, 5))
                names = {"job_type": random.choice("abcdef"), "queue": random.choice("uvwxyz")}
                connection.execute(insert(tables.jobs).values(names | {"status": status, "run_at": at}))
        types = JudgedTypes(set(), set(random.sample("abcdef", random.randint(0, 6))), NOW)
        with database.read() as connection:
            whole = what_waits(connection, settings, types, [], [], NOW, {})
            with monkeypatch.context() as patch:
                patch.setattr(workload, "MOST_QUEUES", random.randint(1, 7))
                patch.setattr(workload, "MOST_GROUPS", random.randint(1, 20))
                patch.setattr(waiting, "MOST_TYPES", random.randint(1, 7))
                part = what_waits(connection, settings, types, [], [], NOW, {})
                assert len(workload.waiting_by_queue(connection).queues) <= workload.MOST_QUEUES
                assert len(workload.due_groups(connection, HOUR, types.ticks or ()).groups) <= workload.MOST_GROUPS
        for what in ("due", "future", "failed"):
            assert total(part, what) == total(whole, what)
        assert part.oldest_due_at == whole.oldest_due_at
        assert len(part.queues) + part.more_queues == len(whole.queues)
        assert len(part.unresolved) + part.more_types == len(whole.unresolved)
        assert sum(part.unresolved.values()) + part.more_unresolved == sum(whole.unresolved.values())
        if not whole.unresolved:  # of types that nobody has, what is not read is not late: it could not run
            assert total(part, "late") == total(whole, "late")
        assert total(part, "late") <= total(whole, "late")

    judged(case, few=15)


def total(found: waiting.QueueFacts, what: str) -> int:
    return sum(getattr(queue, what) for queue in (*found.queues.values(), found.others))
