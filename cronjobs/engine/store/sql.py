"""Run statements. This module also has what many statements share: groups of rows, locks, types.

A statement is an f-string, written once for both databases: see ``engine/probe/sql_text.py``. A piece of SQL that
several statements have is a constant of the module whose subject it is.
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
# Skip rows that others have locked. On SQLite a writer is alone.
LOCK: Final = either(postgresql="FOR NO KEY UPDATE OF j SKIP LOCKED", sqlite="")
WAIT_FOR_LOCK: Final = either(postgresql="FOR NO KEY UPDATE OF j", sqlite="")
# Pruned except for its key: what the job was to do is gone.
IS_STRIPPED: Final = either(
    postgresql="j.meta ? 'cronjobs.stripped'",
    sqlite="(json_valid(j.meta) AND json_type(j.meta, '$.\"cronjobs.stripped\"') IS NOT NULL)",
)
# "… is one of :ids", a JSON array of numbers.
AMONG_IDS: Final = either(
    postgresql="= ANY(ARRAY(SELECT CAST(v AS bigint) FROM json_array_elements_text(CAST(:ids AS json)) v))",
    sqlite="IN (SELECT value FROM json_each(:ids))",
)


# Result columns that need decoding in every statement that returns them.
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


_EVERY_COLUMN: Final = re.compile(r"(^|\b(SELECT|ALL|DISTINCT)|[,.])\s*\*", re.I)  # not the star of count(*) or 2 * 3
_WORD: Final = re.compile(r"\w+")


def json_value(column: str, key: str) -> str:
    """A value in a JSON column, as text. NULL for invalid JSON: an error would make the whole claim fail."""
    return either(
        postgresql=f"({column} ->> '{key}')",
        sqlite=f"CASE WHEN json_valid({column}) THEN json_extract({column}, '$.\"{key}\"') END",
    )


def among(parameter: str) -> str:
    """SQL for "… is one of a list". The list is one parameter, a JSON array of strings."""
    return either(
        postgresql=f"= ANY(ARRAY(SELECT json_array_elements_text(CAST(:{parameter} AS json))))",
        sqlite=f"IN (SELECT value FROM json_each(:{parameter}))",
    )


AMONG_KNOWN: Final = among("known")
AMONG_NAMES: Final = among("names")
AMONG_KEYS: Final = among("keys")


def group(parameter: str, columns: Mapping[str, str]) -> str:
    """A group of rows as one JSON parameter: far fewer bytes and plans than executemany.

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
    """The parameters of a group of rows, by column: the columns with one value for all rows, and the others.

    A value that all rows have is bound once, unless its column is one of *from_json*. A column without values is in
    neither list. ``shaped_rows`` makes rows of them again. Rows of one group differ in little but their keys.
    *as_json*: columns whose values are JSON texts; on PostgreSQL they are not made strings within JSON.
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
    """Whether every driver, in every client encoding, passes *value* on unchanged; if not, it travels in JSON.

    Drivers have their own ideas about enums, and cannot encode all characters. psycopg refuses NUL, which the server
    would refuse as a bad value. JSON is ASCII.
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
    """SQL for rows of *columns*.

    A *bound* column is one parameter, a *varying* one comes from JSON, and the rest is NULL.
    """
    values = dict.fromkeys(columns, "NULL")
    if postgresql:
        # All are sent as text: drivers disagree about the type of, say, an instant or a number.
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
    """The columns of a table, or those with these *names*, as ``group`` takes them; JSON counts as text."""
    return {name: _kind(table.c[name]) for name in names or table.c.keys()}


def _kind(column: Column[Any]) -> str:
    match column.type:
        case Instant():
            return "timestamptz"
        case BigInteger():
            return "bigint"
        case Integer():  # and SmallInteger
            return "int"
        case Float():
            return "float8"
    return "text"


def group_value(connection: Connection, rows: Any) -> str:
    """The JSON parameter of ``group`` and ``among``, with instants as the database compares them."""
    return (_AS_POSTGRESQL if is_postgresql(connection) else _AS_SQLITE).encode(rows)


