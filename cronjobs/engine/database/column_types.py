"""Column types and functions that mean the same on both databases: instants, JSON, the server's clock and user."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import BigInteger, Dialect, Text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from cronjobs.engine.rules.payload import read_json

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
# SQLite stores instants as whole microseconds. Instants in other units are a common mistake, and this range excludes
# them. The range starts in 1973, so that seconds and milliseconds are below it. The range ends with the year 9999, so
# that nanoseconds are above it.
SQLITE_FIRST_INSTANT: Final = 100_000_000_000_000
SQLITE_LAST_INSTANT: Final = 253_402_300_799_999_999
# Refuse "infinity", and years that Python's datetime cannot hold. Such a value would crash every program that reads the
# row.
POSTGRESQL_RANGE: Final = "BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'"


class Instant(TypeDecorator[datetime]):
    """An aware UTC datetime: timestamptz on PostgreSQL, integer microseconds since 1970 on SQLite.

    SQLAlchemy's ``DateTime(timezone=True)`` would silently drop the offset on SQLite.
    """

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            # Imported only here, because this import loads all PostgreSQL dialects, which a tick on SQLite does not
            # need.
            from sqlalchemy.dialects.postgresql import TIMESTAMP

            return dialect.type_descriptor(TIMESTAMP(timezone=True))
        return dialect.type_descriptor(BigInteger())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone: pass an aware datetime, e.g. datetime.now(UTC)")
        return value if dialect.name == "postgresql" else to_microseconds(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return _instant_or_none


def _instant_or_none(value: Any) -> datetime | None:
    if value is None:
        return None
    return value.astimezone(UTC) if isinstance(value, datetime) else from_microseconds(value)


def to_microseconds(instant: datetime) -> int:
    return (instant - EPOCH) // MICROSECOND


# Cache results, because the rows of one claim have many instants in common.
@lru_cache(maxsize=128)
def from_microseconds(value: int) -> datetime:
    return EPOCH + timedelta(microseconds=value)


class Json(TypeDecorator[Any]):
    """A JSON value: JSONB on PostgreSQL, text on SQLite.

    On SQLite, a column of the declared type JSON would have numeric affinity, which would turn '"5"' into 5.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            from sqlalchemy.dialects.postgresql import JSONB

            return dialect.type_descriptor(JSONB(none_as_null=True))
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return json.dumps(value, separators=(",", ":"), allow_nan=False)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        if dialect.name == "postgresql":
            return super().result_processor(dialect, coltype)
        return lambda value: read_json(value) if isinstance(value, str | bytes) else value


class server_now(FunctionElement[datetime]):  # noqa: N801 SQL functions are lower case
    """The current time by the database's clock, as a column default."""

    inherit_cache = True
    type = Instant()


@compiles(server_now, "postgresql")
def _server_now_postgresql(element: server_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "statement_timestamp()"


@compiles(server_now, "sqlite")
def _server_now_sqlite(element: server_now, compiler: SQLCompiler, **kw: Any) -> str:
    # Do not use unixepoch('subsec'), which needs SQLite 3.42, or julianday(), whose float can be off by milliseconds.
    return (
        "(CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)"
    )


POSTGRESQL_CALLER: Final = "concat_ws('/', CURRENT_USER, nullif(current_setting('application_name', true), ''))"


class server_caller(FunctionElement[str]):  # noqa: N801
    """The user and the application name of the connection, as the database knows them. A column default."""

    inherit_cache = True
    type = Text()


@compiles(server_caller, "postgresql")
def _server_caller_postgresql(element: server_caller, compiler: SQLCompiler, **kw: Any) -> str:
    return POSTGRESQL_CALLER


@compiles(server_caller, "sqlite")
def _server_caller_sqlite(element: server_caller, compiler: SQLCompiler, **kw: Any) -> str:
    return "NULL"
