"""Run statements. This module also holds the parts that many statements share: groups of rows, locks, types.

A statement is an f-string that is written once for both databases; ``engine/probe/sql_text.py`` explains how. SQL that
several statements share is a constant in the module for its subject.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, CursorResult, Executable, Float, Integer, Table, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from cronjobs.clock import SYSTEM, Clock
from cronjobs.engine.database import tables
from cronjobs.engine.database.column_types import Instant, Json, to_microseconds
from cronjobs.engine.probe.idle_conditions import PAUSED
from cronjobs.engine.probe.sql_text import NOW, POSTGRESQL_NOW, either, statement_text

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

INSTANT_TYPE: Final = either(postgresql="timestamptz", sqlite="integer")
JSON_TYPE: Final = either(postgresql="jsonb", sqlite="text")
OPEN_QUEUE: Final = f"(CAST(:queue AS text) IS NULL OR b.queue = CAST(:queue AS text)) AND NOT {PAUSED}"
# Skip rows that other sessions have locked. SQLite needs no lock, because it has only one writer.
LOCK: Final = either(postgresql="FOR NO KEY UPDATE OF j SKIP LOCKED", sqlite="")
WAIT_FOR_LOCK: Final = either(postgresql="FOR NO KEY UPDATE OF j", sqlite="")
# True if pruning has removed the job's payload and kept only its key.
IS_STRIPPED: Final = either(
    postgresql="j.meta ? 'cronjobs.stripped'",
    # CASE and not AND: in a result column SQLite evaluates both sides of AND, and json_type fails for other texts.
    sqlite="""(CASE WHEN typeof(j.meta) = 'text' AND json_valid(j.meta)
      THEN json_type(j.meta, '$."cronjobs.stripped"') IS NOT NULL ELSE 0 END)""",
)
# SQL for "… is one of :ids". The parameter is a JSON array of numbers.
AMONG_IDS: Final = either(
    postgresql="= ANY(ARRAY(SELECT CAST(v AS bigint) FROM json_array_elements_text(CAST(:ids AS json)) v))",
    sqlite="IN (SELECT value FROM json_each(:ids))",
)


# The types of result columns that need decoding, by column name. A name has the same type in all statements.
_TYPES: Final = {
    column.name: column.type
    for table in tables.metadata.sorted_tables
    for column in table.columns
    if isinstance(column.type, Instant | Json)
} | {
    "now": Instant(),
    "read_at": Instant(),
    "next_occurrence": Instant(),
    "last_tick_at": Instant(),
    "handlers_at": Instant(),
    "last_at": Instant(),
    "old_names": Json(),
}


# Matches a star that selects all columns, but not the star in count(*) or in 2 * 3.
_EVERY_COLUMN: Final = re.compile(r"(^|\b(SELECT|ALL|DISTINCT)|[,.])\s*\*", re.I)
_WORD: Final = re.compile(r"\w+")


def json_value(column: str, key: str) -> str:
    """Return SQL for a value in a JSON column, as text.

    The value is NULL if the JSON is invalid, because an error would make the whole claim fail.
    """
    return either(
        postgresql=f"({column} ->> '{key}')",
        sqlite=f"CASE WHEN json_valid({column}) THEN json_extract({column}, '$.\"{key}\"') END",
    )


def among(parameter: str) -> str:
    """Return SQL for "… is one of a list". The list is one parameter, a JSON array of strings."""
    return either(
        postgresql=f"= ANY(ARRAY(SELECT json_array_elements_text(CAST(:{parameter} AS json))))",
        sqlite=f"IN (SELECT value FROM json_each(:{parameter}))",
    )


AMONG_KNOWN: Final = among("known")
AMONG_NAMES: Final = among("names")
AMONG_KEYS: Final = among("keys")


def group(parameter: str, columns: Mapping[str, str]) -> str:
    """Return SQL for a group of rows from one JSON parameter.

    One parameter sends far fewer bytes than executemany does, and the database plans the statement only once.

    *columns* maps names to "bigint", "int", "float8", "text" or "timestamptz".
    """
    declared = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    extracted = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in columns)
    return either(
        postgresql=f"(SELECT * FROM json_to_recordset(CAST(:{parameter} AS json)) AS r({declared}))",
        sqlite=f"(SELECT {extracted} FROM json_each(:{parameter}))",
    )


def shaped(
    connection: Connection,
    values: Mapping[str, Sequence[Any]],
    *,
    from_json: Collection[str],
    as_json: Collection[str] = (),
) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Return the parameters of a group of rows, the columns with one value for all rows, and the varying columns.

    Apart from their keys, the rows of one group differ little. So a value that all rows share becomes one parameter,
    unless its column is in *from_json*. A column without a value in any row is in neither list. ``shaped_rows`` turns
    the parameters back into rows. *as_json* are columns whose values are JSON texts. On PostgreSQL they are sent as
    JSON, not as strings within JSON.
    """
    postgresql = is_postgresql(connection)
    parameters: dict[str, Any] = {}
    varying: dict[str, Sequence[Any]] = {}
    for name, found in values.items():
        same = found.count(found[0]) == len(found)
        if same and name not in from_json and _may_be_bound(found[0], postgresql):
            parameters[name] = _bound(found[0], postgresql)
        elif not same or found[0] is not None:
            varying[name] = found
    bound = tuple(parameters)
    if postgresql:
        parameters |= {
            f"{name}_rows": f"[{','.join(found)}]" if name in as_json else group_value(connection, found)
            for name, found in varying.items()
        }
    elif varying:
        parameters["rows"] = group_value(connection, list(zip(*varying.values(), strict=True)))
    return parameters, bound, tuple(varying)


