"""Fill every big table with two weeks of rows, and find out whether a plan reads the whole of one."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import text

from cronjobs.engine.database import column_types
from cronjobs.engine.database.connection import Database
from support.lookingrows import NOW

MANY = 20_000
BIG = "cronjobs_jobs|cronjobs_job_runs|cronjobs_ticks|cronjobs_occurrences"

_FILL = {
    "cronjobs_jobs": (
        "(job_type, status, created_at, run_at, started_at, finished_at) SELECT 'mail.send', "
        "CASE WHEN i % 500 = 0 THEN 'dead' ELSE 'succeeded' END, {at}, {at}, {at}, {at}"
    ),
    "cronjobs_job_runs": (
        "(job_id, attempt, outcome, started_at, finished_at, runner) SELECT i, 1, 'succeeded', {at}, {at}, 'web1:'"
    ),
    "cronjobs_ticks": (
        "(tick, host, pid, version, started_at, finished_at) SELECT 't' || i, 'web' || (i % 3), 1, '0.1.0', {at}, {at}"
    ),
    "cronjobs_occurrences": (
        "(schedule_id, first_for, last_for, outcome, job_id) SELECT 1 + i % 3, {at}, {at}, 'enqueued', i"
    ),
}


def fill(database: Database) -> None:
    """Insert rows for two weeks: one row of each kind per minute."""
    postgresql = not database.is_sqlite
    at = "CAST(:now AS timestamptz) - i * interval '1 min'" if postgresql else ":now - i * 60000000"
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY})"
    now: Any = NOW if postgresql else column_types.to_microseconds(NOW)
    with database.write() as connection:
        for table, rest in _FILL.items():
            connection.execute(text(f"{numbers} INSERT INTO {table} {rest.format(at=at)} FROM n"), {"now": now})
        if postgresql:
            connection.execute(text("ANALYZE"))  # this has an effect only for the owner
            planned = connection.execute(text("SELECT reltuples FROM pg_class WHERE oid = 'cronjobs_ticks'::regclass"))
            assert planned.scalar_one() >= MANY


def whole_table_read(database: Database, statement: str, parameters: Any) -> list[str]:
    """Return the lines of the plan that read a whole big table, or a whole index over finished jobs."""
    explain = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
    with database.read() as connection:
        plan = [str(row[-1]) for row in connection.exec_driver_sql(explain + statement, parameters)]
    if not database.is_sqlite:
        return [line for line in plan if re.search(rf"Seq Scan on \S*({BIG})\b", line)]
    scans = [line for line in plan if re.match(rf"SCAN ({BIG}|j|t|b|l|c|r)\b", line)]
    small = r"cronjobs_jobs_(waiting|leased|type|type_timed)_idx"  # these are partial indexes, without finished jobs
    newest = re.search(r"ORDER BY t\.started_at DESC, t\.id DESC LIMIT", statement)
    return [line for line in scans if not re.search(small, line) and not (newest and "_started_idx" in line)]
