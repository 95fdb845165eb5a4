"""Make sure that a database has our tables.

The tables of a SQLite file are created on first use. On PostgreSQL, "cronjobs db upgrade" creates the tables.
"""

from __future__ import annotations

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.retrying import first_look
from cronjobs.engine.store.meta import require_schema
from cronjobs.errors import SchemaMissing, SchemaTooOld


def require_tables(database: Database, *, migrates: bool = True) -> None:
    """Raise an error unless this code can run on the tables. The tables of a SQLite file are created or migrated.

    Code in an app passes *migrates* as False. Then tables of an older revision are not migrated, but SchemaTooOld is
    raised.
    """

    def look() -> None:
        with database.read() as connection:
            require_schema(connection)

    try:
        first_look(look, database.clock)
    except (SchemaMissing, SchemaTooOld) as error:
        if not database.is_sqlite or (isinstance(error, SchemaTooOld) and not migrates):
            raise
        # Imported only here, because this imports alembic, which an idle tick does not need.
        from cronjobs.engine.schema import migrations

        migrations.upgrade(database)
