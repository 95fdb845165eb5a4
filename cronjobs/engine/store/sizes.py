"""Limits on how much of a row is fetched. Plain SQL, or a stranger who may enqueue, can write hundreds of megabytes."""

from __future__ import annotations

from typing import Any, Final

from cronjobs.engine.database.checks import has_odd_number
from cronjobs.engine.probe.sql_text import either
from cronjobs.engine.rules.payload import MOST_FETCHED, ODD_NUMBER, TOO_LARGE
from cronjobs.text import BrokenText

# This text stands in for a payload that was not read. A real payload is never plain text, so it cannot be equal to this
# text.
UNREAD: Final = "cronjobs unread"
# The values that the database returns instead of JSON.
NOT_FETCHED: Final = (TOO_LARGE, ODD_NUMBER)

# In bytes of jsonb. The text of such a value is at most sixty times as long, unless the value contains odd numbers.
_SMALL: Final = 16 * 1024
# In bytes on disk. Decompressed, such a value is at most 255 times as long.
_COMPRESSED: Final = 2_000
# This limit is larger than MOST_FETCHED, because jsonb can take twelve bytes for two characters of text: a digit and
# its comma.
_SURELY_LARGE: Final = 2 * MOST_FETCHED


def if_not_too_large(column: str) -> str:
    """Return SQL whose value is the JSON *column* if that is small enough to fetch, else ``TOO_LARGE`` or
    ``ODD_NUMBER``.

    On PostgreSQL the checks go from cheap to expensive. Reading the size on disk costs nothing. To measure the value,
    the database must decompress it. (The SQL concatenates because a concatenated value is not compressed.) To measure
    the text, the database must build it. A number such as 1e5000 (an odd number, see
    ``has_odd_number``) can make the text a thousand times larger.
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
    """Return SQL for the length of a text *column* in bytes."""
    return either(postgresql=f"octet_length({column})", sqlite=f"length(CAST({column} AS BLOB))")


def stored(text: Any) -> Any:
    """Return *text*, which was read from a row, as a parameter that finds the same row again.

    A text that is not valid UTF-8 is passed as its bytes, which the SQL on SQLite casts to text.
    """
    return text.raw if isinstance(text, BrokenText) else text
