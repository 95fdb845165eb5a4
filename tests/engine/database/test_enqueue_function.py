"""``SELECT cronjobs_enqueue(…)``, by which any language enqueues on PostgreSQL."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from support.databases import opened, until
from support.postgres import SUPERUSER

from cronjobs.engine.schema import migrations


@pytest.fixture
def psql(postgres_migrated: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_migrated, autocommit=True) as connection:
        yield connection


def test_enqueue_by_one_select(psql: psycopg.Connection) -> None:
    assert psql.execute("""SELECT cronjobs_enqueue('t.say', '{"line":"x"}')""").rowcount == 1
    assert psql.execute("SELECT job_type, payload, queue, priority FROM cronjobs_jobs").fetchall() == [
        ("t.say", {"line": "x"}, "default", 5)
    ]


def test_enqueue_takes_everything_by_name(psql: psycopg.Connection) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    arguments = {
        "job_type": "t",
        "payload": json.dumps({"a": 1}),
        "run_at": at,
        "queue": "mail",
        "priority": 1,
        "idempotency_key": "k",
        "concurrency_key": "smtp:a",
        "max_attempts": 3,
        "timeout_s": 1.5,
        "meta": json.dumps({"trace": "x"}),
    }
    by_name = ", ".join(f"{name} => %({name})s" for name in arguments)
    [(job_id, new, status)] = psql.execute(f"SELECT * FROM cronjobs_enqueue({by_name})".encode(), arguments).fetchall()
    assert (new, status) == (True, "queued")
    columns = ", ".join(arguments)
    row = psql.execute(f"SELECT {columns} FROM cronjobs_jobs WHERE id = {job_id}".encode()).fetchone()
    assert row == tuple(json.loads(a) if isinstance(a, str) and a[0] == "{" else a for a in arguments.values())


def test_enqueue_in_a_while(psql: psycopg.Connection) -> None:
    psql.execute("SELECT cronjobs_enqueue('t', delay => '5 min')")
    [(delay,)] = psql.execute("SELECT run_at - created_at FROM cronjobs_jobs").fetchall()
    assert delay == timedelta(minutes=5)


def test_a_key_that_is_spent_gives_back_its_job(psql: psycopg.Connection) -> None:
    call = "SELECT * FROM cronjobs_enqueue('t', idempotency_key => 'k')"
    [(first, new, _)] = psql.execute(call).fetchall()
    psql.execute("UPDATE cronjobs_jobs SET status = 'dead', finished_at = now()")
    assert new
    assert psql.execute(call).fetchall() == [(first, False, "dead")]
    assert psql.execute("SELECT count(*) FROM cronjobs_jobs").fetchone() == (1,)


@pytest.mark.parametrize(("ending", "new"), [("ROLLBACK", True), ("COMMIT", False)])
def test_a_key_in_an_open_transaction_is_waited_for(postgres_migrated: str, ending: str, new: bool) -> None:
    call = "SELECT * FROM cronjobs_enqueue('t', idempotency_key => 'k')"
    with (
        psycopg.connect(postgres_migrated, autocommit=True) as one,
        psycopg.connect(postgres_migrated, autocommit=True) as two,
    ):
        one.execute("BEGIN")
        [(first, _, _)] = one.execute(call).fetchall()
        found: list[tuple[object, ...]] = []
        waiting = threading.Thread(target=lambda: found.extend(two.execute(call)))
        waiting.start()
        waits = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
        until(lambda: one.execute(waits, [two.info.backend_pid]).fetchone() == ("Lock",))
        one.execute(ending.encode())
        waiting.join(30)
    assert [(row[0] == first, row[1]) for row in found] == [(not new, new)]


def test_enqueue_belongs_to_the_callers_transaction(psql: psycopg.Connection) -> None:
    psql.execute("BEGIN")
    psql.execute("SELECT cronjobs_enqueue('t')")
    psql.execute("ROLLBACK")
    assert psql.execute("SELECT count(*) FROM cronjobs_jobs").fetchone() == (0,)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("''", "job_type is empty"),
        ("NULL", "job_type is empty"),
        ("'t', '[1]'", "payload is a JSON object, not of type array"),
        ("'t', run_at => now(), delay => '1 min'", "not both"),
        ("'t', idempotency_key => ''", "idempotency_key is empty"),
        ("'t', priority => 10", "cronjobs_jobs_priority_ck"),
    ],
)
def test_enqueue_refuses_what_cannot_be_meant(psql: psycopg.Connection, arguments: str, said: str) -> None:
    with pytest.raises(psycopg.Error, match=said):
        psql.execute(f"SELECT cronjobs_enqueue({arguments})".encode())


@pytest.mark.parametrize("schema", [None, "jobs"])
def test_enqueue_finds_its_tables_whatever_the_search_path(postgres_url: str, schema: str | None) -> None:
    with opened(postgres_url, schema) as database:
        migrations.upgrade(database)
    there = schema or "public"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            b"CREATE SCHEMA trap; CREATE TABLE trap.cronjobs_jobs (LIKE %s.cronjobs_jobs)" % there.encode()
        )
        connection.execute(b"CREATE TEMPORARY TABLE cronjobs_jobs (LIKE %s.cronjobs_jobs)" % there.encode())
        connection.execute("SET search_path = trap")
        connection.execute(f"SELECT {there}.cronjobs_enqueue('t')".encode())
        counts = connection.execute(
            f"SELECT (SELECT count(*) FROM {there}.cronjobs_jobs), (SELECT count(*) FROM trap.cronjobs_jobs), "
            "(SELECT count(*) FROM pg_temp.cronjobs_jobs)".encode()
        ).fetchone()
    assert counts == (1, 0, 0)


@pytest.mark.connects_as(SUPERUSER)
def test_enqueue_has_only_the_callers_rights(postgres_migrated: str, psql: psycopg.Connection) -> None:
    psql.execute("CREATE ROLE stranger NOLOGIN")
    try:
        psql.execute("SET ROLE stranger")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            psql.execute("SELECT cronjobs_enqueue('t')")
    finally:
        psql.execute("RESET ROLE")
        psql.execute("DROP ROLE stranger")
