"""The SQL of the drill, which reads the tables and drops the drill's schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.engine.probe.idle_conditions import WAITING
from cronjobs.engine.probe.sql_text import EFFECTS, JOB_RUNS, JOBS, NOW
from cronjobs.engine.store.sql import AMONG_IDS, LOCK, group_value, run

RECEIPT: Final = "drill.receipt"  # the job type of the receipts


def standing(connection: Connection) -> Counter[str]:
    """Count the receipts' jobs by status."""
    rows = run(connection, f"SELECT status, count(*) AS n FROM {JOBS} WHERE job_type = :t GROUP BY status", t=RECEIPT)
    return Counter({row.status: row.n for row in rows})


def has_due(connection: Connection) -> bool:
    """Whether a tick would find a due job or an expired lease."""
    found = run(
        connection,
        f"""SELECT EXISTS (SELECT 1 FROM {JOBS} WHERE {WAITING} AND run_at <= {NOW})
           OR EXISTS (SELECT 1 FROM {JOBS} WHERE locked_until <= {NOW})""",
    )
    return bool(found.scalar_one())


def leases(connection: Connection) -> dict[int, str]:
    """Map the id of each leased job to the job's ``locked_by``."""
    rows = run(connection, f"SELECT id, locked_by FROM {JOBS} WHERE locked_until IS NOT NULL")
    return {row.id: row.locked_by for row in rows}


def unlocked(connection: Connection, ids: Collection[int]) -> int:
    """Count the jobs whose rows no transaction has locked."""
    rows = run(
        connection,
        f"SELECT j.id FROM {JOBS} j WHERE j.id {AMONG_IDS} {LOCK}",
        ids=group_value(connection, sorted(ids)),
    )
    return len(rows.all())


def recorded(connection: Connection) -> set[str]:
    """Return the keys of recorded effects."""
    return set(run(connection, f"SELECT key FROM {EFFECTS} WHERE state = 'recorded'").scalars())


def lost(connection: Connection) -> list[Any]:
    """Return the receipts' payloads, once for each attempt whose runner died."""
    rows = run(
        connection,
        f"""SELECT j.payload FROM {JOBS} j JOIN {JOB_RUNS} r ON r.job_id = j.id
           WHERE j.job_type = :job_type AND r.outcome = 'lost'""",
        job_type=RECEIPT,
    )
    return list(rows.scalars())


def everything(connection: Connection) -> set[tuple[Any, ...]]:
    """Return all rows that a runner could change, to compare them before and after an event."""
    return {
        *_rows(connection, f"SELECT 'job', id, status, attempts, failures, losses, locked_by, run_at FROM {JOBS}"),
        *_rows(connection, f"SELECT 'run', job_id, attempt, outcome, finished_at, error FROM {JOB_RUNS}"),
        *_rows(connection, f"SELECT 'effect', key, job_id, attempt, state, recorded_at FROM {EFFECTS}"),
    }


def _rows(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in run(connection, statement)]


def drop_schema(connection: Connection, schema: str) -> None:
    """Drop a PostgreSQL schema with all its contents. *schema* is a name that the drill made up."""
    quoted = schema.replace('"', '""')
    connection.exec_driver_sql(f'DROP SCHEMA IF EXISTS "{quoted}" CASCADE')
