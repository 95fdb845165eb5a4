"""A cluster worker's configuration file, if it has one, and its database connections."""

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

# The URL for a database role that may only take tokens and confirm permits.
TOKEN_URL: Final = "CRONJOBS_TOKEN_URL"
NO_DATABASE: Final = (
    f"the worker has no {TOKEN_URL}, no CRONJOBS_DATABASE_URL and no cronjobs.yaml in its working folder, so it "
    "cannot ensure that an attempt runs only once"
)

_databases: dict[tuple[str, str | None], Database] = {}
_lock: Final = threading.Lock()


def _settings_here(claimed: Settings) -> Settings:
    """Return the settings in the worker's own file, else *claimed*, the claiming host's. Raises CronjobsError.

    In both cases the settings hold the worker's own secrets, because the claiming host sends none. If the worker has no
    ``setup:`` of its own, it uses the claiming host's setup, such as Django's under manage.py.
    """
    file = Path(os.environ.get("CRONJOBS_CONFIG") or "cronjobs.yaml")
    if file.exists():
        settings = load.load(file, environ=os.environ, need_database=False)
        return replace(settings, setup=settings.setup or claimed.setup)
    folder = claimed.folder if claimed.folder.is_dir() else Path.cwd()
    database = os.environ.get("CRONJOBS_DATABASE_URL") or ""
    secrets = frozenset(named_secrets({**os.environ, "": database}))
    return replace(claimed, folder=folder, database=database, secrets=secrets)


def token_database(claimed: Settings) -> tuple[Settings, Database]:
    """Return the worker's settings, and the database for its tokens, which all attempts in this process share.

    Raises CronjobsError.
    """
    settings = _settings_here(claimed)
    url = os.environ.get(TOKEN_URL) or settings.database
    if not url:
        raise CronjobsError(NO_DATABASE)
    with _lock:
        found = _databases.get((url, claimed.schema))
        if found is None:
            found = _databases[url, claimed.schema] = Database(parse_url(url, claimed.schema))
    return settings, found


def this_worker() -> str:
    try:
        from distributed import get_worker

        return str(get_worker().address)
    except (ImportError, ValueError):
        return f"process {os.getpid()}"
