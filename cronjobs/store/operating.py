"""What an operator does to one job: put it back, or call it off."""

from __future__ import annotations

from sqlalchemy import Connection

from cronjobs.model import Status
from cronjobs.store.enqueue import job_status
from cronjobs.store.sql import run


def retry(connection: Connection, job_id: int) -> Status | None:
    """Make a dead, cancelled or waiting failed job due now, with all its tries; what it was, None if there is none.

    Its history stays, and so does ``attempts``: the fence only rises.
    """
    was = job_status(connection, job_id)
    run(
        connection,
        """
        UPDATE {jobs} SET status = 'queued', run_at = {now}, failures = 0, losses = 0, interruptions = 0,
          finished_at = NULL, cancel_requested_at = NULL
        WHERE id = :id AND status IN ('dead', 'cancelled', 'failed')""",
        id=job_id,
    )
    return was


def cancel(connection: Connection, job_id: int, error: str) -> Status | None:
    """Cancel a waiting job at once, ask a running one to stop; what it was, None if there is none."""
    was = job_status(connection, job_id)
    waiting = run(
        connection,
        """UPDATE {jobs} SET status = 'cancelled', finished_at = {now}, last_error = :error
           WHERE id = :id AND {waiting} RETURNING id""",
        id=job_id,
        error=error,
    ).first()
    if waiting is None:
        run(
            connection,
            """UPDATE {jobs} SET cancel_requested_at = coalesce(cancel_requested_at, {now})
               WHERE id = :id AND status = 'running'""",
            id=job_id,
        )
    return was
