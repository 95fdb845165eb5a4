"""The user's own connection, as much of an SQLAlchemy one as ``run`` asks for: the same statements for every driver."""

from __future__ import annotations

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

from sqlalchemy import URL, Connection, Dialect, Executable
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from cronjobs.text import decoded

# Positions, written as each driver wants them. Django turns %s into what its driver takes, on SQLite too.
_PSYCOPG: Final[Dialect] = PGDialect_psycopg(paramstyle="format")  # type: ignore[no-untyped-call]
_SQLITE3: Final = SQLiteDialect_pysqlite(paramstyle="qmark")
_DJANGO: Final[Mapping[str, Dialect]] = {"postgresql": _PSYCOPG, "sqlite": SQLiteDialect_pysqlite(paramstyle="format")}


class Answer:
    """The rows of one statement, fetched: a cursor left open would hold SQLite's lock."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def all(self) -> list[Any]:
        return self._rows

    def scalar_one(self) -> Any:
        [[value]] = self._rows
        return value


class PlainConnection:
    """Renders a statement for *dialect* and executes it on a new cursor of the caller's; never commits."""

    def __init__(
        self,
        dialect: Dialect,
        new_cursor: Callable[[], Any],
        where: Callable[[], str],
        schema: str | None,
        in_transaction_now: Callable[[], bool] | None = None,
        raw: Callable[[], Any] | None = None,
    ) -> None:
        self.dialect = dialect
        self.raw = raw  # gives psycopg's
        self.where = where
        self.in_transaction_now = in_transaction_now  # of SQLite; PostgreSQL is asked by its own means
        self._new_cursor = new_cursor
        self._options = {} if schema is None else {"schema_translate_map": {None: schema}}

    def get_execution_options(self) -> Mapping[str, Any]:
        return self._options

    def execute(self, statement: Executable, parameters: Mapping[str, Any]) -> Answer:
        text, names = _rendered(statement, self.dialect)
        cursor = self._new_cursor()
        try:
            cursor.execute(text, tuple(parameters[name] for name in names))
            if cursor.description is None:
                return Answer([])
            row_of = _row_of(tuple(column[0] for column in cursor.description))
            return Answer([row_of(_text(row)) for row in cursor.fetchall()])
        finally:
            cursor.close()


