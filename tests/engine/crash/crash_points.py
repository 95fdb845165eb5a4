"""Counts the points that a process passes on its way to the database, and kills it with SIGKILL at one of them.

There is a point before every SQL statement, including BEGIN, before COMMIT is sent, after COMMIT was answered, and
wherever a handler puts one. The points are installed from outside, in SQLAlchemy. The product has no code for them.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, Pool, event
from sqlalchemy.engine.default import DefaultDialect

SHOWN = 120  # characters of a statement


class Points:
    """The points that this process has passed; it dies at number *kill_at* (from 1), and says before what."""

    def __init__(self, kill_at: int | None, report: Path) -> None:
        self.kill_at = kill_at
        self.report = report
        self.count = 0
        self.kinds: dict[str, int] = {}  # each statement that was sent, and at which point first
        self._lock = threading.Lock()

    def passed(self, what: str) -> None:
        with self._lock:
            self.count += 1
            self.kinds.setdefault(what, self.count)
            if self.count == self.kill_at:
                self.tell(before=what[:SHOWN])
                os.kill(os.getpid(), signal.SIGKILL)

    def tell(self, **more: Any) -> None:
        found = {"pid": os.getpid(), "points": self.count, "kinds": self.kinds}
        self.report.write_text(json.dumps(found | more))


_points: Points | None = None


def passed(what: str) -> None:
    """A point of a handler's own."""
    if _points is not None:
        _points.passed(what)


def without_fsync() -> None:
    """SQLite files of this process survive its death, and need not survive a power cut: that is ten times faster."""

    @event.listens_for(Pool, "checkout")
    def _checked_out(connection: Any, *_: Any) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")


def install(points: Points) -> None:
    """Count what every engine of this process sends from now on."""
    global _points
    _points = points

    @event.listens_for(Engine, "before_cursor_execute")
    def _before_statement(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        points.passed(" ".join(statement.split()))

    send_commit: Any = DefaultDialect.do_commit

    def do_commit(self: Any, connection: Any) -> None:
        points.passed("COMMIT")
        send_commit(self, connection)
        points.passed("what follows the COMMIT")

    DefaultDialect.do_commit = do_commit  # type: ignore[method-assign]
