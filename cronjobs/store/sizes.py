"""How much of a row is fetched: plain SQL, and a stranger who may enqueue, can put hundreds of megabytes into one."""

from __future__ import annotations

from typing import Any, Final

from cronjobs.rules.payload import MOST_FETCHED, TOO_LARGE
from cronjobs.store.sql import Fragment
from cronjobs.text import BrokenText

UNREAD: Final = "cronjobs unread"  # in place of a payload; none is a text

_SURELY_SMALL: Final = 2_000  # bytes as they are on disk; compressed, a hundred times that at most
_SURELY_LARGE: Final = 8 * MOST_FETCHED  # jsonb takes up to twelve bytes for a digit


def if_not_too_large(column: str) -> Fragment:
    """JSON *column* as far as it can be fetched, else ``TOO_LARGE``.

    On PostgreSQL from the cheapest look to the dearest: the size on disk is there for nothing, that of the value costs
    its decompression, that of its text costs the text. (A concatenation's result is not compressed.)
    """
    return lambda postgresql: (
        f"""
      CASE WHEN pg_column_size({column}) > {_SURELY_LARGE} THEN '"{TOO_LARGE}"'
           WHEN pg_column_size({column}) > {_SURELY_SMALL}
             AND pg_column_size({column} || jsonb_build_object()) > {_SURELY_LARGE} THEN '"{TOO_LARGE}"'
           WHEN octet_length(CAST({column} AS text)) > {MOST_FETCHED} THEN '"{TOO_LARGE}"'
           ELSE {column} END"""
        if postgresql
        else f"CASE WHEN {in_bytes(column, postgresql)} > {MOST_FETCHED} THEN '\"{TOO_LARGE}\"' ELSE {column} END"
    )


def in_bytes(column: str, postgresql: bool) -> str:
    """The length of a text *column*."""
    return f"octet_length({column})" if postgresql else f"length(CAST({column} AS BLOB))"


def stored(text: Any) -> Any:
    """A text from a row as a parameter that finds the row again; SQLite takes bytes for it, with a CAST."""
    return text.raw if isinstance(text, BrokenText) else text
