"""The SQL of ``db copy``, which reads from SQLite and writes to PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table, Text, delete, func, select, type_coerce

from cronjobs.engine.database.column_types import Json
from cronjobs.engine.database.tables import audit, findings, job_runs, jobs, meta, metadata, schedules, ticks
from cronjobs.engine.probe.sql_text import JOBS, META, NOW
from cronjobs.engine.store.meta import FENCE, qualified
from cronjobs.engine.store.sql import group, kinds, run

BATCH: Final = 1000  # a batch has at most this many rows
BATCH_BYTES: Final = 8 * 1024 * 1024  # a batch also ends once it reaches this size

# The tables are sorted so that jobs come before their runs.
TABLES: Final = tuple(table for table in metadata.sorted_tables if table is not meta)
# Rows of these tables keep their ids, because other rows refer to them, or because they give the order.
WITH_IDS: Final = (jobs, schedules, ticks, findings)

# These triggers refuse claims and new ledger rows of ticks that began before the old side was closed. They also refuse
# changes to a waiting job, which would have no effect on the new side. A running job can still record its end.
_FENCES: Final = {
    "claims": "UPDATE OF locked_by ON cronjobs_jobs WHEN OLD.locked_by IS NULL AND NEW.locked_by IS NOT NULL",
    "acts": "UPDATE OF status, run_at, payload, cancel_requested_at ON cronjobs_jobs WHEN OLD.locked_by IS NULL "
    "AND OLD.finished_at IS NULL",
    "occurrences": "INSERT ON cronjobs_occurrences",
    "schedules": "UPDATE ON cronjobs_schedules",
}

Rows = Sequence[Mapping[str, Any]]


# --- the old side, SQLite ---------------------------------------------------------------------------------------------


def put_fences(connection: Connection) -> None:
    for name, event in _FENCES.items():
        connection.exec_driver_sql(
            f"CREATE TRIGGER IF NOT EXISTS {FENCE}{name} BEFORE {event} "
            "BEGIN SELECT RAISE(ABORT, 'cronjobs db copy has moved this database elsewhere'); END"
        )


def last_closing(connection: Connection) -> int:
    """Return the id of the newest audit entry about ownership. If the id changes, another copy has begun."""
    found = select(func.max(audit.c.id)).where(audit.c.action == "adopt")
    return int(connection.execute(found).scalar_one())


def leased(connection: Connection) -> list[int]:
    """Return the ids of jobs whose lease has not expired, because they may still be running."""
    return list(run(connection, f"SELECT id FROM {JOBS} WHERE locked_until > {NOW} ORDER BY id").scalars())


def count(connection: Connection, table: Table) -> int:
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def newest(connection: Connection, table: Table) -> int:
    """Return the highest id in *table*, or 0 if the table is empty."""
    return int(connection.execute(select(func.coalesce(func.max(table.c.id), 0))).scalar_one())


def spent(connection: Connection, table: Table) -> int:
    """Return the highest id ever used in *table*. The ids of pruned rows must not be used again."""
    found = connection.exec_driver_sql("SELECT seq FROM sqlite_sequence WHERE name = ?", (table.name,)).scalar()
    return int(found or 0)


def batches(connection: Connection, table: Table, above: int) -> Iterator[Rows]:
    """Yield the rows of *table* with ids above *above* in batches, ordered by key, with JSON as text."""
    columns = [
        type_coerce(column, Text).label(column.name) if isinstance(column.type, Json) else column
        for column in table.columns
    ]
    found = select(*columns).order_by(*table.primary_key)
    if above:
        found = found.where(table.c.id > above)
    batch: list[Mapping[str, Any]] = []
    size = 0
    for [row] in connection.execute(found).partitions(1):
        batch.append(dict(row._mapping))
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(batch) == BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# --- the new side, PostgreSQL -----------------------------------------------------------------------------------------


def take_alone(connection: Connection) -> None:
    """Lock the tables, so that no tick, enqueuer or other copy can write until this transaction ends."""
    names = ", ".join(f"{{{_short(table)}}}" for table in (*TABLES, meta))
    run(connection, f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE")
    # One statement may delete a million rows.
    connection.exec_driver_sql("SET LOCAL statement_timeout = '15min'")


def take_turn(connection: Connection) -> None:
    """Block other copies until this transaction ends."""
    run(connection, f"SELECT 1 FROM {META} FOR NO KEY UPDATE").all()


def insert(connection: Connection, table: Table, rows: Rows) -> None:
    """Insert *rows*. If *table* is in WITH_IDS, the rows keep their ids."""
    names = [column.name for column in table.columns if column.name != "id" or table in WITH_IDS]
    _insert(connection, table, names, rows)


def insert_late(connection: Connection, rows: Rows) -> int:
    """Insert jobs under new ids, except jobs whose key this side already has. Return how many were inserted."""
    names = [column.name for column in jobs.columns if column.name != "id"]
    return _insert(connection, jobs, names, rows, "ON CONFLICT (idempotency_key) DO NOTHING RETURNING id")


def _insert(connection: Connection, table: Table, names: Sequence[str], rows: Rows, end: str = "") -> int:
    values = [f"CAST(r.{name} AS jsonb)" if isinstance(table.c[name].type, Json) else f"r.{name}" for name in names]
    order = "ORDER BY r.id" if "id" in table.c else ""
    written = run(
        connection,
        f"INSERT INTO {{{_short(table)}}} ({', '.join(names)}) SELECT {', '.join(values)} "
        f"FROM {group('rows', kinds(table))} r {order} {end}",
        rows=rows,
    )
    return len(written.all()) if end else written.rowcount


def count_on(connection: Connection, table: Table, highest: int) -> None:
    """Make the id sequence of *table* continue above *highest*."""
    if highest:
        run(
            connection,
            "SELECT setval(pg_get_serial_sequence(:name, 'id'), :highest)",
            name=qualified(connection, table.name),
            highest=highest,
        ).all()


def empty(connection: Connection) -> None:
    """Delete everything that a copy writes, except the audit trail."""
    for table in (job_runs, *(table for table in TABLES if table not in (job_runs, audit))):
        connection.execute(delete(table))


def _short(table: Table) -> str:
    return table.name.removeprefix("cronjobs_")
