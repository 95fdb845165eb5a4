"""The SQL of docs/reference/tables.md, typed into psql and into SQLite, and what a real tick does with the rows."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.pages import Page
from support.postgres import PostgresServer
from support.ticking import Project

from docs.test_table_contract import CHANGES, FUNCTION

PAGE = Page("docs/reference/tables.md")
ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL); INSERT INTO orders VALUES (42, 'OPEN');"
HANDLERS = """
def tell(ctx, **payload):
    with open(os.path.join(HERE, "told"), "a") as file:
        file.write(json.dumps([ctx.job_type, payload, ctx.meta]) + "\\n")


for name in ("billing.send_invoice", "billing.remind", "t.set"):
    job(name)(tell)
"""

# What an INSERT may set, each with a value that is not its default.
SET: dict[str, Any] = {
    "job_type": "t.set",
    "payload": '{"n": 9007199254740993, "text": "\\u2713 100 % \\"of\\" it"}',
    "meta": '{"tenant": "acme"}',
    "queue": "mail",
    "priority": 0,
    "run_at": {"SQLite": 1_700_000_000_000_000, "PostgreSQL": "2023-11-14 22:13:20+00"},
    "max_attempts": 3,
    "timeout_s": 5.5,
    "idempotency_key": "set:1",
    "concurrency_key": "smtp:acme",
    "enqueued_by": "shop",
}

Type = Callable[[str], None]  # SQL into a database's own shell, which stops at the first error


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def project(kind: str, request: pytest.FixtureRequest) -> Project:
    """A project on a database that has a table of the user's."""
    fixture = "sqlite_project" if kind == "SQLite" else "postgres_project"
    project: Project = request.getfixturevalue(fixture)
    return project.configure(handlers=HANDLERS)


@pytest.fixture
def type_in(kind: str, project: Project, request: pytest.FixtureRequest) -> Type:
    if kind == "SQLite":
        type_in = _into_sqlite(project)
        type_in(ORDERS)
        return type_in
    server: PostgresServer = request.getfixturevalue("postgres_server")
    server.execute(ORDERS + "GRANT ALL ON orders TO PUBLIC", database=project.url.rpartition("/")[2])
    return _into_psql(server, project)


def _into_sqlite(project: Project) -> Type:
    def type_in(sql: str) -> None:
        with closing(sqlite3.connect(project.file, isolation_level=None)) as connection:
            connection.executescript(sql)

    return type_in


def _into_psql(server: PostgresServer, project: Project) -> Type:
    def type_in(sql: str) -> None:
        argv: list[str | Path] = [server.bin / "psql", "--no-psqlrc", "--set=ON_ERROR_STOP=1", project.url]
        done = subprocess.run(argv, input=sql, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    return type_in


def blocks(kind: str, heading: str) -> list[str]:
    """What the page shows under *heading* for this database."""
    found = [one.text for one in PAGE.blocks("sql") if one.heading == heading]
    return [text for text in found if text.startswith((f"-- {kind}\n", "-- both\n"))]


def told(project: Project) -> list[Any]:
    """What handlers were given: job type, payload, meta."""
    file = project.folder / "told"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


# --- the page's SQL ---------------------------------------------------------------------------------------------------


def test_every_block_of_the_page_is_typed_in_here() -> None:
    assert PAGE.counts() == {"sql": 7, "js": 1}  # test_languages.py
    headings = {"", "In the transaction of your own rows", FUNCTION, CHANGES, "Changing a job that waits", "To read"}
    assert {one.heading for one in PAGE.blocks("sql")} == headings


def test_rows_from_plain_sql_are_run_by_a_tick(kind: str, project: Project, type_in: Type) -> None:
    [bare] = blocks(kind, "")
    [paid] = blocks(kind, "In the transaction of your own rows")
    type_in(bare)
    type_in(paid.replace("COMMIT;", "ROLLBACK;"))
    assert project.sql("SELECT status FROM orders") == [("OPEN",)]
    assert project.statuses() == {"queued": 1}

    type_in(paid)
    type_in(paid)  # the key is spent, the reminder has none
    for call in blocks(kind, FUNCTION):
        type_in(call)
        type_in(call)
    for change in blocks(kind, CHANGES):
        type_in(change)
    for change in blocks(kind, "Changing a job that waits"):
        type_in(change)
        assert project.value("SELECT priority FROM cronjobs_jobs WHERE idempotency_key = 'invoice:44'") == 0

    tick = project.tick()
    assert (tick.wait(), tick.stdout, tick.stderr) == (0, "", "")
    assert project.sql("SELECT status FROM orders") == [("PAID",)]
    assert {job_type for job_type, _, _ in told(project)} == {"billing.send_invoice"}  # reminders are for next week
    keyed = {42: 1, 44: 1} if kind == "PostgreSQL" else {42: 1}
    unkeyed = {42: 1, 43: 2} if kind == "PostgreSQL" else {42: 1}
    assert Counter(payload["invoice_id"] for _, payload, _ in told(project)) == Counter(keyed) + Counter(unkeyed)
    in_a_week = "run_at / 1000000 - strftime('%s', 'now')" if kind == "SQLite" else "extract(epoch FROM run_at - now())"
    waiting = project.sql(
        f"SELECT job_type, queue, priority, round(({in_a_week}) / 86400.0) FROM cronjobs_jobs WHERE status = 'queued'"
    )
    assert waiting == [("billing.remind", "mail", 7, 7)] * (2 if kind == "SQLite" else 4)
    for look in blocks(kind, "To read"):
        type_in(look)


# --- each column ------------------------------------------------------------------------------------------------------


def test_the_page_says_which_columns_an_insert_may_set() -> None:
    written = {row["column"].strip("`"): row["written by"] for row in PAGE.table("`cronjobs_jobs`")}
    assert {name for name, by in written.items() if "INSERT" in by} == SET.keys()
    others = {"INSERT", "INSERT, then ticks", "ticks", "ticks, operators", "operators", "the database"}
    assert set(written.values()) == others


def test_a_row_with_every_column_that_may_be_set_is_run_as_it_says(kind: str, project: Project) -> None:
    row = SET | {"run_at": SET["run_at"][kind]}
    project.add(**row)
    refused = project.add("t.set", "[1]")
    project.tick()
    payload, meta = json.loads(SET["payload"]), json.loads(SET["meta"])
    assert told(project) == [["t.set", payload, meta]]
    kept = SET.keys() - {"payload", "meta", "run_at"}  # as databases write JSON and instants
    [values] = project.sql(f"SELECT {', '.join(kept)} FROM cronjobs_jobs WHERE status = 'succeeded'")
    assert dict(zip(kept, values, strict=True)) == {name: SET[name] for name in kept}
    assert (project.job(refused)["status"], project.job(refused)["last_error"]) == (
        "dead",
        "payload must be a JSON object, not an array",
    )
