"""``cancel`` and ``reschedule`` in the app's own transaction. The key of a job that never began becomes free again."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, event, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from support.databases import in_psql, until
from support.databases import opened as opened_database
from support.postgres import ENQUEUE, OWNER, READ, SUPERUSER, as_role
from support.targets import each_target, opened, plain_url
from support.yard import MINUTE, START, Yard, minutely

from cronjobs import (
    JobHeld,
    JobNotWaiting,
    NoSuchJob,
    UsageError,
    cancel,
    enqueue,
    find,
    reschedule,
)
from cronjobs.clock import SYSTEM
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import audit, job_runs, jobs
from cronjobs.engine.schema import migrations
from cronjobs.engine.store import counts, operating
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.errors import SchemaMissing
from cronjobs.model import Status
from cronjobs.testing import FakeClock

SOON = datetime(2030, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
LATER = datetime(2031, 1, 1, tzinfo=UTC)
ADA = OperatorAction("cancel", "ada", "web1", "paid")


def rows(database: Database) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(select(jobs).order_by(jobs.c.id)).all())


def trail(database: Database) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(select(audit).order_by(audit.c.id)).all())


def changed(database: Database, job_id: int | None, **values: Any) -> None:
    with database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))


def lease(attempts: int = 1) -> dict[str, Any]:
    return {"status": "running", "attempts": attempts, "locked_by": "me", "locked_until": LATER}


def began(database: Database, job_id: int | None, attempt: int = 1) -> None:
    """An attempt of the job began, and ended somehow."""
    values = {"job_id": job_id, "attempt": attempt, "outcome": "snoozed", "runner": "me"}
    with database.write() as connection:
        connection.execute(job_runs.insert().values(values | {"started_at": SOON, "finished_at": SOON}))


# --- cancel -----------------------------------------------------------------------------------------------------------


@each_target
def test_a_job_is_cancelled_with_the_callers_transaction_and_its_key_is_free(
    database: Database, database_url: str, kind: str
) -> None:
    key = ("ümlaut", 7)
    with opened(kind, database_url) as user:
        first = enqueue(user.target, "t.remind", {"n": 1}, idempotency_key=key, run_at=SOON)
        user.commit()
        assert cancel(user.target, idempotency_key=key, reason="bezahlt — ümlaut") is Status.CANCELLED
        user.rollback()
        assert [row.status for row in rows(database)] == ["queued"]  # cancel commits nothing by itself
        assert cancel(user.target, idempotency_key=key, reason="bezahlt — ümlaut") is Status.CANCELLED
        assert cancel(user.target, id=first.id) is Status.CANCELLED  # the job is cancelled already
        again = enqueue(user.target, "t.remind", {"n": 2}, idempotency_key=key, run_at=SOON)
        assert again.new
        assert cancel(user.target, idempotency_key="other") is None
        user.commit()
    gone, new = rows(database)
    assert (gone.id, gone.status, gone.idempotency_key, gone.released_key) == (first.id, "cancelled", None, "ümlaut:7")
    assert gone.last_error.endswith(": bezahlt — ümlaut")
    assert gone.last_error.startswith("cancelled by ")
    assert (new.id, new.status, new.idempotency_key, new.released_key) == (again.id, "queued", "ümlaut:7", None)
    [act] = trail(database)
    assert (act.action, act.subject, act.why) == ("cancel", f"job {first.id}", "bezahlt — ümlaut")
    assert gone.last_error.startswith(f"cancelled by {act.actor}: ")


@each_target
def test_a_refused_change_spoils_nothing(database_url: str, kind: str) -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001
    with opened(kind, database_url) as user:
        made = enqueue(user.target, "t.remind", run_at=SOON)
        for wrong in ({}, {"id": 1, "idempotency_key": "k"}, {"id": -1}, {"idempotency_key": ""}):
            with pytest.raises(UsageError):
                cancel(user.target, **wrong)
        moves: list[dict[str, Any]] = [{}, {"run_at": SOON, "delay": 1}, {"run_at": naive}, {"delay": "soon"}]
        for move in moves:
            with pytest.raises(UsageError):
                reschedule(user.target, id=made.id, **move)
        with pytest.raises(NoSuchJob, match='the job with idempotency key "none" does not exist'):
            reschedule(user.target, idempotency_key="none", run_at=SOON)
        cancel(user.target, id=made.id)
        with pytest.raises(JobNotWaiting, match=rf"^job {made.id} is cancelled: only a waiting job") as told:
            reschedule(user.target, id=made.id, delay=0)
        assert told.value.status is Status.CANCELLED
        user.commit()


@pytest.mark.parametrize("act", ["cancel", "reschedule"])
def test_a_change_that_waited_for_another_writer_is_of_the_time_after_it(sqlite_migrated: str, act: str) -> None:
    engine = create_engine(f"sqlite:///{sqlite_migrated}")
    freed: list[datetime] = []
    with closing(sqlite3.connect(sqlite_migrated, isolation_level=None)) as other, engine.connect() as connection:
        made = enqueue(connection, "t.remind")
        connection.commit()
        other.execute("BEGIN IMMEDIATE")

        def free(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if not freed and "UPDATE" in statement:
                other.execute("COMMIT")
                freed.append(SYSTEM.now())

        event.listen(connection, "before_cursor_execute", free)
        if act == "cancel":
            cancel(connection, id=made.id)
        else:
            reschedule(connection, id=made.id, delay=0)
        connection.commit()
        row = connection.execute(select(jobs)).one()
    engine.dispose()
    assert (row.finished_at or row.run_at) >= freed[0]


def test_a_running_job_is_asked_to_stop_and_an_ended_one_stays_as_it_is(database: Database) -> None:
    made = [enqueue(database.engine, "t.remind", idempotency_key=f"k{n}").id for n in range(3)]
    changed(database, made[0], **lease())
    changed(database, made[1], status="succeeded", finished_at=SOON)
    changed(database, made[2], status="dead", finished_at=SOON)
    told = [cancel(database.engine, id=each, reason="stop") for each in made]
    assert told == [Status.RUNNING, Status.SUCCEEDED, Status.DEAD]
    running, succeeded, dead = rows(database)
    assert running.cancel_requested_at is not None
    assert (succeeded.cancel_requested_at, dead.cancel_requested_at) == (None, None)
    assert [row.idempotency_key for row in (running, succeeded, dead)] == ["k0", "k1", "k2"]
    assert [(act.subject, act.why) for act in trail(database)] == [(f"job {made[0]}", "stop")]


@pytest.mark.parametrize("act", ["cancel", "reschedule"])
@pytest.mark.parametrize("driver", [True, False])
def test_without_a_transaction_a_change_is_one_of_its_own(sqlite_migrated: str, act: str, driver: bool) -> None:
    """SQLite in autocommit: what the audit trail refuses does not happen to the job either."""
    with closing(sqlite3.connect(sqlite_migrated, isolation_level=None)) as raw:
        engine = create_engine(f"sqlite:///{sqlite_migrated}", isolation_level="AUTOCOMMIT")
        app: Any = raw if driver else engine
        made = enqueue(app, "t.remind", run_at=SOON)
        raw.execute("CREATE TRIGGER no_trail BEFORE INSERT ON cronjobs_audit BEGIN SELECT raise(ABORT, 'full'); END")
        with pytest.raises((sqlite3.DatabaseError, DBAPIError), match="full"):
            cancel(app, id=made.id) if act == "cancel" else reschedule(app, id=made.id, delay=0)
        assert not raw.in_transaction
        found = find(app, id=made.id)
        assert found is not None
        assert (found.status, found.run_at) == ("queued", SOON)
        raw.execute("DROP TRIGGER no_trail")
        answer = cancel(app, id=made.id) if act == "cancel" else reschedule(app, id=made.id, delay=0)
        assert answer == ("cancelled" if act == "cancel" else "queued")
        engine.dispose()


def test_a_run_of_exec_cannot_be_asked_to_stop(database: Database) -> None:
    made = enqueue(database.engine, "t.backup").id
    changed(database, made, **lease(), job_type="exec:backup", started_at=SOON)
    assert cancel(database.engine, id=made) is Status.RUNNING
    assert rows(database)[0].cancel_requested_at is None
    assert trail(database) == []


COMPARED = ("status", "finished_at", "last_error", "idempotency_key", "released_key", "cancel_requested_at", "run_at")


@pytest.mark.parametrize("case", ["waiting", "tried", "failed", "running", "ended", "keyless"])
def test_every_way_to_cancel_leaves_the_same_rows(database: Database, case: str) -> None:
    """The SQL function and the statements for SQLite, against what ``cronjobs jobs cancel`` does."""
    made = [
        enqueue(database.engine, "t.remind", idempotency_key=None if case == "keyless" else f"k{n}").id
        for n in range(2)
    ]
    for each in made:
        if case == "tried":
            began(database, each)
            changed(database, each, attempts=1)
        if case == "failed":
            changed(database, each, status="failed", attempts=1, failures=1, last_failed_at=SOON)
        if case == "running":
            changed(database, each, **lease())
        if case == "ended":
            changed(database, each, status="succeeded", finished_at=SOON)
    cancel(database.engine, id=made[0], reason="paid")
    with database.write() as connection:
        operating.cancel(connection, [made[1] or 0], ADA)

    def told(row: Any, key: str) -> list[str]:
        row = row._mapping
        values = {name: row[name] for name in COMPARED}
        for name in ("finished_at", "cancel_requested_at"):
            values[name] = values[name] is not None
        values["run_at"] = None
        actor = next((act.actor for act in trail(database) if act.subject == f"job {row['id']}"), "")
        return [str(value).replace(key, "K").replace(actor or "nobody", "ACTOR") for value in values.values()]

    by_app, by_operator = rows(database)
    assert told(by_app, "k0") == told(by_operator, "k1")
    acts = [(act.action, act.why, act.detail) for act in trail(database)]
    assert acts in ([], [("cancel", "paid", None)] * 2)
    assert bool(acts) == (case != "ended")


def test_what_was_cancelled_counts_once(database: Database) -> None:
    for n in range(3):
        enqueue(database.engine, "t.remind", idempotency_key=f"k{n}")
    cancel(database.engine, idempotency_key="k0")
    with database.write() as connection:
        operating.cancel(connection, [2], ADA)
    with database.read() as connection:
        sums = counts.all_that_ended(connection)
    assert {key.outcome: each.number for key, each in sums.items() if key.kind == "jobs"} == {"cancelled": 2}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_cancel_that_is_committed_late_is_counted(database: Database, database_url: str, clock: FakeClock) -> None:
    """An app's transaction may stay open for longer than any tick."""
    made = enqueue(database.engine, "t.remind").id
    with psycopg.connect(database_url) as app:
        assert cancel(app, id=made) is Status.CANCELLED
        clock.advance(timedelta(minutes=10))
        with database.write() as connection:
            counts.fold(connection)
        app.commit()
    with database.write() as connection:
        counts.fold(connection)
    with database.read() as connection:
        sums = counts.all_that_ended(connection)
    assert {key.outcome: each.number for key, each in sums.items() if key.kind == "jobs"} == {"cancelled": 1}