def _may_be_bound(value: Any, postgresql: bool) -> bool:
    """Return whether every driver sends *value* unchanged as a parameter, in every client encoding.

    Any other value is sent within JSON, which is ASCII. Drivers treat enums differently, and cannot encode all
    characters in every encoding. psycopg itself rejects a NUL, but within JSON the server rejects it as a bad value.
    """
    if type(value) is str:
        return not postgresql or (value.isascii() and "\0" not in value)
    return type(value) in (int, float, datetime)


def _bound(value: Any, postgresql: bool) -> Any:
    if isinstance(value, datetime):
        return value.isoformat() if postgresql else to_microseconds(value)
    return str(value) if postgresql else value


def shaped_rows(
    postgresql: bool,
    columns: Mapping[str, str],
    bound: tuple[str, ...],
    varying: tuple[str, ...],
    as_json: Collection[str] = (),
) -> str:
    """Return SQL for rows of *columns*.

    A *bound* column has one parameter for all rows. A *varying* column comes from JSON. All other columns are NULL.
    """
    values = dict.fromkeys(columns, "NULL")
    if postgresql:
        # Declare all parameters as text, because drivers disagree about the types of instants and numbers.
        values |= {name: f"CAST(:{name} AS text)" for name in bound} | {name: f"v.{name}" for name in varying}
        values = {name: f"CAST({value} AS {columns[name]})" for name, value in values.items()} | {"n": "v.n"}
        elements = {name: "json_array_elements" + ("" if name in as_json else "_text") for name in varying}
        arrays = ", ".join(f"{function}(CAST(:{name}_rows AS json))" for name, function in elements.items())
        source = f"ROWS FROM ({arrays}) WITH ORDINALITY AS v({', '.join(varying)}, n)"
    else:
        values |= {name: f":{name}" for name in bound} | {"n": "v.key"}
        values |= {name: f"json_extract(v.value, '$[{n}]')" for n, name in enumerate(varying)}
        source = "json_each(:rows) v"
    if not varying:
        del values["n"]
    listed = ", ".join(f"{value} AS {name}" for name, value in values.items())
    return f"(SELECT {listed}" + (f" FROM {source})" if varying else ")")


def kinds(table: Table, *names: str) -> dict[str, str]:
    """Return a table's columns, or only those in *names*, in the form that ``group`` expects. JSON counts as text."""
    return {name: _kind(table.c[name]) for name in names or table.c.keys()}


def _kind(column: Column[Any]) -> str:
    match column.type:
        case Instant():
            return "timestamptz"
        case BigInteger():
            return "bigint"
        # This case includes SmallInteger.
        case Integer():
            return "int"
        case Float():
            return "float8"
    return "text"


