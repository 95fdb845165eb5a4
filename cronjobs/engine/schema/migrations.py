"""Upgrade the tables to the newest revision that this version knows, and report faults of the tables. Uses alembic.

Our tables are in the user's database, beside the user's own tables. Our tables are all in one schema, and have their
own version table. We change only tables, views and functions whose names begin with ``cronjobs_``.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any, Final, TextIO

from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, text
from sqlalchemy.exc import DBAPIError

from alembic import command, context
from cronjobs.engine.database import indexes  # noqa: F401  importing it adds the indexes to the metadata
from cronjobs.engine.database.address import Address
from cronjobs.engine.database.connection import Database, as_database_error
from cronjobs.engine.database.retrying import patiently
from cronjobs.engine.database.tables import VERSION_TABLE, metadata
from cronjobs.engine.schema import drift
from cronjobs.engine.schema.grants import literal, quoted
from cronjobs.engine.store.meta import has_table, qualified, read_meta, refuse_unsupported, require_revision
from cronjobs.errors import CronjobsError, DatabaseError, SchemaMissing, SchemaNotUpgraded

# We pass objects to env.py in these attributes of alembic's configuration.
CONNECTION: Final = "cronjobs_connection"
ADDRESS: Final = "cronjobs_address"

PREFIX: Final = "cronjobs_"

# READ COMMITTED lets a migration that has waited for the migration lock see the changes of the previous migration. Once
# we hold the migration lock, we set a short lock_timeout.
_BEGIN_DDL: Final = (
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; "
    "SET LOCAL statement_timeout = '15min'; SET LOCAL lock_timeout = 0; "
    "SET LOCAL idle_in_transaction_session_timeout = '15min'; SET LOCAL client_connection_check_interval = 2000"
)
# While a DDL statement waits for the lock on a table, all of the app's queries on that table wait behind it. So stop
# waiting soon, and retry.
_SHORT_LOCKS: Final = "SET LOCAL lock_timeout = '1s'"
_LOCK_TRIES: Final = 60
_PAUSE_S: Final = 0.5
_LOCKED: Final = frozenset({"55P03", "40P01"})  # lock_not_available, deadlock_detected

_NO_RIGHT: Final = "42501"  # insufficient_privilege

_SQLITE_PATIENCE_S: Final = 60.0

# Only a migration in its own transaction runs these statements. They must not run in the transaction of another
# program.
_OF_AN_OWN_TRANSACTION: Final = ("BEGIN", "COMMIT", "SET LOCAL", "SELECT pg_advisory_xact_lock")

# alembic's ``context`` and ``op`` are global, so only one thread at a time can use them.
_one_at_a_time = threading.Lock()


# --- for commands ---------------------------------------------------------------------------------------------------


def head() -> str:
    """Return the newest revision that this installation contains."""
    newest = ScriptDirectory.from_config(_config()).get_current_head()
    if newest is None:
        raise CronjobsError(f"{script_location()} contains no migrations: the installation is incomplete")
    return newest


def upgrade(database: Database) -> tuple[str | None, str]:
    """Migrate to the newest revision. Return the revisions before (None without tables) and after the upgrade.

    The upgrade is atomic on both databases. If several processes upgrade at once, one process migrates, and the others
    wait and then find nothing to do. Tables that are newer than this code are not changed. Raises SchemaTooNew if this
    code must not use such tables, and SchemaNotUpgraded for tables from a version before 0.2.0.
    """
    newest = head()

    def migrate() -> tuple[str | None, str]:
        with transaction(database) as connection:
            before = _revision(connection)
            if before is not None and before > newest:
                require_revision(before, read_meta(connection).oldest_code)
                return before, before
            if before != newest:
                with _one_at_a_time:
                    command.upgrade(_config({CONNECTION: connection}), "head")
            return before, newest

    return patiently(migrate, worth=lambda error: _sqlstate(error) in _LOCKED, pauses=repeat(_PAUSE_S, _LOCK_TRIES - 1))


def current(database: Database) -> str | None:
    """Return the database's revision, or None if it has none of our tables."""
    with database.read() as connection:
        return _revision(connection)


