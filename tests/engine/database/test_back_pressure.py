"""A full capped queue refuses or drops jobs, or makes enqueuers wait. This is reported and counted, and always ends."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine
from support.capped import cap, drain, dropped, in_queue
from support.databases import until
from support.targets import each_target, opened, plain_url

from cronjobs import QueueFull, enqueue, enqueue_async, enqueue_many, enqueue_many_async
from cronjobs.engine.database.connection import Database
from cronjobs.errors import QueueHeld, UsageError
from cronjobs.model import Status

# --- on_full: error ---------------------------------------------------------------------------------------------------


@each_target
def test_a_full_queue_refuses_and_leaves_the_transaction_usable(
    database: Database, database_url: str, kind: str
) -> None:
    cap(database, 2)
    with opened(kind, database_url) as user:
        for _ in range(2):
            assert enqueue(user.target, "t.say", queue="mail").new
        with pytest.raises(QueueFull, match=r'queue "mail" is full \(max_waiting 2\): nothing was written; enqueue ag'):
            enqueue(user.target, "t.say", queue="mail")
        assert enqueue(user.target, "t.say").new  # another queue, the same transaction
        user.commit()
    assert (in_queue(database), in_queue(database, "default")) == (2, 1)


def test_what_runs_or_is_over_takes_no_place_and_a_retry_does(database: Database) -> None:
    cap(database, 2)
    with database.write() as connection:
        enqueue_many(connection, "t.say", [{}, {}], queue="mail")
    drain(database, 1)
    with database.write() as connection:
        assert enqueue(connection, "t.say", queue="mail").new
        connection.execute(text("UPDATE cronjobs_jobs SET status = 'failed' WHERE status = 'queued'"))
        with pytest.raises(QueueFull):
            enqueue(connection, "t.say", queue="mail")


@pytest.mark.parametrize("queues", [["mail"], ["mail", "default", "mail"]])
def test_a_call_that_does_not_fit_writes_none_of_its_jobs(database: Database, queues: list[str]) -> None:
    cap(database, 3)
    rows: list[Any] = [({"n": n}, {"queue": queues[n % len(queues)], "priority": n % 10}) for n in range(6)]
    with database.write() as connection:
        with pytest.raises(QueueFull, match=r"has room for 3 of these \d jobs \(max_waiting 3\).* in smaller groups"):
            enqueue_many(connection, "t.say", rows)
        assert len(enqueue_many(connection, "t.say", rows[:3])) == 3
    assert in_queue(database) + in_queue(database, "default") == 3


def test_a_spent_key_takes_no_place(database: Database) -> None:
    cap(database, 1)
    with database.write() as connection:
        first = enqueue(connection, "t.say", queue="mail", idempotency_key="k")
        again = enqueue(connection, "t.say", queue="mail", idempotency_key="k")
        keys: list[Any] = [({}, {"idempotency_key": "k"})]
        [in_bulk] = enqueue_many(connection, "t.say", keys, queue="mail")
        assert (again.id, again.new, in_bulk.id) == (first.id, False, first.id)
        with pytest.raises(QueueFull):
            enqueue_many(connection, "t.say", [*keys, {}], queue="mail")


def test_a_key_that_is_spent_while_the_queue_is_waited_for_is_no_refusal(postgres_migrated: str) -> None:
    with psycopg.connect(postgres_migrated) as one, psycopg.connect(postgres_migrated) as two:
        one.execute("INSERT INTO cronjobs_queues (name, max_waiting) VALUES ('mail', 1)")
        one.commit()
        first = enqueue(one, "t.say", queue="mail", idempotency_key="k")
        told: list[Any] = []

        def race() -> None:
            told.append(enqueue(two, "t.say", queue="mail", idempotency_key="k"))

        racing = threading.Thread(target=race)
        racing.start()
        one.execute("SELECT pg_sleep(0.05)")
        assert told == []
        one.commit()
        racing.join(30)
    assert [(one.id, one.new) for one in told] == [(first.id, False)]


def test_a_replacement_keeps_its_place_and_needs_one_elsewhere(database: Database) -> None:
    cap(database, 1)
    with database.write() as connection:
        first = enqueue(connection, "t.say", queue="mail", idempotency_key="k")
        other = enqueue(connection, "t.say", idempotency_key="l")

        def replace(key: str, queue: str) -> Any:
            return enqueue(connection, "t.new", queue=queue, idempotency_key=key, on_conflict="replace")

        assert replace("k", "mail").id == first.id
        with pytest.raises(QueueFull):
            replace("l", "mail")
        assert replace("k", "default").id == first.id
        assert replace("l", "mail").id == other.id
    assert (in_queue(database), in_queue(database, "default")) == (1, 1)


def test_an_enqueue_that_meets_no_cap_is_one_statement(database: Database) -> None:
    cap(database, 1)
    statements: list[str] = []
    with database.write() as connection:
        enqueue(connection, "t.say")  # PostgreSQL is asked for the table once
        event.listen(connection, "before_cursor_execute", lambda *given: statements.append(given[2]))
        enqueue(connection, "t.say")
        enqueue(connection, "t.say", idempotency_key="k")
        enqueue_many(connection, "t.say", [{}, {}])
        assert len(statements) == 3


# --- on_full: drop ----------------------------------------------------------------------------------------------------


@each_target
def test_a_full_queue_that_drops_says_counts_and_logs_it(
    database: Database, database_url: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    cap(database, 2, "drop")
    with opened(kind, database_url) as user, caplog.at_level(logging.WARNING, "cronjobs"):
        enqueue(user.target, "t.say", queue="mail")
        told = enqueue_many(user.target, "t.say", [{"n": n} for n in range(3)], queue="mail")
        assert [one.dropped for one in told] == [False, True, True]
        assert (told[2].id, told[2].new, told[2].status) == (None, False, None)
        assert dropped(database) == 0  # the count belongs to the caller's transaction, which is open
        user.commit()
        enqueue(user.target, "t.say", queue="mail")
        user.rollback()
    assert (in_queue(database), dropped(database)) == (2, 2)
    said = 'queue.dropped job_type=t.say queue=mail count={} error="the queue is full and drops jobs (on_full: drop)"'
    assert caplog.messages == [said.format(2), said.format(1)]


def test_the_first_that_fit_are_kept_whatever_their_keys(database: Database) -> None:
    cap(database, 3, "drop")
    rows: list[Any] = [({}, {"idempotency_key": key, "queue": "mail"}) for key in "zaybx"]
    rows.insert(1, ({}, {"queue": "default"}))
    with database.write() as connection:
        enqueue(connection, "t.say", queue="mail", idempotency_key="a")
        told = enqueue_many(connection, "t.say", rows)
    assert [(one.new, one.dropped) for one in told] == [
        *[(True, False), (True, False), (False, False), (True, False), (False, True), (False, True)]
    ]


# --- on_full: wait ----------------------------------------------------------------------------------------------------


def test_an_engine_waits_until_there_is_room(database: Database, database_url: str) -> None:
    cap(database, 1, "wait")
    engine = create_engine(plain_url(database_url))
    enqueue(engine, "t.say", queue="mail")
    told: list[Any] = []
    waiting = threading.Thread(target=lambda: told.append(enqueue(engine, "t.say", queue="mail", wait="60s")))
    tries: list[int] = []
    event.listen(engine, "rollback", lambda _: tries.append(1))
    waiting.start()
    until(lambda: len(tries) > 1)
    assert told == []
    drain(database, 1)  # nobody holds a lock in between
    waiting.join(30)
    engine.dispose()
    assert [one.status for one in told] == [Status.QUEUED]


def test_nobody_waits_for_ever(database: Database, database_url: str) -> None:
    cap(database, 1, "wait")
    engine = create_engine(plain_url(database_url))
    assert enqueue(engine, "t.say", queue="mail", wait=0).new
    with pytest.raises(QueueFull, match=r"\(max_waiting 1\) after 100ms: nothing was written; enqueue again later"):
        enqueue(engine, "t.say", queue="mail", wait=0.1)
    with pytest.raises(QueueFull, match="in smaller groups"):  # what never fits is told at once
        enqueue_many(engine, "t.say", [{}, {}], queue="mail")
    cap(database, 1, "error")
    with pytest.raises(QueueFull) as refused:
        enqueue(engine, "t.say", queue="mail")
    engine.dispose()
    assert (refused.value.queue, refused.value.max_waiting, refused.value.on_full) == ("mail", 1, "error")


@pytest.mark.parametrize("wait", ["2h", -1, "soon", True])
def test_a_wait_that_cannot_be_meant_is_refused(database: Database, wait: Any) -> None:
    with pytest.raises(UsageError):
        enqueue(database.engine, "t.say", wait=wait)


def test_in_the_callers_transaction_nobody_waits_and_is_told_why(database: Database) -> None:
    cap(database, 1, "wait")
    with database.write() as connection:
        enqueue(connection, "t.say", queue="mail")
        with pytest.raises(QueueFull, match="enqueue can wait for room only in its own transaction, so pass an Engine"):
            enqueue(connection, "t.say", queue="mail")
        with pytest.raises(UsageError, match="wait= needs an Engine"):
            enqueue(connection, "t.say", queue="mail", wait="1s")


def test_async_apps_are_told_the_same(database: Database, database_url: str) -> None:
    cap(database, 1, "wait")
    url = database_url.replace("postgresql://", "postgresql+psycopg_async://").replace(
        "sqlite://", "sqlite+aiosqlite://"
    )

    async def app() -> None:
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            assert (await enqueue_async(connection, "t.say", queue="mail")).new
            with pytest.raises(QueueFull):
                await enqueue_async(connection, "t.say", queue="mail")
            with pytest.raises(UsageError):
                await enqueue_async(connection, "t.say", wait=1)
        with pytest.raises(QueueFull, match=r"after 50ms"):
            await enqueue_async(engine, "t.say", queue="mail", wait=0.05)
        waits = asyncio.create_task(enqueue_async(engine, "t.say", queue="mail", wait=60))
        told = await enqueue_many_async(engine, "t.say", [{}, {}])  # the loop goes on meanwhile
        assert [one.new for one in told] == [True, True]
        await asyncio.to_thread(drain, database, 1)  # the loop may have a transaction open
        assert (await waits).new
        await engine.dispose()

    asyncio.run(app())


# --- others' locks ----------------------------------------------------------------------------------------------------


def test_an_open_transaction_in_the_queue_holds_nobody_for_ever(postgres_migrated: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("cronjobs.engine.jobs.insertion.QUEUE_PATIENCE_S", 0.05)
    with psycopg.connect(postgres_migrated) as holder, psycopg.connect(postgres_migrated) as user:
        holder.execute("INSERT INTO cronjobs_queues (name, max_waiting) VALUES ('mail', 9)")
        holder.commit()
        enqueue(holder, "t.say", queue="mail")
        enqueue(user, "t.say")  # who meets no cap does not notice
        with pytest.raises(QueueHeld, match=r'queue "mail": nothing was written, because another .* still open: try'):
            enqueue(user, "t.say", queue="mail")
        holder.rollback()
        assert enqueue(user, "t.say", queue="mail").new
        user.commit()
