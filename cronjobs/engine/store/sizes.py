"""Limits on how much of a row is fetched. Plain SQL, or a stranger who may enqueue, can write hundreds of megabytes."""

from __future__ import annotations

from typing import Any, Final

from cronjobs.engine.database.checks import has_odd_number
from cronjobs.engine.probe.sql_text import either
from cronjobs.engine.rules.payload import MOST_FETCHED, ODD_NUMBER, TOO_LARGE
from cronjobs.text import BrokenText

UNREAD: Final = "cronjobs unread"  # replaces a payload; no payload is a plain text
NOT_FETCHED: Final = (TOO_LARGE, ODD_NUMBER)  # the same, as the database writes them

_SMALL: Final = 16 * 1024  # bytes of jsonb; as text at most sixty times that, unless its numbers are odd
_COMPRESSED: Final = 2_000  # bytes on disk; at most 255 times that when decompressed
_SURELY_LARGE: Final = 2 * MOST_FETCHED  # jsonb takes up to twelve bytes for one digit and its comma


def if_not_too_large(column: str) -> str:
    """JSON *column* if it is small enough to fetch, else ``TOO_LARGE`` or ``ODD_NUMBER``.

    On PostgreSQL it checks from cheap to expensive. The size on disk is free. The size of the value needs
    decompression. The size of its text needs the text, which odd numbers can make a thousand times larger. (The result
    of a concatenation is not compressed.)
    """
    return either(
        postgresql=f"""
      CASE WHEN pg_column_size({column}) > {_SURELY_LARGE} THEN '"{TOO_LARGE}"'
           WHEN pg_column_size({column}) > {_COMPRESSED}
             AND pg_column_size({column} || jsonb_build_object()) > {_SURELY_LARGE} THEN '"{TOO_LARGE}"'
           WHEN {has_odd_number(column)} THEN '"{ODD_NUMBER}"'
           WHEN pg_column_size({column} || jsonb_build_object()) <= {_SMALL} THEN {column}
           WHEN octet_length(CAST({column} AS text)) > {MOST_FETCHED} THEN '"{TOO_LARGE}"'
           ELSE {column} END""",
        sqlite=f"CASE WHEN {in_bytes(column)} > {MOST_FETCHED} THEN '\"{TOO_LARGE}\"' ELSE {column} END",
    )


def in_bytes(column: str) -> str:
    """The length of a text *column* in bytes."""
    return either(postgresql=f"octet_length({column})", sqlite=f"length(CAST({column} AS BLOB))")


def stored(text: Any) -> Any:
    """A text from a row, as a parameter that finds the row again.

    If it is broken: its bytes, which SQLite needs to CAST.
    """
    return text.raw if isinstance(text, BrokenText) else text
