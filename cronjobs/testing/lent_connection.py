"""Wraps a test's own connection, with its open transaction, as a ``Database`` for our code.

This module never commits. Our transactions become savepoints in the test's transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from sqlalchemy import Connection, Executable, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from cronjobs.clock import SYSTEM, Clock
from cronjobs.engine.database.address import Address
from cronjobs.engine.database.borrowed import by_sqlalchemy
from cronjobs.engine.database.connection import Database, as_database_error
from cronjobs.engine.database.own_transaction import REFUSED
from cronjobs.engine.database.tables import meta
from cronjobs.engine.database.user_connections import WrappedConnection, has_open_transaction, is_django
from cronjobs.engine.store.meta import has_table
from cronjobs.errors import BadValue, UsageError


class Savepoint:
    """A savepoint in the test's transaction."""

    def __init__(self, of: Connection | Session) -> None:
        self._savepoint = of.begin_nested()

    def flush(self) -> None:
        """Flush the ORM's pending changes. The flush may fail as a COMMIT may fail."""

    def commit(self) -> None:
        self._savepoint.commit()

    def rollback(self) -> None:
        self._savepoint.rollback()


class Lender:
    """The test's connection as an SQLAlchemy Connection.

    Savepoints are made through the connection's owner (a session, or Django). ``run_async`` runs an async handler so
    that objects of the test's thread, such as Django's connection, are used in that thread. If ``run_async`` is None,
    an async handler can run in any way.
    """

    def __init__(
        self,
        connection: Callable[[], Connection],
        savepoint: Callable[[], Savepoint],
        what: str,
        run_async: Callable[[Coroutine[Any, Any, Any]], Any] | None = None,
    ) -> None:
        self._connection, self.savepoint, self._what, self.run_async = connection, savepoint, what, run_async

    def connection(self) -> Connection:
        """Return the connection with an open transaction. Raises UsageError for an autocommit connection."""
        connection = self._connection()
        if not _is_open(connection):
            # Some drivers open the transaction at the first statement, so run a statement.
            connection.exec_driver_sql("SELECT 1").close()
        if not _is_open(connection):
            raw: Any = connection.connection.driver_connection
            # Python's sqlite3 begins a transaction only at the first INSERT. Outside a transaction, releasing a
            # savepoint commits. So begin the transaction here.
            if connection.dialect.name != "sqlite" or raw.isolation_level is None:
                raise UsageError(
                    f"{self._what} needs a transaction of the test's own, but this connection commits "
                    "each statement by itself"
                )
            connection.exec_driver_sql("BEGIN")
        return connection


def ended_since(connection: Connection, transaction: object) -> bool:
    """Whether *transaction* is no longer the transaction that is open on *connection*."""
    return connection.closed or connection.get_transaction() is not transaction or not _is_open(connection)


def _is_open(connection: Connection) -> bool:
    """Whether the driver reports an open transaction. If the driver cannot tell, return True."""
    return has_open_transaction(connection.connection.driver_connection) is not False


def lend(target: Any, what: str) -> Lender:
    """Wrap anything that ``enqueue`` accepts. Raises TypeError, which names *what*, for anything else."""
    if isinstance(target, Connection):
        return Lender(lambda: target, lambda: Savepoint(target), what)
    if isinstance(target, Session):
        return Lender(target.connection, lambda: _OfSession(target), what)
    # *target* is a scoped_session, which returns its Session when it is called.
    if hasattr(target, "get_bind") and callable(target):
        return lend(target(), what)
    if is_django(target):
        if not target.in_atomic_block:
            raise UsageError(f"{what} needs a transaction of the test's own: open one with transaction.atomic()")
        target.ensure_connection()
        djangos = by_sqlalchemy(target.connection, what)
        return Lender(lambda: djangos, lambda: _OfDjango(target.alias), what, _by_asgiref)
    drivers = by_sqlalchemy(target, what)
    return Lender(lambda: drivers, lambda: Savepoint(drivers), what)


