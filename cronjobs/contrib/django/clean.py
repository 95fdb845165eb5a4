"""Clean Django's connections before and after every attempt, as Django does around requests."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import DatabaseError, connections  # type: ignore[import-untyped]
from django.db.backends.signals import connection_created  # type: ignore[import-untyped]

from cronjobs.engine.database.user_connections import has_open_transaction
from cronjobs.engine.jobs.context import Context
from cronjobs.engine.probe.server_session import TIMEOUTS
from cronjobs.errors import Snooze, TransactionLeftOpen

ATOMIC: Final = "an atomic block that was never exited"
# The driver's connections whose statements PostgreSQL cancels if this process dies.
_ENDED_WITH_US: Final = WeakSet[Any]()


class CleanConnections:
    """A hook for ``around_attempts`` that cleans the connections of the handler's thread and of its async ORM thread.

    The hook closes unusable and old connections. If the handler left a transaction open, the hook rolls the transaction
    back, and the attempt fails. Without the rollback, later jobs would write into that transaction, and no code would
    ever commit it.
    """

    def __init__(self, _ctx: Context) -> None:
        # Only a process that runs attempts comes here, so connections of web processes stay as they are.
        connection_created.connect(_end_statements_of_dead_runner)
        self._here, self._there = _ThreadConnections(), _ThreadConnections()
        # A thread for this handler's async ORM calls. Django's usual thread serves all async handlers of the process,
        # so they would share a transaction that one of them left open.
        self._thread: Any = ThreadSensitiveContext()

    def __enter__(self) -> None:
        self._here.begin()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        _judge(self._here.end(), error)

    async def __aenter__(self) -> None:
        await self._thread.__aenter__()
        await sync_to_async(self._there.begin)()

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            left_open = await sync_to_async(self._there.end)(last=True)
        finally:
            await self._thread.__aexit__(None, None, None)
        _judge(left_open, error)


def _end_statements_of_dead_runner(connection: Any, **_: Any) -> None:
    """Have PostgreSQL cancel the statements of *connection* if this process dies.

    Otherwise PostgreSQL would finish the statements, and even commit them.
    """
    if connection.vendor == "postgresql" and connection.connection not in _ENDED_WITH_US:
        # A server that cannot do this, for example on Windows, refuses the setting.
        with suppress(DatabaseError), connection.cursor() as cursor:
            cursor.execute(f"SET client_connection_check_interval = {TIMEOUTS['client_connection_check_interval']}")
        # With AUTOCOMMIT off, even the SET began a transaction, which the handler would not end.
        with suppress(DatabaseError):
            connection.commit()
        _ENDED_WITH_US.add(connection.connection)


def _judge(left_open: list[str], error: BaseException | None) -> None:
    if not left_open:
        return
    if error is None or isinstance(error, Snooze):  # the handler has no error that explains why the attempt fails
        raise TransactionLeftOpen(*left_open)
    error.add_note(str(TransactionLeftOpen(*left_open)))


class _ThreadConnections:
    """Cleans one thread's connections before and after an attempt.

    A connection in a test's own ``atomic`` blocks stays open. On such a connection, only the blocks that the handler
    did not leave are rolled back.
    """

    def __init__(self) -> None:
        self._tests: dict[str, int] = {}  # maps an alias to the number of the test's own blocks

    def begin(self) -> None:
        used = connections.all(initialized_only=True)
        self._tests = {each.alias: len(each.atomic_blocks) for each in used if each.in_atomic_block}
        self.end()
        # An app's ready() or a module of handlers may have opened a connection before this process's first attempt.
        for each in connections.all(initialized_only=True):
            if each.connection is not None and each.alias not in self._tests:
                _end_statements_of_dead_runner(each)

    def end(self, *, last: bool = False) -> list[str]:
        """Clean the connections. If *last*, the thread is about to end, so close them all.

        For each transaction that was left open, return a text that says how it was begun.
        """
        left_open = []
        for connection in connections.all(initialized_only=True):
            if connection.alias not in self._tests:
                begun_by = _cleaned(connection, last=last)
            else:
                begun_by = _blocks_left(connection, self._tests[connection.alias])
            if begun_by:
                left_open.append(f"on {connection.alias!r} by {begun_by}")
        return left_open


def _blocks_left(connection: Any, outer: int) -> str | None:
    """Roll back the handler's blocks inside the test's *outer* blocks. Return ATOMIC if there were any, else None."""
    left_open = len(connection.atomic_blocks) > outer
    while len(connection.atomic_blocks) > outer:
        connection.set_rollback(True)
        connection.atomic_blocks[-1].__exit__(None, None, None)
    return ATOMIC if left_open else None


def _cleaned(connection: Any, *, last: bool) -> str | None:
    begun_by = ATOMIC if connection.in_atomic_block else _begun_by(connection)
    if not (begun_by or last):
        connection.close_if_unusable_or_obsolete()
        return None
    if begun_by:
        with suppress(Exception):  # if the rollback fails, the server is gone, and so is the transaction
            connection.connection.rollback()
    connection.close()
    if connection.in_atomic_block:
        # This connection object still assumes an open transaction. Delete it, so that Django makes a new one.
        del connections[connection.alias]
    return begun_by


def _begun_by(connection: Any) -> str | None:
    """Return how the transaction that is open outside ``atomic`` was begun, or None if none is open."""
    if connection.connection is None:
        return None
    off = connection.autocommit != connection.settings_dict["AUTOCOMMIT"]
    is_open = has_open_transaction(connection.connection)
    if not (off if is_open is None else is_open):
        return None
    return "set_autocommit(False) without a commit" if off else "a BEGIN without a COMMIT"
