"""An enqueuer with few rights can do no lasting harm to capped queues, or to others who enqueue there."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from support.databases import in_psql, opened
from support.postgres import ENQUEUE, RUN, SUPERUSER, as_role
from support.targets import plain_url

from cronjobs import QueueFull, enqueue, enqueue_many
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import queues
from cronjobs.engine.jobs import insertion
from cronjobs.engine.store.queues import count_full, held_so_far
from cronjobs.errors import QueueHeld

ALMOST = 9_223_372_036_854_775_806  # one less than the largest bigint

TAMPERING = [
    "UPDATE cronjobs_queues SET dropped = 9223372036854775807",
    "UPDATE cronjobs_queues SET refused = 0",
    "DELETE FROM cronjobs_queues",
    "INSERT INTO cronjobs_queues (name) VALUES ('mine')",
    *(
        f"SELECT 1 FROM cronjobs_queues FOR {lock}"
        for lock in ("UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE", "UPDATE NOWAIT", "KEY SHARE SKIP LOCKED")
    ),
    "LOCK TABLE cronjobs_queues IN ROW EXCLUSIVE MODE",
    "LOCK TABLE cronjobs_queues IN SHARE MODE",
    "SELECT setval('cronjobs_queues_held', 1)",
    "SELECT nextval('cronjobs_queues_held')",
]


def capped(url: str, *caps: str) -> None:
    in_psql(
        as_role(url, SUPERUSER), *(f"INSERT INTO cronjobs_queues (name, max_waiting, on_full) VALUES {c}" for c in caps)
    )


@pytest.fixture
def url(postgres_migrated: str) -> str:
    capped(postgres_migrated, "('mail', 2, 'error')", "('hits', 2, 'drop')", "('import', 2, 'wait')")
    return postgres_migrated


@pytest.mark.parametrize("statement", TAMPERING)
def test_an_enqueuer_can_neither_lock_a_queues_row_nor_change_it(url: str, statement: str) -> None:
    with (
        psycopg.connect(as_role(url, ENQUEUE)) as user,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        user.execute(statement.encode())


def test_an_enqueuer_meets_full_queues_of_each_policy_and_they_are_counted(url: str) -> None:
    engine = create_engine(plain_url(as_role(url, ENQUEUE)))
    told: Counter[str] = Counter()
    for queue in ("mail", "hits", "import"):
        for n in range(4):
            try:
                made = enqueue(engine, "t.say", {"n": n}, queue=queue, wait=0)
            except QueueFull:
                told[f"{queue} refused"] += 1
            else:
                told[f"{queue} {'dropped' if made.dropped else 'made'}"] += 1
        with engine.begin() as connection:
            if queue == "hits":
                assert [one.dropped for one in enqueue_many(connection, "t.say", [{}, {}], queue=queue)] == [True, True]
            else:
                with pytest.raises(QueueFull):
                    enqueue(connection, "t.say", queue=queue)
            assert enqueue(connection, "t.say").new, "the transaction is usable"
    engine.dispose()
    assert told == {
        **{f"{queue} made": 2 for queue in ("mail", "hits", "import")},
        "mail refused": 2,
        "hits dropped": 2,
        "import refused": 2,
    }
    assert counters(url) == [("hits", 4, 0), ("import", 0, 2), ("mail", 0, 2)]


def counters(url: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT name, dropped, refused FROM cronjobs_queues ORDER BY name").fetchall()


def test_no_counter_overflows(database: Database) -> None:
    full = {"name": "hits", "max_waiting": 0, "on_full": "drop", "dropped": ALMOST, "refused": ALMOST}
    with database.write() as connection:
        connection.execute(queues.insert().values(full))
        for _ in range(3):
            assert enqueue(connection, "t.say", queue="hits").dropped
            count_full(connection, "hits", "refused", 1 << 40)
        counted = connection.exec_driver_sql("SELECT dropped, refused FROM cronjobs_queues").all()
    assert [tuple(row) for row in counted] == [(ALMOST, ALMOST)]


def test_the_function_drops_where_a_counter_is_at_its_end(url: str) -> None:
    in_psql(as_role(url, SUPERUSER), f"UPDATE cronjobs_queues SET dropped = {ALMOST}, max_waiting = 0")
    with psycopg.connect(as_role(url, ENQUEUE), autocommit=True) as user:
        for _ in range(3):
            assert user.execute("SELECT id FROM cronjobs_enqueue('t', queue => 'hits')").fetchall() == [(None,)]


# --- another transaction holds the queue ------------------------------------------------------------------------------


def test_an_enqueue_that_meets_an_open_one_says_so_stays_usable_and_is_counted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insertion, "QUEUE_PATIENCE_S", 0.05)
    as_app = as_role(url, ENQUEUE)
    with psycopg.connect(as_app) as holder, psycopg.connect(as_app) as user:
        enqueue(holder, "t.say", queue="mail")
        assert enqueue(user, "t.mine").new
        with pytest.raises(
            QueueHeld, match='queue "mail": nothing was written, because another transaction has enqueued into this'
        ):
            enqueue(user, "t.say", queue="mail")
        assert enqueue(user, "t.mine").new
        user.commit()
    assert jobs_of(url) == {"t.say": 1, "t.mine": 2}
    assert held(url) == 1


def test_the_function_says_so_too_and_a_savepoint_keeps_the_transaction(url: str) -> None:
    as_app = as_role(url, ENQUEUE)
    with psycopg.connect(as_app) as holder, psycopg.connect(as_app) as user:
        holder.execute("SELECT cronjobs_enqueue('t.say', queue => 'mail')")
        user.execute("SET lock_timeout = '20ms'")
        user.execute("SELECT cronjobs_enqueue('t.mine')")
        refusal = "another open transaction has enqueued into queue"
        with pytest.raises(psycopg.errors.LockNotAvailable, match=refusal), user.transaction():
            user.execute("SELECT cronjobs_enqueue('t.say', queue => 'mail')")
        user.execute("SELECT cronjobs_enqueue('t.mine')")
        assert user.execute("SHOW lock_timeout").fetchone() == ("20ms",)
        user.commit()
    assert jobs_of(url) == {"t.say": 1, "t.mine": 2}
    assert held(url) == 1


def test_what_counts_a_refusal_waits_a_second_at_most(url: str) -> None:
    """The refusal is counted in a transaction of its own, and another transaction may hold the row's lock."""
    with psycopg.connect(as_role(url, ENQUEUE)) as holder, psycopg.connect(as_role(url, ENQUEUE)) as user:
        enqueue(holder, "t.say", queue="mail")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            user.execute("SELECT cronjobs_count_full('mail', 'refused', 1)")


def jobs_of(url: str) -> dict[str, int]:
    with psycopg.connect(url) as connection:
        return dict(connection.execute("SELECT job_type, count(*) FROM cronjobs_jobs GROUP BY 1").fetchall())


def held(url: str) -> int:
    with opened(as_role(url, RUN)) as database, database.read() as connection:
        return held_so_far(connection)
