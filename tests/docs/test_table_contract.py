"""docs/reference/tables.md is the contract: both databases have its columns, types and defaults."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from support.pages import Page
from support.postgres import SUPERUSER, as_role

from cronjobs.engine.database.tables import VERSION_TABLE, metadata
from cronjobs.engine.jobs.checking import key_text
from cronjobs.engine.schema.drift import WORKER_FUNCTIONS

PAGE = Page("docs/reference/tables.md")
OURS_ALONE = {
    "cronjobs_alerts",
    "cronjobs_counts",
    "cronjobs_findings",
    "cronjobs_meta",
    "cronjobs_new_counts",
    "cronjobs_quarters",
    "cronjobs_tokens",
    VERSION_TABLE,
}
CONTRACT = sorted(metadata.tables.keys() - OURS_ALONE)
VIEWS = ["cronjobs_dead_jobs", "cronjobs_long_running_jobs"]
FUNCTION = "The function `cronjobs_enqueue`"
CHANGES = "The functions `cronjobs_cancel` and `cronjobs_reschedule`"
# Where the parameters of each function are on the page: a heading, and which of its tables.
FUNCTIONS = {"cronjobs_enqueue": (FUNCTION, 0), "cronjobs_cancel": (CHANGES, 0), "cronjobs_reschedule": (CHANGES, 1)}


@dataclass(frozen=True)
class Column:
    """A column, or a parameter, in the page's words."""

    name: str
    type: str
    default: str