def _encoder(instant: Callable[[datetime], object]) -> json.JSONEncoder:
    def encode(value: Any) -> Any:
        if isinstance(value, datetime):
            return instant(value)
        raise TypeError(f"{type(value).__name__} does not travel in a group of rows")

    return json.JSONEncoder(default=encode, separators=(",", ":"), allow_nan=False)


_AS_POSTGRESQL: Final = _encoder(datetime.isoformat)
_AS_SQLITE: Final = _encoder(to_microseconds)


def json_text(value: Mapping[str, Any]) -> str:
    """A JSON column's value in a group of rows, where it is text."""
    return _ENCODER.encode(value)


# Stable, like the clock that it replaces, so that statements keep their plans.
STANDING_NOW: Final = "(CASE WHEN statement_timestamp() IS NOT NULL THEN CAST(:now_ AS timestamptz) END)"


def run(connection: Connection, statement: str, /, **parameters: Any) -> CursorResult[Any]:
    """Run *statement* with bound *parameters*; a list is a group, as in ``among``.

    The only way to run a statement written for both databases: on every connection, for one row or hundreds.
    """
    postgresql = is_postgresql(connection)
    prepared, needs_clock = _prepare(statement, postgresql, schema_of(connection), _stands(connection))
    for name, value in parameters.items():
        if isinstance(value, list | tuple):
            parameters[name] = group_value(connection, value)
        elif isinstance(value, datetime) and not postgresql:
            parameters[name] = to_microseconds(value)
    if needs_clock:
        clock = clock_of(connection)
        parameters["now_"] = (clock.stands_at or 0.0) if postgresql else to_microseconds(clock.now())
    result: CursorResult[Any] = connection.execute(prepared, parameters)
    return result


@lru_cache(maxsize=256)
def _prepare(statement: str, postgresql: bool, schema: str | None, stands: bool) -> tuple[Executable, bool]:
    # Escape a colon in the schema's name: it starts no parameter.
    filled = statement_text(statement, postgresql=postgresql, schema=schema and schema.replace(":", "\\:"))
    if stands:
        filled = filled.replace(POSTGRESQL_NOW, STANDING_NOW)
    return text(filled).columns(**_types_told(filled)), ":now_" in filled


def _types_told(statement: str) -> dict[str, TypeEngine[Any]]:
    """Return the ``_TYPES`` that *statement* may return. SQLAlchemy compares each with the result, every time."""
    told = statement.rpartition("RETURNING")[2]
    words = None if _EVERY_COLUMN.search(told) else set(_WORD.findall(told))
    return {name: kind for name, kind in _TYPES.items() if words is None or name in words}


def inserted_into(connection: Connection, table: Table) -> Any:
    """An INSERT that can be given an ON CONFLICT."""
    if is_postgresql(connection):
        from sqlalchemy.dialects import postgresql  # imports every PostgreSQL dialect: SQLite's ticks do without

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)


def is_lost(error: BaseException) -> bool:
    """Whether an error in a savepoint ended the connection, so that no further statement on it can work."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def is_postgresql(connection: Connection) -> bool:
    return connection.dialect.name == "postgresql"


def schema_of(connection: Connection) -> str | None:
    """The schema configured for our tables. None: the search_path finds them."""
    schema: str | None = (connection.get_execution_options().get("schema_translate_map") or {}).get(None)
    return schema


def _stands(connection: Connection) -> bool:
    """Whether a test has stopped the database's clock."""
    return clock_of(connection).stands_at is not None


def clock_of(connection: Connection) -> Clock:
    clock: Clock = connection.get_execution_options().get("cronjobs_clock", SYSTEM)
    return clock


def database_now(connection: Connection) -> datetime:
    """The database's now: the one clock that decides."""
    now: datetime = run(connection, f"SELECT {NOW} AS now").scalar_one()
    return now
