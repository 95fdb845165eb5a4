"""``testing.drain`` and ``create_tables``: jobs inside a test's own transaction, on any kind of connection."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, NullPool, StaticPool, create_engine, event, insert, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from support import billing
from support.postgres import PostgresServer
from support.targets import plain_url

from cronjobs import Context, RetryLater, RetryPolicy, Snooze, enqueue, enqueue_async, enqueue_many, job
from cronjobs.clock import SYSTEM
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.jobs import registry
from cronjobs.errors import ConfigError, UsageError
from cronjobs.testing import Drained, JobFailed, create_tables, drain
from cronjobs.testing.clocks import StillClock


class Base(DeclarativeBase):
    pass


class Booking(Base):
    __tablename__ = "bookings"
    invoice_id: Mapped[int] = mapped_column(primary_key=True)


KINDS = ["memory", "sqlite", "postgresql"]
Handlers = dict[str, Callable[..., Any]]


@pytest.fixture(scope="session")
def _postgres_with_tables(_server: PostgresServer) -> str:
    """One database for all tests here, which leave nothing in it. A database for each test would take a second."""
    _server.execute("CREATE DATABASE drains")
    url = plain_url(_server.url("drains"))
    with create_engine(url, poolclass=NullPool).begin() as connection:
        create_tables(connection)
    return url


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    match request.param:
        case "memory":
            engine = create_engine("sqlite://", poolclass=StaticPool)
        case "sqlite":
            engine = create_engine(request.getfixturevalue("sqlite_url"), poolclass=NullPool)
        case _:
            engine = create_engine(request.getfixturevalue("_postgres_with_tables"), poolclass=NullPool)
    yield engine
    engine.dispose()


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    """A connection in a transaction of the test's, with the app's table and ours; rolled back in the end."""
    with engine.connect() as connection:
        create_tables(connection)
        connection.execute(text("CREATE TABLE bookings (invoice_id int UNIQUE)"))
        yield connection
        connection.rollback()
    tables = "SELECT 1 FROM cronjobs_jobs" if engine.dialect.name == "postgresql" else "SELECT 1 FROM sqlite_master"
    with engine.connect() as after:
        assert after.execute(text(tables)).all() == [], "it was committed"


@pytest.fixture(autouse=True)
def _handlers_of_one_test() -> Iterator[None]:
    billing.sent.clear()
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


def bookings(connection: Connection) -> list[int]:
    return list(connection.execute(text("SELECT invoice_id FROM bookings ORDER BY 1")).scalars())


def statuses(connection: Connection) -> list[str]:
    return list(connection.execute(text("SELECT status FROM cronjobs_jobs ORDER BY id")).scalars())


def history(connection: Connection) -> list[str]:
    found = connection.execute(text("SELECT outcome FROM cronjobs_job_runs ORDER BY job_id, attempt"))
    return list(found.scalars())


def book(connection: Connection, invoice_id: int) -> None:
    connection.execute(text("INSERT INTO bookings VALUES (:n)"), {"n": invoice_id})


# --- what a test sees -------------------------------------------------------------------------------------------------


def test_uncommitted_jobs_run_and_nothing_is_committed(connection: Connection) -> None:
    enqueue(connection, "billing.book", {"invoice_id": 7})
    drained = drain(connection)
    assert [(ran.job_type, ran.became) for ran in drained.ran] == [
        ("billing.book", "succeeded"),
        ("billing.charge", "succeeded"),  # the first job enqueued this one
    ]
    assert (bookings(connection), billing.sent) == ([7], [7])
    assert statuses(connection) == history(connection) == ["succeeded"] * 2
    results = connection.execute(text("SELECT result FROM cronjobs_jobs ORDER BY id")).scalars().all()
    assert "booked" in str(results[0])
    assert drain(connection).ran == ()


def test_a_job_that_fails_leaves_nothing_but_its_end_and_its_effects(connection: Connection) -> None:
    @job("t.half")
    def half(ctx: Context) -> None:
        book(connection, 1)
        with ctx.effect("mail"):
            pass
        book(connection, 2)
        raise ValueError("half-way")

    enqueue(connection, "t.half")
    enqueue(connection, "billing.charge", {"invoice_id": 5})
    drained = drain(connection)
    assert [(ran.became, ran.error) for ran in drained.ran] == [("failed", "half-way"), ("succeeded", None)]
    assert (bookings(connection), statuses(connection)) == ([], ["failed", "succeeded"])
    effects = connection.execute(text("SELECT key, state FROM cronjobs_effects ORDER BY key")).all()
    assert [tuple(row) for row in effects] == [("charge:5", "recorded"), ("mail", "recorded")]


def test_the_retry_policy_decides_and_at_looks_ahead(connection: Connection) -> None:
    enqueue(connection, "billing.charge", {"invoice_id": -1})
    now = SYSTEM.now()
    [failed] = drain(connection).failed
    assert (failed.delay, failed.error) == (timedelta(minutes=5), "card of invoice -1")
    assert drain(connection, at=now + timedelta(minutes=4)).ran == ()
    [dead] = drain(connection, at=now + timedelta(minutes=6)).dead
    assert (dead.attempt, statuses(connection)) == (2, ["dead"])


def test_an_attempt_that_ended_its_job_keeps_that_whatever_it_raises_then(connection: Connection) -> None:
    @job("t.transaction")
    def transaction(ctx: Context) -> None:
        with ctx.transaction() as own:
            book(own, 1)
        raise ValueError("too late")

    @job("t.finish")
    def finish(ctx: Context) -> None:
        with Session(connection, join_transaction_mode="create_savepoint") as session, session.begin():
            book(session.connection(), 2)
            ctx.finish(session)
        raise ValueError("too late")

    @job("t.broken")
    def broken(ctx: Context) -> None:
        with ctx.transaction() as own:
            book(own, 3)
            raise ValueError("in time")

    for job_type in ("t.transaction", "t.finish", "t.broken"):
        enqueue(connection, job_type)
    assert [ran.became for ran in drain(connection).ran] == ["succeeded", "succeeded", "failed"]
    assert (bookings(connection), statuses(connection)) == ([1, 2], ["succeeded", "succeeded", "failed"])


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("how", ["flushed", "committed", "begun"])
def test_a_session_on_the_transaction_keeps_what_a_tick_would_keep(
    connection: Connection, how: str, raises: bool
) -> None:
    @job("t.orm", retry=RetryPolicy(max_attempts=1))
    def orm(ctx: Context) -> None:
        with ctx.transaction() as own, Session(own) as session, session.begin() if how == "begun" else nullcontext():
            session.add(Booking(invoice_id=1))
            session.flush()
            if how == "committed":
                session.commit()
            if raises:
                raise ValueError("the block fails")

    enqueue(connection, "t.orm")
    [ran] = drain(connection).ran
    assert (ran.became, bookings(connection)) == (("dead", []) if raises else ("succeeded", [1]))


def test_jobs_run_in_order_and_as_narrowed_down(connection: Connection) -> None:
    seen: list[int] = []

    @job("t.note")
    def note(n: int) -> None:
        seen.append(n)

    later = SYSTEM.now() + timedelta(hours=1)
    enqueue(connection, "t.note", {"n": 3})
    enqueue(connection, "t.note", {"n": 1}, priority=0)
    enqueue(connection, "t.note", {"n": 4}, queue="slow")
    enqueue(connection, "t.note", {"n": 2}, priority=1)
    enqueue(connection, "t.note", {"n": 5}, run_at=later)
    assert len(drain(connection, limit=1).ran) == 1
    assert len(drain(connection, queue="slow").ran) == 1
    assert drain(connection, only="t.other").ran == ()
    drain(connection)
    drain(connection, at=later)
    assert seen == [1, 4, 2, 3, 5]


def test_handlers_that_are_async_or_apart_run_here_too(connection: Connection) -> None:
    @job("t.apart", isolation="process", max_memory="64MiB")
    def apart(ctx: Context) -> None:
        book(connection, 1)

    @job("t.async", timeout="2h")  # longer than a tick
    async def later(ctx: Context) -> str:
        book(connection, 2)
        return "done"

    enqueue(connection, "t.apart")
    enqueue(connection, "t.async")
    assert len(drain(connection).succeeded) == 2
    assert bookings(connection) == [1, 2]


def test_what_waits_is_no_error_of_the_drain(connection: Connection) -> None:
    @job("t.snooze")
    def snooze() -> None:
        raise Snooze("10m")

    enqueue(connection, "t.snooze")
    enqueue(connection, "t.nobodys")
    drained = drain(connection)
    assert ([ran.became for ran in drained.ran], drained.unresolved) == (["snoozed"], {"t.nobodys": 1})
    with pytest.raises(UsageError, match=r"jobs of type t\.nobodys are due \(1\)"):
        drain(connection, raise_errors=True)


def test_errors_are_raised_as_the_handler_raised_them(connection: Connection) -> None:
    enqueue(connection, "billing.charge", {"invoice_id": -1})
    enqueue(connection, "billing.charge", {"invoice_id": 2})
    with pytest.raises(billing.Declined, match="card of invoice -1"):
        drain(connection, raise_errors=True)
    assert statuses(connection) == ["failed", "succeeded"]
    made = enqueue(connection, "billing.charge", {"invoice_id": 3})
    wrong = {"id": made.id, "payload": '{"invoice": 3}'}
    json = "text" if connection.dialect.name == "sqlite" else "jsonb"
    connection.execute(text(f"UPDATE cronjobs_jobs SET payload = CAST(:payload AS {json}) WHERE id = :id"), wrong)
    with pytest.raises(JobFailed, match="missing a required argument: 'invoice_id'"):
        drain(connection, raise_errors=True)


def test_a_job_that_enqueues_itself_ends_in_an_error(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    @job("t.again")
    def again() -> None:
        enqueue(connection, "t.again")

    monkeypatch.setattr("cronjobs.testing.draining.MOST_JOBS", 5)
    enqueue(connection, "t.again")
    assert len(drain(connection, limit=3).ran) == 3
    with pytest.raises(UsageError, match=r"ran 5 jobs, the last of type t\.again"):
        drain(connection)


def test_a_handler_that_rolls_back_the_tests_transaction_is_told_how_not_to(connection: Connection) -> None:
    @job("t.rollback")
    def rollback() -> None:
        connection.rollback()

    enqueue(connection, "t.rollback")
    with pytest.raises(UsageError, match=r"t\.rollback ended the transaction .*create_savepoint"):
        drain(connection)
    connection.rollback()


def test_what_is_the_tests_own_gets_through(connection: Connection) -> None:
    @job("t.fail")
    def fail() -> None:
        pytest.fail("the handler's own assertion")

    enqueue(connection, "t.fail")
    with pytest.raises(pytest.fail.Exception, match="own assertion"):
        drain(connection)


def test_a_statement_that_fails_does_not_spoil_the_transaction(connection: Connection) -> None:
    @job("t.twice", retry=RetryPolicy(give_up_on=[IntegrityError]))
    def twice() -> None:
        book(connection, 1)
        book(connection, 1)

    enqueue(connection, "t.twice")
    enqueue(connection, "billing.charge", {"invoice_id": 2})
    assert [ran.became for ran in drain(connection).ran] == ["dead", "succeeded"]
    assert bookings(connection) == []


def test_retry_later_and_the_file_count_as_in_a_tick(connection: Connection, tmp_path: Path) -> None:
    @job("t.busy")
    def busy() -> None:
        raise RetryLater("503", after="90s")

    file = tmp_path / "cronjobs.yaml"
    file.write_text("database: sqlite:///${NOT_SET}\njob_types: {t.busy: {retry: {max_attempts: 1}}}\n")
    enqueue(connection, "t.busy")
    assert [ran.delay for ran in drain(connection, limit=1).failed] == [timedelta(seconds=90)]
    ahead = SYSTEM.now() + timedelta(minutes=2)
    assert [ran.became for ran in drain(connection, at=ahead, config=file).ran] == ["dead"]
    file.write_text("schedules: {bad: {cron: '61 * * * *', job: t.busy}}\n")
    with pytest.raises(ConfigError, match="minute 61"):
        drain(connection, config=file)
    with pytest.raises(UsageError, match="module nowhere"):
        drain(connection, imports=["nowhere"])


class OneSlowStatement(StillClock):
    """The statement that reads the time as the *nth* takes a second to reach the database."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self._left = nth

    def now(self) -> datetime:
        self._left -= 1
        if self._left == 0:
            self._now += timedelta(seconds=1)
            self._advanced_s += 1.0
        return self._now


