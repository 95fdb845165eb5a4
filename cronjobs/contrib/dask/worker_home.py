"""What a worker of a cluster has of its own: its configuration, if there is one, and the databases that it reaches."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Final

from cronjobs.engine.config import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.errors import CronjobsError
from cronjobs.masking import named_secrets

TOKEN_URL: Final = "CRONJOBS_TOKEN_URL"  # a role that may take tokens and confirm permits, and nothing else
NO_DATABASE: Final = (
    f"it has neither {TOKEN_URL} nor CRONJOBS_DATABASE_URL nor a cronjobs.yaml in its working folder, and so "
    "cannot ensure that an attempt runs only once"
)

_databases: dict[tuple[str, str | None], Database] = {}
_lock: Final = threading.Lock()


def settings_here(claimed: Settings) -> Settings:
    """What holds here: the worker's own configuration file, if it has one; else what the claiming host says.

    Its secrets are this worker's: those of the claiming host do not travel. Raises CronjobsError.
    """
    file = Path(os.environ.get("CRONJOBS_CONFIG") or "cronjobs.yaml")
    if file.exists():
        return load.load(file, environ=os.environ, need_database=False)
    folder = claimed.folder if claimed.folder.is_dir() else Path.cwd()
    database = os.environ.get("CRONJOBS_DATABASE_URL") or ""
    secrets = frozenset(named_secrets({**os.environ, "": database}))
    return replace(claimed, folder=folder, database=database, secrets=secrets)


def database_at(url: str, schema: str | None) -> Database:
    """One for all attempts of this process."""
    with _lock:
        found = _databases.get((url, schema))
        if found is None:
            found = _databases[url, schema] = Database(parse_url(url, schema))
        return found


def token_database(claimed: Settings) -> tuple[Settings, Database]:
    """What holds here, and the database in which this worker takes tokens. Raises CronjobsError."""
    settings = settings_here(claimed)
    url = os.environ.get(TOKEN_URL) or settings.database
    if not url:
        raise CronjobsError(NO_DATABASE)
    return settings, database_at(url, claimed.schema)


def this_worker() -> str:
    """The address of this worker."""
    try:
        from distributed import get_worker

        return str(get_worker().address)
    except (ImportError, ValueError):
        return f"process {os.getpid()}"
