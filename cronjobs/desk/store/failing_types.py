"""Find job types whose last attempts all failed.

Jobs of active schedules are left out, because other findings judge these schedules by the ledger.

A lost attempt does not count: the runner died, which proves nothing against the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk.store.status_facts import ATTEMPTS, FAILED_TRY
from cronjobs.engine.database.tables import LONGEST_NAME
from cronjobs.engine.probe.idle_conditions import WAITING
from cronjobs.engine.probe.sql_text import JOB_RUNS, JOBS, SCHEDULES
from cronjobs.engine.store.sql import run

IN_A_ROW: Final = 3
TYPES: Final = 100  # read this many types, those whose failing jobs had the most attempts
JOBS_READ: Final = 3  # of each type, read this many jobs that failed last, and the oldest job
OLDEST_JOBS: Final = 20  # of each failing type, read this many of the oldest jobs, to find when it began to fail
SUCCESSES: Final = 5000  # read this many of the newest successful attempts of all types

# Include only jobs that are waiting for another try, since a dead job is already a finding. If someone has retried such
# a job, it is queued, and its counters are 0.
_FAILS_ON: Final = f"""j.{WAITING} AND j.last_failed_at IS NOT NULL AND (j.schedule IS NULL
      OR NOT EXISTS (SELECT 1 FROM {SCHEDULES} s WHERE s.name = j.schedule AND s.status = 'active'))"""


@dataclass(frozen=True)
class FailingType:
    """A type whose attempts have all failed since ``since``, at least IN_A_ROW of them.

    ``jobs`` is how many of its jobs with ``status`` are waiting for another try. ``status`` is "failed", or "queued" if
    all of them were retried by someone or released.
    """

    job_type: str
    jobs: int
    since: datetime
    status: str = "failed"


def failing_types(connection: Connection) -> list[FailingType]:
    """Return the failing types, sorted by name.

    This reads all waiting jobs once, then a few attempts of suspected types and the newest successes.
    """
    rows = run(
        connection,
        f"""
        SELECT j.job_type AS name, count(*) AS waiting, sum(CASE WHEN j.status = 'failed' THEN 1 ELSE 0 END) AS failed
        FROM {JOBS} j WHERE {_FAILS_ON}
        GROUP BY j.job_type HAVING sum(j.attempts) >= :least
        ORDER BY sum(j.attempts) DESC, j.job_type LIMIT :most""",
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
            began = _first_failures(connection, row.name, well.get(row.name))
            status = "failed" if row.failed else "queued"
            found.append(FailingType(row.name, row.failed or row.waiting, min([*since, *began]), status))
    return found


def _first_failures(connection: Connection, job_type: str, after: datetime | None) -> list[datetime]:
    """Return when the oldest failing jobs of this type failed. If *after* is given, count only failures after it.

    While these jobs keep failing, they stay the oldest, so the beginning of the type's failures does not move.
    """
    return list(
        run(
            connection,
            f"""
            SELECT r.finished_at FROM (SELECT j.id, j.attempts FROM {JOBS} j
              WHERE {_FAILS_ON} AND j.job_type = :job_type AND j.last_failed_at > :after ORDER BY j.id LIMIT :jobs) f
            JOIN {JOB_RUNS} r ON r.job_id = f.id AND r.attempt > f.attempts - :attempts
            WHERE {FAILED_TRY} AND r.finished_at > :after""",
            job_type=job_type,
            after=after or datetime(1970, 1, 1, tzinfo=UTC),
            jobs=OLDEST_JOBS,
            attempts=ATTEMPTS,
        ).scalars()
    )


def _last_failures(connection: Connection, job_type: str) -> list[datetime]:
    """Return when the last failures of this type ended, newest first, for the JOBS_READ jobs that failed last.

    The oldest failing job is read as well, because the last success may be older than what the other jobs show.
    """
    return list(
        run(
            connection,
            f"""
            SELECT r.finished_at FROM (
              SELECT * FROM (SELECT j.id, j.attempts FROM {JOBS} j WHERE {_FAILS_ON} AND j.job_type = :job_type
                ORDER BY j.last_failed_at DESC, j.id DESC LIMIT :jobs) l
              UNION
              SELECT * FROM (SELECT j.id, j.attempts FROM {JOBS} j WHERE {_FAILS_ON} AND j.job_type = :job_type
                ORDER BY j.id LIMIT 1) o) f
            JOIN {JOB_RUNS} r ON r.job_id = f.id AND r.attempt > f.attempts - :attempts
            WHERE {FAILED_TRY} ORDER BY r.finished_at DESC""",
            job_type=job_type,
            jobs=JOBS_READ,
            attempts=ATTEMPTS,
        ).scalars()
    )


def _last_successes(connection: Connection, since: datetime) -> dict[str, datetime]:
    """Return, by job type, when an attempt last succeeded, if that was at or after *since*.

    The type is looked up for each attempt, because PostgreSQL may turn a join into a scan of all jobs.
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