@pytest.mark.parametrize("nth", range(1, 13))
def test_a_retry_is_due_after_its_delay_whichever_statement_was_slow(connection: Connection, nth: int) -> None:
    @job("t.busy")
    def busy() -> None:
        raise RetryLater("503", after="90s")

    enqueue(connection, "t.busy")
    clock = OneSlowStatement(nth)
    [ran] = drain(connection, clock=clock).failed
    assert clock.stands_at is not None
    assert ran.delay is not None
    assert [again.attempt for again in drain(connection, at=clock.stands_at + ran.delay).ran] == [2]


# --- which connections ------------------------------------------------------------------------------------------------


def test_a_session_and_the_app_s_own_sessions_work_in_one_transaction(engine: Engine) -> None:
    """Tests of apps often work like this: the app's sessions commit, and the test rolls everything back."""
    with engine.connect() as connection, connection.begin() as outer:

        @job("t.commits")
        def commits(n: int) -> None:
            with Session(connection, join_transaction_mode="create_savepoint") as own:
                book(own.connection(), n)
                own.commit()
                if n == 2:
                    raise ValueError("after its commit")

        session = Session(connection, join_transaction_mode="create_savepoint")
        create_tables(session)
        session.execute(text("CREATE TABLE bookings (invoice_id int UNIQUE)"))
        enqueue_many(session, "t.commits", [{"n": 1}, {"n": 2}])
        session.commit()
        assert [ran.became for ran in drain(session).ran] == ["succeeded", "failed"]
        # The failed job had committed to a savepoint inside the job's own savepoint, which was rolled back.
        assert bookings(session.connection()) == [1]
        session.close()
        outer.rollback()


