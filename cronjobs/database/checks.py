"""The CHECKs of the tables, which are made when something makes or compares tables: statements do without them."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import CheckConstraint, MetaData, Table
from sqlalchemy.schema import SchemaItem

from cronjobs.database.column_types import SQLITE_FIRST_INSTANT, SQLITE_LAST_INSTANT

_CHECKS: list[tuple[Table, Callable[[], list[CheckConstraint]]]] = []


def table(
    name: str, of: MetaData, *items: SchemaItem, checks: Callable[[], list[CheckConstraint]] = list[CheckConstraint]
) -> Table:
    """A table whose CHECKs ``add_checks`` adds."""
    made = Table(name, of, *items)
    _CHECKS.append((made, checks))
    return made


def add_checks() -> None:
    """For what makes or compares tables; only the first call does anything."""
    while _CHECKS:
        made, checks = _CHECKS.pop()
        for check in checks():
            made.append_constraint(check)


def instants(*columns: str) -> list[CheckConstraint]:
    """CHECKs that SQLite's instants are microseconds; PostgreSQL has a type for them."""
    return [
        CheckConstraint(
            f"{column} IS NULL OR (typeof({column}) = 'integer' AND {column} BETWEEN {SQLITE_FIRST_INSTANT} "
            f"AND {SQLITE_LAST_INSTANT})",
            name=f"{column}_microseconds",
        ).ddl_if(dialect="sqlite")
        for column in columns
    ]


def lengths(name: str, condition: str, /, **longest: int) -> list[CheckConstraint]:
    """A CHECK on lengths in bytes, which both databases count alike; *condition* surrounds it."""
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
