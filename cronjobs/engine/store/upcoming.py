"""The work that a tick would find now, read without claiming or locking anything."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.engine.probe.idle_conditions import BRANCHES, WAITING
from cronjobs.engine.probe.sql_text import JOBS, NOW
from cronjobs.engine.store.sql import AMONG_KNOWN, OPEN_QUEUE, run

LOOKED_AT: Final = 1000

# In this condition, "b" is a job, and OPEN_QUEUE is about the job's queue.
_DUE_HERE: Final = f"""
      b.{WAITING} AND b.run_at <= {NOW} AND b.job_type {AMONG_KNOWN} AND {OPEN_QUEUE}"""


@dataclass(frozen=True)
class DueJobs:
    """Due jobs. ``first`` are in the order in which one worker would run them. ``count`` counts all due jobs."""

    first: Sequence[Row[Any]]
    count: int


def due_jobs(connection: Connection, *, known: Collection[str], queue: str | None, limit: int) -> DueJobs:
    """Return up to *limit* jobs of the types *known* that a tick could claim now."""
    parameters = {"known": sorted(known), "queue": queue}
    first = run(
        connection,
        "SELECT b.id, b.job_type, b.queue, b.priority, b.run_at, b.schedule, b.timeout_s, b.concurrency_key "
        f"FROM {JOBS} b "
        f"WHERE {_DUE_HERE} ORDER BY b.priority, b.run_at, b.id LIMIT :limit",
        limit=limit,
        **parameters,
    ).all()
    count = run(connection, f"SELECT count(*) FROM {JOBS} b WHERE {_DUE_HERE}", **parameters).scalar_one()
    return DueJobs(first, count)


def count_expired_leases(connection: Connection) -> int:
    """Return how many attempts a tick would have to settle before other work, because their leases have expired."""
    statement = f"SELECT count(*) FROM {JOBS} WHERE locked_until IS NOT NULL AND locked_until < {NOW}"
    return int(run(connection, statement).scalar_one())


def next_run_at(connection: Connection) -> datetime | None:
    """Return when the next job that is not due yet will be due."""
    found = run(
        connection, f"SELECT run_at FROM {JOBS} WHERE {WAITING} AND run_at > {NOW} ORDER BY run_at LIMIT 1"
    ).first()
    return None if found is None else found.run_at


def waiting_queues(connection: Connection) -> list[str]:
    rows = run(
        connection,
        f"WITH RECURSIVE {BRANCHES} SELECT DISTINCT queue FROM branch WHERE queue IS NOT NULL",
        most_branches=2**31 - 1,
    )
    return list(rows.scalars())


def unresolved(connection: Connection, known: Collection[str]) -> list[tuple[str, int]]:
    """Return the types of due jobs that are not in *known*, each with the number of its due jobs."""
    rows = run(
        connection,
        f"""
        SELECT j.job_type, count(*) AS waiting FROM {JOBS} j WHERE j.{WAITING} AND j.run_at <= {NOW}
        AND NOT (j.job_type {AMONG_KNOWN}) GROUP BY j.job_type ORDER BY j.job_type""",
        known=sorted(known),
    ).all()
    return [(row.job_type, row.waiting) for row in rows]


def due_attempts(connection: Connection) -> set[tuple[int, int]]:
    """Return up to LOOKED_AT due jobs as (id, attempts).

    If a job has run and is due again, its number of attempts has changed, so the caller notices that the job has run.
    """
    rows = run(
        connection,
        f"SELECT id, attempts FROM {JOBS} WHERE {WAITING} AND run_at <= {NOW} ORDER BY id DESC LIMIT :limit",
        limit=LOOKED_AT,
    ).all()
    return {(row.id, row.attempts) for row in rows}
