"""A COMMIT or ROLLBACK inside ctx.transaction() is refused or at least detected, and the work is never repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.orm import Session
from support.ledger import Jobs
from support.targets import users_table

from cronjobs.clock import SYSTEM
from cronjobs.engine.database.connection import Database
from cronjobs.engine.execution.attempt import Attempt
from cronjobs.engine.execution.raised import outcome_of
from cronjobs.engine.jobs.job_types import JobType
from cronjobs.errors import CronjobsError, TransactionBroken, UsageError
from cronjobs.model import Failed, Job, RetryPolicy
from cronjobs.testing import FakeClock

WORK = text("INSERT INTO work VALUES (1)")


@pytest.fixture
def jobs(database: Database, database_url: str, clock: FakeClock) -> Jobs:
    users_table(database_url, "n integer")
    return Jobs(database, clock)


def found(jobs: Jobs, job: Job) -> tuple[int, str]:
    """How many rows of work are committed, and the job's status."""
    with jobs.database.read() as connection:
        work = connection.execute(text("SELECT count(*) FROM work")).scalar_one()
        status = connection.execute(text(f"SELECT status FROM cronjobs_jobs WHERE id = {job.id}")).scalar_one()
    return int(work), str(status)


def raw(connection: Connection) -> Any:
    return connection.connection.dbapi_connection


def in_block(jobs: Jobs, job: Job, breaks: Callable[[Connection], Any], *, catching: bool = False) -> None:
    with jobs.context(job).transaction() as connection:
        connection.execute(WORK)
        try:
            breaks(connection)
        except Exception:
            if not catching:
                raise
        connection.execute(WORK)


def session_rolls_back(connection: Connection) -> None:
    session = Session(connection)
    session.execute(WORK)
    session.rollback()


REFUSED: dict[str, Callable[[Connection], Any]] = {
    "commit()": lambda connection: connection.commit(),
    "rollback()": lambda connection: connection.rollback(),
    "the transaction's commit()": lambda connection: connection.get_transaction().commit(),  # type: ignore[union-attr]
    "COMMIT": lambda connection: connection.execute(text("COMMIT")),
    "commit;": lambda connection: connection.exec_driver_sql("  commit ;"),
    "commented": lambda connection: connection.exec_driver_sql("/* done */ -- so\n COMMIT"),
    "END": lambda connection: connection.exec_driver_sql("end transaction"),
    "ROLLBACK": lambda connection: connection.exec_driver_sql("ROLLBACK"),
    "a session's rollback": session_rolls_back,
}


@pytest.mark.parametrize("how", REFUSED)
@pytest.mark.parametrize("catching", [False, True])
def test_an_end_that_can_be_intercepted_is_refused_and_nothing_is_half_done(
    jobs: Jobs, how: str, catching: bool
) -> None:
    job = jobs.claimed()
    if not catching:
        with pytest.raises(UsageError, match=r"inside ctx\.transaction\(\)"):
            in_block(jobs, job, REFUSED[how])
        assert found(jobs, job) == (0, "running")
    else:  # a refusal that is caught: the block goes on and is whole, or fails as a whole
        with suppress(UsageError):
            in_block(jobs, job, REFUSED[how], catching=True)
        assert found(jobs, job) in ((2, "succeeded"), (0, "running"))
    in_block(jobs, jobs.claimed(), lambda _: None)  # the connection is as good as before


SLIPS_ON_POSTGRESQL: dict[str, Callable[[Connection], Any]] = {
    "psycopg's commit()": lambda connection: raw(connection).commit(),
    "psycopg's rollback()": lambda connection: raw(connection).rollback(),
    "by its cursor": lambda connection: raw(connection).execute("COMMIT"),
    "behind another statement": lambda connection: connection.exec_driver_sql("SELECT 1; COMMIT"),
    "and begun anew": lambda connection: raw(connection).execute("COMMIT; BEGIN"),
    "and chained": lambda connection: raw(connection).execute("COMMIT AND CHAIN"),
}
DENIED_ON_SQLITE: dict[str, Callable[[Connection], Any]] = {
    "sqlite3's commit()": lambda connection: raw(connection).commit(),
    "sqlite3's rollback()": lambda connection: raw(connection).rollback(),
    "by its cursor": lambda connection: raw(connection).cursor().execute("COMMIT"),
    "by the connection": lambda connection: raw(connection).execute("/* done */ COMMIT"),
    "as a block": lambda connection: raw(connection).__exit__(None, None, None),
    "as a block that fails": lambda connection: raw(connection).__exit__(ValueError, ValueError(), None),
    "by a script": lambda connection: raw(connection).executescript("INSERT INTO work VALUES (9); COMMIT; BEGIN"),
}


def test_an_end_that_cannot_be_intercepted_is_found_and_the_job_is_not_run_again(jobs: Jobs) -> None:
    """On PostgreSQL. On SQLite the driver itself is asked, and denies it."""
    if jobs.database.is_sqlite:
        for how, breaks in DENIED_ON_SQLITE.items():
            job = jobs.claimed()
            with pytest.raises(UsageError, match=r"inside ctx\.transaction\(\)"):
                in_block(jobs, job, breaks)
            assert found(jobs, job) == (0, "running"), how
        return
    for how, breaks in SLIPS_ON_POSTGRESQL.items():
        for then_raises in (False, True):
            job = jobs.claimed()

            def work(connection: Connection, breaks: Any = breaks, then_raises: bool = then_raises) -> None:
                breaks(connection)
                if then_raises:
                    raise ValueError("something else")

            with pytest.raises(TransactionBroken) as raised:
                in_block(jobs, job, work)
            assert found(jobs, job)[1] == "running", how
            outcome = outcome_of(raised.value, attempt(), SYSTEM)
            assert isinstance(outcome, Failed)
            assert (outcome.error_type, outcome.permanent) == ("TransactionBroken", True)


def attempt() -> Attempt:
    return Attempt(Job(1, "t", {}), JobType("t", timedelta(1), RetryPolicy()), timedelta(1))


@pytest.mark.parametrize("error", [ValueError("no"), CronjobsError("no")])
def test_what_goes_wrong_in_the_block_stays_what_it_is(jobs: Jobs, error: Exception) -> None:
    job = jobs.claimed()

    def work(_: Connection) -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        in_block(jobs, job, work)
    assert raised.value is error
    assert found(jobs, job) == (0, "running")


def test_a_statement_that_fails_is_its_own_error(jobs: Jobs) -> None:
    job = jobs.claimed()
    with pytest.raises(Exception, match="no_such_table"):
        in_block(jobs, job, lambda connection: connection.execute(text("SELECT * FROM no_such_table")))
    assert found(jobs, job) == (0, "running")


def test_savepoints_sessions_and_threads_inside_the_block_are_no_ends(jobs: Jobs) -> None:
    job = jobs.claimed()

    def work(connection: Connection) -> None:
        with connection.begin_nested():
            connection.execute(WORK)
        nested = connection.begin_nested()
        connection.execute(WORK)
        nested.rollback()
        connection.exec_driver_sql("SAVEPOINT here")
        connection.exec_driver_sql("ROLLBACK TO here")
        with Session(connection) as session:
            session.execute(WORK)
            session.commit()  # of the session's part; the connection's transaction is ours
        connection.exec_driver_sql("SELECT 'COMMIT'")
        thread = threading.Thread(target=lambda: connection.execute(WORK))
        thread.start()
        thread.join()

    in_block(jobs, job, work)
    assert found(jobs, job) == (5, "succeeded")
