"""The meta row. It names the owner of the database, and the versions of the code that may use the database.

Reading the row does not require alembic.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, func, insert, select, text, update

from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.tables import FIRST_REVISION, SCHEMA_REVISION, audit, meta
from cronjobs.engine.probe.kernel_facts import host_name
from cronjobs.engine.store.sql import schema_of
from cronjobs.errors import (
    ForeignDatabase,
    MovedDatabase,
    SchemaMissing,
    SchemaNotUpgraded,
    SchemaTooNew,
    SchemaTooOld,
)

# If a database was copied elsewhere, its environment begins with this prefix.
MOVED: Final = "moved to "
# If a SQLite file was copied elsewhere, triggers whose names begin with this prefix make the old file refuse claims.
FENCE: Final = "cronjobs_moved_"


@dataclass(frozen=True)
class Meta:
    """The meta row. ``project`` and ``environment`` are "" until a project becomes the owner of the database."""

    project: str
    environment: str
    schema_revision: str
    oldest_code: str
    pruned_at: datetime | None


def read_meta(connection: Connection) -> Meta:
    """Read the meta row. Raises SchemaMissing or SchemaNotUpgraded, and leaves the transaction usable."""
    if not has_table(connection, meta.name):
        raise SchemaMissing(database_name(connection))
    columns = (meta.c.project, meta.c.environment, meta.c.schema_revision, meta.c.oldest_code, meta.c.pruned_at)
    row = connection.execute(select(*columns).where(meta.c.id == 1)).one_or_none()
    if row is None:
        raise SchemaMissing(database_name(connection))
    refuse_unsupported(row.schema_revision)
    return Meta(*row)


def refuse_unsupported(revision: str) -> None:
    """Raise SchemaNotUpgraded for tables of a version before 0.2.0."""
    if revision < FIRST_REVISION:
        raise SchemaNotUpgraded(revision)


def require_schema(connection: Connection) -> Meta:
    """Read the meta row if this code can use the schema. Raises SchemaMissing, SchemaTooOld or SchemaTooNew.

    A newer schema is accepted if it still supports code of our revision, because hosts with old code keep ticking
    during a deploy.
    """
    found = read_meta(connection)
    require_revision(found.schema_revision, found.oldest_code)
    return found


def require_revision(schema_revision: str, oldest_code: str) -> None:
    """Raise SchemaTooOld or SchemaTooNew if this code cannot use the schema.

    Revisions have four digits, so they can be compared as text.
    """
    if schema_revision < SCHEMA_REVISION:
        raise SchemaTooOld(found=schema_revision, needed=SCHEMA_REVISION)
    if oldest_code > SCHEMA_REVISION:
        raise SchemaTooNew(found=schema_revision, known=SCHEMA_REVISION, oldest_code=oldest_code)


def is_ours(settings: Settings, project: str, environment: str) -> bool:
    """Return whether *project* and *environment*, which own the database, are those of *settings*.

    Returns False if no project owns the database yet. Raises MovedDatabase if the database was copied elsewhere, and
    ForeignDatabase if it has another owner. So we never claim jobs in a restored copy or in another app's database, and
    never write to such a database.
    """
    ours, theirs = (settings.project, settings.environment), (project, environment)
    if ours == theirs:
        return True
    if theirs == ("", ""):
        return False
    if environment.startswith(MOVED):
        raise MovedDatabase(environment.removeprefix(MOVED))
    index = 0 if ours[0] != theirs[0] else 1
    raise ForeignDatabase(what=("project", "environment")[index], theirs=theirs[index], ours=ours[index])


def require_ours(connection: Connection, settings: Settings) -> Meta:
    """Read the meta row if this code can use the schema and no other project owns the database.

    Raises what ``require_schema`` and ``is_ours`` raise.
    """
    found = require_schema(connection)
    is_ours(settings, found.project, found.environment)
    return found


def adopt(connection: Connection, project: str, environment: str, actor: str | None, *, again: bool = False) -> Meta:
    """Give the database to *project* and *environment*, with an audit row. Return the previous meta row.

    If *actor* is None, the actor is the database user of the connection. If *project* and *environment* already own the
    database, nothing is written, unless *again* is True.
    """
    before = read_meta(connection)
    if (before.project, before.environment) == (project, environment) and not again:
        return before
    connection.execute(update(meta).where(meta.c.id == 1).values(project=project, environment=environment))
    entry = {
        "action": "adopt",
        "subject": project,
        "host": host_name(),
        "detail": {
            "project": {"from": before.project, "to": project},
            "environment": {"from": before.environment, "to": environment},
        },
    }
    connection.execute(insert(audit).values(entry if actor is None else entry | {"actor": actor}))
    return before


def reopen(connection: Connection, project: str, environment: str, actor: str) -> Meta:
    """Adopt the database, and remove the fence with which "db copy" closed it. Return the previous meta row."""
    require_schema(connection)
    if connection.dialect.name == "sqlite":
        triggers = text("SELECT name FROM sqlite_master WHERE type = 'trigger' AND name GLOB :names")
        for name in connection.execute(triggers, {"names": f"{FENCE}*"}).scalars().all():
            connection.exec_driver_sql(f'DROP TRIGGER "{name}"')
    return adopt(connection, project, environment, actor)


def has_table(connection: Connection, name: str) -> bool:
    """Return whether *name* exists in the configured schema or, if none is configured, on the search_path.

    A missing table causes no SQL error.
    """
    if connection.dialect.name == "sqlite":
        found = text("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name")
        return connection.execute(found, {"name": name}).scalar() is not None
    return connection.execute(select(func.to_regclass(qualified(connection, name)))).scalar() is not None


def qualified(connection: Connection, name: str) -> str:
    """Return *name* qualified with the configured schema.

    If no schema is configured, return *name* alone, so that the search_path applies.
    """
    schema = schema_of(connection)
    if schema is None:
        return name
    quote = connection.dialect.identifier_preparer.quote_identifier
    return f"{quote(schema)}.{quote(name)}"


def database_name(connection: Connection) -> str:
    """Return the database's URL without any part that may contain a password, and the configured schema if any.

    Works with any connection that can enqueue.
    """
    schema = schema_of(connection)
    suffix = "" if schema is None or connection.dialect.name == "sqlite" else f"?schema={schema}"
    where = getattr(connection, "where", None)
    if where is not None:
        return f"{where()}{suffix}"
    url = connection.engine.url
    if connection.dialect.name == "sqlite" and url.database:
        # A relative path means a different file to an app in another folder.
        url = url.set(database=str(Path(url.database).absolute()))
    # The query string may also contain a password.
    plain = url.set(drivername=url.get_backend_name(), query={})
    return f"{plain.render_as_string(hide_password=True)}{suffix}"