class _InSchema:
    """An SQLAlchemy connection whose statements look for our tables in *schema*, whatever its own options say."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self.dialect, self.engine, self.execute = connection.dialect, connection.engine, connection.execute
        self.connection, self.info = connection.connection, connection.info
        self.exec_driver_sql = connection.exec_driver_sql
        self._options: Mapping[str, Any] = connection.get_execution_options().union(
            {"schema_translate_map": {None: schema}}
        )

    def get_execution_options(self) -> Mapping[str, Any]:
        return self._options


def in_schema(connection: Connection, schema: str | None) -> Connection:
    """*connection* for ``run``, with our tables in *schema*; None, and on SQLite: as it is."""
    if schema is None or connection.dialect.name != "postgresql":
        return connection
    # Not execution_options(): they would stay on the user's connection.
    return cast("Connection", _InSchema(connection, schema))


@lru_cache(maxsize=64)
def _row_of(columns: tuple[str, ...]) -> Callable[[Sequence[Any]], Any]:
    """Makes rows whose values go by their columns' names, as SQLAlchemy's do."""
    kind: Any = namedtuple("Row", columns, rename=True)  # type: ignore[misc]
    make: Callable[[Sequence[Any]], Any] = kind._make
    return make


def _text(row: Sequence[Any]) -> Sequence[Any]:
    """Texts are texts, whatever the user's connection makes of them (sqlite3's text_factory)."""
    return [decoded(value) if isinstance(value, bytes) else value for value in row]


@lru_cache(maxsize=64)
def _rendered(statement: Executable, dialect: Dialect) -> tuple[str, tuple[str, ...]]:
    compiled: Any = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
    # Python's sqlite3 looks at the first word, and not past a blank, to see whether to open a transaction.
    return str(compiled).strip(), tuple(compiled.positiontup or ())


def plain_connection(target: Any, schema: str | None) -> Connection | None:
    """*target* (psycopg 3, sqlite3 or Django), dressed for ``run``; None: it is none of these.

    Nothing is imported to find out: who passes a connection of theirs has done so.
    """
    plain: PlainConnection | None = None
    if isinstance(target, sqlite3.Connection):
        plain = PlainConnection(
            _SQLITE3,
            lambda: _sqlite_cursor(target),
            lambda: _sqlite_file(target),
            None,
            lambda: target.in_transaction,
        )
    elif _is_psycopg(target):
        plain = PlainConnection(
            _PSYCOPG, lambda: _psycopg_cursor(target), lambda: _psycopg_place(target), schema, raw=lambda: target
        )
    elif _is_django(target) and target.vendor in _DJANGO:
        dialect = _DJANGO[target.vendor]
        in_schema = schema if dialect is _PSYCOPG else None
        plain = PlainConnection(
            dialect,
            target.cursor,
            lambda: _django_place(target),
            in_schema,
            lambda: bool(target.connection.in_transaction),
            raw=lambda: _connected(target),
        )
    return cast("Connection | None", plain)  # it has what run() asks of one


def _is_psycopg(target: Any) -> bool:
    return any(f"{kind.__module__}.{kind.__name__}" == "psycopg.Connection" for kind in type(target).__mro__)


def _is_django(target: Any) -> bool:
    """``django.db.connection`` stands for the thread's connection, and passes on what it is asked."""
    return all(hasattr(target, name) for name in ("vendor", "in_atomic_block", "settings_dict", "cursor"))


def _connected(target: Any) -> Any:
    target.ensure_connection()
    return target.connection


def _sqlite_cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    cursor = connection.cursor(sqlite3.Cursor)
    cursor.row_factory = None  # the user's may make anything of a row
    return cursor


def _psycopg_cursor(connection: Any) -> Any:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    return Cursor(connection, row_factory=tuple_row)  # whatever cursors and rows the user's connection makes


def _sqlite_file(connection: sqlite3.Connection) -> str:
    cursor = _sqlite_cursor(connection)
    databases = [_text(row) for row in cursor.execute("PRAGMA database_list").fetchall()]
    [file] = [file for _, name, file in databases if name == "main"]
    return f"sqlite:///{file or ':memory:'}"


def _psycopg_place(connection: Any) -> str:
    info = connection.info
    return _url("postgresql", info.user, info.host, info.port, info.dbname)


def _django_place(connection: Any) -> str:
    said = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{said['NAME']}"
    return _url("postgresql", said.get("USER"), said.get("HOST"), said.get("PORT"), said.get("NAME"))


def _url(kind: str, user: Any, host: Any, port: Any, name: Any) -> str:
    host = str(host or "")
    by_socket = host.startswith("/")
    url = URL.create(
        kind,
        username=user or None,
        host=None if by_socket else host or None,
        port=int(port) if port and host and not by_socket else None,
        database=name or None,
        query={"host": host} if by_socket else {},
    )
    return url.render_as_string(hide_password=True)


def commits_by_itself(target: Any) -> bool:
    """Whether each statement on *target* would be a transaction of its own, as it is now."""
    if isinstance(target, sqlite3.Connection):
        return not target.in_transaction and (
            target.isolation_level is None or getattr(target, "autocommit", -1) is True
        )
    if _is_psycopg(target):
        return bool(target.autocommit) and target.info.transaction_status.name == "IDLE"
    if _is_django(target):
        return not target.in_atomic_block and bool(target.get_autocommit())
    connection = target.connection() if hasattr(target, "get_bind") else target
    return str(connection.get_isolation_level()).upper() == "AUTOCOMMIT"
