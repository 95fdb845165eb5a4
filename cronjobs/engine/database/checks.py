"""Parts that several CHECKs of the tables share."""

from __future__ import annotations

from typing import Final

from sqlalchemy import CheckConstraint

from cronjobs.engine.database.column_types import SQLITE_FIRST_INSTANT, SQLITE_LAST_INSTANT

# A number of ten bytes in jsonb can have 131,072 digits as text, or 16,383 decimals, and compression makes one byte of
# a thousand. "strict": lax would visit the items of an array twice. The quotient has as many decimals as the number, if
# those are more than sixteen: 0.33 * 3 is 1 less 1e-2. A number nearer to 0 than 1e-400 has more than 400 decimals.
ODD_NUMBERS: Final = "strict $.** ? (@ > 1e400 || @ < -1e400 || (@ - @ + 1) / 3 * 3 > 1 - 1e-400)"


def instants(*columns: str) -> list[CheckConstraint]:
    """CHECKs that SQLite's instants are microseconds. PostgreSQL has a type for them."""
    return [
        CheckConstraint(
            f"{column} IS NULL OR (typeof({column}) = 'integer' AND {column} BETWEEN {SQLITE_FIRST_INSTANT} "
            f"AND {SQLITE_LAST_INSTANT})",
            name=f"{column}_microseconds",
        ).ddl_if(dialect="sqlite")
        for column in columns
    ]


def has_odd_number(column: str) -> str:
    """Whether a number in jsonb *column* is beyond ±1e400, or has more than 400 decimals."""
    return f"jsonb_path_exists({column}, '{ODD_NUMBERS}')"


def lengths(name: str, condition: str, /, **longest: int) -> list[CheckConstraint]:
    """A CHECK on lengths in bytes, which both databases count alike; *condition* wraps it."""
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
