"""Choose where exec records runs: in the project's database, or without a project in the user's state folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from cronjobs import masking
from cronjobs.engine.config.host_timezone import host_timezone
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.files import make_folder
from cronjobs.engine.host.known_databases import remember, require_still_there
from cronjobs.engine.probe.state_files import folder_here, open_folder
from cronjobs.engine.store.meta import require_ours
from cronjobs.errors import SchemaMissing, SchemaTooOld, UsageError

FILE: Final = "exec.db"  # the name of the user's own database in the state folder


def no_project() -> Settings:
    """Return the settings for exec without a project: SQLite in the state folder."""
    folder = Path(folder_here())
    return Settings(
        file=folder / "cronjobs.yaml",
        folder=folder,
        database=f"sqlite:///{folder / FILE}",
        timezone=host_timezone(),
        without_project=True,
    )


def has_runs() -> bool:
    """Whether exec has recorded anything in the state folder. False if other users can write to that folder."""
    try:
        os.close(open_folder(folder_here()))
    except OSError:
        return False
    return (Path(folder_here()) / FILE).exists()


def target_settings(config: str | None, url: str | None) -> Settings:
    """Return the project's settings, or ``no_project()`` if there is neither a file nor a URL. Raises ConfigError.

    After this call, this process masks the secrets of the settings and of the environment.
    """
    secrets = masking.named_secrets({**os.environ, "": url or ""})
    masking.remember(secrets)
    if config is None and url is None:
        return no_project()
    file = None if config is None else Path(config)
    settings = load(file, environ=os.environ, database_url=url, only_database=True)
    masking.remember(secrets | settings.secrets)
    return settings


def open_target(settings: Settings) -> Database:
    """Open the database. On SQLite, create or migrate its tables if needed. On PostgreSQL, never change the tables."""
    address = parse_url(settings.database, settings.schema)
    if settings.without_project:
        _make_state_folder()
    else:
        # The list of known databases leaves out exec.db: both are in the state folder, so they would vanish together.
        require_still_there(settings.folder, address)
    database = Database(address, connections=1)
    try:
        _require_tables(database, settings)
        if not settings.without_project:
            remember(settings.folder, address)
    except BaseException:
        database.close()
        raise
    return database


def _make_state_folder() -> None:
    """Create the state folder. Raises UsageError if other users own it or can write to it, as in /tmp."""
    folder = folder_here()
    make_folder(Path(folder), 0o700)
    try:
        os.close(open_folder(folder))
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}, so exec can record no runs there") from None


def _require_tables(database: Database, settings: Settings) -> None:
    try:
        with database.read() as connection:
            require_ours(connection, settings)
    except (SchemaMissing, SchemaTooOld):
        if not database.is_sqlite:
            raise
        from cronjobs.engine.schema import migrations

        migrations.upgrade(database)
