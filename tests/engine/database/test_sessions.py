"""Our transactions on PostgreSQL, in the loop and elsewhere: settings, errors, lost sessions, and no prepared plans."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event
from support.databases import opened

from cronjobs.engine.database.connection import Database
from cronjobs.engine.probe.server_session import SETTINGS, TIMEOUTS
from cronjobs.engine.store.sql import AMONG_NAMES, run
from cronjobs.errors import BadValue, DatabaseBusy, DatabaseError, DatabaseNotReady, TransientTrouble

OURS = SETTINGS | {name: str(ms) for name, ms in TIMEOUTS.items()}
OURS |= {"client_encoding": "UTF8", "transaction_isolation": "read committed"}
THE_LOOPS = [False, True]


def settings(connection: Connection) -> dict[str, str]:
    rows = run(
        connection,
        f"SELECT lower(name) AS name, setting FROM pg_settings WHERE lower(name) {AMONG_NAMES}",
        names=[*OURS],
    )
    return {row.name: row.setting for row in rows}


@pytest.mark.parametrize("the_loops", THE_LOOPS)
def test_each_transaction_sets_what_it_needs_and_leaves_nothing_behind(postgres_migrated: str, the_loops: bool) -> None:
    with opened(postgres_migrated) as database:
        with database.engine.connect().execution_options(cronjobs_begin="BEGIN") as connection:
            outside = settings(connection)
        with database.write(next_in_line=the_loops) as connection:
            assert settings(connection) == OURS
        with database.engine.connect().execution_options(cronjobs_begin="BEGIN") as connection:
            assert settings(connection) == outside
    assert outside["jit"] == "on"
    assert outside["lock_timeout"] == "0"


@pytest.mark.parametrize(("role", "ours"), [("off", "on"), ("on", "on"), ("local", "local"), ("remote_apply",) * 2])
def test_a_commit_is_durable_whatever_the_role_is_set_to(postgres_migrated: str, role: str, ours: str) -> None:
    with opened(f"{postgres_migrated}?options=-csynchronous_commit%3D{role}") as database:
        for the_loops in THE_LOOPS:
            with database.write(next_in_line=the_loops) as connection:
                assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == ours
        with database.handler_transaction(5) as (connection, _):
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == ours


def test_the_loops_transaction_begins_in_one_round_trip(postgres_migrated: str) -> None:
    sent: list[str] = []
    with opened(postgres_migrated) as database:
        with database.read():
            pass
        event.listen(
            database.engine, "before_cursor_execute", lambda _c, _cursor, statement, *_: sent.append(statement)
        )
        with database.write(next_in_line=True) as connection:
            assert len(sent) == 1
            settings = connection.exec_driver_sql("SELECT current_setting('timezone'), current_setting('lock_timeout')")
            assert settings.one() == ("UTC", "2s")


def test_percent_and_dollar_signs_mean_themselves(postgres_migrated: str) -> None:
    with opened(postgres_migrated) as database, database.read() as connection:
        [row] = run(connection, "SELECT :a AS a, '50% $1' || CAST(:b AS text) AS b", a=1, b="%s $1 :a")
        assert tuple(row) == (1, "50% $1%s $1 :a")


def test_a_session_whose_url_has_another_encoding_takes_every_character(postgres_migrated: str) -> None:
    with (
        opened(f"{postgres_migrated}?client_encoding=latin1") as database,
        database.write(next_in_line=True) as connection,
    ):
        assert run(connection, "SELECT CAST(:a AS text)", a="€").scalar_one() == "€"


def test_whoever_listens_to_cursors_hears_every_statement_of_the_loop(postgres_migrated: str) -> None:
    """The kill points do: what they interrupt is what runs."""
    heard: list[str] = []
    with opened(postgres_migrated) as database:
        event.listen(database.engine, "before_cursor_execute", lambda _c, _cursor, sent, *_: heard.append(sent))
        with database.write(next_in_line=True) as connection:
            run(connection, "SELECT 1")
    assert [sent.split(";")[0] for sent in heard] == ["BEGIN", "SELECT 1"]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("the_loops", THE_LOOPS)
@pytest.mark.parametrize(
    ("statement", "given", "error"),
    [
        ("SELECT CAST('x' AS int)", {}, BadValue),
        ("SELECT CAST(:given AS text)", {"given": "\0"}, DatabaseError),
        ("SELECT 1 / CAST(:given AS int)", {"given": 0}, BadValue),
        ("SELECT id FROM {jobs} FOR UPDATE", {}, DatabaseBusy),
        ("SELECT pg_sleep(1)", {}, TransientTrouble),
    ],
)
def test_an_error_undoes_the_transaction_and_the_next_one_goes_on(
    postgres_migrated: str, statement: str, given: dict[str, Any], error: type[Exception], the_loops: bool
) -> None:
    def fail(database: Database) -> None:
        with database.write(next_in_line=the_loops) as connection:
            run(connection, "SET LOCAL lock_timeout = 10")
            run(connection, "SET LOCAL statement_timeout = 50")
            run(connection, "INSERT INTO {jobs} (job_type) VALUES ('t.undone')")
            run(connection, statement, **given)

    with opened(postgres_migrated) as database, psycopg.connect(postgres_migrated) as other:
        with database.write() as connection:
            run(connection, "INSERT INTO {jobs} (job_type) VALUES ('t.locked')")
        other.execute("SELECT 1 FROM cronjobs_jobs FOR UPDATE")
        with pytest.raises(error):
            fail(database)
        with database.write(next_in_line=the_loops) as connection:
            assert run(connection, "SELECT count(*) FROM {jobs}").scalar_one() == 1
            assert settings(connection)["lock_timeout"] == str(TIMEOUTS["lock_timeout"])


@pytest.mark.parametrize("the_loops", THE_LOOPS)
def test_a_session_that_the_server_ends_is_not_used_again(postgres_migrated: str, the_loops: bool) -> None:
    ended: list[int] = []

    def lose(database: Database) -> None:
        with database.write(next_in_line=the_loops) as connection:
            ended.append(run(connection, "SELECT pg_backend_pid()").scalar_one())
            with psycopg.connect(postgres_migrated, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s, 5000)", ended)
            run(connection, "SELECT 1")

    with opened(postgres_migrated) as database:
        with pytest.raises(DatabaseNotReady, match="administrator"):
            lose(database)
        with database.write(next_in_line=the_loops) as connection:
            assert run(connection, "SELECT pg_backend_pid()").scalar_one() not in ended


def test_a_session_that_the_server_ended_while_it_was_idle_is_replaced(postgres_migrated: str) -> None:
    with opened(postgres_migrated) as database, psycopg.connect(postgres_migrated, autocommit=True) as other:
        with database.read() as one, database.read() as two:
            idle = [run(connection, "SELECT pg_backend_pid()").scalar_one() for connection in (one, two)]
        other.execute("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s::int[]) pid", [idle])
        for _ in range(2):
            with database.read() as connection:
                assert run(connection, "SELECT pg_backend_pid()").scalar_one() not in idle


def test_a_new_session_that_the_server_ends_at_once_is_trouble_with_the_database(postgres_migrated: str) -> None:
    def end(session: Any, _: object) -> None:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [session.info.backend_pid])

    with opened(postgres_migrated) as database, psycopg.connect(postgres_migrated, autocommit=True) as other:
        event.listen(database.engine, "connect", end)
        with pytest.raises(DatabaseNotReady, match="administrator"), database.read() as connection:
            run(connection, "SELECT 1")


@pytest.mark.parametrize("the_loops", THE_LOOPS)
def test_what_interrupts_the_wait_for_an_answer_leaves_none_to_the_next_transaction(
    postgres_migrated: str, the_loops: bool
) -> None:
    def interrupted(database: Database) -> None:
        with database.write(next_in_line=the_loops) as connection, ctrl_c(after_s=0.1):
            run(connection, "INSERT INTO {jobs} (job_type) SELECT 't.none' FROM pg_sleep(5) RETURNING id")

    with opened(postgres_migrated) as database:
        with pytest.raises(KeyboardInterrupt):
            interrupted(database)
        with database.write(next_in_line=the_loops) as connection:
            assert run(connection, "SELECT count(*) AS jobs FROM {jobs}").one().jobs == 0


@contextmanager
def ctrl_c(after_s: float) -> Iterator[None]:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, press)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("the_loops", THE_LOOPS)
def test_no_session_keeps_a_plan_since_a_pooler_may_pass_it_on(postgres_migrated: str, the_loops: bool) -> None:
    asked = "SELECT count(*) FROM {jobs} WHERE id > CAST(:number AS bigint)"
    with opened(postgres_migrated) as database:
        for _ in range(10):
            with database.write(next_in_line=the_loops) as connection:
                run(connection, asked, number=0)
        with database.read() as connection:
            assert run(connection, "SELECT count(*) FROM pg_prepared_statements").scalar_one() == 0
