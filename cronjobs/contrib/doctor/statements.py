"""The SQL of ``doctor``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, text

from cronjobs.engine.database.tables import metadata
from cronjobs.engine.probe.sql_text import ALERTS, TICKS
from cronjobs.engine.schema.grants import RELATIONS
from cronjobs.engine.store.meta import qualified
from cronjobs.engine.store.sql import run

TABLE_RIGHTS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
COLUMN_RIGHTS: Final = ("SELECT", "INSERT", "UPDATE")
TICKS_LOOKED_AT: Final = 120


@dataclass(frozen=True)
class ServerFacts:
    version: int  # such as 170002 for 17.2
    user: str
    superuser: bool
    autovacuum: bool


def server(connection: Connection) -> ServerFacts:
    row = connection.execute(
        text(
            """SELECT current_setting('server_version_num')::int AS version, current_user AS "user",
                 (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) AS superuser,
                 current_setting('autovacuum')::bool AS autovacuum"""
        )
    ).one()
    return ServerFacts(row.version, row.user, bool(row.superuser), bool(row.autovacuum))


# Lock modes that keep other sessions from writing to the table.
# https://www.postgresql.org/docs/current/explicit-locking.html#LOCKING-TABLES
_KEEPS_WRITERS_OUT: Final = "('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"


def blockers(connection: Connection) -> Sequence[Row[Any]]:
    """Return the fields of a ``Blocker`` for each session that makes ticks wait, or makes them skip jobs.

    The result has sessions of three kinds. Some hold a lock on one of our tables. Some make another session wait; the
    waiting session belongs to cronjobs or uses our tables. Some have locked or changed jobs, and make no session wait,
    because claims skip locked rows. Sessions that are waiting themselves are left out.

    An ordinary role does not see the state of another user's session, or when its transaction began. For another user's
    session, ``since`` is when the first session began to wait for it. If the other user's session has only locked or
    changed jobs, it is left out.
    """
    return connection.execute(
        text(
            f"""
            WITH ours AS (SELECT to_regclass(name) AS oid FROM unnest(CAST(:names AS text[])) AS name),
            found AS (
              SELECT l.pid, c.relname AS relation, CAST(NULL AS timestamptz) AS waits_since, false AS jobs_only
              FROM pg_locks l JOIN ours o ON o.oid = l.relation JOIN pg_class c ON c.oid = o.oid
              WHERE l.granted AND l.mode IN {_KEEPS_WRITERS_OUT}
              UNION ALL
              SELECT b.pid, NULL, w.waitstart, false FROM pg_locks w JOIN pg_stat_activity a ON a.pid = w.pid
                CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b(pid)
              WHERE NOT w.granted AND (w.relation IN (SELECT o.oid FROM ours o) OR a.application_name = 'cronjobs')
              UNION ALL
              SELECT l.pid, NULL, NULL, true FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
              WHERE l.granted AND l.relation = to_regclass(:jobs) AND l.mode IN ('RowShareLock', 'RowExclusiveLock')
                AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                AND a.application_name <> 'cronjobs' AND a.xact_start IS NOT NULL)
            SELECT f.pid, a.usename AS "user", a.application_name AS application, a.state,
              coalesce(min(a.xact_start), min(f.waits_since)) AS since, max(f.relation) AS "table",
              min(a.xact_start) IS NULL AS is_wait, bool_and(f.jobs_only) AS jobs_only
            FROM found f LEFT JOIN pg_stat_activity a ON a.pid = f.pid
            WHERE f.pid <> pg_backend_pid()
              AND NOT EXISTS (SELECT 1 FROM pg_locks w WHERE w.pid = f.pid AND NOT w.granted)
            GROUP BY f.pid, a.usename, a.application_name, a.state ORDER BY 5 NULLS LAST, 1"""
        ),
        {
            "names": [qualified(connection, name) for name in sorted(metadata.tables)],
            "jobs": qualified(connection, "cronjobs_jobs"),
        },
    ).all()


@dataclass(frozen=True)
class TableStatistics:
    name: str
    live: int
    dead: int
    size: int  # bytes, including the table's indexes
    autovacuum: bool


def table_statistics(connection: Connection) -> list[TableStatistics]:
    """Return the statistics of each of our tables that exists."""
    found = []
    for name in sorted(metadata.tables):
        row = connection.execute(
            text(
                """SELECT s.n_live_tup, s.n_dead_tup, pg_total_relation_size(c.oid),
                     NOT coalesce(array_to_string(c.reloptions, ',') ~* 'autovacuum_enabled=(false|off|0|no)', false)
                   FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid WHERE c.oid = to_regclass(:name)"""
            ),
            {"name": qualified(connection, name)},
        ).first()
        if row is not None:
            found.append(TableStatistics(name, *row))
    return found


@dataclass(frozen=True)
class HeldRights:
    """A role's rights on one of our tables.

    ``partly`` holds the rights that the role has on at least one column. If ``owner``, the role may do everything.
    """

    relation: str
    rights: frozenset[str]
    partly: frozenset[str]
    owner: bool


def rights_of(connection: Connection, role: str) -> list[HeldRights]:
    """Return the rights of *role*, including its groups' rights, on our tables and views that exist.

    The role "public" means everybody.
    """
    found = []
    whole = ", ".join(f"has_table_privilege(:role, c.oid, '{right}')" for right in TABLE_RIGHTS)
    parts = ", ".join(f"has_any_column_privilege(:role, c.oid, '{right}')" for right in COLUMN_RIGHTS)
    for name in RELATIONS:
        row = connection.execute(
            text(
                f"""SELECT (SELECT pg_has_role(r.oid, c.relowner, 'USAGE') FROM pg_roles r WHERE r.rolname = :role),
                  {whole}, {parts} FROM pg_class c WHERE c.oid = to_regclass(:name)"""
            ),
            {"role": role, "name": qualified(connection, name)},
        ).first()
        if row is None:
            continue
        owner, *may = row
        held = frozenset(right for right, yes in zip(TABLE_RIGHTS, may[: len(TABLE_RIGHTS)], strict=True) if yes)
        partly = frozenset(right for right, yes in zip(COLUMN_RIGHTS, may[len(TABLE_RIGHTS) :], strict=True) if yes)
        found.append(HeldRights(name, held, partly, bool(owner)))
    return found


def existing_roles(connection: Connection, names: Collection[str]) -> dict[str, bool]:
    """Map each existing role in *names* to whether the session's user is that role or a member of it."""
    rows = connection.execute(
        text("SELECT r.rolname, pg_has_role(r.oid, 'USAGE') FROM pg_roles r WHERE r.rolname = ANY(:names)"),
        {"names": list(names)},
    )
    return {name: bool(mine) for name, mine in rows}


def journal_mode(connection: Connection) -> str:
    """Return the journal mode of the SQLite file, such as "wal"."""
    return str(connection.exec_driver_sql("PRAGMA journal_mode").scalar_one())


class TickSpan(NamedTuple):
    """A tick. ``finished_at`` is None if the tick is still running or was killed."""

    started_at: datetime
    finished_at: datetime | None


def ticks_of_host(connection: Connection, host: str) -> list[TickSpan]:
    """Return the last ticks of *host*, newest first."""
    rows = run(
        connection,
        f"SELECT t.started_at, t.finished_at FROM {TICKS} t WHERE t.host = :host ORDER BY t.id DESC LIMIT :most",
        host=host,
        most=TICKS_LOOKED_AT,
    )
    return list(map(TickSpan._make, rows))


def delivered(connection: Connection) -> frozenset[str]:
    """Return the channels that have delivered a message."""
    statement = f"SELECT DISTINCT a.channel FROM {ALERTS} a WHERE a.sent_at IS NOT NULL"
    return frozenset(run(connection, statement).scalars())
