"""The checks that "db drop" makes before it drops our tables, and the drop itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from sqlalchemy import Connection, Row, text

from cronjobs.engine.probe.sql_text import JOBS, NOW
from cronjobs.engine.store.meta import qualified
from cronjobs.engine.store.sql import run

Kind = Literal["view", "function", "table"]
# An object must be dropped before the objects on which it depends.
ORDER: Final[tuple[Kind, ...]] = ("view", "function", "table")


@dataclass(frozen=True)
class Relation:
    """One of our views, functions or tables. ``sql`` is its name in SQL. A function's name includes its arguments."""

    kind: Kind
    name: str
    sql: str


def existing(connection: Connection, names: Collection[tuple[Kind, str]]) -> list[Relation]:
    """Return those relations of *names* that exist, in the order in which they can be dropped."""
    if connection.dialect.name == "sqlite":
        there = connection.execute(text("SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view')"))
        found = [Relation(kind, name, f'"{name}"') for kind, name in there if (kind, name) in names]
    else:
        found = [each for kind, name in names for each in _in_our_schema(connection, kind, name)]
    return sorted(found, key=lambda each: (ORDER.index(each.kind), each.name))


# Look only in the meta table's schema: another schema on the search_path may have tables with the same names.
_HOME: Final = "n.oid = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass(:meta))"
_RELATION: Final = f"""
SELECT format('%I.%I', n.nspname, c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = :name AND c.relkind = ANY(:kinds) AND {_HOME}"""
_FUNCTION: Final = f"""
SELECT format('%I.%I(%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid))
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE p.proname = :name AND {_HOME}"""


def _in_our_schema(connection: Connection, kind: Kind, name: str) -> list[Relation]:
    parameters: dict[str, object] = {"name": name, "meta": qualified(connection, "cronjobs_meta")}
    if kind != "function":
        parameters["kinds"] = ["v"] if kind == "view" else ["r", "p"]
    statement = _FUNCTION if kind == "function" else _RELATION
    return [Relation(kind, name, sql) for sql in connection.execute(text(statement), parameters).scalars()]


def keep_out(connection: Connection) -> None:
    """Wait until no other transaction uses the jobs table, and lock all others out until this transaction ends.

    SQLite needs no lock, because it has only one writer.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {qualified(connection, 'cronjobs_jobs')} IN ACCESS EXCLUSIVE MODE"))


def drop(connection: Connection, relations: Sequence[Relation]) -> None:
    """Drop *relations* without CASCADE, so the drop fails if somebody's view or foreign key depends on our tables."""
    for kind in ORDER:
        names = [each.sql for each in relations if each.kind == kind]
        if not names:
            continue
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"DROP {kind.upper()} {', '.join(names)}")
            continue
        for name in names:
            connection.exec_driver_sql(f"DROP {kind.upper()} {name}")


# --- who else is in the database --------------------------------------------------------------------------------------


def is_shared_file(connection: Connection, ours: Collection[Relation]) -> bool:
    """Return whether a SQLite file also contains another program's tables or views."""
    if connection.dialect.name != "sqlite":
        return False
    names = {each.name for each in ours}
    there = connection.execute(text("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")).scalars()
    return any(name not in names and not name.startswith("sqlite_") for name in there)


_DJANGOS: Final = """
SELECT format('%I.%I', n.nspname, c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relname = 'django_migrations' AND c.relkind = 'r' AND a.attname = 'app'
  AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')"""


def django_has_migrated(connection: Connection) -> bool:
    """Return whether Django's own record lists our migrations. If so, "migrate" would not recreate the tables."""
    if connection.dialect.name == "sqlite":
        asked = "SELECT 'django_migrations' FROM pragma_table_info('django_migrations') WHERE name = 'app'"
    else:
        asked = _DJANGOS
    return any(
        connection.execute(text(f"SELECT 1 FROM {table} WHERE app = 'cronjobs' LIMIT 1")).first()
        for table in connection.execute(text(asked)).scalars().all()
    )


# --- reasons not to drop ----------------------------------------------------------------------------------------------


def live_leases(connection: Connection, limit: int) -> Sequence[Row[tuple[int, str, str]]]:
    """Return up to *limit* jobs whose leases have not expired. Each row has id, job_type and locked_by."""
    return run(
        connection,
        f"SELECT j.id, j.job_type, j.locked_by FROM {JOBS} j WHERE j.locked_until > {NOW} ORDER BY j.id LIMIT :limit",
        limit=limit,
    ).all()


def unfinished(connection: Connection) -> dict[str, int]:
    """Return how many jobs somebody may still need, by status."""
    rows = run(
        connection,
        f"SELECT j.status, count(*) AS jobs FROM {JOBS} j "
        "WHERE j.status IN ('queued', 'failed', 'running', 'dead') GROUP BY j.status",
    )
    return {row.status: row.jobs for row in rows}


@dataclass(frozen=True)
class LastTick:
    """A host, and how long ago its last tick began or ended."""

    host: str
    ago: timedelta


def hosts_that_tick(ticks: Collection[Row[Any]], now: datetime, within: timedelta) -> list[LastTick]:
    """Return the hosts whose last tick began or ended at most *within* ago. *ticks* has the last tick of every host.
    Pure.
    """
    signs = [(row.host, max(each for each in (row.started_at, row.finished_at) if each)) for row in ticks]
    return [LastTick(host, now - at) for host, at in signs if now - at <= within]
