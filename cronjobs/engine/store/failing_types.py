"""Job types whose last runs all failed. Jobs of active schedules are left out: their ledger judges those."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from cronjobs.engine.database.tables import LONGEST_NAME
from cronjobs.engine.probe.idle_conditions import WAITING
from cronjobs.engine.probe.sql_text import JOB_RUNS, JOBS, SCHEDULES
from cronjobs.engine.store.sql import run

IN_A_ROW: Final = 3
TYPES: Final = 100  # the types with the most failures
JOBS_READ: Final = 3  # the last failures belong to at most so many jobs
ATTEMPTS: Final = 100  # newest attempts of a job: it may have snoozed for a year
SUCCESSES: Final = 5000  # newest successes, of all types

# Only jobs that wait for another try: a dead job is a finding already.
_FAILS_ON: Final = f"""j.{WAITING} AND j.status = 'failed' AND (j.schedule IS NULL
      OR NOT EXISTS (SELECT 1 FROM {SCHEDULES} s WHERE s.name = j.schedule AND s.status = 'active'))"""


@dataclass(frozen=True)
class FailingType:
    """A type whose last IN_A_ROW attempts, or more, have failed since ``since``.

    ``jobs``: how many of its jobs wait for a try.
    """

    job_type: str
    jobs: int
    since: datetime


def failing_types(connection: Connection) -> list[FailingType]:
    """The failing types, by name.

    Reads all waiting jobs once, then for suspects a few attempts and the newest successes.
    """
    rows = run(
        connection,
        f"""
        SELECT j.job_type AS name, count(*) AS waiting FROM {JOBS} j WHERE {_FAILS_ON}
        GROUP BY j.job_type HAVING sum(j.failures + j.losses) >= :least
        ORDER BY sum(j.failures + j.losses) DESC, j.job_type LIMIT :most""",
        least=IN_A_ROW,
        most=TYPES,
    ).all()
    failures = {row.name: _last_failures(connection, row.name) for row in rows}
    in_doubt = {name: failed for name, failed in failures.items() if len(failed) >= IN_A_ROW}
    if not in_doubt:
        return []
    well = _last_successes(connection, min(map(min, in_doubt.values())))
    found = []
    for row in sorted(rows, key=lambda each: each.name):
        since = [at for at in in_doubt.get(row.name, ()) if row.name not in well or at > well[row.name]]
        if len(since) >= IN_A_ROW:
            found.append(FailingType(row.name, row.waiting, min(since)))
    return found


def _last_failures(connection: Connection, job_type: str) -> list[datetime]:
    """When the last failures ended, of the JOBS_READ jobs of this type that failed last."""
    return list(
        run(
            connection,
            f"""
            SELECT r.finished_at FROM (
              SELECT j.id, j.attempts FROM {JOBS} j WHERE {_FAILS_ON} AND j.job_type = :job_type
              ORDER BY j.last_failed_at DESC, j.id DESC LIMIT :jobs) f
            JOIN {JOB_RUNS} r ON r.job_id = f.id AND r.attempt > f.attempts - :attempts
            WHERE r.outcome IN ('failed', 'timed_out', 'lost') ORDER BY r.finished_at DESC""",
            job_type=job_type,
            jobs=JOBS_READ,
            attempts=ATTEMPTS,
        ).scalars()
    )


def _last_successes(connection: Connection, since: datetime) -> dict[str, datetime]:
    """By job type, when a run last succeeded, if that was after *since*.

    Looks the type up for each run: PostgreSQL may turn a join into a walk over all jobs.
    """
    rows = run(
        connection,
        f"""
        SELECT job_type, max(finished_at) AS finished_at FROM (
          SELECT l.finished_at,
            (SELECT substr(j.job_type, 1, :longest) FROM {JOBS} j WHERE j.id = l.job_id) AS job_type
          FROM (
            SELECT job_id, finished_at FROM {JOB_RUNS} WHERE outcome = 'succeeded' AND finished_at >= :since
            ORDER BY finished_at DESC LIMIT :last) l) r
        WHERE job_type IS NOT NULL GROUP BY job_type""",
        since=since,
        last=SUCCESSES,
        longest=LONGEST_NAME,
    )
    return {row.job_type: row.finished_at for row in rows}