def home(database: Database) -> str:
    """Return the PostgreSQL schema that contains our tables, or would get them. Raises DatabaseError if no schema is
    found.
    """
    with database.read() as connection:
        found = connection.exec_driver_sql(f"SELECT {_home(database.address.schema)}").scalar()
    if found is None:
        raise _nowhere(database.address)
    return str(found)


def check(database: Database) -> list[str]:
    """Return the faults of the revision and of the tables, one sentence each.

    Additional columns and tables are ignored.
    """
    newest = head()
    with database.read() as connection:
        try:
            found = read_meta(connection)
        except (SchemaMissing, SchemaNotUpgraded) as error:
            return [str(error)]
        migrated = _revision(connection)
        findings = []
        if migrated != found.schema_revision:
            findings.append(
                f"{VERSION_TABLE} says revision {migrated}, but cronjobs_meta says {found.schema_revision}: one of "
                "them was changed by hand"
            )
        try:
            require_revision(found.schema_revision, found.oldest_code)
        except DatabaseError as error:
            findings.append(str(error))
        if found.schema_revision < newest:
            # Do not compare the tables: an upgrade will add what is missing.
            return findings
        return findings + drift.find(connection)


def sql(address: Address, revisions: str = "head") -> str:
    """Return all migrations as the SQL of one transaction, for another program to run. No connection is needed.

    *revisions* is the last revision ("0013"), or a range ("0012:0013").
    """
    output = io.StringIO()
    with _one_at_a_time:
        command.upgrade(_config({ADDRESS: address}, output), revisions, sql=True)
    return output.getvalue()


@lru_cache
def statements(kind: str, schema: str | None = None, revisions: str = "head") -> tuple[str, ...]:
    """Return the statements of ``sql`` for a *kind* of database, "postgresql" or "sqlite".

    The statements can be run in the transaction of another program. On PostgreSQL, the first statement sets the
    search_path until that transaction ends.
    """
    script = sql(Address(URL.create("postgresql+psycopg" if kind == "postgresql" else kind), schema), revisions)
    parts = (_without_comments(part) for part in script.split(";\n\n"))
    return tuple(part for part in parts if part and not part.startswith(_OF_AN_OWN_TRANSACTION))


def _without_comments(part: str) -> str:
    return "\n".join(line for line in part.splitlines() if not line.startswith("--")).strip()


@lru_cache
def revisions() -> tuple[str, ...]:
    """Return every revision that this installation contains, oldest first."""
    return tuple(sorted(each.revision for each in ScriptDirectory.from_config(_config()).walk_revisions()))


# --- for env.py -----------------------------------------------------------------------------------------------------


@contextmanager
def transaction(database: Database) -> Iterator[Connection]:
    """Yield a connection with one write transaction for DDL, which is committed at the end of the block.

    No other migration runs at the same time. On PostgreSQL, unqualified names in the block refer to our one schema.
    """
    if database.is_sqlite:
        with database.write(patience=_SQLITE_PATIENCE_S) as connection:
            yield connection
        return
    schema = database.address.schema
    try:
        with database.engine.connect() as connection:
            connection = connection.execution_options(cronjobs_begin=_BEGIN_DDL)
            with connection.begin():
                connection.exec_driver_sql(upgrade_lock(schema))
                connection.exec_driver_sql(_SHORT_LOCKS)
                if schema is not None and not _schema_exists(connection, schema):
                    connection.exec_driver_sql(f"CREATE SCHEMA {quoted(schema)}")
                connection.exec_driver_sql(_pin(schema))
                if connection.exec_driver_sql("SELECT current_schema()").scalar() is None:
                    raise _nowhere(database.address)
                yield connection
    except DBAPIError as error:
        translated = as_database_error(database.address, error)
        if getattr(error.orig, "sqlstate", None) == _NO_RIGHT:
            translated = DatabaseError(
                f'{translated}: run the migration as the role that "cronjobs db grants" calls migrate'
            )
        raise translated from error


def run_online(connection: Connection) -> None:
    """Run alembic's command in the transaction of *connection*. Raises SchemaNotUpgraded."""
    found = _revision(connection)
    if found is not None:
        refuse_unsupported(found)
    context.configure(connection=connection, **_options())
    with context.begin_transaction():
        context.run_migrations()


