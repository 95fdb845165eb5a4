"""CHECK constraints, and parts of them, that several tables use."""

from __future__ import annotations

from typing import Final

from sqlalchemy import CheckConstraint

from cronjobs.engine.database.column_types import SQLITE_FIRST_INSTANT, SQLITE_LAST_INSTANT

# Ten bytes of jsonb can hold a number with 131,072 digits, or with 16,383 decimal places. Compression can pack a
# thousand such bytes into one. The path is "strict", because lax mode would visit the items of an array twice. The last
# condition finds numbers with many decimal places. "@ - @ + 1" is 1 with as many decimal places (n) as the number. If n
# is above 16, a third of it has n decimal places, too, and three times that third is 1 - 10^-n (compare 0.33 * 3). A
# number closer to 0 than 1e-400 has more than 400 decimal places.
ODD_NUMBERS: Final = "strict $.** ? (@ > 1e400 || @ < -1e400 || (@ - @ + 1) / 3 * 3 > 1 - 1e-400)"


def instants(*columns: str) -> list[CheckConstraint]:
    """Return CHECKs for SQLite that require instants to be integers, within a range that only microseconds can have.

    On PostgreSQL the column's type ensures that instants are valid.
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
    """Return CHECKs that limit lengths in bytes, which both databases count the same way.

    The limits replace "..." in *condition*.
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
    return within if column == "name" else f"({column} IS NULL OR {within})"
