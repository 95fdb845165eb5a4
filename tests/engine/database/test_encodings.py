"""Texts that are not UTF-8, and servers, databases and roles with other encodings and styles than ours.

An unreadable text affects only its own job, which dies with the reason. The healthy jobs beside it run.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path

import psycopg
import pytest
from psycopg.errors import UntranslatableCharacter
from sqlalchemy import create_engine, text
from support.databases import opened
from support.postgres import PostgresServer
from support.project import Project

from cronjobs import cancel, enqueue, find, job
from cronjobs.engine.jobs import registry
from cronjobs.errors import PayloadError
from cronjobs.testing import tick

# Settings that a database or a role may have. Each would cause an error somewhere if we did not set it ourselves.
ODD = {
    "client_encoding": "latin1",
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "standard_conforming_strings": "off",
    "extra_float_digits": "-15",
}
ENCODINGS = ["UTF8", "LATIN1"]

ran: list[dict[str, object]] = []


@pytest.fixture(autouse=True)
def _handlers_of_one_test() -> Iterator[None]:
    before = dict(registry._registered)
    ran.clear()

    @job("t.keep")
    def keep(**payload: object) -> object:
        ran.append(payload)
        return payload.get("return")

    yield
    registry._registered.clear()
    registry._registered.update(before)


@pytest.fixture
def new_encoded_url(postgres_server: PostgresServer) -> Iterator[Callable[..., str]]:
    """Make migrated databases of any encoding, and with odd settings."""
    made: list[str] = []

    def make(encoding: str, odd: bool = False, *, migrated: bool = True) -> str:
        name = f"encoded_{len(made)}"
        postgres_server.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'",
            *(f"ALTER DATABASE {name} SET {setting} = '{value}'" for setting, value in ODD.items() if odd),
        )
        made.append(name)
        url = postgres_server.url(name)
        if migrated:
            tick(url)
        return url

    yield make
    postgres_server.execute(*(f"DROP DATABASE {name} WITH (FORCE)" for name in made))


def statuses(url: str) -> list[tuple[str, str | None]]:
    with opened(url) as database, database.read() as connection:
        rows = connection.execute(text("SELECT status, last_error FROM cronjobs_jobs ORDER BY id")).all()
    return [(row.status, row.last_error) for row in rows]


def put_bytes(file: str, **columns: bytes) -> None:
    """INSERT a job as a program does that knows nothing of UTF-8: SQLite stores the bytes as they are."""
    connection = sqlite3.connect(file, isolation_level=None)
    given = {"job_type": b"t.keep"} | columns
    values = ", ".join(["CAST(? AS TEXT)"] * len(given))
    connection.execute(f"INSERT INTO cronjobs_jobs ({', '.join(given)}) VALUES ({values})", tuple(given.values()))
    connection.close()


def put_healthy(url: str, name: str = "healthy") -> None:
    with opened(url) as database, database.write() as connection:
        enqueue(connection, "t.keep", {"name": name})


# --- one byte that is not UTF-8 ---------------------------------------------------------------------------------------

BROKEN = {
    "payload": b'{"name": "Jos\xe9"}',
    "meta": b'{"name": "Jos\xe9"}',
    "queue": b"caf\xe9",
    "idempotency_key": b"Jos\xe9",
    "concurrency_key": b"smtp:\xe9",
    "schedule": b"nightly \xe9",
}


@pytest.mark.parametrize("column", BROKEN)
def test_a_byte_that_is_not_utf8_costs_its_own_job_only(sqlite_migrated: str, column: str) -> None:
    url = f"sqlite:///{sqlite_migrated}"
    put_bytes(sqlite_migrated, **{column: BROKEN[column]})
    put_healthy(url)
    tick(url)
    assert statuses(url) == [("dead", f"{column} is not UTF-8"), ("succeeded", None)]
    assert ran == [{"name": "healthy"}]


@pytest.mark.parametrize("column", ["enqueued_by", "last_error", "error_type", "result"])
def test_a_byte_that_is_not_utf8_costs_nothing_where_no_handler_sees_it(sqlite_migrated: str, column: str) -> None:
    url = f"sqlite:///{sqlite_migrated}"
    put_bytes(sqlite_migrated, **{column: b"Jos\xe9"})
    tick(url)
    assert statuses(url)[0][0] == "succeeded"


def test_a_lease_of_a_runner_whose_name_is_not_utf8_runs_out(sqlite_migrated: str) -> None:
    url = f"sqlite:///{sqlite_migrated}"
    put_healthy(url)
    connection = sqlite3.connect(sqlite_migrated, isolation_level=None)
    connection.execute(
        "UPDATE cronjobs_jobs SET status = 'running', attempts = 1, locked_until = 1600000000000000, locked_by = "
        "CAST(? AS TEXT)",
        (b"h\xe9st",),
    )
    connection.close()
    ticked = tick(url)
    assert [each.became for each in ticked.ran] == ["dead"]  # no claim wrote how it is to be recovered


@pytest.mark.slow
def test_every_list_shows_what_is_not_utf8_with_replacement_characters(sqlite_migrated: str, tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write()
    columns = [*BROKEN, "job_type", "enqueued_by", "last_error", "error_type", "result"]
    for column in columns:
        put_bytes(sqlite_migrated, **{column: BROKEN.get(column, b"caf\xe9")})
    lists = ["jobs list", "jobs list --json", "status", "status --json", "history", "schedules list", "next"]
    lists += [*(f"jobs show {n}" for n in range(1, 12)), *(f"explain {n}" for n in range(1, 12))]
    lists += ["jobs show 1 --json", "explain 7 --json", "jobs cancel 1", "jobs cancel 7"]
    for words in lists:
        answer = project.call(*words.split())
        assert answer.code in (0, 1), f"{words}: {answer.out}{answer.err}"
        assert "Traceback" not in answer.err
    rows = {row["id"]: row for row in project.call("jobs", "list", "--json").json}
    for number, column in enumerate(columns, 1):
        if column not in ("payload", "meta", "result"):
            assert "\N{REPLACEMENT CHARACTER}" in rows[number][column]


# --- other encodings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [False, True], ids=["as they are", "odd settings"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_an_encoding_can_hold_runs_whatever_the_database_is_set_to(
    new_encoded_url: Callable[..., str], encoding: str, odd: bool
) -> None:
    url = new_encoded_url(encoding, odd)
    with opened(url) as database, database.write() as connection:
        enqueue(connection, "t.keep", {"name": "José", "return": {"é": "é"}}, idempotency_key="José")
    with psycopg.connect(url, autocommit=True, client_encoding="utf8") as plain:
        plain.execute("INSERT INTO cronjobs_jobs (job_type, payload) VALUES ('t.keep', '{\"name\": \"José\"}')")
    tick(url)
    assert statuses(url) == [("succeeded", None)] * 2
    assert [payload["name"] for payload in ran] == ["José"] * 2
    with psycopg.connect(url, client_encoding="utf8") as plain:
        row = plain.execute("SELECT CAST(result AS text), created_at > now() FROM cronjobs_jobs ORDER BY id").fetchone()
        assert row is not None
        result = row[0].decode() if isinstance(row[0], bytes) else row[0]
        assert (json.loads(result), row[1]) == ({"é": "é"}, False)


def test_a_character_that_the_database_cannot_hold_is_refused_and_the_transaction_goes_on(
    new_encoded_url: Callable[..., str],
) -> None:
    url = new_encoded_url("LATIN1")
    with psycopg.connect(url) as plain:
        for options in ({"payload": {"name": "🎉"}}, {"idempotency_key": "Ж"}, {"meta": {"trace": "Ж"}}):
            with pytest.raises(PayloadError, match="cannot be stored: the encoding of this database is LATIN1"):
                enqueue(plain, "t.keep", **options)
        enqueue(plain, "t.keep", {"name": "é"})
    assert statuses(url) == [("queued", None)]


def test_what_a_job_raises_is_kept_with_escapes_for_what_the_database_cannot_hold(
    new_encoded_url: Callable[..., str],
) -> None:
    url = new_encoded_url("LATIN1")

    @job("t.raise")
    def raises() -> None:
        raise ValueError("Ж")

    with opened(url) as database, database.write() as connection:
        enqueue(connection, "t.raise", max_attempts=1)
        enqueue(connection, "t.keep", {"return": "x"})
    tick(url)
    assert statuses(url) == [("dead", r"\u0416"), ("succeeded", None)]
    with psycopg.connect(url, client_encoding="utf8") as plain:
        [[traceback]] = plain.execute("SELECT traceback FROM cronjobs_job_runs WHERE outcome = 'failed'").fetchall()
    assert "\\u0416" in traceback


def test_a_result_that_the_database_cannot_hold_costs_the_result_and_not_the_success(
    new_encoded_url: Callable[..., str],
) -> None:
    url = new_encoded_url("LATIN1")

    @job("t.party")
    def party() -> str:
        return "🎉"

    with opened(url) as database, database.write() as connection:
        enqueue(connection, "t.party")
        enqueue(connection, "t.keep")
    tick(url)
    assert [status for status, _ in statuses(url)] == ["succeeded"] * 2


@pytest.mark.needs("desk")
@pytest.mark.parametrize("command", ["db upgrade", "check --live", "run-due", "status"])
def test_a_database_without_an_encoding_is_refused_and_gets_no_tables(
    new_encoded_url: Callable[..., str], tmp_path: Path, command: str
) -> None:
    url = new_encoded_url("SQL_ASCII", migrated=False)
    project = Project(tmp_path, url)
    project.write()
    answer = project.call(*command.split())
    assert answer.code == 4
    assert "has the encoding SQL_ASCII" in answer.err
    assert "use a database created with ENCODING 'UTF8'" in answer.err
    with psycopg.connect(url) as plain:
        assert plain.execute("SELECT to_regclass('cronjobs_jobs')").fetchone() in [(None,), (b"",)]


# --- the user's own connection ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy"])
@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
def test_an_enqueue_works_on_a_connection_with_whatever_settings(
    new_encoded_url: Callable[..., str], encoding: str, kind: str
) -> None:
    url = new_encoded_url(encoding, True)
    key = "é" if encoding == "LATIN1" else "🎉"
    with psycopg.connect(url) as plain:
        assert plain.info.encoding == "iso8859-1"
    if kind == "psycopg":
        with psycopg.connect(url) as plain:
            told = [enqueue(plain, "t.keep", {"name": key}, idempotency_key=key) for _ in range(2)]
            told.append(enqueue(plain, "t.keep", {"name": key}, idempotency_key=key, on_conflict="replace"))
    else:
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.begin() as connection:
            told = [enqueue(connection, "t.keep", {"name": key}, idempotency_key=key) for _ in range(2)]
            told.append(enqueue(connection, "t.keep", {"name": key}, idempotency_key=key, on_conflict="replace"))
        engine.dispose()
    assert [each.new for each in told] == [True, False, False]
    assert {each.id for each in told} == {told[0].id}
    tick(url)
    assert ran == [{"name": key}]


def test_a_connection_in_latin1_would_be_refused_a_key_in_so_many_words(new_encoded_url: Callable[..., str]) -> None:
    """Why keys come back in hexadecimal: the server cannot write this one for that client, and ends the transaction."""
    url = new_encoded_url("UTF8", True)
    with opened(url) as database, database.write() as connection:
        enqueue(connection, "t.keep", idempotency_key="🎉")
    with psycopg.connect(url) as plain, pytest.raises(UntranslatableCharacter):
        plain.execute("SELECT idempotency_key FROM cronjobs_jobs")


@pytest.mark.parametrize("client", ["utf8", "latin1"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_jobs_are_found_and_cancelled_whatever_the_encoding(
    new_encoded_url: Callable[..., str], encoding: str, client: str
) -> None:
    url = new_encoded_url(encoding, odd=True)
    with psycopg.connect(url) as user:
        user.execute("SET client_encoding = 'UTF8'")
        made = enqueue(user, "t.keep", {"line": "Grüße"}, idempotency_key="Schlüssel")
        user.commit()
        user.execute(f"SET client_encoding = '{client}'".encode())
        found = find(user, idempotency_key="Schlüssel")
        assert found is not None
        assert (found.id, found.payload, found.idempotency_key) == (made.id, {"line": "Grüße"}, "Schlüssel")
        assert (found.run_at.tzinfo, found.run_at) == (UTC, found.enqueued_at)
        foreign = "price in €: 中" if encoding == "LATIN1" else "other"
        assert find(user, idempotency_key=foreign) is None
        assert cancel(user, idempotency_key=foreign) is None
        assert cancel(user, idempotency_key="Schlüssel", reason="für 5 € 中") == "cancelled"
        user.commit()
    [(_, said)] = statuses(url)
    assert said is not None
    assert said.endswith("für 5 € 中" if encoding != "LATIN1" else r"für 5 \u20ac \u4e2d")