def run_offline(address: Address) -> None:
    """Print the SQL of alembic's command."""
    context.configure(
        dialect_name=address.url.get_backend_name(),
        literal_binds=True,
        transactional_ddl=True,
        **_options(),
    )
    with context.begin_transaction():
        if not address.is_sqlite:
            context.execute(upgrade_lock(address.schema))
            context.execute(_SHORT_LOCKS)
            if address.schema is not None:
                context.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(address.schema)}")
            context.execute(_pin(address.schema))
        context.run_migrations()


def script_location() -> Path:
    """Return the folder ``alembic/``: inside the package in a wheel, beside the package in a clone."""
    package = Path(__file__).resolve().parents[2]
    inside = package / "alembic"
    return inside if inside.is_dir() else package.parent / "alembic"


# --- internal -------------------------------------------------------------------------------------------------------


def _options() -> dict[str, Any]:
    return {
        "target_metadata": metadata,
        "version_table": VERSION_TABLE,
        "include_name": _is_ours,
        "include_object": _is_compared,
        "process_revision_directives": _number,
    }


def _is_ours(name: str | None, kind: str, _parents: Any) -> bool:
    """Return whether *name* is one of our names, so that autogenerate ignores the tables of the user's app."""
    return kind != "table" or (name is not None and name.startswith(PREFIX) and name != VERSION_TABLE)


def _is_compared(thing: Any, name: str | None, kind: str, _reflected: bool, other: Any) -> bool:
    # SQLite has no identity columns, but alembic 1.16 reports a missing identity as a change. Ignore this change.
    lost_identity = kind == "column" and other is not None and thing.identity is not None and other.identity is None
    return _is_ours(name, kind, {}) and not lost_identity


def _number(_context: Any, _revision: Any, directives: list[Any]) -> None:
    """Give an autogenerated revision the next number, because revisions are compared as text."""
    for directive in directives:
        if len(directive.rev_id or "") != 4:
            directive.rev_id = f"{int(head()) + 1:04d}"


def _config(attributes: dict[str, Any] | None = None, output: TextIO | None = None) -> Config:
    config = Config(output_buffer=output, attributes=attributes or {})
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    return config


def _revision(connection: Connection) -> str | None:
    if not has_table(connection, VERSION_TABLE):
        return None
    statement = f"SELECT max(version_num) FROM {qualified(connection, VERSION_TABLE)}"  # noqa: S608 a name of ours
    found: str | None = connection.execute(text(statement)).scalar()
    return found


def upgrade_lock(schema: str | None) -> str:
    """Return SQL that takes the migration lock, so that only one migration at a time runs.

    The lock also works in PgBouncer's transaction mode. Each schema has its own lock, so two projects in one database
    do not wait for each other.
    """
    return f"SELECT pg_advisory_xact_lock(hashtext('cronjobs migrations'), hashtext({_home(schema)}))"


def _pin(schema: str | None) -> str:
    """Return SQL that makes unqualified names refer to one schema until the end of the transaction.

    The path names pg_temp last. If pg_temp were not in the path, PostgreSQL would search pg_temp first, and a temporary
    table could hide one of our tables.
    """
    return f"SELECT set_config('search_path', quote_ident({_home(schema)}) || ', pg_temp', true)"


def _home(schema: str | None) -> str:
    """Return an SQL expression for the name of our schema. The value is NULL if no schema is found.

    If no schema is configured, our schema is the one that already has our tables, or else the first existing schema in
    the search_path.
    """
    if schema is not None:
        return literal(schema)
    return (
        "coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.oid = to_regclass('cronjobs_meta')), current_schema())"
    )


def _nowhere(address: Address) -> DatabaseError:
    return DatabaseError(
        f"database {address} has no schema to create tables in: no schema in its search_path exists. Name a schema in "
        'the configuration, such as "schema: jobs"'
    )


def _schema_exists(connection: Connection, schema: str) -> bool:
    # Check first, because CREATE SCHEMA IF NOT EXISTS needs the right to create schemas even if the schema already
    # exists.
    found = text("SELECT 1 FROM pg_namespace WHERE nspname = :schema")
    return connection.execute(found, {"schema": schema}).scalar() is not None


def _sqlstate(error: DatabaseError) -> str | None:
    cause = error.__cause__
    return getattr(cause.orig, "sqlstate", None) if isinstance(cause, DBAPIError) else None