def test_a_session_flushes_what_the_handler_left_in_it(engine: Engine) -> None:
    with Session(engine) as session:

        @job("t.adds")
        def adds(n: int, flush: bool = False) -> None:
            session.add(Booking(invoice_id=n))
            if flush:
                session.flush()

        create_tables(session)
        Base.metadata.create_all(session.connection())
        enqueue(session, "t.adds", {"n": 1})
        enqueue(session, "t.adds", {"n": 1})
        enqueue(session, "t.adds", {"n": 1, "flush": True})
        assert [ran.became for ran in drain(session, limit=1).ran] == ["succeeded"]
        session.expunge_all()
        with pytest.raises(IntegrityError):
            drain(session, raise_errors=True)
        assert (bookings(session.connection()), statuses(session.connection())) == (
            [1],
            ["succeeded", "failed", "failed"],
        )
        session.rollback()


def test_a_session_that_commits_for_real_is_told_how_not_to(engine: Engine) -> None:
    with Session(engine) as session:

        @job("t.commit")
        def commit() -> None:
            session.commit()

        create_tables(session)
        enqueue(session, "t.commit")
        with pytest.raises(UsageError, match=r"t\.commit ended the transaction"):
            drain(session)
        session.rollback()
        session.execute(text("DELETE FROM cronjobs_jobs"))
        session.commit()


