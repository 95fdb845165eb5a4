"""enqueue works on the user's own connection, from whatever library, and in the user's transaction."""

from __future__ import annotations

import re
import sqlite3
import traceback
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, select, text
from support.databases import in_psql
from support.databases import opened as opened_database
from support.targets import each_target, opened, plain_url

from cronjobs import enqueue, enqueue_async, enqueue_many
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.jobs.enqueue import connection_of
from cronjobs.engine.schema import migrations
from cronjobs.errors import PayloadError, SchemaMissing, SqliteTooOld, UsageError
from cronjobs.model import Status

EVERYTHING: dict[str, Any] = {
    "run_at": datetime(2030, 1, 1, 12, 0, 0, 123456, tzinfo=UTC),
    "queue": "mail",
    "priority": 1,
    "concurrency_key": "smtp:a",
    "max_attempts": 3,
    "timeout": "1.5s",
    "meta": {"trace": "50 % of ümläuts"},
}


def rows(url: str, schema: str | None = None) -> list[Any]:
    with opened_database(url, schema) as database, database.read() as connection:
        return list(connection.execute(select(jobs).order_by(jobs.c.id)).all())


@each_target
def test_a_job_is_committed_with_the_callers_transaction(database_url: str, kind: str) -> None:
    with opened(kind, database_url) as user:
        made = enqueue(user.target, "t.say", {"line": "%s :x ? {}", "n": 2**70}, idempotency_key="k", **EVERYTHING)
        assert rows(database_url) == []  # enqueue commits nothing
        user.commit()
    [row] = rows(database_url)
    assert (made.id, made.new, made.status) == (row.id, True, Status.QUEUED)
    assert (row.job_type, row.payload) == ("t.say", {"line": "%s :x ? {}", "n": 2**70})
    expected = {"timeout_s": 1.5, **{name: value for name, value in EVERYTHING.items() if name != "timeout"}}
    assert {name: row._mapping[name] for name in expected} == expected


@each_target
def test_a_job_goes_with_the_callers_rollback(database_url: str, kind: str) -> None:
    with opened(kind, database_url) as user:
        enqueue(user.target, "t.say")
        enqueue_many(user.target, "t.say", [{}, {}])
        user.rollback()
        enqueue(user.target, "t.say", {"line": "kept"})
        user.commit()
    assert [row.payload for row in rows(database_url)] == [{"line": "kept"}]


@each_target
def test_a_key_tells_of_the_first_job_and_spoils_nothing(database_url: str, kind: str) -> None:
    with opened(kind, database_url) as user:
        first = enqueue(user.target, "t.say", {"n": 1}, idempotency_key=("a", 1))
        again = enqueue(user.target, "t.say", {"n": 2}, idempotency_key=("a", 1))
        assert (first.new, again.new, again.id) == (True, False, first.id)
        enqueue(user.target, "t.say", {"n": 3})
        user.commit()
    assert [row.payload["n"] for row in rows(database_url)] == [1, 3]


@each_target
def test_a_delay_counts_from_the_databases_now(database_url: str, kind: str) -> None:
    with opened(kind, database_url) as user:
        enqueue(user.target, "t.say", delay="5m")
        enqueue(user.target, "t.say")
        user.commit()
    later, now = rows(database_url)
    assert later.run_at - later.created_at == timedelta(minutes=5)
    assert now.run_at == now.created_at


REFUSED: tuple[tuple[dict[str, Any], type[Exception]], ...] = (
    ({"payload": {"a": "x\0"}}, PayloadError),
    ({"run_at": datetime(1970, 1, 1, tzinfo=UTC)}, UsageError),
    ({"run_at": datetime.max.replace(tzinfo=UTC)}, UsageError),
    ({"delay": timedelta(days=10**6)}, UsageError),
    ({"max_attempts": 0}, UsageError),
    ({"idempotency_key": tuple("x" * 500 for _ in range(7))}, UsageError),
    ({"on_conflict": "update"}, UsageError),
)


