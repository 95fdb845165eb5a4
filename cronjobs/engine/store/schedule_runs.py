"""The newest ledger rows of some schedules, and what became of the jobs that were made for them.

Bounded, however long a schedule has lived: so many rows of the ledger by its primary key, and a step into jobs and
attempts for each.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from cronjobs.engine.store import listing, schedules, status_facts  # noqa: F401  their fragments: run_seconds, paused_by, some_ago
from cronjobs.engine.store.sql import define, run

define(
    # A join with a bound, as SQLite needs it, PostgreSQL makes by reading the whole ledger by time.
    newest_of_each=lambda postgresql: (
        """{schedules} s CROSS JOIN LATERAL (
          SELECT l.* FROM {occurrences} l WHERE l.schedule_id = s.id AND l.last_for <= {now}
          ORDER BY l.last_for DESC LIMIT :rows_each) c WHERE s.id {among_ids}"""
        if postgresql
        # CROSS JOIN keeps the order, schedules first; the ledger is read from the row that is so many back.
        else """{schedules} s CROSS JOIN {occurrences} c
        WHERE s.id {among_ids} AND c.schedule_id = s.id AND c.last_for <= {now} AND c.last_for >= coalesce(
          (SELECT l.last_for FROM {occurrences} l WHERE l.schedule_id = s.id AND l.last_for <= {now}
           ORDER BY l.last_for DESC LIMIT 1 OFFSET :rows_each - 1),
          (SELECT min(l.last_for) FROM {occurrences} l WHERE l.schedule_id = s.id))"""
    ),
)


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule; ``paused`` says by whom and why, if a pause of it or of everything is in force."""

    id: int
    name: str
    status: str
    next_at: datetime | None
    paused: str | None


@dataclass(frozen=True)
class LedgerRun:
    """A ledger row and the job that was made for it; all of the job is None if there is none, or it was pruned.

    ``took``: how long the job's last attempt ran, if it ended and is still recorded.
    """

    last_for: datetime
    outcome: str
    job_id: int | None
    status: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    last_failed_at: datetime | None = None
    took: timedelta | None = None


def schedule_rows(connection: Connection, schedule_ids: Collection[int]) -> list[ScheduleRow]:
    statement = (
        "SELECT j.id, j.name, j.status, j.next_at, {paused_by} AS paused FROM {schedules} j WHERE j.id {among_ids}"
    )
    return [ScheduleRow(**row._mapping) for row in run(connection, statement, ids=sorted(schedule_ids))]


def next_due(connection: Connection, limit: int | None) -> list[int]:
    """Active schedules by their next run, paused ones too, then those that are never due again: the first *limit*."""
    statement = (
        "SELECT j.id FROM {schedules} j WHERE j.status = 'active' ORDER BY j.next_at IS NULL, j.next_at, j.name "
        "LIMIT :limit"
    )
    return list(run(connection, statement, limit=2**31 - 1 if limit is None else limit).scalars())


def newest_runs(connection: Connection, schedule_ids: Collection[int], rows: int) -> dict[int, list[LedgerRun]]:
    """The newest *rows* ledger rows of each schedule, newest first; none that a wrong clock wrote ahead."""
    ledger = run(
        connection,
        "SELECT c.schedule_id, c.last_for, c.outcome, c.job_id FROM {newest_of_each} ORDER BY c.schedule_id, "
        "c.last_for DESC",
        ids=sorted(schedule_ids),
        rows_each=rows,
    ).all()
    # The last attempt by a subquery: of a join PostgreSQL may make a walk over all attempts.
    found = run(
        connection,
        """
        SELECT j.id, j.status, j.started_at, j.finished_at, j.last_failed_at,
          (SELECT {run_seconds} FROM {job_runs} r WHERE r.job_id = j.id AND r.attempt = j.attempts) AS seconds
        FROM {jobs} j WHERE j.id {among_ids}""",
        ids=sorted({row.job_id for row in ledger if row.job_id is not None and row.outcome == "enqueued"}),
    )
    jobs = {row.id: row for row in found}
    lists: dict[int, list[LedgerRun]] = {}
    for row in ledger:
        each = LedgerRun(row.last_for, row.outcome, row.job_id)
        if row.outcome == "enqueued" and (job := jobs.get(row.job_id)) is not None:
            took = None if job.seconds is None else timedelta(seconds=float(job.seconds))
            state = (job.status, job.started_at, job.finished_at, job.last_failed_at, took)
            each = LedgerRun(row.last_for, row.outcome, row.job_id, *state)
        lists.setdefault(row.schedule_id, []).append(each)
    return lists


def with_long_runs(connection: Connection, *, longer_than: timedelta, among_last: int, limit: int) -> list[int]:
    """Ids of active schedules of which a run takes longer than that now, or one of the last *among_last* runs did."""
    rows = run(
        connection,
        """
        SELECT s.id FROM {schedules} s WHERE s.status = 'active' AND s.name IN (
          SELECT j.schedule FROM {jobs} j
          WHERE j.locked_until IS NOT NULL AND j.schedule IS NOT NULL AND j.started_at <= {some_ago}
          UNION
          SELECT (SELECT j.schedule FROM {jobs} j WHERE j.id = r.job_id) FROM (
            SELECT job_id, started_at, finished_at FROM {job_runs} WHERE outcome = 'succeeded'
            ORDER BY finished_at DESC LIMIT :among_last) r
          WHERE {run_seconds} >= :longer_s)
        ORDER BY s.id LIMIT :limit""",
        ago_s=-longer_than.total_seconds(),
        longer_s=longer_than.total_seconds(),
        among_last=among_last,
        limit=limit,
    )
    return list(rows.scalars())
