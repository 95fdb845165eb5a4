"""The file that alembic runs first. ``cronjobs db …`` passes its connection. Plain ``alembic`` in a clone passes none.

Plain alembic takes the database from ``-x url=…``, else CRONJOBS_DATABASE_URL, else ./cronjobs.yaml. It takes the
PostgreSQL schema from ``-x schema=…``, else the URL's ``?schema=``, else ./cronjobs.yaml.
"""

from __future__ import annotations

import os
from pathlib import Path

from alembic import context
from cronjobs.engine.config.load import load
from cronjobs.engine.database.address import Address, parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.schema import migrations
from cronjobs.errors import UsageError


def address() -> Address:
    given = context.get_x_argument(as_dictionary=True)
    schema = given.get("schema")
    url = given.get("url") or os.environ.get("CRONJOBS_DATABASE_URL")
    if isinstance(url, str) and url:
        return parse_url(url, schema if isinstance(schema, str) else None)
    file = Path("cronjobs.yaml")
    if file.exists():
        settings = load(file, environ=os.environ)
        return parse_url(settings.database, schema if isinstance(schema, str) else settings.schema)
    raise UsageError(
        "alembic does not know which database to use: set CRONJOBS_DATABASE_URL, run alembic -x "
        "url=sqlite:///cronjobs.db …, or run alembic in the folder of cronjobs.yaml"
    )


def main() -> None:
    connection = context.config.attributes.get(migrations.CONNECTION)
    if connection is not None:
        migrations.run_online(connection)
    elif context.is_offline_mode():
        migrations.run_offline(context.config.attributes.get(migrations.ADDRESS) or address())
    else:
        database = Database(address())
        try:
            with migrations.transaction(database) as connection:
                migrations.run_online(connection)
        finally:
            database.close()


main()
