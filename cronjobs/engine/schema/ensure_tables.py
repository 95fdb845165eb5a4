"""Make sure that a database has our tables.

The tables of a SQLite file are created on first use. On PostgreSQL, "cronjobs db upgrade" creates the tables.
"""

from __future__ import annotations

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.retrying import first_look
from cronjobs.engine.store.meta import require_schema
from cronjobs.errors import SchemaMissing, SchemaTooOld


def require_tables(database: Database, *, migrates: bool = True, creates: bool = True) -> None:
    """Raise an error unless this code can run on the tables. In a SQLite file, first create or migrate them.

    If *creates* is False, missing tables raise SchemaMissing instead. If *migrates* is False, as for code in an app,
    tables of an older revision raise SchemaTooOld instead.
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
        # Imported only here, because the import loads alembic, which an idle tick does not need.
        from cronjobs.engine.schema import migrations

        migrations.upgrade(database)
