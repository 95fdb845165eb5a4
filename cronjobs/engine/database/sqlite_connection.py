"""A connection to a SQLite file that a forked copy of the process cannot use, and that can refuse statements.

In a forked copy, SQLite would assume locks that only the original process holds, see fcntl(2). The copy also shares the
memory of the write-ahead log with the original process. So a COMMIT in the copy, or a ROLLBACK at the end of a block,
would damage the database file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import Any

from cronjobs.errors import ForkedCopy


class StayingConnection(sqlite3.Connection):
    """A connection that raises sqlite3.ProgrammingError in a forked copy. The copy does not close such a connection
    either (see ``host.forks`` for why).

    ``refuse`` is called with each statement, and raises if the statement may not run now. If ``refuse`` is None, all
    statements may run. SQLite's authorizer callback cannot be used for this, because it could cause a deadlock. SQLite
    calls the authorizer while SQLite holds the database's mutex, and the callback then needs the GIL. If another thread
    uses the same connection (``sqlite_time_limit``), that thread may hold the GIL and wait for the mutex.
    """

    refuse: Callable[[str], None] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pid = os.getpid()

    def allow(self, statement: str) -> None:
        self.stay_here()
        if self.refuse is not None:
            self.refuse(statement)

    def stay_here(self) -> None:
        if self._pid != os.getpid():
            raise sqlite3.ProgrammingError(str(ForkedCopy()))

    def cursor(self, *_: Any) -> sqlite3.Cursor:  # type: ignore[override]
        self.stay_here()
        return super().cursor(_Cursor)

    def execute(self, *args: Any) -> sqlite3.Cursor:
        return self.cursor().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        return self.cursor().executemany(*args)

    def executescript(self, script: str) -> sqlite3.Cursor:
        return self.cursor().executescript(script)

    def commit(self) -> None:
        self.allow("COMMIT")
        super().commit()

    def rollback(self) -> None:
        self.allow("ROLLBACK")
        super().rollback()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        self.allow("COMMIT" if kind is None else "ROLLBACK")
        return super().__exit__(kind, error, trace)

    def close(self) -> None:
        self.stay_here()
        super().close()


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:  # type: ignore[override]
        self.connection.allow(sql)  # type: ignore[attr-defined]
        return super().execute(sql, *parameters)

    def executemany(self, sql: str, *parameters: Any) -> sqlite3.Cursor:  # type: ignore[override]
        self.connection.allow(sql)  # type: ignore[attr-defined]
        return super().executemany(sql, *parameters)

    def executescript(self, script: str) -> sqlite3.Cursor:
        self.connection.allow("COMMIT")  # type: ignore[attr-defined]  # executescript() first commits
        return super().executescript(script)
