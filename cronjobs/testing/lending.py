"""A test's own connection and its open transaction, as the ``Database`` that our code reads and writes through.

Nothing here commits: what is a transaction elsewhere is a savepoint in the test's one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from sqlalchemy import Connection, Executable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from cronjobs.clock import SYSTEM, Clock
from cronjobs.engine.database.address import Address
from cronjobs.engine.database.borrowed import by_sqlalchemy
from cronjobs.engine.database.connection import Database, tell
from cronjobs.engine.database.tables import meta
from cronjobs.engine.database.user_connections import WrappedConnection, has_open_transaction, is_django
from cronjobs.engine.store.meta import has_table
from cronjobs.errors import BadValue, UsageError


class Savepoint:
    """A part of the test's transaction."""

    def __init__(self, of: Connection | Session) -> None:
        self._savepoint = of.begin_nested()

    def flush(self) -> None:
        """Send what an ORM still holds back; it may fail as a COMMIT may."""

    def commit(self) -> None:
        self._savepoint.commit()

    def rollback(self) -> None:
        self._savepoint.rollback()


class Lender:
    """What a test gave us: an SQLAlchemy connection for its transaction, and savepoints that its owner knows of."""

    def __init__(self, connection: Callable[[], Connection], savepoint: Callable[[], Savepoint], what: str) -> None:
        self._connection, self.savepoint, self._what = connection, savepoint, what

    def connection(self) -> Connection:
        """The connection, in an open transaction. Raises UsageError where each statement would commit itself."""
        connection = self._connection()
        if not _is_open(connection):
            connection.exec_driver_sql("SELECT 1").close()  # whatever begins with the first statement begins
        if not _is_open(connection):
            raw: Any = connection.connection.driver_connection
            # Python's sqlite3 begins with the first INSERT, and a savepoint outside of a transaction commits.
            if connection.dialect.name != "sqlite" or raw.isolation_level is None:
                raise UsageError(
                    f"{self._what} works in the test's own transaction, and this connection commits by itself"
                )
            connection.exec_driver_sql("BEGIN")
        return connection


def ended_since(connection: Connection, transaction: object) -> bool:
    """Whether *transaction*, which was open on *connection*, is not any more."""
    return connection.closed or connection.get_transaction() is not transaction or not _is_open(connection)


def _is_open(connection: Connection) -> bool:
    """Whether the driver says that a transaction is open; True where it does not say."""
    return has_open_transaction(connection.connection.driver_connection) is not False


def lend(target: Any, what: str) -> Lender:
    """Take what ``enqueue`` takes; *what* was called is for errors. Raises TypeError for the rest."""
    if isinstance(target, Connection):
        return Lender(lambda: target, lambda: Savepoint(target), what)
    if isinstance(target, Session):
        return Lender(target.connection, lambda: _OfSession(target), what)
    if hasattr(target, "get_bind") and callable(target):  # a scoped session
        return lend(target(), what)
    if is_django(target):
        if not target.in_atomic_block:
            raise UsageError(f"{what} works in the test's own transaction: open one, with transaction.atomic()")
        target.ensure_connection()
        djangos = by_sqlalchemy(target.connection, what)
        return Lender(lambda: djangos, lambda: _OfDjango(target.alias), what)
    drivers = by_sqlalchemy(target, what)
    return Lender(lambda: drivers, lambda: Savepoint(drivers), what)


class _OfSession(Savepoint):
    """A savepoint that the session knows of: what is rolled back is forgotten by its objects, too."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._session = session
        session.connection()  # now, not with the session's next statement: the handler may have a session of its own

    def flush(self) -> None:
        self._session.flush()

    def commit(self) -> None:
        if self._is_there():
            super().commit()

    def rollback(self) -> None:
        if self._is_there():
            super().rollback()

    def _is_there(self) -> bool:
        """False: the handler has committed it, or rolled it back."""
        return self._session.get_nested_transaction() is self._savepoint


class _OfDjango(Savepoint):
    """A savepoint that Django knows of, so that its ``on_commit`` and ``needs_rollback`` are right."""

    def __init__(self, alias: str) -> None:
        from django.db import transaction  # type: ignore[import-untyped]

        self._transaction, self._alias = transaction, alias
        self._block = transaction.atomic(using=alias)
        self._block.__enter__()

    def commit(self) -> None:
        self._block.__exit__(None, None, None)

    def rollback(self) -> None:
        self._transaction.set_rollback(True, using=self._alias)
        self._block.__exit__(None, None, None)


# --- as our code wants it ---------------------------------------------------------------------------------------------


class LentConnection(WrappedConnection):
    """A connection for our statements: with our clock and schema, which are no business of its owner's statements."""

    def __init__(self, connection: Connection, clock: Clock, schema: str | None) -> None:
        super().__init__(connection, schema, cronjobs_clock=clock)
        self.written: list[tuple[Executable, Any]] | None = None  # not None: what is executed is noted here

    def execute(
        self, statement: Executable, parameters: Any = None, *, execution_options: Mapping[str, Any] | None = None
    ) -> Any:
        if self.written is not None:
            self.written.append((statement, parameters))
        return self._connection.execute(
            statement, parameters, execution_options={**self._options, **(execution_options or {})}
        )


class LentDatabase(Database):
    """The ``Database`` of code that runs in a test's transaction. *target* None: using it raises UsageError."""

    def __init__(self, target: Any, what: str, *, schema: str | None = None, clock: Clock = SYSTEM) -> None:
        self._what, self._schema, self.clock = what, schema, clock
        self.lender = None if target is None else lend(target, what)
        self.written: list[tuple[Executable, Any]] = []  # by transactions of their own, since it was last emptied

    def _lender(self) -> Lender:
        if self.lender is None:
            raise UsageError(f"the handler needs a database connection, and the test gave none: {self._what}")
        return self.lender

    @property
    def address(self) -> Address:  # type: ignore[override]
        return Address(self._lender().connection().engine.url, self._schema)

    @property
    def is_sqlite(self) -> bool:
        return self._lender().connection().dialect.name == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        yield self.with_tables(self._lender().connection())

    @contextmanager
    def write(self, *, patience: float = 0, next_in_line: bool = False) -> Iterator[Connection]:
        connection = self._lender().connection()
        lent = LentConnection(connection, self.clock, self._schema)
        lent.written = []
        try:
            with connection.begin_nested():
                yield cast("Connection", lent)
        except DBAPIError as error:
            told = tell(self.address, error)
            raise told if isinstance(told, BadValue) else error from None
        self.written += lent.written

    def write_again(self, written: Sequence[tuple[Executable, Any]]) -> None:
        """Do once more what was committed by itself, after the savepoint around it was rolled back."""
        with self.write() as connection:
            for statement, parameters in written:
                connection.execute(statement, parameters)

    @contextmanager
    def handler_transaction(self, remaining_s: float) -> Iterator[tuple[Connection, Callable[[], None]]]:
        connection = self._lender().connection()
        with connection.begin_nested():
            yield connection, lambda: None

    def with_tables(self, connection: Connection) -> Connection:
        return cast("Connection", LentConnection(connection, self.clock, self._schema))

    def close(self) -> None:
        """The connection stays its owner's."""


def require_tables(connection: Connection, what: str) -> None:
    """Raise UsageError where our tables are missing; the transaction is usable after it."""
    if not has_table(connection, meta.name):
        raise UsageError(f"{what} finds no tables of cronjobs on this connection: create_tables(connection) makes them")
