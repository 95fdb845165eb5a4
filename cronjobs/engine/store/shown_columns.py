"""Columns in the form in which lists show them: the beginning of a text, and JSON only if it is not too large.

Anyone who can write rows can write megabytes into these columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, Text, cast, func, literal_column, select
from sqlalchemy.exc import DBAPIError

from cronjobs.engine.database.column_types import Json
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.probe.sql_text import statement_text
from cronjobs.engine.rules.payload import TOO_LARGE
from cronjobs.engine.rules.progress import LIVE_LIMIT
from cronjobs.engine.store.sizes import if_not_too_large
from cronjobs.engine.store.sql import is_lost, is_postgresql
from cronjobs.text import OUTPUT_LIMIT

# Show at most this many characters. cronjobs itself never writes longer values, except in the columns of ``_LONGER``.
LONGEST: Final = 2_000
_LONGER: Final = {
    "last_error": 4_000,
    "error": 4_000,
    "traceback": OUTPUT_LIMIT,
    "output": OUTPUT_LIMIT,
    "live_output": 2 * LIVE_LIMIT,
}


def columns_shown(*names: str) -> str:
    """Return SQL for text columns of ``j``, a job or an attempt, as a list for SELECT."""
    # The CAST is needed on SQLite, which may store bytes even in a text column.
    return ", ".join(f"CAST(substr(j.{name}, 1, {_LONGER.get(name, LONGEST)}) AS text) AS {name}" for name in names)


def shown(
    connection: Connection, columns: Iterable[Column[Any]], *, with_json: bool = True
) -> list[ColumnElement[Any]]:
    """Return the SQL expressions with which to select *columns*. Without *with_json*, every JSON column is treated as
    too large.
    """
    return [_one(is_postgresql(connection), column, with_json) for column in columns]


def fetched(connection: Connection, build: Callable[[bool], Select[Any]]) -> Sequence[Row[Any]]:
    """Return the rows of the query that *build* returns. The argument of *build* says whether to include JSON columns.

    If the query fails, try again without JSON, because a few bytes of jsonb can hold numbers with a gigabyte of digits.
    """
    try:
        with connection.begin_nested():
            return connection.execute(build(True)).all()
    except (DBAPIError, MemoryError) as error:
        if is_lost(error):
            raise
        return connection.execute(build(False)).all()


def beginning(column: Column[Any]) -> ColumnElement[Any]:
    """Return SQL for the beginning of a text *column*, under the column's own name."""
    return cast(func.substr(column, 1, _LONGER.get(column.name, LONGEST)), Text).label(column.name)


def _one(postgresql: bool, column: Column[Any], with_json: bool) -> ColumnElement[Any]:
    if isinstance(column.type, Json) and not with_json:
        kind = "jsonb" if postgresql else "text"
        return literal_column(f"""CAST('"{TOO_LARGE}"' AS {kind})""", Json()).label(column.name)
    if isinstance(column.type, Json):
        # Use the table's name without a schema. In this SELECT the name refers to the table of the configured schema.
        fetched = if_not_too_large(f"{column.table.name}.{column.name}")
        sql = statement_text(fetched, postgresql=postgresql)
        return literal_column(sql, Json()).label(column.name)
    return beginning(column) if isinstance(column.type, Text) else column


def one_job(connection: Connection, job_id: int) -> Row[Any] | None:
    def query(with_json: bool) -> Select[Any]:
        return select(*shown(connection, jobs.c, with_json=with_json)).where(jobs.c.id == job_id)

    return next(iter(fetched(connection, query)), None)


def newest_jobs(connection: Connection, limit: int) -> Sequence[Row[Any]]:

    def query(with_json: bool) -> Select[Any]:
        return select(*shown(connection, jobs.c, with_json=with_json)).order_by(jobs.c.id.desc()).limit(limit)

    return fetched(connection, query)
