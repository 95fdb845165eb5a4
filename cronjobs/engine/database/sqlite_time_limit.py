"""Limit how long a write transaction of user code may last on SQLite, because it holds the only write lock.

A separate thread enforces the limit, because user code may sleep or wait for a socket while all other writers wait for
the lock. When the limit is reached, this thread rolls the transaction back, and the next writer can continue.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, Final

from sqlalchemy import Connection, event

from cronjobs.errors import TransactionTooLong

KEEPER: Final = "cronjobs-keeper"  # the thread's name


class WriteTimeLimit:
    """Holds the turn to write for *connection*, for at most *limit_s* seconds.

    Use this object as a ``with`` block around the connection's transaction. If the limit was reached, leaving the block
    raises TransactionTooLong, whatever was raised inside the block.
    """

    def __init__(self, connection: Connection, turn: Callable[[], AbstractContextManager[None]], limit_s: float):
        self._connection, self._turn, self._limit_s = connection, turn, limit_s
        raw: Any = connection.connection.dbapi_connection
        self._raw: sqlite3.Connection = raw
        self._lock = threading.Lock()
        self._has_turn = threading.Event()
        self._over = threading.Event()
        self._ending = self._expired = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._keep, name=KEEPER, daemon=True)

    def __enter__(self) -> WriteTimeLimit:
        self._thread.start()
        self._has_turn.wait()
        if self._error is not None:
            raise self._error
        event.listen(self._connection, "before_cursor_execute", self._refuse_late)
        return self

    def end(self) -> None:
        """End the time limit. Call this before the transaction's last statements, which take milliseconds and must not
        be interrupted.

        Raises TransactionTooLong if the limit has already been reached.
        """
        with self._lock:
            if self._expired:
                raise TransactionTooLong(self._limit_s)
            self._ending = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._ending = True
        self._over.set()
        self._thread.join()
        event.remove(self._connection, "before_cursor_execute", self._refuse_late)
        if self._expired:
            # The connection accepts no more writes (query_only), so the pool must not reuse it.
            self._connection.invalidate()
            if not isinstance(error, TransactionTooLong):
                raise TransactionTooLong(self._limit_s) from error

    def _keep(self) -> None:
        try:
            with self._turn():
                self._has_turn.set()
                if not self._over.wait(self._limit_s):
                    self._expire()
        # The turn to write did not come in time. ``__enter__`` raises the error.
        except BaseException as error:
            self._error = error
        finally:
            self._has_turn.set()

    def _expire(self) -> None:
        with self._lock:
            self._expired = not self._ending
        if not self._expired:
            self._over.wait()
            return
        with suppress(sqlite3.Error):
            self._raw.interrupt()
            # Set query_only before the ROLLBACK. Otherwise a statement that user code runs right after the ROLLBACK
            # would be committed by itself.
            self._raw.execute("PRAGMA query_only = ON")
            self._raw.execute("ROLLBACK")

    def _refuse_late(self, *_: object) -> None:
        if self._expired:
            raise TransactionTooLong(self._limit_s)
