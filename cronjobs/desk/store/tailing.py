"""Read what running jobs have reported so far: their progress, and the last part of their output."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.engine.probe.sql_text import JOB_RUNS, JOBS, NOW
from cronjobs.engine.store.shown_columns import columns_shown
from cronjobs.engine.store.sizes import if_not_too_large
from cronjobs.engine.store.sql import AMONG_IDS, run

JOB_PROGRESS: Final = if_not_too_large("j.progress")


def job_row(connection: Connection, job_id: int) -> Row[Any] | None:
    """Return a job's state and what its running attempt has reported, or None if there is no such job."""
    return run(
        connection,
        f"""
        SELECT j.status, j.attempts, {columns_shown("job_type", "locked_by")}, j.locked_until, j.run_at, j.started_at,
          {JOB_PROGRESS} AS progress, {columns_shown("live_output")}, {NOW} AS now
        FROM {JOBS} j WHERE j.id = :id""",
        id=job_id,
    ).first()


def progress_of(connection: Connection, ids: Collection[int]) -> dict[int, Any]:
    """Return, by job id, the progress that the running attempts of these jobs have reported."""
    if not ids:
        return {}
    rows = run(
        connection,
        f"SELECT j.id, {JOB_PROGRESS} AS progress FROM {JOBS} j WHERE j.id {AMONG_IDS} AND j.status = 'running'",
        ids=sorted(ids),
    )
    return {row.id: row.progress for row in rows}


def ended_attempt(connection: Connection, job_id: int, attempt: int | None) -> Row[Any] | None:
    """Return how this attempt ended, and all its output.

    If *attempt* is None, return the last attempt that has ended.
    """
    return run(
        connection,
        f"""
        SELECT j.attempt, j.outcome, {columns_shown("output")} FROM {JOB_RUNS} j
        WHERE j.job_id = :id AND (CAST(:attempt AS integer) IS NULL OR j.attempt = :attempt)
        ORDER BY j.attempt DESC LIMIT 1""",
        id=job_id,
        attempt=attempt,
    ).first()