# --- locks and rights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["connection", "psycopg"])
def test_a_job_that_another_transaction_holds_is_not_waited_for(postgres_migrated: str, kind: str) -> None:
    with psycopg.connect(postgres_migrated) as other, opened(kind, postgres_migrated) as user:
        made = enqueue(other, "t.remind", idempotency_key="k")
        other.commit()
        other.execute("SELECT FROM cronjobs_jobs FOR NO KEY UPDATE")
        patience = "SET lock_timeout = '5s'"
        user.target.execute(text(patience) if kind == "connection" else patience)
        with pytest.raises(
            JobHeld, match=rf"^job {made.id}: nothing was written, because another transaction has locked it"
        ):
            cancel(user.target, id=made.id)
        with pytest.raises(JobHeld, match=r'^idempotency key "k": nothing was written'):
            reschedule(user.target, idempotency_key="k", delay="5m")
        other.rollback()
        assert cancel(user.target, idempotency_key="k") is Status.CANCELLED
        user.commit()


def test_who_only_enqueues_cancels_by_the_functions_alone(postgres_migrated: str) -> None:
    with psycopg.connect(as_role(postgres_migrated, ENQUEUE), application_name="shop") as app:
        made = enqueue(app, "t.remind", idempotency_key="k")
        app.execute("SELECT cronjobs_reschedule(idempotency_key => 'k', delay => '1 day', reason => 'not yet')")
        [answer] = app.execute("SELECT cronjobs_cancel(idempotency_key => 'k', reason => 'paid')").fetchone() or ()
        app.commit()
        for forbidden in (
            "UPDATE cronjobs_jobs SET status = 'cancelled'",
            "UPDATE cronjobs_jobs SET released_key = 'k'",
            "INSERT INTO cronjobs_audit (action) VALUES ('cancel')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                app.execute(forbidden.encode())
            app.rollback()
    assert answer == "cancelled"
    with psycopg.connect(as_role(postgres_migrated, OWNER)) as owner:
        acts = owner.execute("SELECT action, actor, subject, why FROM cronjobs_audit ORDER BY id").fetchall()
    who, subject = f"{ENQUEUE}/shop", f"job {made.id}"
    assert acts == [("reschedule", who, subject, "not yet"), ("cancel", who, subject, "paid")]


def test_nobody_else_may_call_the_functions(postgres_migrated: str) -> None:
    for call in ("cronjobs_cancel(id => 1)", "cronjobs_reschedule(id => 1, delay => '1 day')"):
        with (
            psycopg.connect(as_role(postgres_migrated, READ)) as reader,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            reader.execute(f"SELECT {call}".encode())


def test_the_functions_find_their_own_tables(postgres_migrated: str) -> None:
    """They have the owner's rights, so they must use no table, search_path or function of the caller."""
    theirs = "CREATE FUNCTION public.concat_ws(text, name, text) RETURNS text LANGUAGE sql AS $$ SELECT 'theirs' $$"
    in_psql(as_role(postgres_migrated, SUPERUSER), theirs)
    with psycopg.connect(as_role(postgres_migrated, ENQUEUE)) as app:
        made = enqueue(app, "t.remind")
        app.execute("CREATE TEMP TABLE cronjobs_jobs (id bigint, status text, idempotency_key text)")
        app.execute("SET search_path = pg_temp, public")
        [answer] = app.execute("SELECT cronjobs_cancel(id => %s)", [made.id]).fetchone() or ()
        app.execute("SET search_path = public")
        app.execute("DROP TABLE pg_temp.cronjobs_jobs")
    in_psql(as_role(postgres_migrated, SUPERUSER), "DROP FUNCTION public.concat_ws(text, name, text)")
    with psycopg.connect(postgres_migrated) as runner:
        [said] = runner.execute("SELECT last_error FROM cronjobs_jobs").fetchone() or ()
    assert (answer, said) == ("cancelled", f"cancelled by {ENQUEUE}")


def test_the_tables_may_live_in_a_schema_of_their_own(postgres_url: str) -> None:
    with opened_database(postgres_url, 'My "jobs": 1') as database:
        migrations.upgrade(database)
    engine = create_engine(plain_url(postgres_url))
    place = {"schema": 'My "jobs": 1'}
    enqueue(engine, "t.remind", idempotency_key="k", **place)  # type: ignore[arg-type]
    assert reschedule(engine, idempotency_key="k", run_at=SOON, **place) is Status.QUEUED  # type: ignore[arg-type]
    assert cancel(engine, idempotency_key="k", **place) is Status.CANCELLED  # type: ignore[arg-type]
    found = find(engine, idempotency_key="k", **place)  # type: ignore[arg-type]
    assert found is not None
    assert (found.run_at, found.idempotency_key) == (SOON, "k")
    with pytest.raises(SchemaMissing):
        cancel(engine, idempotency_key="k")
    engine.dispose()


@pytest.mark.parametrize(
    "call",
    [
        "cronjobs_cancel()",
        "cronjobs_cancel(id => 1, idempotency_key => 'k')",
        "cronjobs_reschedule(id => 1)",
        "cronjobs_reschedule(id => 1, run_at => now(), delay => '1 day')",
        "cronjobs_reschedule(run_at => now())",
    ],
)
def test_the_functions_refuse_what_makes_no_sense(postgres_migrated: str, call: str) -> None:
    with (
        psycopg.connect(postgres_migrated) as connection,
        pytest.raises(psycopg.errors.InvalidParameterValue, match=r"one of the two"),
    ):
        connection.execute(f"SELECT {call}".encode())


# --- reschedule -------------------------------------------------------------------------------------------------------


@each_target
def test_a_waiting_job_is_moved(database: Database, database_url: str, kind: str) -> None:
    with opened(kind, database_url) as user:
        made = enqueue(user.target, "t.remind", idempotency_key="k", run_at=SOON)
        assert reschedule(user.target, idempotency_key="k", run_at=LATER, reason="not yet") is Status.QUEUED
        user.commit()
        [row] = rows(database)
        assert row.run_at == LATER
        reschedule(user.target, id=made.id, delay="5m")
        user.commit()
    [row] = rows(database)
    assert timedelta(minutes=4) < row.run_at - row.created_at < timedelta(minutes=6)
    act, _ = trail(database)
    assert (act.action, act.subject, act.why) == ("reschedule", f"job {made.id}", "not yet")
    assert act.detail == {"from": "2030-01-01T12:00:00.123456+00:00", "to": "2031-01-01T00:00:00.000000+00:00"}


def test_a_retry_is_moved_and_a_running_job_is_not(database: Database) -> None:
    made = [enqueue(database.engine, "t.remind").id for _ in range(2)]
    changed(database, made[0], status="failed", attempts=2, failures=2)
    changed(database, made[1], **lease())
    assert reschedule(database.engine, id=made[0], run_at=LATER) is Status.FAILED
    with database.engine.begin() as connection, pytest.raises(JobNotWaiting, match="is running"):
        reschedule(connection, id=made[1], run_at=LATER)  # the app's commit then contains no change
    failed, running = rows(database)
    assert (failed.run_at, failed.failures) == (LATER, 2)
    assert running.run_at != LATER


# --- the key ----------------------------------------------------------------------------------------------------------


def test_a_job_that_began_keeps_its_key(database: Database) -> None:
    snoozed = enqueue(database.engine, "t.remind", idempotency_key="snoozed").id
    began(database, snoozed)
    cancel(database.engine, id=snoozed)
    # Its attempts were pruned, and then it was retried, so only ``last_failed_at`` says that it has failed.
    died = enqueue(database.engine, "t.remind", idempotency_key="died").id
    changed(database, died, attempts=3, last_failed_at=SOON)
    cancel(database.engine, id=died)
    assert [row.idempotency_key for row in rows(database)] == ["snoozed", "died"]
    assert not enqueue(database.engine, "t.remind", idempotency_key="snoozed").new


def test_a_claim_that_never_began_gives_the_key_back(database: Database) -> None:
    made = enqueue(database.engine, "t.remind", idempotency_key="k").id
    changed(database, made, attempts=1, started_at=SOON)  # claimed, and released before its handler was called
    cancel(database.engine, id=made)
    assert rows(database)[0].released_key == "k"


def test_the_newest_owner_of_a_key_is_found(database: Database) -> None:
    made = []
    for _ in range(3):
        made.append(enqueue(database.engine, "t.remind", idempotency_key="k").id)
        found = find(database.engine, idempotency_key="k")
        assert found is not None
        assert (found.id, found.status, found.idempotency_key) == (made[-1], "queued", "k")
        cancel(database.engine, idempotency_key="k")
        found = find(database.engine, idempotency_key="k")
        assert found is not None
        assert (found.id, found.status, found.idempotency_key) == (made[-1], "cancelled", "k")


def test_a_retried_job_takes_its_key_back_if_nobody_has_it(database: Database) -> None:
    act = OperatorAction("retry", "ada", "web1", None)
    first, second = (_cancelled_with_key(database) for _ in range(2))
    with database.write() as connection:
        # Both had the key: the newer one gets it.
        assert operating.retry(connection, [first, second], act).done == {second}
    old, new = rows(database)
    assert (new.status, new.idempotency_key, new.released_key) == ("queued", "k", None)
    assert (old.status, old.idempotency_key, old.released_key) == ("cancelled", None, "k")
    with database.write() as connection:
        assert operating.retry(connection, [first], act).done == frozenset()
        assert operating.states(connection, [first])[first].key_owner == second
    cancel(database.engine, idempotency_key="k")
    with database.write() as connection:
        assert operating.retry(connection, [first], act).done == {first}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_retry_that_meets_an_enqueue_with_its_key_changes_nothing(database: Database, database_url: str) -> None:
    act, told = OperatorAction("retry", "ada", "web1", None), []
    first = _cancelled_with_key(database)

    def retry() -> None:
        with database.write() as connection:
            told.append(operating.retry(connection, [first], act).done)

    with psycopg.connect(database_url) as app, psycopg.connect(database_url, autocommit=True) as watcher:
        enqueue(app, "t.remind", idempotency_key="k")
        retrying = threading.Thread(target=retry)
        retrying.start()
        until(lambda: watcher.execute("SELECT FROM pg_locks WHERE NOT granted").fetchone() is not None)
        app.commit()
        retrying.join()
    assert told == [frozenset()]
    assert [row.status for row in rows(database)] == ["cancelled", "queued"]


def _cancelled_with_key(database: Database) -> int:
    made = enqueue(database.engine, "t.remind", idempotency_key="k").id
    assert made is not None
    cancel(database.engine, id=made)
    return made


def test_all_of_it_works_asynchronously(postgres_migrated: str) -> None:
    in_psql(postgres_migrated, "INSERT INTO cronjobs_jobs (job_type) VALUES ('t')")

    async def main() -> None:
        engine = create_async_engine(plain_url(postgres_migrated))
        async with engine.begin() as connection:
            assert await connection.run_sync(lambda sync: reschedule(sync, id=1, run_at=SOON)) is Status.QUEUED
            assert await connection.run_sync(lambda sync: cancel(sync, id=1)) is Status.CANCELLED
        async with AsyncSession(engine) as session:
            with pytest.raises(JobNotWaiting):
                await session.run_sync(lambda sync: reschedule(sync, id=1, run_at=SOON))
            assert await session.scalar(text("SELECT status FROM cronjobs_jobs")) == "cancelled", "it stays usable"
            with pytest.raises(TypeError, match=r"write await connection\.run_sync\(lambda sync: cancel\(sync, …\)\)"):
                cancel(session, id=1)  # type: ignore[arg-type]
        await engine.dispose()

    asyncio.run(main())


# --- a schedule's own jobs --------------------------------------------------------------------------------------------


def test_a_schedules_job_that_was_moved_is_busy_until_its_time(
    database: Database, clock: FakeClock, tmp_path: Path
) -> None:
    """Nothing of it is lost or doubled: the occurrences meanwhile give way to it, and are recorded so."""
    clock.set(START)
    yard = Yard(database, clock, tmp_path)
    yard.sync(yard.file(minutely()))
    clock.advance(MINUTE)
    yard.tick()
    [job] = yard.jobs()
    assert reschedule(database.engine, id=job.id, run_at=clock.now() + timedelta(hours=2)) is Status.QUEUED
    clock.advance(MINUTE)
    yard.tick()
    assert [row.id for row in yard.jobs()] == [job.id]
    # Taken back, it no longer stands in the way; its occurrence stays settled.
    assert cancel(database.engine, id=job.id) is Status.CANCELLED
    clock.advance(MINUTE)
    yard.tick()
    assert [row.status for row in yard.jobs()] == ["cancelled", "queued"]
    assert [(outcome, count) for outcome, count, _, _ in yard.ledger()] == [
        ("enqueued", 1),
        ("skipped", 1),
        ("enqueued", 1),
    ]
