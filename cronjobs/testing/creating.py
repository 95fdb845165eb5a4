"""``create_tables``: our tables in a test's own transaction, by the migrations' own SQL, which is cached."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, cast

from sqlalchemy import URL, Connection, text

from cronjobs.clock import SYSTEM
from cronjobs.database.address import Address
from cronjobs.database.tables import meta
from cronjobs.jobs.enqueue import Target
from cronjobs.store.meta import has_table
from cronjobs.testing.lending import LentConnection, lend

# Statements for a migration that runs by itself, which must not affect a test's transaction.
NOT_HERE: Final = ("BEGIN", "COMMIT", "SET LOCAL", "SELECT pg_advisory_xact_lock")


def create_tables(connection: Target, *, schema: str | None = None) -> None:
    """Create cronjobs' tables on *connection* unless they exist, in its transaction; never commits.

    *connection*: what ``enqueue`` accepts; SQLite in memory is fine. *schema*: PostgreSQL's, created if necessary;
    None: the first of the search_path.
    """
    lent = lend(connection, "create_tables()").connection()
    if has_table(cast("Connection", LentConnection(lent, SYSTEM, schema)), meta.name):
        return
    if lent.dialect.name == "sqlite":
        _execute(lent, _statements("sqlite", None))
        return
    before = lent.execute(text("SELECT current_setting('search_path')")).scalar_one()
    _execute(lent, _statements("postgresql", schema))
    lent.execute(text("SELECT set_config('search_path', :before, true)"), {"before": before})


def _execute(connection: Connection, statements: tuple[str, ...]) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement).close()


@lru_cache
def _statements(kind: str, schema: str | None) -> tuple[str, ...]:
    from cronjobs.schema import migrations

    script = migrations.sql(Address(URL.create("postgresql+psycopg" if kind == "postgresql" else kind), schema))
    parts = (_without_comments(part) for part in script.split(";\n\n"))
    return tuple(part for part in parts if part and not part.startswith(NOT_HERE))


def _without_comments(part: str) -> str:
    return "\n".join(line for line in part.splitlines() if not line.startswith("--")).strip()
