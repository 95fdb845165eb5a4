"""The loop's transactions on PostgreSQL, which open with their first statement: they do what others do, and no more."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event, text
from support.clusters import wait_until
from support.databases import opened

from cronjobs.database import one_trip
from cronjobs.database.connection import Database
from cronjobs.errors import BadValue, DatabaseBusy, DatabaseError, DatabaseNotReady, TransientTrouble
from cronjobs.probe.server_session import SETTINGS, TIMEOUTS
from cronjobs.store.sql import run, run_undecoded

SET = (*SETTINGS, *TIMEOUTS, "client_encoding", "transaction_isolation")


def known(database: Database) -> Database:
    """The first transaction of a connection tells who serves it."""
    with database.write(next_in_line=True):
        pass
    return database


def trip_of(connection: Connection) -> one_trip.OneTrip:
    trip: one_trip.OneTrip = connection.info["cronjobs_one_trip"]
    return trip


def settings(connection: Connection) -> dict[str, str]:
    rows = run_undecoded(connection, "SELECT name, setting FROM pg_settings WHERE name {among_names}", names=[*SET])
    return {row.name: row.setting for row in rows}


def test_it_begins_as_every_other_transaction_and_leaves_nothing_behind(postgres_migrated: str) -> None:
    with opened(postgres_migrated) as database:
        with database.write() as connection:
            usual = settings(connection)
            [outside] = connection.exec_driver_sql("SELECT reset_val FROM pg_settings WHERE name = 'jit'").one()
        with known(database).write(next_in_line=True) as connection:
            assert one_trip.takes_numbered(connection)
            assert settings(connection) == usual
            [transaction] = run_undecoded(connection, "SELECT pg_current_xact_id() AS number")[0]
            assert connection.exec_driver_sql("SELECT pg_current_xact_id()").scalar_one() == transaction
        with database.engine.connect().execution_options(cronjobs_begin="BEGIN") as connection:
            assert connection.exec_driver_sql("SHOW jit").scalar_one() == outside != usual["jit"]


def test_a_statement_that_goes_another_way_may_be_the_first(postgres_migrated: str) -> None:
    with opened(postgres_migrated) as database:
        with known(database).write(next_in_line=True) as connection:
            run(connection, "INSERT INTO {jobs} (job_type) VALUES ('t.first')")
            assert one_trip.takes_numbered(connection)
            assert settings(connection)["lock_timeout"] == str(TIMEOUTS["lock_timeout"])
        with database.read() as connection:
            assert run(connection, "SELECT count(*) FROM {jobs}").scalar_one() == 1
            assert not one_trip.takes_numbered(connection)


def test_values_come_and_go_as_psycopg_has_them(postgres_migrated: str) -> None:
    given = {"a": 1, "b": 2.5, "c": "ü €", "d": None, "e": "x" * 3_000_000, "f": 2**40}
    statement = """SELECT CAST(:a AS int) AS a, CAST(:b AS float8) AS b, CAST(:c AS text) AS c, CAST(:d AS text) AS d,
        CAST(:e AS text) AS e, CAST(:f AS bigint) AS f, CAST('[1, "k"]' AS jsonb) AS j, {now} AS now, 1"""
    with opened(postgres_migrated) as database:
        with database.write() as connection:
            usual = tuple(run_undecoded(connection, statement, **given)[0])
        with known(database).write(next_in_line=True) as connection:
            [row] = run_undecoded(connection, statement, **given)
            assert one_trip.takes_numbered(connection)
            assert row.c == given["c"]
            assert [type(value) for value in row] == [type(value) for value in usual]
            assert tuple(row)[:7] == usual[:7]
            assert row.now.utcoffset() == usual[7].utcoffset()
            assert run_undecoded(connection, "SELECT 1 AS one WHERE false") == []


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
def test_an_error_is_the_one_that_psycopg_would_raise_and_the_next_transaction_goes_on(
    postgres_migrated: str, statement: str, given: dict[str, Any], error: type[Exception]
) -> None:
    def fail(database: Database, **options: Any) -> None:
        with database.write(**options) as connection:
            run(connection, "SET LOCAL lock_timeout = 10")
            run(connection, "SET LOCAL statement_timeout = 50")
            run(connection, "INSERT INTO {jobs} (job_type) VALUES ('t.undone')")
            run_undecoded(connection, statement, **given)

    with opened(postgres_migrated) as database, psycopg.connect(postgres_migrated) as other:
        with database.write() as connection:
            run(connection, "INSERT INTO {jobs} (job_type) VALUES ('t.locked')")
        other.execute("SELECT 1 FROM cronjobs_jobs FOR UPDATE")
        with pytest.raises(error) as usual:
            fail(database)
        with pytest.raises(error) as raised:
            fail(known(database), next_in_line=True)
        assert (type(raised.value), str(raised.value)) == (type(usual.value), str(usual.value))
        with database.write(next_in_line=True) as connection:
            assert one_trip.takes_numbered(connection)
            assert run_undecoded(connection, "SELECT count(*) FROM {jobs}")[0][0] == 1


def test_a_session_that_the_server_ends_is_not_used_again(postgres_migrated: str) -> None:
    ended: list[int] = []

    def lose(database: Database) -> None:
        with database.write(next_in_line=True) as connection:
            [pid] = run_undecoded(connection, "SELECT pg_backend_pid()")[0]
            ended.append(pid)
            end(pid)
            run_undecoded(connection, "SELECT 1")

    def end(pid: int) -> None:
        with psycopg.connect(postgres_migrated, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    with opened(postgres_migrated) as database:
        known(database)
        with pytest.raises(DatabaseNotReady, match="administrator"):
            lose(database)
        assert serving(database) not in ended


def test_an_answer_that_is_not_waited_for_ends_the_session(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_self: object, _what: int) -> None:
        raise KeyboardInterrupt

    with opened(postgres_migrated) as database:
        first = serving(known(database))
        with monkeypatch.context() as patched:
            patched.setattr(one_trip.OneTrip, "_wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                serving(database)
        assert serving(database) != first


def serving(database: Database) -> int:
    with database.write(next_in_line=True) as connection:
        found: int = run_undecoded(connection, "SELECT pg_backend_pid()")[0][0]
    return found


# --- plans and poolers ------------------------------------------------------------------------------------------------

ASKED = "SELECT count(*) FROM {jobs} WHERE id > CAST(:number AS bigint)"


def repeat(database: Database) -> None:
    """Ask so often that the server keeps the plan."""
    known(database)
    for _ in range(5):
        with database.write(next_in_line=True) as connection:
            run_undecoded(connection, ASKED, number=0)


def test_plans_of_repeated_statements_are_kept_until_one_is_gone(postgres_migrated: str) -> None:
    with opened(postgres_migrated) as database:
        repeat(database)
        with database.write() as connection:  # a handler may do so
            assert connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one() == 2
            connection.exec_driver_sql("DEALLOCATE ALL")
        with database.write(next_in_line=True) as connection:
            assert run_undecoded(connection, ASKED, number=0)[0][0] == 0


def test_a_plan_is_not_used_in_a_session_that_a_pooler_gave_us_instead(postgres_migrated: str) -> None:
    """Such a pooler tells the first session's process. In the other one each name stands for something else."""
    with opened(postgres_migrated) as database:
        repeat(database)
        with database.write() as connection:
            for plan in trip_of(connection)._plans.values():
                connection.exec_driver_sql(f"DEALLOCATE {plan.decode()}")
                other = "INSERT INTO cronjobs_jobs (job_type) VALUES ('t.wrong') RETURNING 1"
                connection.exec_driver_sql(f"PREPARE {plan.decode()} AS {other}")
            trip_of(connection)._guard = trip_of(connection)._guard.replace(b"= ", b"= 1")
        for first in (run_undecoded, run):
            with database.write(next_in_line=True) as connection:
                before = first(connection, "SELECT current_setting('lock_timeout') AS set")
                assert [row.set for row in before] == ["2s"]
                assert run_undecoded(connection, ASKED, number=0)[0][0] == 0
                assert not one_trip.takes_numbered(connection)
            with database.write(next_in_line=True) as connection:
                assert not one_trip.takes_numbered(connection)


