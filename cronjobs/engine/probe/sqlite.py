"""Query a SQLite file, and write the tick's row in the same transaction."""

from __future__ import annotations

# Import only the core of sqlite3. Its converters take longer to import than everything else here.
try:
    from _sqlite3 import connect
except ImportError:  # pragma: no cover - a Python that has it elsewhere
    from sqlite3 import connect

from cronjobs.engine.probe.idle_conditions import LOOK, ROW, VERDICT
from cronjobs.engine.probe.sql_text import statement_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

# The timeout is short, because the full tick takes over if another writer is busy, and waits for its turn.
BUSY_TIMEOUT_MS = 20


class FileSession:
    """One connection to a SQLite file. Its methods raise sqlite3.Error."""

    def __init__(self, path: str) -> None:
        quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        # With mode=rw, SQLite does not create a missing file. The full tick decides what to do then, because the file's
        # disk may just not be mounted.
        uri = f"file:{quoted}?mode=rw"
        self._connection = connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000)
        self._connection.execute("PRAGMA synchronous = FULL")

    def settle(self, facts: Mapping[str, object], alive: Callable[[str], bool]) -> bool:
        """If the tick is idle, write its row. Return whether it is idle.

        *alive* checks the lease holders on this host.
        """
        self._connection.execute("BEGIN IMMEDIATE")
        idle, holders = self._row(f"{VERDICT} SELECT idle, holders FROM verdict", facts) or (0, None)
        if not idle or (holders is not None and not alive(holders)):
            self._connection.execute("ROLLBACK")
            return False
        self._connection.execute(statement_text(ROW, postgresql=False), facts)
        self._connection.execute("COMMIT")
        return True

    def look(self, facts: Mapping[str, object]) -> tuple[bool, str, str | None]:
        """Return the row of ``LOOK``: whether the tick is idle, a text that identifies the work to do, and the lease
        holders on this host.
        """
        idle, answers, holders = self._row(LOOK, facts) or (0, "", None)
        return bool(idle), answers, holders

    def _row(self, statement: str, facts: Mapping[str, object]) -> tuple[Any, ...] | None:
        asked = statement_text(statement, postgresql=False)
        found: tuple[Any, ...] | None = self._connection.execute(asked, facts).fetchone()
        return found

    def close(self) -> None:
        self._connection.close()
