"""CHECK constraints that several tables use, and the SQL conditions from which they are made."""

from __future__ import annotations

from typing import Final

from sqlalchemy import CheckConstraint

from cronjobs.engine.database.column_types import SQLITE_FIRST_INSTANT, SQLITE_LAST_INSTANT

# Find numbers with too many digits. Ten bytes of jsonb can hold a number with 131,072 digits, or with 16,383 decimal
# places. Compression can pack a thousand such bytes into one. The path is "strict", because lax mode would visit the
# items of an array twice. The last condition finds numbers with many decimal places. "@ - @ + 1" is 1 with as many
# decimal places (n) as the number. If n is above 16, a third of this 1 also has n decimal places, so three times that
# third is less than 1: 1 - 10^-n (compare 0.33 * 3). A number that is closer to 0 than 1e-400 also has more than 400
# decimal places.
ODD_NUMBERS: Final = "strict $.** ? (@ > 1e400 || @ < -1e400 || (@ - @ + 1) / 3 * 3 > 1 - 1e-400)"


def instants(*columns: str) -> list[CheckConstraint]:
    """Return CHECKs for SQLite: each instant must be an integer, in a range that excludes seconds, milliseconds and
    nanoseconds.

    PostgreSQL's columns hold only instants; another CHECK of ``cronjobs_jobs`` limits their range.
    """
    return [
        CheckConstraint(
            f"{column} IS NULL OR (typeof({column}) = 'integer' AND {column} BETWEEN {SQLITE_FIRST_INSTANT} "
            f"AND {SQLITE_LAST_INSTANT})",
            name=f"{column}_microseconds",
        ).ddl_if(dialect="sqlite")
        for column in columns
    ]


def has_odd_number(column: str) -> str:
    """Return SQL that is true if a number in the jsonb *column* is beyond ±1e400, or has more than 400 decimals."""
    return f"jsonb_path_exists({column}, '{ODD_NUMBERS}')"


def lengths(name: str, condition: str, /, **longest: int) -> list[CheckConstraint]:
    """Return CHECKs that limit the lengths of columns, in bytes. Both databases count bytes in the same way.

    In *condition*, "..." stands for the limits.
    """
    return [
        CheckConstraint(
            condition.replace("...", " AND ".join(_within(count, column, most) for column, most in longest.items())),
            name=name,
        ).ddl_if(dialect=dialect)
        for dialect, count in (("postgresql", "octet_length({})"), ("sqlite", "length(CAST({} AS BLOB))"))
    ]


def _within(count: str, column: str, most: int) -> str:
    within = f"{count.format(column)} <= {most}"
    # No column called "name" can be NULL.
    return within if column == "name" else f"({column} IS NULL OR {within})"
