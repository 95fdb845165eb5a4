"""Open the jobs database, or refuse it if it belongs to another project."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypedDict

from sqlalchemy import Connection

from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import Source
from cronjobs.desk.insight.formatting import Times
from cronjobs.desk.insight.pace import at_their_pace
from cronjobs.engine.command.database import open_database, ready_database
from cronjobs.engine.command.printing import complain
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import Address, parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.caller import os_user
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.host.known_databases import require_still_there
from cronjobs.engine.store import meta
from cronjobs.engine.store.meta import is_ours, require_schema
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import SchemaMissing
from cronjobs.text import clean, one_line


def missing_file(settings: Settings) -> Address | None:
    """Return the address of the SQLite file if the file never existed, or else None. Opening the file would create it.

    Raises DatabaseVanished if the file existed before and is gone.
    """
    address = parse_url(settings.database, settings.schema)
    require_still_there(settings.folder, address)
    return address if address.is_sqlite and not Path(str(address.url.database)).exists() else None


@contextmanager
def tables_if_any(settings: Settings) -> Iterator[Connection | None]:
    """Yield a read connection to the project's tables, or None if there are none yet. Create neither file nor tables.

    Raises CronjobsError if the database cannot be read.
    """
    if not settings.database or missing_file(settings):
        yield None
        return
    with closing(open_database(settings)) as database, database.read() as connection:
        try:
            require_schema(connection)
        except SchemaMissing:
            found = None
        else:
            found = connection
        yield found


@contextmanager
def jobs_database(
    source: Source, *, only_database: bool = False, without_project: bool | None = None, only_reads: bool = False
) -> Iterator[tuple[Settings, Database]]:
    """Yield the settings and their open database.

    *only_database*: whether to accept faults in the file that do not concern the database. ``load_settings`` explains
    *without_project*, and ``ready_database`` explains *only_reads*.
    """
    settings = load_settings(source, only_database=only_database, without_project=without_project)
    with closing(ready_database(settings, only_reads=only_reads)) as database:
        if settings.broken:
            with database.read() as connection:
                settings = at_their_pace(connection, settings)
        yield settings, database


@contextmanager
def snapshot(source: Source, *, only_database: bool = False) -> Iterator[tuple[Settings, Connection, Times]]:
    """Yield the settings, a read connection and the database's times, for commands that only read.

    *only_database*: whether to accept a broken file. The faults are then only reported on stderr.
    """
    with (
        jobs_database(source, only_database=only_database, without_project=True, only_reads=True) as (
            settings,
            database,
        ),
        database.read() as connection,
    ):
        if settings.broken:
            complain(f"nothing runs with this file ({settings.problems[0]}); this command only reads the database")
        yield settings, connection, Times(database_now(connection), settings.timezone)


@contextmanager
def our_database(
    source: Source, *, adopt: bool = False, without_project: bool = False
) -> Iterator[tuple[Settings, Database]]:
    """Yield the settings and their open database. Create tables where that is allowed. Raises ForeignDatabase.

    *adopt*: whether to claim a database that has no project yet, as a first tick does. ``load_settings`` explains
    *without_project*.
    """
    with jobs_database(source, without_project=without_project) as (settings, database):
        with database.read() as connection:
            found = meta.read_meta(connection)
        if not is_ours(settings, found.project, found.environment) and adopt:
            with database.write() as connection:
                meta.adopt(connection, settings.project, settings.environment, operator())
        yield settings, database


class ByHand(TypedDict):
    """The user and host of an action, for the audit trail."""

    actor: str
    host: str


def by_hand() -> ByHand:
    return {"actor": operator(), "host": Identity.here().host}


def operator() -> str:
    """Return the user's name, cleaned for storage, since it comes from environment variables."""
    return one_line(clean(os_user()), 200)
