"""Open a project's jobs database."""

from __future__ import annotations

from pathlib import Path

from cronjobs.engine.command.fault import circumstances
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.known_databases import remember, require_still_there
from cronjobs.engine.schema.ensure_tables import require_tables


def open_database(settings: Settings) -> Database:
    """Return the configured database, not yet connected. Raises DatabaseVanished if its SQLite file has disappeared."""
    address = parse_url(settings.database, settings.schema)
    require_still_there(settings.folder, address)
    circumstances.database = address
    return Database(address, connections=settings.run.workers + 1)


def ready_database(settings: Settings, *, only_reads: bool = False) -> Database:
    """Return an open database whose tables this code can use.

    If *only_reads* is True, raises SchemaMissing for a SQLite file that has content but not our tables, instead of
    creating them: somebody may have dropped the tables, or the file may belong to an app.
    """
    database = open_database(settings)
    try:
        require_tables(database, creates=not (only_reads and _has_content(database)))
        remember(settings.folder, database.address)
    except BaseException:
        database.close()
        raise
    return database


def _has_content(database: Database) -> bool:
    file = Path(str(database.address.url.database))
    return database.is_sqlite and file.exists() and file.stat().st_size > 0
