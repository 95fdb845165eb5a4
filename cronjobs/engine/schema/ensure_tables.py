"""Make sure that a database has our tables.

The tables of a SQLite file are created on first use. On PostgreSQL, "cronjobs db upgrade" creates the tables.
"""

from __future__ import annotations

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.retrying import first_look
from cronjobs.engine.store.meta import require_schema
from cronjobs.errors import SchemaMissing, SchemaTooOld


def require_tables(database: Database, *, migrates: bool = True, creates: bool = True) -> None:
    """Raise an error unless this code can run on the tables. The tables of a SQLite file are created or migrated.

    If *creates* is False, missing tables are not created, but SchemaMissing is raised.
    Code in an app passes *migrates* as False. Then tables of an older revision are not migrated, but SchemaTooOld is
    raised.
    """

    def look() -> None:
        with database.read() as connection:
            require_schema(connection)

    try:
        first_look(look, database.clock)
    except (SchemaMissing, SchemaTooOld) as error:
        allowed = migrates if isinstance(error, SchemaTooOld) else creates
        if not (database.is_sqlite and allowed):
            raise
        # Imported only here, because this imports alembic, which an idle tick does not need.
        from cronjobs.engine.schema import migrations

        migrations.upgrade(database)