def group_value(connection: Connection, rows: Any) -> str:
    """Return *rows* as the JSON parameter for ``group`` or ``among``, with instants as the database stores them."""
    return (_AS_POSTGRESQL if is_postgresql(connection) else _AS_SQLITE).encode(rows)


def _encoder(instant: Callable[[datetime], object]) -> json.JSONEncoder:
    def encode(value: Any) -> Any:
        if isinstance(value, datetime):
            return instant(value)
        raise TypeError(f"{type(value).__name__} cannot be sent in a group of rows")

    return json.JSONEncoder(default=encode, separators=(",", ":"), allow_nan=False)


_AS_POSTGRESQL: Final = _encoder(datetime.isoformat)
_AS_SQLITE: Final = _encoder(to_microseconds)


def json_text(value: Mapping[str, Any]) -> str:
    """Return the value of a JSON column as the text that a group of rows needs."""
    return _ENCODER.encode(value)


# While a test has stopped the clock, this expression replaces the database's clock. PostgreSQL treats the expression as
# stable, like the real clock, so statements keep their plans.
STANDING_NOW: Final = "(CASE WHEN statement_timestamp() IS NOT NULL THEN CAST(:now_ AS timestamptz) END)"


def run(connection: Connection, statement: str, /, **parameters: Any) -> CursorResult[Any]:
    """Run *statement* with bound *parameters*. A list becomes one JSON parameter, as ``among`` and ``group`` need it.

    This function runs every statement that is written for both databases, on any kind of connection.
    """
    postgresql, clock = is_postgresql(connection), clock_of(connection)
    prepared, needs_clock = _prepare(statement, postgresql, schema_of(connection), clock.stands_at is not None)
    for name, value in parameters.items():
        if isinstance(value, list | tuple):
            parameters[name] = group_value(connection, value)
        elif isinstance(value, datetime) and not postgresql:
            parameters[name] = to_microseconds(value)
    if needs_clock:
        parameters["now_"] = (clock.stands_at or 0.0) if postgresql else to_microseconds(clock.now())
    result: CursorResult[Any] = connection.execute(prepared, parameters)
    return result


@lru_cache(maxsize=256)
def _prepare(statement: str, postgresql: bool, schema: str | None, stands: bool) -> tuple[Executable, bool]:
    # Escape a colon in the schema's name, so that it does not start a parameter.
    filled = statement_text(statement, postgresql=postgresql, schema=schema and schema.replace(":", "\\:"))
    if stands:
        filled = filled.replace(POSTGRESQL_NOW, STANDING_NOW)
    return text(filled).columns(**_returned_types(filled)), ":now_" in filled


def _returned_types(statement: str) -> dict[str, TypeEngine[Any]]:
    """Return the entries of ``_TYPES`` for columns that *statement* may return.

    SQLAlchemy compares each of these types with every result, so fewer types are faster.
    """
    returned = statement.rpartition("RETURNING")[2]
    words = None if _EVERY_COLUMN.search(returned) else set(_WORD.findall(returned))
    return {name: kind for name, kind in _TYPES.items() if words is None or name in words}


def inserted_into(connection: Connection, table: Table) -> Any:
    """Return an INSERT that can take an ON CONFLICT clause."""
    if is_postgresql(connection):
        # Imported only here, because the import loads every PostgreSQL dialect, and ticks on SQLite need none of them.
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)


def is_lost(error: BaseException) -> bool:
    """Return whether an error in a savepoint has ended the connection, so that no further statement can run on it."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def is_postgresql(connection: Connection) -> bool:
    return connection.dialect.name == "postgresql"


def schema_of(connection: Connection) -> str | None:
    """Return the schema that is configured for our tables, or None if the search_path finds them."""
    schema: str | None = (connection.get_execution_options().get("schema_translate_map") or {}).get(None)
    return schema


def clock_of(connection: Connection) -> Clock:
    clock: Clock = connection.get_execution_options().get("cronjobs_clock", SYSTEM)
    return clock


def database_now(connection: Connection) -> datetime:
    """Return the time by the database's clock, on which all decisions are based."""
    now: datetime = run(connection, f"SELECT {NOW} AS now").scalar_one()
    return now