@each_target
def test_what_the_tables_would_refuse_is_refused_before_it_ends_the_transaction(database_url: str, kind: str) -> None:
    with opened(kind, database_url) as user:
        enqueue(user.target, "t.say", {"n": 0}, run_at=datetime(9999, 12, 30, tzinfo=UTC))
        for n, (wrong, error) in enumerate(REFUSED, start=1):
            with pytest.raises(error):
                enqueue(user.target, "t.say", **wrong)
            enqueue(user.target, "t.say", {"n": n})
        user.commit()
    assert [row.payload["n"] for row in rows(database_url)] == [*range(len(REFUSED) + 1)]


@pytest.mark.parametrize("kind", ["connection", "session", "psycopg", "psycopg in autocommit"])
def test_a_missing_table_on_postgresql_is_named_and_leaves_the_transaction_usable(postgres_url: str, kind: str) -> None:
    with opened(kind, postgres_url) as user:
        with pytest.raises(SchemaMissing, match=r'database postgresql://\S+/test_\d+ has no .* "cronjobs db upgrade"'):
            enqueue(user.target, "t.say")
        found = user.target.execute(text("SELECT 1") if kind in ("connection", "session") else "SELECT 1")
        assert found.fetchone()[0] == 1


@pytest.mark.parametrize("kind", ["connection", "session", "sqlite3", "sqlite3 without isolation level"])
def test_a_missing_table_on_sqlite_is_named(sqlite_url: str, kind: str) -> None:
    with opened(kind, sqlite_url) as user:
        with pytest.raises(SchemaMissing) as told:
            enqueue(user.target, "t.say")
        user.rollback()
    assert str(told.value) == f'database {sqlite_url} has no cronjobs tables: run "cronjobs db upgrade"'
    shown = "".join(traceback.format_exception(told.value))
    assert "INSERT" not in shown, "neither the statement nor the payload"
    assert len(shown.splitlines()) < 30


