"""What a worker of a cluster has of its own: its configuration, if there is one, and the databases that it reaches."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Final

from cronjobs.config import load
from cronjobs.config.settings import Settings
from cronjobs.database.address import parse_url
from cronjobs.database.connection import Database

_databases: dict[tuple[str, str | None], Database] = {}
_lock: Final = threading.Lock()


def settings_here(claimed: Settings) -> Settings:
    """What holds here: the worker's own configuration file, if it has one; else what the claiming host says.

    Raises CronjobsError.
    """
    file = Path(os.environ.get("CRONJOBS_CONFIG") or "cronjobs.yaml")
    if file.exists():
        return load.load(file, environ=os.environ, need_database=False)
    folder = claimed.folder if claimed.folder.is_dir() else Path.cwd()
    return replace(claimed, folder=folder, database=os.environ.get("CRONJOBS_DATABASE_URL") or "")


def database_at(url: str, schema: str | None) -> Database:
    """One for all attempts of this process."""
    with _lock:
        found = _databases.get((url, schema))
        if found is None:
            found = _databases[url, schema] = Database(parse_url(url, schema))
        return found
