"""The user's own connection, as much like SQLAlchemy's as ``run`` needs.

So the same statements serve every driver.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, cast

from sqlalchemy import URL, Connection, Dialect, Executable
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from cronjobs.errors import UsageError
from cronjobs.text import decoded

# Positional parameters in each driver's spelling. Django turns %s into what its driver takes, on SQLite too.
_PSYCOPG: Final[Dialect] = PGDialect_psycopg(paramstyle="format")  # type: ignore[no-untyped-call]
_SQLITE3: Final = SQLiteDialect_pysqlite(paramstyle="qmark")
_DJANGO: Final[Mapping[str, Dialect]] = {"postgresql": _PSYCOPG, "sqlite": SQLiteDialect_pysqlite(paramstyle="format")}
_IDLE, _UNKNOWN = 0, 4  # libpq's PQTRANS_IDLE and PQTRANS_UNKNOWN


class Answer:
    """The rows of one statement, fetched: a cursor left open would hold SQLite's lock."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def all(self) -> list[Any]:
        return self._rows

    def scalar_one(self) -> Any:
        [[value]] = self._rows
        return value


# --- what no SQLAlchemy is around -------------------------------------------------------------------------------------


class PlainConnection(ABC):
    """Wraps its owner's connection.

    Renders a statement for ``dialect`` and executes it on a new cursor; never commits.
    """

    def __init__(self, owners: Any, dialect: Dialect, schema: str | None) -> None:
        self.dialect = dialect
        self._owners = owners
        in_schema = schema is not None and dialect.name == "postgresql"
        self._options = {"schema_translate_map": {None: schema}} if in_schema else {}

    @abstractmethod
    def cursor(self) -> Any:
        """A cursor that returns plain rows, whatever its owner's settings make of them."""

    @abstractmethod
    def where(self) -> str:
        """The database's name, without a password."""

    @abstractmethod
    def commits_by_itself(self) -> bool:
        """Whether each statement would now be a transaction of its own."""

    @property
    def connection(self) -> PlainConnection:
        return self  # as with SQLAlchemy: connection.connection.driver_connection

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
                "a psycopg pipeline holds back the answers that enqueueing needs: enqueue before or after the "
                "pipeline block. Nothing was written"
            )
        return Cursor(self._owners, row_factory=tuple_row)

    def where(self) -> str:
        info = self._owners.info
        return _url(info.user, info.host, info.port, info.dbname)

    def commits_by_itself(self) -> bool:
        return bool(self._owners.autocommit) and self._owners.info.transaction_status.name == "IDLE"


class _Django(PlainConnection):
    """``django.db.connection`` stands for the thread's connection, and passes calls on."""

    def cursor(self) -> Any:
        return self._owners.cursor()

    def where(self) -> str:
        said = self._owners.settings_dict
        if self._owners.vendor == "sqlite":
            return f"sqlite:///{said['NAME']}"
        return _url(said.get("USER"), said.get("HOST"), said.get("PORT"), said.get("NAME"))

    def commits_by_itself(self) -> bool:
        return not self._owners.in_atomic_block and bool(self._owners.get_autocommit())

    @property
    def driver_connection(self) -> Any:
        self._owners.ensure_connection()
        return self._owners.connection


def plain_connection(target: Any, schema: str | None = None) -> PlainConnection | None:
    """*target* (psycopg 3, sqlite3 or Django), wrapped for ``run``. None: it is none of these.

    Imports nothing to find out: a caller that passes a connection has imported its driver.
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
    """Whether a transaction is open on a driver's connection, or None if the driver does not say, or it is broken."""
    try:
        if (found := getattr(raw, "in_transaction", None)) is not None:  # sqlite3
            return bool(found)
        status = int(raw.info.transaction_status)  # psycopg
    except Exception:  # closed, or another driver's
        return None
    return None if status == _UNKNOWN else status != _IDLE


@lru_cache(maxsize=64)
def _is_psycopg(kind: type[Any]) -> bool:
    return any(f"{one.__module__}.{one.__name__}" == "psycopg.Connection" for one in kind.__mro__)


def is_django(target: Any) -> bool:
    return all(hasattr(target, name) for name in ("vendor", "in_atomic_block", "settings_dict", "ensure_connection"))


@contextmanager
def texts_decoded(raw: Any) -> Iterator[None]:
    """Let *raw*, if it is sqlite3's, read texts that are not UTF-8 inside the block; otherwise it would raise."""
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
    """Makes rows whose values are found by column names, like SQLAlchemy's."""
    kind: Any = namedtuple("Row", columns, rename=True)  # type: ignore[misc]
    make: Callable[[Sequence[Any]], Any] = kind._make
    return make


def _text(row: Sequence[Any]) -> Sequence[Any]:
    """Texts stay texts, whatever the user's connection makes of them (sqlite3's text_factory)."""
    return [decoded(value) if isinstance(value, bytes) else value for value in row]


@lru_cache(maxsize=64)
def _rendered(statement: Executable, dialect: Dialect) -> tuple[str, tuple[str, ...]]:
    compiled: Any = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
    # Python's sqlite3 decides by the first word whether to open a transaction, and does not skip leading blanks.
    return str(compiled).strip(), tuple(compiled.positiontup or ())


@lru_cache(maxsize=64)  # every enqueue asks
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


# --- SQLAlchemy's -----------------------------------------------------------------------------------------------------


class WrappedConnection:
    """An SQLAlchemy connection with our options. ``execution_options()`` would leave them on the user's connection."""

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
    """*connection* for ``run``, with our tables in PostgreSQL's *schema*. None: wherever its own options say."""
    return connection if schema is None else cast("Connection", WrappedConnection(connection, schema))


def commits_by_itself(connection: Any) -> bool:
    """Whether each statement on a user's *connection*, wrapped for ``run``, would be a transaction of its own."""
    if isinstance(connection, PlainConnection):
        return connection.commits_by_itself()
    # Not get_isolation_level(): even in autocommit it names the level of the transactions, one for each statement.
    driver, raw = connection.connection.driver_connection, connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":
        return _sqlite_commits_by_itself(driver)
    begun = getattr(getattr(driver, "info", None), "transaction_status", 0)  # psycopg's: by a BEGIN of the caller's
    return bool(getattr(raw, "autocommit", False)) and not begun
