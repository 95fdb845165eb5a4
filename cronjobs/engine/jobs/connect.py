"""``connect()`` opens a connection to the jobs database for scripts. It finds the database as the command line does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import Connection

from cronjobs.engine.config.load import load
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.known_databases import remember, require_still_there
from cronjobs.engine.jobs.checking import names_checked
from cronjobs.engine.schema.ensure_tables import require_tables
from cronjobs.engine.store.meta import require_ours
from cronjobs.errors import UsageError


@names_checked("connect")
@contextmanager
def connect(config: str | Path | None = None, *, database_url: str | None = None) -> Iterator[Connection]:
    """Yield a connection in one transaction. The transaction is committed at the end of the block.

    An exception in the block rolls the transaction back. If *config* is None, the file is $CRONJOBS_CONFIG or, if that
    is not set, ./cronjobs.yaml. If *database_url* is None, the URL comes from $CRONJOBS_DATABASE_URL or, if that is not
    set, from the file. As with commands, a missing SQLite file is created with its tables. Keep the block short: on
    SQLite it holds the only write lock. Raises ConfigError, ForeignDatabase or DatabaseError, and UsageError for an
    argument of the wrong type.
    """
    for what, value, kinds in (("config", config, str | Path), ("database_url", database_url, str)):
        if value is not None and not isinstance(value, kinds):
            raise UsageError(f"connect(): {what} is {type(value).__name__}, not text")
    settings = load(None if config is None else Path(config), environ=os.environ, database_url=database_url)
    address = parse_url(settings.database, settings.schema)
    require_still_there(settings.folder, address)
    with closing(Database(address, connections=1)) as database:
        if database.is_sqlite:
            require_tables(database, migrates=False)
            remember(settings.folder, address)
        with database.write() as connection:
            require_ours(connection, settings)
            yield connection
