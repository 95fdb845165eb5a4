"""One key, one job: it is kept or replaced, even in races, and enqueuers wait no longer than the database forces."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import select, update
from support.databases import until
from support.rounds import rounds
from support.targets import each_target, opened

from cronjobs import enqueue, enqueue_many
from cronjobs.clock import SYSTEM
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.errors import JobHeld
from cronjobs.model import Status

THREADS, EACH = 8, rounds(100, 300)


def only_row(database: Database) -> Any:
    with database.read() as connection:
        return connection.execute(select(jobs)).one()


@each_target
def test_replace_makes_a_waiting_job_the_new_one(database_url: str, kind: str) -> None:
    with opened(kind, database_url) as user:
        first = enqueue(user.target, "t.old", {"n": 1}, idempotency_key="k", delay="1h", max_attempts=2)
        second = enqueue(
            user.target,
            "t.new",
            {"n": 2},
            idempotency_key="k",
            on_conflict="replace",
            queue="mail",
            priority=1,
            meta={"a": "b"},
            timeout=3,
            concurrency_key="c",
        )
        user.commit()
        assert (second.id, second.new, second.status) == (first.id, False, Status.QUEUED)
        found = connection_rows(user.target, database_url)
    row = found[0]
    assert (row.job_type, row.payload, row.queue, row.priority, row.meta) == ("t.new", {"n": 2}, "mail", 1, {"a": "b"})
    assert (row.timeout_s, row.concurrency_key, row.max_attempts) == (3.0, "c", None)
    assert row.run_at < row.created_at + timedelta(minutes=1)


@each_target
def test_a_key_that_a_job_of_another_type_has_is_logged(
    database: Database, database_url: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    keyed: list[Any] = [({"order_id": n}, {"idempotency_key": ("order", n)}) for n in (7, 8, 9)]
    with opened(kind, database_url) as user, caplog.at_level(logging.WARNING, "cronjobs"):
        enqueue_many(user.target, "mail", keyed[:2])
        enqueue_many(user.target, "mail", keyed[:2])  # the same type: this is what keys are for
        made = enqueue_many(user.target, "pay", keyed)
        enqueue(user.target, "mail", idempotency_key=("order", 9), on_conflict="replace")
        user.commit()
    assert [one.new for one in made] == [False, False, True]
    ids = [one.id for one in made]
    said = "enqueue.key_of_another_type job_type={} existing_type={} job_id={} count={} error="
    share = "all job types share one set of idempotency keys, so begin each key with the job's type"
    assert caplog.messages == [
        said.format("pay", "mail", ids[0], 2)
        + f'"job {ids[0]} (mail) has the same idempotency key, so no pay job was enqueued; {share}"',
        said.format("mail", "pay", ids[2], 1)
        + f'"job {ids[2]} (pay) had the same idempotency key and was replaced; {share}"',
    ]


def connection_rows(target: Any, url: str) -> list[Any]:
    database = Database(parse_url(url))
    try:
        with database.read() as connection:
            return list(connection.execute(select(jobs).order_by(jobs.c.id)).all())
    finally:
        database.close()


@pytest.mark.parametrize(
    "state",
    [
        {"status": "queued", "attempts": 1},
        {"status": "failed", "attempts": 1, "failures": 1},
        {"status": "cancelled"},
        {"status": "dead", "attempts": 10},
        {"status": "succeeded", "attempts": 1},
        {"status": "running", "attempts": 1},
    ],
    ids=lambda state: state["status"],
)
def test_replace_leaves_a_job_alone_that_was_begun_or_is_over(database: Database, state: dict[str, Any]) -> None:
    now = SYSTEM.now()
    over = {"finished_at": now} if state["status"] in ("cancelled", "dead", "succeeded") else {}
    leased = {"locked_by": "x", "locked_until": now} if state["status"] == "running" else {}
    with database.write() as connection:
        enqueue(connection, "t.say", {"n": 1}, idempotency_key="k")
        connection.execute(update(jobs).values(state | over | leased))
    with database.write() as connection:
        told = enqueue(connection, "t.say", {"n": 2}, idempotency_key="k", on_conflict="replace")
    assert (told.new, told.status) == (False, Status(state["status"]))
    assert only_row(database).payload == {"n": 1}


# --- racing -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("on_conflict", ["keep", "replace"])
def test_threads_that_race_for_one_key_make_one_job(database: Database, on_conflict: Any) -> None:
    each = EACH if on_conflict == "keep" else 40
    ready = threading.Barrier(THREADS)

    def race(number: int) -> list[Any]:
        ready.wait(30)
        results = []
        for n in range(each):
            with database.write(patience=30) as connection:
                try:
                    told = enqueue(
                        connection, "t.say", {"by": number, "n": n}, idempotency_key="k", on_conflict=on_conflict
                    )
                except JobHeld:
                    continue
                results.append(told)
        return results

    with ThreadPoolExecutor(THREADS) as pool:
        told = [one for many in pool.map(race, range(THREADS)) for one in many]
    assert len(told) == THREADS * each or on_conflict == "replace"
    assert len([one for one in told if one.new]) == 1
    assert {one.id for one in told} == {only_row(database).id}


@pytest.mark.parametrize(
    "held", ["SELECT 1 FROM cronjobs_jobs FOR UPDATE", "UPDATE cronjobs_jobs SET run_at = run_at + interval '1 s'"]
)
def test_a_foreign_lock_on_the_row_delays_no_enqueue_of_its_key(postgres_migrated: str, held: str) -> None:
    with psycopg.connect(postgres_migrated, autocommit=True) as holder, psycopg.connect(postgres_migrated) as user:
        first = enqueue(holder, "t.say", {"n": 1}, idempotency_key="k")
        holder.execute("BEGIN")
        holder.execute(held.encode())
        user.execute("SET lock_timeout = '1ms'")
        kept = enqueue(user, "t.say", {"n": 2}, idempotency_key="k")
        assert (kept.id, kept.new) == (first.id, False)
        with pytest.raises(
            JobHeld, match=f'"k": nothing was written, because another transaction has locked job {first.id}: try'
        ):
            enqueue(user, "t.say", {"n": 2}, idempotency_key="k", on_conflict="replace")
        enqueue(user, "t.say", {"n": 3})  # the transaction is none the worse
        user.commit()
        holder.execute("ROLLBACK")
        enqueue(user, "t.say", {"n": 4}, idempotency_key="k", on_conflict="replace")
        user.commit()
        found = user.execute("SELECT payload -> 'n' FROM cronjobs_jobs ORDER BY id").fetchall()
    assert found == [(4,), (3,)]


def test_replace_waits_a_moment_for_who_is_about_to_let_go(postgres_migrated: str, monkeypatch: Any) -> None:
    with psycopg.connect(postgres_migrated, autocommit=True) as holder, psycopg.connect(postgres_migrated) as user:
        enqueue(holder, "t.say", {"n": 1}, idempotency_key="k")
        holder.execute("BEGIN")
        holder.execute("SELECT 1 FROM cronjobs_jobs FOR UPDATE")
        monkeypatch.setattr("cronjobs.engine.jobs.enqueue.sleep", lambda _: holder.execute("COMMIT"))
        enqueue(user, "t.say", {"n": 2}, idempotency_key="k", on_conflict="replace")
        user.commit()
        assert user.execute("SELECT payload -> 'n' FROM cronjobs_jobs").fetchall() == [(2,)]


def test_a_replacement_that_is_rolled_back_loses_to_none(postgres_migrated: str) -> None:
    with psycopg.connect(postgres_migrated) as one, psycopg.connect(postgres_migrated) as two:
        enqueue(one, "t.say", {"n": 1}, idempotency_key="k")
        one.commit()
        enqueue(one, "t.say", {"n": 2}, idempotency_key="k", on_conflict="replace")
        two.execute("SET lock_timeout = '1ms'")
        with pytest.raises(JobHeld):  # never told "done" for what is not written
            enqueue(two, "t.say", {"n": 3}, idempotency_key="k", on_conflict="replace")
        one.rollback()
        enqueue(two, "t.say", {"n": 3}, idempotency_key="k", on_conflict="replace")
        two.commit()
        assert one.execute("SELECT payload -> 'n' FROM cronjobs_jobs").fetchall() == [(3,)]


@pytest.mark.parametrize(("ending", "new"), [("rollback", True), ("commit", False)])
def test_only_an_uncommitted_insert_of_the_same_key_is_waited_for(
    postgres_migrated: str, ending: str, new: bool
) -> None:
    with psycopg.connect(postgres_migrated) as holder, psycopg.connect(postgres_migrated) as user:
        first = enqueue(holder, "t.say", idempotency_key="k")
        with psycopg.connect(postgres_migrated) as other:
            other.execute("SET lock_timeout = '1ms'")
            assert enqueue(other, "t.say", idempotency_key="another").new
            assert enqueue(other, "t.say").new
        told: list[Any] = []
        waiting = threading.Thread(target=lambda: told.append(enqueue(user, "t.say", idempotency_key="k")))
        waiting.start()
        pid = user.info.backend_pid
        asked = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
        with psycopg.connect(postgres_migrated, autocommit=True) as watcher:
            until(lambda: watcher.execute(asked, [pid]).fetchone() == ("Lock",))
        end: Callable[[], None] = getattr(holder, ending)
        end()
        waiting.join(30)
    assert [(one.new, one.id == first.id) for one in told] == [(new, not new)]


def test_bulk_enqueues_of_the_same_keys_in_other_orders_do_not_deadlock(postgres_migrated: str) -> None:
    rows: list[Any] = [({"n": n}, {"idempotency_key": ("k", n)}) for n in range(400)]
    ready = threading.Barrier(4)

    def race(turn: int) -> int:
        with psycopg.connect(postgres_migrated) as connection:
            ready.wait(30)
            return sum(one.new for one in enqueue_many(connection, "t.say", rows if turn % 2 else rows[::-1]))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(race, range(4))) == 400
