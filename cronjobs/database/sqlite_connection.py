"""A connection to a SQLite file that a forked copy of its process cannot use.

The copy believes that it has locks that only the original has, fcntl(2), and shares the memory of the write-ahead log
with it: a COMMIT there, or a ROLLBACK at the end of a block, would damage the file.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from cronjobs.errors import ForkedCopy


class StayingConnection(sqlite3.Connection):
    """Raises sqlite3.ProgrammingError in a forked copy, where its objects are not closed either (``host.forks``)."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pid = os.getpid()

    def stay_here(self) -> None:
        if self._pid != os.getpid():
            raise sqlite3.ProgrammingError(str(ForkedCopy()))

    def cursor(self, *_: Any) -> sqlite3.Cursor:  # type: ignore[override]
        self.stay_here()
        return super().cursor(_Cursor)

    def execute(self, *args: Any) -> sqlite3.Cursor:
        self.stay_here()
        return super().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        self.stay_here()
        return super().executemany(*args)

    def executescript(self, *args: Any) -> sqlite3.Cursor:
        self.stay_here()
        return super().executescript(*args)

    def commit(self) -> None:
        self.stay_here()
        super().commit()

    def rollback(self) -> None:
        self.stay_here()
        super().rollback()

    def close(self) -> None:
        self.stay_here()
        super().close()


class _Cursor(sqlite3.Cursor):
    def execute(self, *args: Any) -> sqlite3.Cursor:  # type: ignore[override]
        self.connection.stay_here()  # type: ignore[attr-defined]
        return super().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:  # type: ignore[override]
        self.connection.stay_here()  # type: ignore[attr-defined]
        return super().executemany(*args)
