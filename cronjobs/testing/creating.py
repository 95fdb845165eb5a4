"""``create_tables``: creates our tables in a test's own transaction.

The SQL comes from the migrations, and is cached.
"""

from __future__ import annotations

from typing import cast

from sqlalchemy import Connection, text

from cronjobs.clock import SYSTEM
from cronjobs.engine.database.tables import meta
from cronjobs.engine.jobs.enqueue import Target
from cronjobs.engine.store.meta import has_table
from cronjobs.testing.lent_connection import LentConnection, lend


def create_tables(connection: Target, *, schema: str | None = None) -> None:
    """Create the tables of cronjobs in *connection*'s transaction, unless they exist. Never commits.

    *connection* is anything that ``enqueue`` accepts. An in-memory SQLite database is fine. *schema* is a PostgreSQL
    schema, which is created if necessary (default: the first one in the search_path).
    """
    lent = lend(connection, "create_tables()").connection()
    if has_table(cast("Connection", LentConnection(lent, SYSTEM, schema)), meta.name):
        return
    from cronjobs.engine.schema.migrations import statements  # this import loads alembic, so do it only when necessary

    if lent.dialect.name == "sqlite":
        _execute(lent, statements("sqlite"))
        return
    before = lent.execute(text("SELECT current_setting('search_path')")).scalar_one()
    _execute(lent, statements("postgresql", schema))
    lent.execute(text("SELECT set_config('search_path', :before, true)"), {"before": before})


def _execute(connection: Connection, script: tuple[str, ...]) -> None:
    for statement in script:
        connection.exec_driver_sql(statement).close()
