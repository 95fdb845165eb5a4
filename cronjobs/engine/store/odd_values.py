"""Find values whose type does not fit their column. Only SQLite stores such values. This search runs after unexpected
errors.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Float, Integer, Table

from cronjobs.engine.database.column_types import Instant
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import metadata
from cronjobs.errors import DatabaseError

_NUMBER: Final = ("integer", "null")
_WORDS: Final = {"blob": "bytes", "text": "text", "real": "a fraction", "integer": "a whole number"}


def odd_value(database: Database) -> DatabaseError | None:
    """Return an error about the first value that does not fit its column, or None if all values fit."""
    if not database.is_sqlite:
        return None
    try:
        with database.read() as connection:
            for table in metadata.sorted_tables:
                found = connection.exec_driver_sql(_query(table)).first()
                if found is not None:
                    row, column, kind = found
                    return DatabaseError(
                        f"database {database.address}: {table.name}.{column} of the row with rowid {row} holds "
                        f"{_WORDS.get(kind, kind)}, which no cronjobs command writes there: correct it with SQL"
                    )
    except DatabaseError as error:
        return error
    return None


def _query(table: Table) -> str:
    odd = {column.name: f"typeof({column.name}) NOT IN {_kinds(column)}" for column in table.c}
    which = " ".join(f"WHEN {is_odd} THEN '{name}'" for name, is_odd in odd.items())
    kind = " ".join(f"WHEN {is_odd} THEN typeof({name})" for name, is_odd in odd.items())
    return (
        f"SELECT rowid, CASE {which} END, CASE {kind} END FROM {table.name} WHERE {' OR '.join(odd.values())} LIMIT 1"
    )


def _kinds(column: Column[object]) -> tuple[str, ...]:
    if isinstance(column.type, Float):
        return (*_NUMBER, "real")
    return _NUMBER if isinstance(column.type, Integer | Instant) else ("text", "null")
