"""Wrap the user's own connection. The wrapper has the part of SQLAlchemy's interface that ``run`` needs.

Statements written for SQLAlchemy connections then work with every driver.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, Final, cast

from sqlalchemy import URL, Connection, Dialect, Executable
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from cronjobs.errors import UsageError
from cronjobs.text import decoded

# Each driver has its own notation for positional parameters. Django accepts %s for every database, even SQLite, and
# converts %s to the driver's notation.
_PSYCOPG: Final[Dialect] = PGDialect_psycopg(paramstyle="format")  # type: ignore[no-untyped-call]
_SQLITE3: Final = SQLiteDialect_pysqlite(paramstyle="qmark")
_DJANGO: Final[Mapping[str, Dialect]] = {"postgresql": _PSYCOPG, "sqlite": SQLiteDialect_pysqlite(paramstyle="format")}
_IDLE, _UNKNOWN = 0, 4  # libpq's PQTRANS_IDLE and PQTRANS_UNKNOWN


class Answer:
    """The rows of one statement, already fetched, because an open cursor would hold SQLite's lock."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def all(self) -> list[Any]:
        return self._rows

    def scalar_one(self) -> Any:
        [[value]] = self._rows
        return value


# --- without SQLAlchemy -----------------------------------------------------------------------------------------------


class PlainConnection(ABC):
    """A wrapper around a user's connection, without SQLAlchemy.

    Compiles a statement for ``dialect`` and executes it on a new cursor. Never commits.
    """

    def __init__(self, owners: Any, dialect: Dialect, schema: str | None) -> None:
        self.dialect = dialect
        self._owners = owners
        in_schema = schema is not None and dialect.name == "postgresql"
        self._options = {"schema_translate_map": {None: schema}} if in_schema else {}

    @abstractmethod
    def cursor(self) -> Any:
        """Return a cursor whose rows are plain tuples, whatever the owner has configured."""

    @abstractmethod
    def where(self) -> str:
        """Return the database's URL without the password."""

    @abstractmethod
    def commits_by_itself(self) -> bool:
        """Return whether each statement would be its own transaction at this moment."""

    @property
    def connection(self) -> PlainConnection:
        # Return itself, so that ``connection.connection.driver_connection`` works as with SQLAlchemy.
        return self

    @property
    def driver_connection(self) -> Any:
        return self._owners

    def get_execution_options(self) -> Mapping[str, Any]:
        return self._options

    def execute(self, statement: Executable, parameters: Mapping[str, Any]) -> Answer:
        text, names = _rendered(statement, self.dialect)
        cursor = self.cursor()
        try:
            with texts_decoded(self.driver_connection):
                cursor.execute(text, tuple(parameters[name] for name in names))
                if cursor.description is None:
                    return Answer([])
                row_of = _row_of(tuple(column[0] for column in cursor.description))
                return Answer([row_of(_text(row)) for row in cursor.fetchall()])
        finally:
            cursor.close()


class _Sqlite3(PlainConnection):
    def cursor(self) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self._owners.cursor(sqlite3.Cursor)
        cursor.row_factory = None
        return cursor

    def where(self) -> str:
        databases = [_text(row) for row in self.cursor().execute("PRAGMA database_list").fetchall()]
        [file] = [file for _, name, file in databases if name == "main"]
        return f"sqlite:///{file or ':memory:'}"

    def commits_by_itself(self) -> bool:
        return _sqlite_commits_by_itself(self._owners)


def _sqlite_commits_by_itself(raw: Any) -> bool:
    return not raw.in_transaction and (raw.isolation_level is None or getattr(raw, "autocommit", -1) is True)


class _Psycopg(PlainConnection):
    def cursor(self) -> Any:
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        if self._owners.pgconn.pipeline_status:
            raise UsageError(
                "a psycopg pipeline delays the results that enqueueing needs: enqueue before or after the "
                "pipeline block. Nothing was written"
            )
        return Cursor(self._owners, row_factory=tuple_row)

    def where(self) -> str:
        info = self._owners.info
        return _url(info.user, info.host, info.port, info.dbname)

    def commits_by_itself(self) -> bool:
        return bool(self._owners.autocommit) and self._owners.info.transaction_status.name == "IDLE"


class _Django(PlainConnection):
    """Wraps ``django.db.connection``, which passes calls on to the current thread's connection."""

    def cursor(self) -> Any:
        return self._owners.cursor()

    def where(self) -> str:
        said = self._owners.settings_dict
        if self._owners.vendor == "sqlite":
            return f"sqlite:///{said['NAME']}"
        return _url(said.get("USER"), said.get("HOST"), said.get("PORT"), said.get("NAME"))

    @property
    def alias(self) -> str:
        return str(self._owners.alias)

    def commits_by_itself(self) -> bool:
        return not self._owners.in_atomic_block and bool(self._owners.get_autocommit())

    @property
    def driver_connection(self) -> Any:
        self._owners.ensure_connection()
        return self._owners.connection


def plain_connection(target: Any, schema: str | None = None) -> PlainConnection | None:
    """Return *target* (psycopg 3, sqlite3 or Django) wrapped for ``run``. Return None for anything else.

    No driver is imported here, because a caller that has a connection has already imported its driver.
    """
    if isinstance(target, sqlite3.Connection):
        return _Sqlite3(target, _SQLITE3, None)
    kind: Any = type(target)
    if _is_psycopg(kind):
        return _Psycopg(target, _PSYCOPG, schema)
    if is_django(target) and target.vendor in _DJANGO:
        return _Django(target, _DJANGO[target.vendor], schema)
    return None


