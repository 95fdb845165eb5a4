"""Asks a SQLite file, and writes the tick's row in the same transaction."""

from __future__ import annotations

try:  # the core of sqlite3, without its converters, whose imports cost more than the rest
    from _sqlite3 import connect
except ImportError:  # pragma: no cover - a Python that has it elsewhere
    from sqlite3 import connect

from cronjobs.engine.probe.idle_conditions import LOOK, ROW, VERDICT
from cronjobs.engine.probe.sql_text import statement_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

BUSY_TIMEOUT_MS = 20  # short: to wait for a writer one must take a turn, which the full tick does


class FileSession:
    """One connection. Every method raises sqlite3.Error."""

    def __init__(self, path: str) -> None:
        quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        # rw: the full tick judges a missing file, which may be on a disk that is not mounted.
        uri = f"file:{quoted}?mode=rw"
        self._connection = connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000)
        self._connection.execute("PRAGMA synchronous = FULL")

    def settle(self, facts: Mapping[str, object], alive: Callable[[str], bool]) -> bool:
        """Write an idle tick's row if *facts*, the database and, of lease holders here, *alive* say that it is one."""
        self._connection.execute("BEGIN IMMEDIATE")
        idle, holders = self._row(f"{VERDICT} SELECT idle, holders FROM verdict", facts) or (0, None)
        if not idle or (holders is not None and not alive(holders)):
            self._connection.execute("ROLLBACK")
            return False
        self._connection.execute(statement_text(ROW, postgresql=False), facts)
        self._connection.execute("COMMIT")
        return True

    def look(self, facts: Mapping[str, object], alive: Callable[[str], bool]) -> str | None:
        """Return what there is to do, as a text that changes with it. None: nothing."""
        idle, answers, holders = self._row(LOOK, facts) or (0, "", None)
        return None if idle and (holders is None or alive(holders)) else f"{answers} {holders}"

    def _row(self, statement: str, facts: Mapping[str, object]) -> tuple[Any, ...] | None:
        asked = statement_text(statement, postgresql=False)
        found: tuple[Any, ...] | None = self._connection.execute(asked, facts).fetchone()
        return found

    def close(self) -> None:
        self._connection.close()
