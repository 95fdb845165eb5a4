"""``find`` and ``wait``: the outcome of a job, on every kind of connection that an app may have."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, text, update
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from support.bigtables import fill, whole_table_read
from support.databases import in_psql
from support.postgres import ENQUEUE, OWNER, as_role
from support.targets import each_target, opened, plain_url

import cronjobs.engine.jobs.find as finding
from cronjobs import FoundJob, NoSuchJob, Status, UsageError, enqueue, find, wait, wait_async
from cronjobs.desk.store.explaining import job_of_key
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.rules.progress import HowFar
from cronjobs.engine.schema.grants import Role, statements
from cronjobs.errors import DatabaseError, SchemaMissing

RUN_AT = datetime(2030, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


def changed(database: Database, job_id: int | None, **values: Any) -> None:
    with database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))


@each_target
def test_a_job_is_found_by_its_id_and_by_its_key_as_it_was_enqueued(database_url: str, kind: str) -> None:
    payload = {"line": "% ümläut \u2028 {}", "n": 2**70, "none": None}
    with opened(kind, database_url, by_runner=True) as user:
        made = enqueue(
            user.target, "t.say", payload, idempotency_key=("ümlaut", 7), run_at=RUN_AT, queue="mail", max_attempts=3
        )
        by_key = find(user.target, idempotency_key=("ümlaut", 7))
        by_id = find(user.target, id=made.id)
        assert find(user.target, id=(made.id or 0) + 1) is None
        assert find(user.target, idempotency_key="other") is None
        user.commit()
    assert by_id == by_key
    assert by_id is not None
    assert (by_id.id, by_id.job_type, by_id.payload, by_id.queue) == (made.id, "t.say", payload, "mail")
    assert (by_id.status, by_id.run_at, by_id.next_try, by_id.tries) == ("queued", RUN_AT, RUN_AT, "failed 0 of 3")
    assert (by_id.idempotency_key, by_id.result, by_id.meta, by_id.progress) == ("ümlaut:7", None, {}, None)
    assert by_id.enqueued_at.tzinfo is UTC
    assert not by_id.is_final


@each_target
def test_a_bad_question_is_refused_and_spoils_nothing(database_url: str, kind: str) -> None:
    wrong: list[dict[str, Any]] = [{}, {"id": 1, "idempotency_key": "k"}, {"id": 0}, {"id": True}, {"id": 2**63}]
    wrong += [{"id": "1"}, {"idempotency_key": ("a", None)}]
    with opened(kind, database_url, by_runner=True) as user:
        for arguments in wrong:
            with pytest.raises(UsageError):
                find(user.target, **arguments)
        made = enqueue(user.target, "t.say")
        assert find(user.target, id=made.id) is not None


def test_each_end_is_told(database: Database) -> None:
    ended = datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)
    made = [enqueue(database.engine, "t.say").id for _ in range(3)]
    changed(database, made[0], status="succeeded", finished_at=ended, started_at=ended, result={"sent": 3}, attempts=1)
    policy = {"attempt": 2, "max_attempts": 10}
    changed(database, made[1], status="failed", failures=2, last_error="503", error_type="HTTPError", policy=policy)
    changed(
        database,
        made[2],
        status="running",
        attempts=3,
        locked_by="me",
        locked_until=ended,
        progress={"attempt": 3, "done": 37, "of": 120, "note": "Berlin"},
    )
    done, failed, running = (find(database.engine, id=each) for each in made)
    assert done is not None
    assert failed is not None
    assert running is not None
    assert (done.result, done.is_final, done.finished_at, done.next_try) == ({"sent": 3}, True, ended, None)
    assert (failed.tries, failed.last_error, failed.error_type) == ("failed 2 of 10", "503", "HTTPError")
    assert failed.next_try == failed.run_at
    assert (running.progress, running.next_try) == (HowFar(37, 120, "Berlin"), None)


def test_what_plain_sql_wrote_is_found_even_if_it_cannot_be_read(sqlite_migrated: str) -> None:
    connection = sqlite3.connect(sqlite_migrated)
    connection.execute("INSERT INTO cronjobs_jobs (job_type, payload, last_error) VALUES ('t', '{', x'ff41')")
    found = find(connection, id=1)
    connection.close()
    assert found is not None
    assert (found.payload, found.last_error) == (None, "\ufffdA")


def test_an_infinite_instant_is_no_error(postgres_migrated: str) -> None:
    with psycopg.connect(postgres_migrated) as connection:
        connection.execute("INSERT INTO cronjobs_jobs (job_type, status, finished_at) VALUES ('t', 'dead', 'infinity')")
        found = find(connection, id=1)
    assert found is not None
    assert (found.status, found.finished_at) == ("dead", None)


def test_who_only_enqueues_is_told_what_right_is_missing(postgres_migrated: str) -> None:
    url = as_role(postgres_migrated, ENQUEUE)
    with opened("psycopg", url) as user:
        made = enqueue(user.target, "t.say")
        with pytest.raises(DatabaseError, match="cronjobs db grants --find"):
            find(user.target, id=made.id)
        user.commit()  # the transaction is still usable
    rights = statements("public", {Role.ENQUEUE: ENQUEUE}, find=True)
    in_psql(as_role(postgres_migrated, "postgres"), rights)
    with opened("psycopg", url) as user:
        assert find(user.target, id=made.id) is not None


def test_a_missing_table_is_named(postgres_url: str) -> None:
    with opened("session", postgres_url, by_runner=True) as user:
        with pytest.raises(SchemaMissing):
            find(user.target, id=1)
        assert user.target.execute(text("SELECT 1")).scalar_one() == 1


@pytest.mark.slow
@pytest.mark.connects_as(OWNER)
def test_no_question_reads_all_jobs(database: Database) -> None:
    fill(database)
    with database.write() as connection:  # so many that the newest job with some key is expected soon
        connection.execute(text("UPDATE cronjobs_jobs SET released_key = 'k' || (id % 50) WHERE id % 3 = 0"))
        if not database.is_sqlite:
            connection.execute(text("ANALYZE"))
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sent.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        for which in ({"id": 17}, {"idempotency_key": "k7"}, {"idempotency_key": "none"}):
            find(database.engine, **which)
        with database.read() as connection:
            job_of_key(connection, "none")
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
    asked = [pair for pair in sent if "read_id" in pair[0] or "released_key =" in pair[0]]
    assert len(asked) == 4
    for statement, given in asked:
        assert whole_table_read(database, statement, given) == []
        plan = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
        with database.read() as connection:
            lines = [str(row[-1]) for row in connection.exec_driver_sql(plan + statement, given)]
        assert not [line for line in lines if "Backward" in line]


# --- wait -------------------------------------------------------------------------------------------------------------


def test_waiting_ends_with_the_job(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    made = enqueue(database.engine, "t.say", idempotency_key="k")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            now = datetime(2026, 1, 1, tzinfo=UTC)
            changed(database, made.id, status="succeeded", started_at=now, finished_at=now, result=7)

    monkeypatch.setattr(finding, "sleep", pause)
    job = wait(database.engine, idempotency_key="k")
    assert isinstance(job, FoundJob)
    assert (job.id, job.result) == (made.id, 7)
    assert pauses == pytest.approx([0.1, 0.15, 0.225])


def test_waiting_has_an_end(database: Database) -> None:
    made = enqueue(database.engine, "t.say", run_at=RUN_AT)
    with pytest.raises(
        TimeoutError, match=rf"^job {made.id} is still queued after 0s, due at 2030-01-01T12:00:00\+00:00"
    ):
        wait(database.engine, id=made.id, timeout=0)
    for wrong in ("1y", timedelta(days=2)):
        with pytest.raises(UsageError):
            wait(database.engine, id=made.id, timeout=wrong)


def test_nobody_waits_for_a_job_that_does_not_exist(database: Database) -> None:
    with pytest.raises(NoSuchJob, match=r"^job 17 does not exist, or no longer exists$"):
        wait(database.engine, id=17)
    with pytest.raises(NoSuchJob, match='idempotency key "k"'):
        wait(database.engine, idempotency_key="k")


def test_nobody_waits_in_a_transaction_of_their_own(database: Database) -> None:
    with (
        database.engine.connect() as connection,
        pytest.raises(TypeError, match=r"takes an SQLAlchemy Engine, not Connection"),
    ):
        wait(connection, id=1)  # type: ignore[arg-type]


def test_all_of_it_works_asynchronously(postgres_migrated: str) -> None:
    async def main() -> None:
        engine = create_async_engine(plain_url(postgres_migrated))
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO cronjobs_jobs (job_type) VALUES ('t.say')"))
            assert await connection.run_sync(lambda sync: find(sync, id=1)) is not None
        async with AsyncSession(engine) as session:
            assert await session.run_sync(lambda sync: find(sync, id=2)) is None
        with pytest.raises(TimeoutError):
            await wait_async(engine, id=1, timeout=0)
        with pytest.raises(TypeError, match="wait_async"):
            await wait_async(engine.sync_engine, id=1)  # type: ignore[arg-type]
        for wrong in (engine, session):
            with pytest.raises(TypeError, match=r"write await connection\.run_sync\(lambda sync: find\(sync, …\)\)"):
                find(wrong, id=1)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"write await wait_async\(…\)"):
                wait(wrong, id=1)  # type: ignore[arg-type]
        await engine.dispose()

    asyncio.run(main())


def test_waiting_does_not_hold_up_the_event_loop(database_url: str, database: Database) -> None:
    made = enqueue(database.engine, "t.say").id
    steps = 0

    async def others() -> None:
        nonlocal steps
        while True:
            await asyncio.sleep(0.01)
            steps += 1

    async def main() -> None:
        engine = create_async_engine(async_url(database_url))
        beside = asyncio.create_task(others())
        waiting = asyncio.create_task(wait_async(engine, id=made, timeout="20s"))
        await asyncio.sleep(1.5)
        assert not waiting.done()
        with database.write() as connection:
            now = database.clock.now()
            connection.execute(update(jobs).values(status="succeeded", started_at=now, finished_at=now))
        assert (await waiting).status is Status.SUCCEEDED
        beside.cancel()
        await engine.dispose()

    asyncio.run(main())
    assert steps > 30, "150 in 1.5 s if nothing else ran on this machine; one for each of a few looks if it blocked"


def async_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg_async://").replace("sqlite://", "sqlite+aiosqlite://")