def has_open_transaction(raw: Any) -> bool | None:
    """Return whether a transaction is open on a driver's connection.

    Return None if the driver does not report that, or if the connection is broken.
    """
    try:
        if (found := getattr(raw, "in_transaction", None)) is not None:  # sqlite3
            return bool(found)
        status = int(raw.info.transaction_status)  # psycopg
    # The connection is closed, or is a connection of another driver.
    except Exception:
        return None
    return None if status == _UNKNOWN else status != _IDLE


@lru_cache(maxsize=64)
def _is_psycopg(kind: type[Any]) -> bool:
    return any(f"{one.__module__}.{one.__name__}" == "psycopg.Connection" for one in kind.__mro__)


def is_django(target: Any) -> bool:
    return all(hasattr(target, name) for name in ("vendor", "in_atomic_block", "settings_dict", "ensure_connection"))


@contextmanager
def texts_decoded(raw: Any) -> Iterator[None]:
    """If *raw* is a connection of sqlite3, make it return texts that are not UTF-8 inside the block.

    Without this, sqlite3 would raise an error for such a text.
    """
    if not isinstance(raw, sqlite3.Connection):
        yield
        return
    owners, raw.text_factory = raw.text_factory, decoded
    try:
        yield
    finally:
        raw.text_factory = owners


def no_connection(what: str, sqlalchemys: str, target: Any) -> TypeError:
    return TypeError(
        f"{what} takes an SQLAlchemy {sqlalchemys}, a connection of psycopg 3 or sqlite3, or Django's on PostgreSQL or "
        f"SQLite, not {type(target).__module__}.{type(target).__qualname__}"
    )


@lru_cache(maxsize=64)
def _row_of(columns: tuple[str, ...]) -> Callable[[Sequence[Any]], Any]:
    """Return a function that makes rows whose values can be read by column name, like SQLAlchemy's rows."""
    kind: Any = namedtuple("Row", columns, rename=True)  # type: ignore[misc]
    make: Callable[[Sequence[Any]], Any] = kind._make
    return make


def _text(row: Sequence[Any]) -> Sequence[Any]:
    """Return the row with bytes decoded: a user's sqlite3 connection may return texts as bytes (text_factory)."""
    return [decoded(value) if isinstance(value, bytes) else value for value in row]


@lru_cache(maxsize=64)
def _rendered(statement: Executable, dialect: Dialect) -> tuple[str, tuple[str, ...]]:
    compiled: Any = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
    # Remove leading blanks, because Python's sqlite3 does not skip them. sqlite3 looks at the first word of a statement
    # to decide whether to open a transaction.
    return str(compiled).strip(), tuple(compiled.positiontup or ())


# Cached, because every enqueue needs the URL.
@lru_cache(maxsize=64)
def _url(user: Any, host: Any, port: Any, name: Any) -> str:
    host = str(host or "")
    by_socket = host.startswith("/")
    url = URL.create(
        "postgresql",
        username=user or None,
        host=None if by_socket else host or None,
        port=int(port) if port and host and not by_socket else None,
        database=name or None,
        query={"host": host} if by_socket else {},
    )
    return url.render_as_string(hide_password=True)


# --- with SQLAlchemy --------------------------------------------------------------------------------------------------


class WrappedConnection:
    """Adds our options to a user's SQLAlchemy connection. ``execution_options()`` would change the user's own
    connection.
    """

    def __init__(self, connection: Connection, schema: str | None, **options: Any) -> None:
        self._connection = connection
        if schema is not None and connection.dialect.name == "postgresql":
            options["schema_translate_map"] = {None: schema}
        self._options: Mapping[str, Any] = connection.get_execution_options().union(options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def get_execution_options(self) -> Mapping[str, Any]:
        return self._options


def in_schema(connection: Connection, schema: str | None) -> Connection:
    """Return *connection*, wrapped so that ``run`` looks for our tables in PostgreSQL's *schema*.

    If *schema* is None, return *connection* unchanged.
    """
    return connection if schema is None else cast("Connection", WrappedConnection(connection, schema))


def commits_by_itself(connection: Any) -> bool:
    """Return whether each statement on *connection* is its own transaction. *connection* is a user's connection,
    possibly wrapped for ``run``.
    """
    if isinstance(connection, PlainConnection):
        return connection.commits_by_itself()
    # Do not use get_isolation_level(): in autocommit mode it returns the isolation level of the single-statement
    # transactions.
    driver, raw = connection.connection.driver_connection, connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":
        return _sqlite_commits_by_itself(driver)
    # With psycopg in autocommit mode, the caller may have begun a transaction by sending BEGIN.
    begun = getattr(getattr(driver, "info", None), "transaction_status", 0)
    return bool(getattr(raw, "autocommit", False)) and not begun


def savepoint(connection: Connection) -> AbstractContextManager[Any]:
    """Open a savepoint on a user's connection. Do nothing if each statement is its own transaction."""
    return nullcontext() if commits_by_itself(connection) else connection.begin_nested()