def test_whoever_listens_to_cursors_hears_everything(postgres_migrated: str) -> None:
    heard: list[str] = []
    with opened(postgres_migrated) as database:
        known(database)
        event.listen(database.engine, "before_cursor_execute", lambda _c, _cursor, sent, *_: heard.append(sent))
        with database.write(next_in_line=True) as connection:
            run_undecoded(connection, "SELECT 1")
    assert heard[1:] == ["SELECT 1"]


def test_a_session_with_another_encoding_begins_as_ever(postgres_migrated: str) -> None:
    with (
        opened(f"{postgres_migrated}?client_encoding=latin1") as database,
        known(database).write(next_in_line=True) as connection,
    ):
        assert not one_trip.takes_numbered(connection)
        assert connection.execute(text("SELECT CAST(:a AS text)"), {"a": "€"}).scalar_one() == "€"


def test_a_libpq_without_pipelines_begins_as_ever(postgres_migrated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    with opened(postgres_migrated) as database, known(database).write(next_in_line=True) as connection:
        assert not one_trip.takes_numbered(connection)
        assert run_undecoded(connection, "SELECT 1")[0][0] == 1


def test_what_is_to_be_done_meanwhile_is_done_while_the_server_works(postgres_migrated: str) -> None:
    with opened(postgres_migrated) as database:
        done: list[str] = []
        with database.write(next_in_line=True) as connection:  # the first, in which nothing is known yet
            Database.while_waiting(connection, lambda: done.append("at once") or True)  # type: ignore[func-returns-value]
            assert done == ["at once"]
        with psycopg.connect(postgres_migrated, autocommit=True) as other:
            other.execute("SELECT pg_advisory_lock(77)")
            with database.write(next_in_line=True) as connection:
                pid = connection.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
                to_do = iter(["some", "more"])

                def do() -> bool:
                    waits = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
                    wait_until(lambda: other.execute(waits, [pid]).fetchone() == ("advisory",), 1.5)
                    done.append(next(to_do, "nothing"))
                    if done[-1] == "nothing":
                        other.execute("SELECT pg_advisory_unlock(77)")
                    return done[-1] != "nothing"

                Database.while_waiting(connection, do)
                assert done == ["at once"]
                run_undecoded(connection, "SELECT pg_advisory_xact_lock(77)")
                assert done == ["at once", "some", "more", "nothing"]
            with database.write(next_in_line=True) as connection:  # nobody has anything to do in it
                run_undecoded(connection, "SELECT pg_advisory_xact_lock(78)")
        assert done == ["at once", "some", "more", "nothing"]


def test_what_fails_meanwhile_leaves_no_answer_behind(postgres_migrated: str) -> None:
    def fail() -> bool:
        raise RuntimeError("meanwhile")

    def write(database: Database) -> None:
        with database.write(next_in_line=True) as connection:
            Database.while_waiting(connection, fail)
            run_undecoded(connection, "INSERT INTO {jobs} (job_type) SELECT 't.none' FROM pg_sleep(0.05) RETURNING id")

    with opened(postgres_migrated) as database:
        known(database)
        with pytest.raises(RuntimeError, match="meanwhile"):
            write(database)
        with database.write(next_in_line=True) as connection:
            assert run_undecoded(connection, "SELECT count(*) AS jobs FROM {jobs}")[0].jobs == 0