class _OfSession(Savepoint):
    """A savepoint made through the session, so that a rollback also resets the session's objects."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._session = session
        session.connection()  # this call begins the savepoint now, because the handler may use another session

    def flush(self) -> None:
        self._session.flush()

    def commit(self) -> None:
        if self._is_there():
            super().commit()

    def rollback(self) -> None:
        if self._is_there():
            super().rollback()

    def _is_there(self) -> bool:
        """Whether the savepoint still exists. The handler may have committed it or rolled it back."""
        return self._session.get_nested_transaction() is self._savepoint


class _OfDjango(Savepoint):
    """A savepoint made through Django, so that ``on_commit`` and ``needs_rollback`` work."""

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


def _by_asgiref(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run *coroutine* as Django's async tests are run.

    The event loop gets a thread of its own, and ``sync_to_async`` calls the ORM in the calling thread, on that thread's
    connection.
    """
    from asgiref.sync import async_to_sync

    async def wait() -> Any:
        return await coroutine

    return async_to_sync(wait)()


# --- for our code -----------------------------------------------------------------------------------------------------


class LentConnection(WrappedConnection):
    """A connection for our statements. It applies our clock and schema without affecting the owner's statements."""

    def __init__(self, connection: Connection, clock: Clock, schema: str | None) -> None:
        super().__init__(connection, schema, cronjobs_clock=clock)
        # If ``written`` is a list, ``execute`` appends each statement and its parameters.
        self.written: list[tuple[Executable, Any]] | None = None

    def execute(
        self, statement: Executable, parameters: Any = None, *, execution_options: Mapping[str, Any] | None = None
    ) -> Any:
        if self.written is not None:
            self.written.append((statement, parameters))
        return self._connection.execute(
            statement, parameters, execution_options={**self._options, **(execution_options or {})}
        )


class LentDatabase(Database):
    """A ``Database`` for code that runs in a test's transaction.

    If *target* is None, any use of the database raises UsageError.
    """

    def __init__(self, target: Any, what: str, *, schema: str | None = None, clock: Clock = SYSTEM) -> None:
        self._what, self._schema, self.clock = what, schema, clock
        self.lender = None if target is None else lend(target, what)
        # The statements that our own transactions have run since the list was last cleared.
        self.written: list[tuple[Executable, Any]] = []

    def _lender(self) -> Lender:
        if self.lender is None:
            raise UsageError(f"the handler needs a database connection, but the test passed none: {self._what}")
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
            translated = as_database_error(self.address, error)
            raise translated if isinstance(translated, BadValue) else error from None
        self.written += lent.written

    def write_again(self, written: Sequence[tuple[Executable, Any]]) -> None:
        """Repeat our own statements after the savepoint around them was rolled back."""
        with self.write() as connection:
            for statement, parameters in written:
                connection.execute(statement, parameters)

    @contextmanager
    def handler_transaction(self, remaining_s: float) -> Iterator[tuple[Connection, Callable[[], None]]]:
        connection = self._lender().connection()

        def end() -> None:
            if not savepoint.is_active:
                raise UsageError(REFUSED.format(what="rollback()"))

        with connection.begin_nested() as savepoint, _joined_as_in_a_tick(connection):
            yield connection, end

    def with_tables(self, connection: Connection) -> Connection:
        return cast("Connection", LentConnection(connection, self.clock, self._schema))

    def close(self) -> None:
        """Do nothing, because the connection's owner closes it."""


@contextmanager
def _joined_as_in_a_tick(connection: Connection) -> Iterator[None]:
    """Let new ORM sessions on *connection* join its innermost savepoint. (In a tick, they join its transaction.)

    By default, a session joins a transaction, but inside a savepoint it makes a savepoint of its own, and undoes its
    writes unless it commits.
    """

    def join(session: Session, _: object) -> None:
        if session.bind is connection and session.join_transaction_mode == "conditional_savepoint":
            session.join_transaction_mode = "rollback_only"

    event.listen(Session, "after_transaction_create", join)
    try:
        yield
    finally:
        event.remove(Session, "after_transaction_create", join)


def require_tables(connection: Connection, what: str) -> None:
    """Raise UsageError if our tables are missing. The transaction stays usable."""
    if not has_table(connection, meta.name):
        raise UsageError(f"{what} finds no cronjobs tables on this connection: call create_tables(connection) first")
