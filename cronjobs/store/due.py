"""What ``cronjobs dev`` reads between two ticks."""

from __future__ import annotations

from sqlalchemy import Connection

from cronjobs.store.sql import run

LIMIT = 1000  # how many jobs are looked at


def due_attempts(connection: Connection) -> set[tuple[int, int]]:
    """The waiting jobs that are due, by id and attempts: a job that ran and is due again counts as new."""
    rows = run(
        connection,
        "SELECT id, attempts FROM {jobs} WHERE {waiting} AND run_at <= {now} ORDER BY id DESC LIMIT :limit",
        limit=LIMIT,
    ).all()
    return {(row.id, row.attempts) for row in rows}
