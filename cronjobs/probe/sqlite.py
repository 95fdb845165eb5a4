"""The question to a SQLite file, and the tick's row in the same transaction."""

from __future__ import annotations

try:
    from _sqlite3 import (
        connect,
    )  # what sqlite3 is made of, without its converters, whose imports cost more than the rest
except ImportError:  # pragma: no cover - a Python that has it elsewhere
    from sqlite3 import connect

from cronjobs.probe.question import ROW, fill

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BUSY_TIMEOUT_MS = 20  # short: whoever has to wait for a writer takes a turn, which the full tick does


def settle_idle(path: str, facts: Mapping[str, object], alive: Callable[[str], bool]) -> bool:
    """Write an idle tick's row if *facts* and the database say that it is one, and if *alive* says so of the holders.

    Raises sqlite3.Error.
    """
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    # rw: a file that is not there is for the full tick to judge; it may be on a disk that is not mounted.
    uri = f"file:{quoted}?mode=rw"
    connection = connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        sql = fill("{verdict} SELECT idle, holders FROM verdict", False, None)
        idle, holders = connection.execute(sql, facts).fetchone() or (0, None)
        if not idle or (holders is not None and not alive(holders)):
            return False  # closing rolls back
        connection.execute(fill(ROW, False, None), facts)
        connection.execute("COMMIT")
        return True
    finally:
        connection.close()