@pytest.mark.parametrize("isolation_level", ["", None, "IMMEDIATE"])
def test_a_sqlite3_connection(isolation_level: Any) -> None:
    raw = sqlite3.connect(":memory:", isolation_level=isolation_level)
    raw.row_factory = sqlite3.Row
    raw.create_function("regexp", 2, lambda *_: "its owner's")
    if isolation_level is None:
        with pytest.raises(UsageError, match="commits each statement by itself"):
            create_tables(raw)
        raw.execute("BEGIN")
    create_tables(raw)
    enqueue(raw, "billing.charge", {"invoice_id": 3})
    assert len(drain(raw, raise_errors=True).succeeded) == 1
    assert billing.sent == [3]
    assert raw.execute("SELECT 1 REGEXP 2").fetchone()[0] == "its owner's"
    assert raw.in_transaction
    raw.rollback()
    assert raw.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    raw.close()


def test_a_psycopg_connection(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, row_factory=psycopg.rows.dict_row) as raw:
        create_tables(raw, schema="jobs 1")
        assert raw.execute("SHOW search_path").fetchone() == {"search_path": '"$user", public'}
        enqueue(raw, "billing.charge", {"invoice_id": 3}, schema="jobs 1")
        assert len(drain(raw, schema="jobs 1", raise_errors=True).succeeded) == 1
        assert raw.execute('SELECT result FROM "jobs 1".cronjobs_jobs').fetchone() == {
            "result": {"receipt": "receipt 3", "try": 1, "late": False}
        }
        raw.rollback()
        assert raw.execute("SELECT 1 AS one FROM pg_namespace WHERE nspname = 'jobs 1'").fetchone() is None
    with (
        psycopg.connect(postgres_url, autocommit=True) as raw,
        pytest.raises(UsageError, match="commits each statement by itself"),
    ):
        create_tables(raw)


