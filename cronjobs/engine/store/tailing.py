"""What ``jobs tail`` reads, again and again: one job by its id, and one of its attempts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row

from cronjobs.engine.store import shown  # noqa: F401  its fragments: live_output_shown and the like
from cronjobs.engine.store.sizes import if_not_too_large
from cronjobs.engine.store.sql import define, run

define(job_progress=if_not_too_large("j.progress"))


def job_row(connection: Connection, job_id: int) -> Row[Any] | None:
    """Where a job stands, and what its running attempt has reported; None: there is no such job."""
    return run(
        connection,
        """
        SELECT j.status, j.attempts, {job_type_shown}, {locked_by_shown}, j.locked_until, j.run_at, j.started_at,
          {job_progress} AS progress, {live_output_shown}, {now} AS now
        FROM {jobs} j WHERE j.id = :id""",
        id=job_id,
    ).first()


def ended_attempt(connection: Connection, job_id: int, attempt: int | None) -> Row[Any] | None:
    """How this attempt ended, and all its output; *attempt* None: the last one that has ended."""
    return run(
        connection,
        """
        SELECT j.attempt, j.outcome, {output_shown} FROM {job_runs} j
        WHERE j.job_id = :id AND (CAST(:attempt AS integer) IS NULL OR j.attempt = :attempt)
        ORDER BY j.attempt DESC LIMIT 1""",
        id=job_id,
        attempt=attempt,
    ).first()