@pytest.mark.parametrize("kind", ["connection", "session", "sqlite3", "sqlite3 without isolation level"])
def test_an_sqlite_of_the_app_that_is_too_old_is_named(
    sqlite_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the check, SQLite would report a syntax error near RETURNING."""
    with opened(kind, sqlite_url) as user:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 0))
        with pytest.raises(SqliteTooOld, match=re.escape(f"database {sqlite_url}: this Python has SQLite")):
            enqueue(user.target, "t.say")
        user.rollback()


def test_a_missing_table_is_told_without_a_password(postgres_url: str) -> None:
    in_psql(postgres_url, "DROP ROLE IF EXISTS guarded", "CREATE ROLE guarded LOGIN PASSWORD 'hush-hush'")
    try:
        url = parse_url(postgres_url).url.set(username="guarded", password="hush-hush")
        engine = create_engine(url)
        with psycopg.connect(url.set(drivername="postgresql").render_as_string(hide_password=False)) as plain:
            for target in (plain, engine.connect()):
                with pytest.raises(SchemaMissing, match="guarded") as told, target:
                    enqueue(target, "t.say")
                assert "hush" not in str(told.value)
        engine.dispose()
    finally:
        in_psql(postgres_url, "DROP ROLE guarded")


@pytest.mark.parametrize("kind", ["connection", "session", "psycopg"])
def test_the_tables_may_live_in_a_schema_of_their_own(postgres_url: str, kind: str) -> None:
    with opened_database(postgres_url, "jobs") as database:
        migrations.upgrade(database)
    with opened(kind, postgres_url) as user:
        with pytest.raises(SchemaMissing, match=r"/test_\d+ has no cronjobs tables"):
            enqueue(user.target, "t.say")
        with pytest.raises(SchemaMissing, match=r"/test_\d+\?schema=job has no cronjobs tables"):
            enqueue(user.target, "t.say", schema="job")
        enqueue(user.target, "t.say", schema="jobs", idempotency_key="k")
        again = enqueue(user.target, "t.say", schema="jobs", idempotency_key="k", on_conflict="replace")
        assert not again.new
        enqueue_many(user.target, "t.say", [{}], schema="jobs")
        with pytest.raises(SchemaMissing):  # the schema was for those calls alone
            enqueue(user.target, "t.say")
        user.commit()
    assert len(rows(postgres_url, "jobs")) == 2


def test_the_search_path_finds_the_tables(postgres_url: str) -> None:
    with opened_database(postgres_url, "jobs") as database:
        migrations.upgrade(database)
    with psycopg.connect(postgres_url, options="-c search_path=jobs") as connection:
        enqueue(connection, "t.say")
    assert len(rows(postgres_url, "jobs")) == 1


def test_plain_sqlite_opens_the_transaction_that_an_insert_would(sqlite_migrated: str) -> None:
    connection = sqlite3.connect(sqlite_migrated)
    enqueue(connection, "t.say")
    assert connection.in_transaction
    connection.rollback()
    enqueue(connection, "t.say", idempotency_key="k")
    connection.commit()
    enqueue(connection, "t.say", {"n": 2}, idempotency_key="k", on_conflict="replace")
    assert connection.in_transaction
    connection.rollback()
    connection.close()
    assert [row.payload for row in rows(f"sqlite:///{sqlite_migrated}")] == [{}]


def test_who_enqueued_is_whoever_is_connected(postgres_migrated: str) -> None:
    with psycopg.connect(postgres_migrated, application_name="shop") as connection:
        enqueue(connection, "t.say")
        enqueue_many(connection, "t.say", [{}])
        connection.execute("INSERT INTO cronjobs_jobs (job_type) VALUES ('t')")
    names = {row.enqueued_by for row in rows(postgres_migrated)}
    assert len(names) == 1
    assert names.pop().endswith("/shop")


@pytest.mark.parametrize("target", [None, "sqlite:///x.db", object(), sqlite3])
def test_a_wrong_target_is_told_what_to_pass(target: Any) -> None:
    for call, payloads in ((enqueue, None), (enqueue_many, [{}])):
        with pytest.raises(TypeError, match=r"Connection, Session or Engine, .* psycopg 3 or sqlite3, or Django's"):
            call(target, "t.say", payloads)  # type: ignore[arg-type]


def test_an_engine_is_a_transaction_of_its_own(database: Database) -> None:
    told = [enqueue(database.engine, "t.say"), *enqueue_many(database.engine, "t.say", [{}, {}])]
    with database.read() as connection:
        assert connection.execute(select(jobs.c.id).order_by(jobs.c.id)).scalars().all() == [one.id for one in told]


async def _never() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        await enqueue_async(connection, "t.say")  # type: ignore[arg-type]


def test_async_refuses_what_is_not_async() -> None:
    with pytest.raises(TypeError, match=r"AsyncSession or AsyncEngine, not Connection: use enqueue\(\)"):
        _never().send(None)


def test_the_users_connection_keeps_its_own_options(database_url: str) -> None:
    engine = create_engine(plain_url(database_url))
    with engine.connect() as connection:
        before = dict(connection.get_execution_options())
        assert connection_of(connection, "jobs").dialect is connection.dialect
        assert dict(connection.get_execution_options()) == before
    engine.dispose()


def test_a_psycopg_pipeline_is_refused_before_anything_is_written(postgres_migrated: str) -> None:
    """A pipeline answers only at its end. Its empty answer looked as if another session had removed the key."""
    with psycopg.connect(postgres_migrated) as connection:
        enqueue(connection, "t.before", {})
        for write in (lambda: enqueue(connection, "t", {}), lambda: enqueue_many(connection, "t", [{}, {}])):
            with connection.pipeline(), pytest.raises(UsageError, match="pipeline"):
                write()
        enqueue(connection, "t.after", {})
        found = connection.execute("SELECT job_type FROM cronjobs_jobs ORDER BY id").fetchall()
    assert found == [("t.before",), ("t.after",)]