def test_a_connection_in_autocommit_is_refused(engine: Engine) -> None:
    with (
        engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection,
        pytest.raises(UsageError, match="commits each statement by itself"),
    ):
        create_tables(connection)


async def _drained_in(session: AsyncSession) -> Drained:
    await session.run_sync(create_tables)
    await enqueue_async(session, "billing.charge", {"invoice_id": 3})
    return await session.run_sync(drain)


@pytest.mark.parametrize("driver", ["sqlite+aiosqlite", "postgresql+psycopg"])
def test_an_async_session_by_its_run_sync(driver: str, request: pytest.FixtureRequest) -> None:
    url = "sqlite+aiosqlite://" if "sqlite" in driver else request.getfixturevalue("_postgres_with_tables")

    async def test() -> None:
        engine = create_async_engine(url, poolclass=StaticPool)
        async with AsyncSession(engine) as session:
            assert len((await _drained_in(session)).succeeded) == 1
            await session.rollback()
        await engine.dispose()

    asyncio.run(test())


def test_a_django_connection_outside_of_atomic_is_refused() -> None:
    outside = SimpleNamespace(vendor="sqlite", in_atomic_block=False, settings_dict={}, ensure_connection=None)
    with pytest.raises(UsageError, match=r"with transaction\.atomic\(\)"):
        drain(outside)


def test_what_is_no_connection_is_refused(connection: Connection) -> None:
    for what in (object(), connection.engine, None):
        with pytest.raises((TypeError, UsageError)):
            drain(what)  # type: ignore[arg-type]


# --- tables -----------------------------------------------------------------------------------------------------------


def test_missing_tables_are_told_with_the_way_to_make_them(empty_url: str) -> None:
    engine = create_engine(plain_url(empty_url), poolclass=NullPool)
    with engine.connect() as connection, pytest.raises(UsageError, match=r"create_tables\(connection\)"):
        drain(connection)


def test_the_tables_are_those_of_the_migrations(empty_url: str) -> None:
    """Made, committed and checked as ``cronjobs db check`` does."""
    from support.databases import opened

    from cronjobs.engine.schema import migrations

    engine = create_engine(plain_url(empty_url), poolclass=NullPool)
    with engine.begin() as connection:
        create_tables(connection)
        create_tables(connection)  # nothing more happens
    with opened(empty_url) as database:
        assert migrations.check(database) == []
        assert migrations.upgrade(database) == (migrations.head(), migrations.head())


