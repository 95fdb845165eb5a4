"""``connect()``: a connection to the jobs database for scripts, found as the command line finds it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import Connection

from cronjobs.config.load import load
from cronjobs.database.address import parse_url
from cronjobs.database.connection import Database
from cronjobs.host.known_databases import require_still_there
from cronjobs.store.meta import is_ours, require_schema


@contextmanager
def connect(config: str | Path | None = None, *, database_url: str | None = None) -> Iterator[Connection]:
    """Yield a connection in one transaction, committed at the end of the block, or rolled back by an exception.

    *config* None: $CRONJOBS_CONFIG, else ./cronjobs.yaml; *database_url* None: $CRONJOBS_DATABASE_URL, else the file's.
    Keep the block short: on SQLite it has the only write lock. Raises ConfigError, ForeignDatabase or DatabaseError.
    """
    settings = load(None if config is None else Path(config), environ=os.environ, database_url=database_url)
    address = parse_url(settings.database, settings.schema)
    require_still_there(settings, address)
    with closing(Database(address, connections=1)) as database, database.write() as connection:
        found = require_schema(connection)
        is_ours(settings, found.project, found.environment)
        yield connection
