"""Make a connection read-only, with a time limit for each statement, for pages that anybody may open at any time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.engine.probe.server_session import SET_SETTINGS
from cronjobs.engine.store.sql import is_postgresql, run

LIMIT_S: Final = 5.0
AGAIN_S: Final = 0.02


def read_one_snapshot(connection: Connection) -> None:
    """Use one snapshot for all reads of a transaction that has just begun. SQLite always does."""
    if is_postgresql(connection):
        run(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


@contextmanager
def only_reading(connection: Connection, *, lent: bool = False) -> Iterator[None]:
    """Make a transaction that has just begun read-only: one snapshot, at most 5 s per statement.

    If *lent*, the connection is not one of ours, so it also needs our session settings.
    """
    if is_postgresql(connection):
        read_one_snapshot(connection)
        for setting in SET_SETTINGS if lent else ():
            run(connection, setting)
        run(connection, f"SET LOCAL statement_timeout = {LIMIT_S * 1000:.0f}")
        yield
        return
    run(connection, "PRAGMA query_only = ON")
    with _interrupted_after(LIMIT_S, connection.connection.driver_connection):
        try:
            yield
        finally:  # the pool gives the connection to other users next
            run(connection, "PRAGMA query_only = OFF")


@contextmanager
def _interrupted_after(limit_s: float, raw: Any) -> Iterator[None]:
    """Interrupt statements from a thread once *limit_s* seconds have passed.

    We cannot use a progress handler in Python. SQLite would call the handler while SQLite holds the connection's mutex,
    which can freeze other threads.
    """
    done = threading.Event()

    def interrupt() -> None:
        if not done.wait(limit_s):
            # Interrupt repeatedly, since an interrupt between two statements has no effect.
            while not done.wait(AGAIN_S):
                raw.interrupt()

    watching = threading.Thread(target=interrupt, daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()