def test_the_transaction_is_left_as_it_was(postgres_url: str) -> None:
    with create_engine(plain_url(postgres_url), poolclass=NullPool).connect() as connection:
        settings = "SELECT current_setting('search_path'), current_setting('lock_timeout')"
        before = connection.execute(text(settings)).one()
        create_tables(connection)
        drain(connection)
        assert connection.execute(text(settings)).one() == before
        locks = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        assert connection.execute(locks).scalar_one() == 0  # or parallel tests would wait for each other


def test_tables_are_made_again_for_each_test_in_few_milliseconds() -> None:
    """By statements kept from the first call: alembic would take ten times as long."""
    with create_engine("sqlite://", poolclass=NullPool).connect() as connection:
        create_tables(connection)
        connection.rollback()
        sent = []
        event.listen(connection, "before_cursor_execute", lambda *args: sent.append(args[2]))
        create_tables(connection)
        assert not [statement for statement in sent if "alembic_version" in statement and "SELECT" in statement]
        assert len(sent) < 150


def test_a_clock_of_the_tests_is_the_jobs_clock(connection: Connection) -> None:
    then = datetime(2099, 1, 31, 12, 0, tzinfo=UTC)
    enqueue(connection, "billing.charge", {"invoice_id": 4}, run_at=then)
    assert drain(connection, at=then - timedelta(minutes=1)).ran == ()
    assert len(drain(connection, at=then + timedelta(minutes=10)).succeeded) == 1
    assert "true" in str(connection.execute(text("SELECT result FROM cronjobs_jobs")).scalar_one()).lower()  # late


# --- jobs from outside ------------------------------------------------------------------------------------------------


def _commit_real_job(url: str, *, before_the_tests: bool, due: bool = True) -> int:
    """A job of the app's own, as in a developer's database."""
    created = SYSTEM.now() - timedelta(days=1 if before_the_tests else 0)
    with closing(Database(parse_url(url))) as database, database.write() as connection:
        rows = insert(jobs).values(
            job_type="t.mail", created_at=created, run_at=created if due else SYSTEM.now() + timedelta(days=1)
        )
        return int(connection.execute(rows.returning(jobs.c.id)).scalar_one())


@pytest.fixture
def mailed() -> list[Context]:
    seen: list[Context] = []

    @job("t.mail")
    def mail(ctx: Context) -> None:
        seen.append(ctx)

    return seen


@pytest.mark.parametrize("way", ["connection", "session", "driver"])
def test_jobs_that_were_committed_before_the_tests_began_are_refused(
    database_url: str, mailed: list[Context], way: str
) -> None:
    first, _ = (_commit_real_job(database_url, before_the_tests=True) for _ in range(2))
    _commit_real_job(database_url, before_the_tests=True, due=False)
    engine = create_engine(plain_url(database_url), poolclass=NullPool)
    with engine.connect() as connection, connection.begin() as transaction:
        on: Any = {
            "connection": connection,
            "session": Session(connection),
            "driver": connection.connection.driver_connection,
        }[way]
        enqueue(on, "t.mail", {})
        with pytest.raises(UsageError) as refused:
            drain(on)
        assert mailed == []
        said = str(refused.value)
        for words in ("2 due jobs", f"{first} (t.mail)", str(engine.url.database), "outside=True"):
            assert words in said
        assert len(drain(on, only="t.other").ran) == 0, "only what would run counts"
        assert len(drain(on, outside=True).ran) == 3
        transaction.rollback()


def test_what_is_committed_while_the_tests_run_is_theirs(database_url: str, mailed: list[Context]) -> None:
    _commit_real_job(database_url, before_the_tests=False)
    with create_engine(plain_url(database_url), poolclass=NullPool).connect() as connection:
        assert len(drain(connection).ran) == 1
        connection.rollback()


def test_uncommitted_jobs_are_the_tests_however_old_their_clock_makes_them(
    connection: Connection, mailed: list[Context]
) -> None:
    for savepoint in (False, True):
        with connection.begin_nested() if savepoint else nullcontext():
            row = {"job_type": "t.mail", "created_at": SYSTEM.now() - timedelta(days=9), "run_at": SYSTEM.now()}
            connection.execute(insert(jobs).values(row))
    assert len(drain(connection).ran) == 2
