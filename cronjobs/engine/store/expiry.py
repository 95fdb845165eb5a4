"""Find the runners that hold leases, and the leases that have expired or whose runners are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs.engine.probe.idle_conditions import BEYOND, IS_EXEC
from cronjobs.engine.probe.sql_text import JOB_RUNS, JOBS, NOW, TOKENS
from cronjobs.engine.rules.lease import Expired, Lease
from cronjobs.engine.rules.recovery_policy import NOT_READ, read_policy, seconds
from cronjobs.engine.store.job_rows import FACTS_UNREAD, LEASE_LENGTH_S, RUNNER_S, job_from
from cronjobs.engine.store.sql import LOCK, among, database_now, run
from cronjobs.model import Job
from cronjobs.text import BrokenText


def holders(connection: Connection, prefix: str) -> dict[str, float | None]:
    """Return each ``locked_by`` that begins with *prefix*, and the greatest age in seconds that its runner can reach.

    The prefix stands for one boot of one host. Each runner records its greatest age in its leases. The age is None if
    plain SQL wrote the lease.
    """
    statement = f"""
        SELECT DISTINCT j.locked_by, {RUNNER_S} AS runner_s FROM {JOBS} j
        WHERE j.locked_until IS NOT NULL AND substr(j.locked_by, 1, :length) = :prefix ORDER BY j.locked_by"""
    found: dict[str, float | None] = {}
    for row in run(connection, statement, prefix=prefix, length=len(prefix)):
        said = seconds(row.runner_s)
        found[row.locked_by] = max(
            (each for each in (found.get(row.locked_by), said) if each is not None), default=None
        )
    return found


@dataclass(frozen=True)
class Leased:
    """A lease, with its job's type and the instant at which the lease ends. ``lease_s`` is the length of its runner's
    leases in seconds, or None if unknown.
    """

    lease: Lease
    job_type: str
    locked_until: datetime
    lease_s: float | None


def far_leases(connection: Connection, beyond: timedelta, limit: int) -> list[Leased]:
    """Return up to *limit* leases that end more than *beyond* from now."""
    rows = run(
        connection,
        f"""
        SELECT j.id, j.attempts, j.locked_by, j.job_type, j.locked_until, {LEASE_LENGTH_S} AS lease_s
        FROM {JOBS} j WHERE j.locked_until IS NOT NULL AND j.locked_until > {BEYOND} AND NOT {IS_EXEC}
        ORDER BY j.locked_until DESC LIMIT :limit""",
        beyond_s=beyond.total_seconds(),
        limit=limit,
    )
    return [
        Leased(Lease(row.id, row.attempts, row.locked_by), row.job_type, row.locked_until, seconds(row.lease_s))
        for row in rows
    ]


def expired_leases(
    connection: Connection,
    limit: int,
    dead: Sequence[str] = (),
    *,
    working: Sequence[str] = (),
) -> tuple[datetime, list[Expired]]:
    """Lock up to *limit* jobs whose lease has expired by the database's clock, or whose runner is one of *dead*.

    Returns the database's current time, and the jobs. Rows that other transactions have locked, and jobs of *working*
    runners, are skipped.
    """
    rows = run(
        connection,
        f"""
        SELECT {FACTS_UNREAD}, {NOW} AS now, j.policy, j.cancel_requested_at, r.outcome, r.error,
          r.error_type AS run_error_type, j.error_type,
          CASE WHEN r.outcome = 'timed_out' THEN r.traceback END AS traceback
        FROM {JOBS} j LEFT JOIN {JOB_RUNS} r ON r.job_id = j.id AND r.attempt = j.attempts
        WHERE j.locked_until IS NOT NULL AND {_GIVEN_UP} AND NOT {_RUNS_FAR}
        ORDER BY j.locked_until LIMIT :limit {LOCK}""",
        limit=limit,
        dead=list(dead),
        working=list(working),
    ).all()
    found = [
        Expired(
            _with_a_fence(connection, job_from(row)),
            row.outcome,
            row.error,
            row.run_error_type,
            read_policy(row.policy),
            row.cancel_requested_at is not None,
            doubtful=row.error_type == NOT_READ,
            traceback=row.traceback,
        )
        for row in rows
    ]
    return (rows[0].now if rows else database_now(connection)), found


def _with_a_fence(connection: Connection, job: Job) -> Job:
    """Return *job* with a valid ``locked_by``, which the fence can compare. The caller has locked the job's row.

    Plain SQL may have written bytes into ``locked_by`` that are not valid text. If so, correct the row.
    """
    if isinstance(job.locked_by, BrokenText):
        clean = str(job.locked_by)
        run(connection, f"UPDATE {JOBS} SET locked_by = :clean WHERE id = :id", id=job.id, clean=clean)
        return job._replace(locked_by=clean)
    return job


_GIVEN_UP: Final = f"(j.locked_until < {NOW} OR j.locked_by {among('dead')}) AND NOT (j.locked_by {among('working')})"
# Leave out a job on a cluster: its handler may run until ``permitted_until``, even if the supervisor is gone.
_RUNS_FAR: Final = f"""
      EXISTS (SELECT 1 FROM {TOKENS} t
              WHERE t.job_id = j.id AND t.attempt = j.attempts AND t.permitted_until > {NOW})"""
