"""Turn off SQLite's fsync, like that of the tests' PostgreSQL. fsync protects from power cuts, which tests do not have.

What a process has written still survives its death, and a commit takes a tenth of the time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.pool import Pool


def _checked_out(connection: Any, *_: Any) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


def install() -> None:
    """Turn off fsync for every engine of this process."""
    if not event.contains(Pool, "checkout", _checked_out):
        event.listen(Pool, "checkout", _checked_out)


@contextmanager
def with_fsync() -> Iterator[None]:
    """Turn fsync on for the block, as in production."""
    event.remove(Pool, "checkout", _checked_out)
    try:
        yield
    finally:
        install()
