"""How much of a row is fetched: plain SQL, or a stranger who may enqueue, can write hundreds of megabytes into one."""

from __future__ import annotations

from typing import Any, Final

from cronjobs.rules.payload import MOST_FETCHED, TOO_LARGE
from cronjobs.store.sql import Fragment
from cronjobs.text import BrokenText

UNREAD: Final = "cronjobs unread"  # replaces a payload; no payload is a text

_TINY: Final = 300  # bytes on disk; decompressed at most 255 times that, of which each byte has twelve as text
_SURELY_SMALL: Final = 2_000  # bytes on disk; decompressed at most a hundred times that
_SURELY_LARGE: Final = 8 * MOST_FETCHED  # jsonb takes up to twelve bytes for a digit


def if_not_too_large(column: str) -> Fragment:
    """JSON *column* if it is small enough to fetch, else ``TOO_LARGE``.

    On PostgreSQL it checks from cheap to expensive: the size on disk is free, the size of the value needs
    decompression, and the size of its text needs the text. (The result of a concatenation is not compressed.)
    """
    return lambda postgresql: (
        f"""
      CASE WHEN pg_column_size({column}) <= {_TINY} THEN {column}
           WHEN pg_column_size({column}) > {_SURELY_LARGE} THEN '"{TOO_LARGE}"'
           WHEN pg_column_size({column}) > {_SURELY_SMALL}
             AND pg_column_size({column} || jsonb_build_object()) > {_SURELY_LARGE} THEN '"{TOO_LARGE}"'
           WHEN octet_length(CAST({column} AS text)) > {MOST_FETCHED} THEN '"{TOO_LARGE}"'
           ELSE {column} END"""
        if postgresql
        else f"CASE WHEN {in_bytes(column, postgresql)} > {MOST_FETCHED} THEN '\"{TOO_LARGE}\"' ELSE {column} END"
    )


def in_bytes(column: str, postgresql: bool) -> str:
    """The length of a text *column* in bytes."""
    return f"octet_length({column})" if postgresql else f"length(CAST({column} AS BLOB))"


def stored(text: Any) -> Any:
    """A text from a row as a parameter that finds the row again; if broken, its bytes, which SQLite needs to CAST."""
    return text.raw if isinstance(text, BrokenText) else text
