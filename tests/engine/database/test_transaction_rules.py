"""What a transaction that ends its job refuses, and what its lease and its time limit do to it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connections, transaction  # type: ignore[import-untyped]
from sqlalchemy import Connection, create_engine, text
from support.djangos import configured
from support.ledger import Jobs
from support.targets import each_target, opened, plain_url, users_table

from cronjobs.engine.database import address
from cronjobs.engine.database import connection as database_module
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.context import Context, StopSignal
from cronjobs.engine.rules.lease import Lease
from cronjobs.engine.store.leases import renew
from cronjobs.errors import Cancelled, LeaseLost, TransactionTooLong, UsageError
from cronjobs.model import Job
from cronjobs.testing import FakeClock

WORK = text("INSERT INTO work VALUES (1)")


@pytest.fixture
def jobs(database: Database, database_url: str, clock: FakeClock) -> Jobs:
    users_table(database_url, "n integer")
    return Jobs(database, clock)


@pytest.fixture
def alias(database_url: str) -> Iterator[str]:
    yield from configured(database_url, by_runner=True)


def worked(jobs: Jobs) -> int:
    with jobs.database.read() as connection:
        return int(connection.execute(text("SELECT count(*) FROM work")).scalar_one())


def status(jobs: Jobs, job: Job) -> str:
    with jobs.database.read() as connection:
        return str(connection.execute(text(f"SELECT status FROM cronjobs_jobs WHERE id = {job.id}")).scalar_one())


def do_work(ctx: Context) -> None:
    with ctx.transaction() as connection:
        connection.execute(WORK)


# --- the fence --------------------------------------------------------------------------------------------------------


def test_an_attempt_that_lost_its_lease_rolls_its_work_back(jobs: Jobs) -> None:
    job = jobs.claimed()
    jobs.taken_over(job)
    with pytest.raises(LeaseLost, match="no longer holds its lease"):
        do_work(jobs.context(job))
    assert (worked(jobs), status(jobs, job)) == (0, "running")


def test_an_attempt_whose_row_was_taken_while_it_worked_rolls_its_work_back(postgres_migrated: str) -> None:
    """On SQLite nobody can: whoever works holds the only write lock."""
    clock = FakeClock()
    database = Database(address.parse_url(postgres_migrated), clock=clock)
    jobs = Jobs(database, clock)
    users_table(postgres_migrated, "n integer")
    job = jobs.claimed()

    def act() -> None:
        with jobs.context(job).transaction() as connection:
            connection.execute(WORK)
            jobs.taken_over(job)

    with pytest.raises(LeaseLost):
        act()
    assert worked(jobs) == 0
    database.close()


def test_a_renewal_meanwhile_is_met_whatever_the_roles_default_isolation(postgres_migrated: str) -> None:
    """In REPEATABLE READ the row that was renewed since would end the transaction."""
    level = "options=-c%20default_transaction_isolation%3Drepeatable%5C%20read"
    url = postgres_migrated + ("&" if "?" in postgres_migrated else "?") + level
    database = Database(address.parse_url(url))
    jobs = Jobs(database, FakeClock())
    users_table(postgres_migrated, "n integer")
    job = jobs.claimed()
    with jobs.context(job).transaction() as connection:
        connection.execute(WORK)
        with database.write() as loops:
            held = Lease(job.id, job.attempt, str(job.locked_by))
            assert renew(loops, [held], timedelta(minutes=1)).renewed == {job.id}
    assert (worked(jobs), status(jobs, job)) == (1, "succeeded")
    database.close()


@pytest.mark.parametrize("reason", ["cancelled", "shutdown"])
def test_a_job_that_is_to_stop_begins_no_transaction(jobs: Jobs, reason: str) -> None:
    job, stop = jobs.claimed(), StopSignal()
    stop.set(reason)
    with pytest.raises(Cancelled):
        do_work(jobs.context(job, stop=stop))
    assert worked(jobs) == 0


# --- what does not go together ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["effect", "step", "transaction"])
def test_nothing_with_a_transaction_of_its_own_begins_inside_of_it(jobs: Jobs, what: str) -> None:
    """On both databases alike; on SQLite it would wait for the lock that this very attempt holds."""
    job = jobs.claimed()
    ctx = jobs.context(job)

    def act() -> None:
        with ctx.transaction() as connection:
            connection.execute(WORK)
            begin(ctx, what)

    with pytest.raises(UsageError, match=rf"ctx\.{what}\(\) was called inside ctx\.transaction\(\)"):
        act()
    assert (worked(jobs), status(jobs, job)) == (0, "running")


@pytest.mark.parametrize("what", ["effect", "step", "transaction"])
def test_nothing_begins_after_the_success_is_written(jobs: Jobs, what: str) -> None:
    job = jobs.claimed()
    ctx = jobs.context(job)
    do_work(ctx)
    with pytest.raises(UsageError, match="after the job's success had been written"):
        begin(ctx, what)
    assert (worked(jobs), status(jobs, job)) == (1, "succeeded")


def begin(ctx: Context, what: str) -> None:
    with getattr(ctx, what)(*[] if what == "transaction" else ["k"]):
        pass


def test_without_a_database_it_says_what_is_missing() -> None:
    ctx = Context(Job(1, "t", {}), timeout=timedelta(seconds=1))
    with pytest.raises(UsageError, match=r"ctx\.transaction\(\) writes in the jobs database, but this context has"):
        ctx.transaction()


def test_our_schema_is_not_put_before_the_names_of_users_tables(postgres_migrated: str) -> None:
    from sqlalchemy import Column, Integer, MetaData, Table, insert

    database = Database(address.parse_url(postgres_migrated, "elsewhere"))
    users_table(postgres_migrated, "n integer")
    with database.handler_transaction(5) as (connection, end):
        connection.execute(insert(Table("work", MetaData(), Column("n", Integer))).values(n=1))
        assert connection.execute(text("SELECT current_setting('TimeZone')")).scalar_one() != ""
        end()
    database.close()


# --- connections of the user's own ------------------------------------------------------------------------------------


@each_target
def test_finish_is_part_of_whatever_transaction_it_is_given(database_url: str, jobs: Jobs, kind: str) -> None:
    with opened(kind, database_url, by_runner=True) as user:
        job = jobs.claimed()
        execute(user.target, "INSERT INTO work VALUES (1)")
        jobs.context(job).finish(user.target)
        user.rollback()
        assert (worked(jobs), status(jobs, job)) == (0, "running")

        execute(user.target, "INSERT INTO work VALUES (1)")
        jobs.context(job).finish(user.target)
        user.commit()
        assert (worked(jobs), status(jobs, job)) == (1, "succeeded")

        stale = jobs.claimed()
        jobs.taken_over(stale)
        execute(user.target, "INSERT INTO work VALUES (1)")
        with pytest.raises(LeaseLost):
            jobs.context(stale).finish(user.target)
        user.rollback()
    assert worked(jobs) == 1


def execute(target: Any, statement: str) -> None:
    if isinstance(target, sqlite3.Connection | psycopg.Connection):
        target.execute(statement)
    else:
        target.execute(text(statement))


@pytest.mark.parametrize("fails", [False, True])
def test_finish_is_part_of_djangos_atomic(jobs: Jobs, alias: str, fails: bool) -> None:
    job = jobs.claimed()
    ctx = jobs.context(job)

    def act() -> None:
        with transaction.atomic(alias), connections[alias].cursor() as cursor:
            cursor.execute("INSERT INTO work VALUES (1)")
            ctx.result = {"by": "django"}
            ctx.finish(connections[alias])
            if fails:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        act()
    assert (worked(jobs), status(jobs, job)) == ((0, "running") if fails else (1, "succeeded"))


def test_finish_outside_of_a_transaction_is_refused(jobs: Jobs, database_url: str, alias: str) -> None:
    ctx = jobs.context(jobs.claimed())
    sqlite = database_url.startswith("sqlite")
    own: Any = (
        sqlite3.connect(database_url.removeprefix("sqlite:///"), isolation_level=None)
        if sqlite
        else psycopg.connect(database_url, autocommit=True)
    )
    engine = create_engine(plain_url(database_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for target in (own, connections[alias], connection):
            with pytest.raises(UsageError, match="must be called in a transaction"):
                ctx.finish(target)
    engine.dispose()
    own.close()


# --- SQLite's only write lock -----------------------------------------------------------------------------------------


@pytest.fixture
def short(sqlite_url: str, sqlite_migrated: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    monkeypatch.setattr(database_module, "HANDLER_LIMIT_S", 0.1)
    clock = FakeClock()
    database = Database(address.parse_url(sqlite_url), clock=clock)
    users_table(sqlite_url, "n integer")
    yield Jobs(database, clock)
    database.close()


def test_at_its_limit_the_next_writer_goes_on_while_the_handler_still_sleeps(short: Jobs) -> None:
    other_wrote = threading.Event()

    def other() -> None:
        with short.database.write(patience=10) as connection:
            connection.execute(text("INSERT INTO work VALUES (2)"))
        other_wrote.set()

    thread = threading.Thread(target=other)

    def act(connection: Connection) -> None:
        connection.execute(WORK)
        thread.start()
        assert other_wrote.wait(60)  # while the block is still open

    job = short.claimed()
    in_transaction(short, job, act, match=r"rolled back after 0\.1s, because it holds SQLite's only write lock")
    thread.join()
    assert (worked(short), status(short, job)) == (1, "running")


def test_what_comes_after_the_limit_is_refused_and_not_written(short: Jobs) -> None:
    def act(connection: Connection) -> None:
        raw: Any = connection.connection.dbapi_connection
        wait_until_rolled_back(raw)
        with pytest.raises(TransactionTooLong):
            connection.execute(WORK)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):  # behind SQLAlchemy's back, too
            raw.execute("INSERT INTO work VALUES (3)")

    job = short.claimed()
    in_transaction(short, job, act)
    assert worked(short) == 0
    do_work(short.context(job))  # the pool hands out no connection that was cut off
    assert (worked(short), status(short, job)) == (1, "succeeded")


def test_a_statement_that_runs_at_the_limit_is_interrupted(short: Jobs) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    in_transaction(short, short.claimed(), lambda connection: connection.execute(text(endless)))


def in_transaction(jobs: Jobs, job: Job, act: Callable[[Connection], object], match: str | None = None) -> None:
    """*act* in a transaction that is over its limit by then."""
    with pytest.raises(TransactionTooLong, match=match), jobs.context(job).transaction() as connection:
        act(connection)


def wait_until_rolled_back(connection: sqlite3.Connection) -> None:
    over = threading.Event()
    while connection.in_transaction:
        over.wait(0.005)