@pytest.fixture
def postgresql(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    # The superuser: information_schema keeps from others what they have no right to.
    with psycopg.connect(as_role(postgres_migrated, SUPERUSER)) as connection:
        yield connection


@pytest.fixture
def sqlite(sqlite_migrated: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(sqlite_migrated)) as connection:
        yield connection


# --- what the page says -----------------------------------------------------------------------------------------------


def on_the_page(table: str, database: str) -> list[Column]:
    found = []
    for row in PAGE.table(f"`{table}`"):
        defaults = row["default"].split("; ")  # two where the databases differ
        found.append(Column(row["column"].strip("`"), row[database], defaults[-1 if database == "SQLite" else 0]))
    return found


# --- what the databases say -------------------------------------------------------------------------------------------


def in_postgresql(connection: psycopg.Connection[Any], table: str) -> list[Column]:
    rows = connection.execute(
        "SELECT column_name, data_type, column_default, is_nullable = 'YES', is_identity = 'YES' "
        "FROM information_schema.columns WHERE table_schema = 'public' AND table_name = %s ORDER BY ordinal_position",
        [table],
    )
    return [
        Column(name, short(kind), "numbered" if identity else in_words(default, nullable))
        for name, kind, default, nullable, identity in rows
    ]


def in_sqlite(connection: sqlite3.Connection, table: str) -> list[Column]:
    rows = connection.execute(
        """SELECT name, type, dflt_value, NOT "notnull", pk = 1 AND type = 'INTEGER' FROM pragma_table_info(?)""",
        [table],
    )
    [sql] = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", [table]).fetchone()
    return [
        Column(name, kind, "numbered" if rowid and "AUTOINCREMENT" in sql else in_words(default, nullable))
        for name, kind, default, nullable, rowid in rows
    ]


def short(kind: str) -> str:
    return "timestamptz" if kind == "timestamp with time zone" else kind


def in_words(default: str | None, nullable: bool) -> str:
    """A default as the page says it; an expression that has no word here comes back as it is."""
    if default is None or default.split("::")[0] == "NULL":
        return "NULL" if nullable else "required"
    if "CURRENT_USER" in default and "application_name" in default and nullable:
        return "the connected user"
    said = default
    if "statement_timestamp()" in default or "strftime('%s', 'now')" in default:
        said = "now"
    elif literal := re.fullmatch(r"'(.*)'(?:::\w+)?|(\d+)", default):
        value = literal[1] if literal[2] is None else literal[2]
        said = f"`{value}`" if value else "empty"
    return f"{said} or NULL" if nullable else said


# --- they are the same ------------------------------------------------------------------------------------------------


def test_the_tables_on_the_page_are_those_in_postgresql(postgresql: psycopg.Connection[Any]) -> None:
    for table in CONTRACT:
        assert on_the_page(table, "PostgreSQL") == in_postgresql(postgresql, table), table


def test_the_tables_on_the_page_are_those_in_sqlite(sqlite: sqlite3.Connection) -> None:
    for table in CONTRACT:
        assert on_the_page(table, "SQLite") == in_sqlite(sqlite, table), table


def test_the_views_on_the_page_are_those_in_both(
    postgresql: psycopg.Connection[Any], sqlite: sqlite3.Connection
) -> None:
    said = {row["view"].strip("`"): re.findall(r"`(\w+)`", row["columns"]) for row in PAGE.table("To read")}
    assert list(said) == VIEWS
    for view, columns in said.items():
        assert [column.name for column in in_postgresql(postgresql, view)] == columns
        assert [column.name for column in in_sqlite(sqlite, view)] == columns


def test_a_readable_view_has_the_columns_of_its_table(sqlite: sqlite3.Connection) -> None:
    views = {name for (name,) in sqlite.execute("SELECT name FROM sqlite_master WHERE type = 'view'")} - set(VIEWS)
    with_instants = {table for table in CONTRACT if "timestamptz" in {c.type for c in on_the_page(table, "PostgreSQL")}}
    assert views == {f"{table}_readable" for table in with_instants}
    for view in views:
        table = view.removesuffix("_readable")
        assert [c.name for c in in_sqlite(sqlite, view)] == [c.name for c in in_sqlite(sqlite, table)]


def test_the_functions_on_the_page_are_those_in_postgresql(postgresql: psycopg.Connection[Any]) -> None:
    signatures = postgresql.execute(
        "SELECT proname, pg_get_function_arguments(oid), pg_get_function_result(oid) FROM pg_proc "
        "WHERE proname ~ '^cronjobs_' AND NOT proname = ANY(%s)",
        [[*WORKER_FUNCTIONS, "cronjobs_lock_queues", "cronjobs_count_full"]],  # no app calls these by itself
    ).fetchall()
    assert {function for function, _, _ in signatures} == FUNCTIONS.keys()
    for function, arguments, result in signatures:
        there = []
        for argument in arguments.split(", "):
            name, _, rest = argument.partition(" ")
            kind, _, default = rest.partition(" DEFAULT ")
            there.append(Column(name, short(kind), in_words(default or None, default.startswith("NULL"))))
        said = [
            Column(next(iter(row.values())).strip("`"), row["type"], row["default"])
            for row in PAGE.table(*FUNCTIONS[function])
        ]
        assert said == there
        assert f"`{result.removeprefix('TABLE')}`" in PAGE.text or result == "text"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("''", "22023"), ("'t', '[]'", "22023"), ("'t', priority => 10", "23514"), ("'t', queue => 'full'", "CJ001")],
)
def test_the_function_refuses_with_the_codes_on_the_page(
    postgresql: psycopg.Connection[Any], arguments: str, code: str
) -> None:
    postgresql.execute("INSERT INTO cronjobs_queues (name, max_waiting) VALUES ('full', 0)")
    with pytest.raises(psycopg.Error) as refused:
        postgresql.execute(f"SELECT cronjobs_enqueue({arguments})".encode())
    assert refused.value.sqlstate == code
    assert f"`{code}`" in {row["SQLSTATE"] for row in PAGE.table(FUNCTION, 1)}


def test_a_drop_by_the_function_is_a_row_of_nulls(postgresql: psycopg.Connection[Any]) -> None:
    postgresql.execute("INSERT INTO cronjobs_queues (name, max_waiting, on_full) VALUES ('full', 0, 'drop')")
    dropped = postgresql.execute("SELECT * FROM cronjobs_enqueue('t', queue => 'full')").fetchall()
    assert dropped == [(None, False, None)]


def test_nothing_of_ours_in_a_database_is_missing_on_the_page(
    postgresql: psycopg.Connection[Any], sqlite: sqlite3.Connection
) -> None:
    in_one = postgresql.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
    in_other = sqlite.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name LIKE 'cronjobs_%'"
    )
    there = {name.removesuffix("_readable") for (name,) in [*in_one.fetchall(), *in_other.fetchall()]}
    assert there == {*CONTRACT, *VIEWS, *OURS_ALONE}
    for name in there:
        assert f"`{name}`" in PAGE.text


def test_the_page_writes_keys_as_python_does() -> None:
    for python, text in ((("invoice", 42), r"invoice:42"), (("a:b", 1), r"a\:b:1")):
        shown = repr(python).replace("'", '"')
        assert f"`{shown}` is `{text}`" in " ".join(PAGE.text.split())
        assert key_text(python) == text


def test_the_page_links_to_what_is_there() -> None:
    assert PAGE.dead_links() == []
