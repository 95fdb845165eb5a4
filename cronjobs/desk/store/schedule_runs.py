"""Read the newest ledger rows of some schedules, and what became of the rows' jobs.

Even for an old schedule, a statement reads a limited number of ledger rows by primary key, and looks up one job and its
attempt for each row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.desk.store.status_facts import NEWEST_OF_EACH, SOME_AGO, triggered_job
from cronjobs.desk.store.workload import RUN_SECONDS
from cronjobs.engine.probe.sql_text import AUDIT, JOB_RUNS, JOBS, NOW, OCCURRENCES, SCHEDULES
from cronjobs.engine.rules.occurrences import RAN_EARLY, early_by, ran_early
from cronjobs.engine.store.given_up import pruned_dead
from cronjobs.engine.store.schedules import PAUSED_BY
from cronjobs.engine.store.sql import AMONG_IDS, run

EARLY_READ: Final = 1000  # read at most this many occurrences


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule. ``paused`` says who paused the schedule, or everything, and why, if that pause is in force."""

    id: int
    name: str
    status: str
    next_at: datetime | None
    paused: str | None


@dataclass(frozen=True)
class LedgerRun:
    """A ledger row and the job that was created for it.

    The job's fields are None if there is no job, or if it was pruned.

    ``count`` is the number of occurrences in the row. ``took`` is how long the job's last attempt ran, if that attempt
    ended and is still recorded. If ``early``, a wrong clock ran the job before it was due, and nothing has run it
    since. ``early_by`` is the instant, by a correct clock, at or before which the job ran.
    """

    last_for: datetime
    outcome: str
    job_id: int | None
    status: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    last_failed_at: datetime | None = None
    took: timedelta | None = None
    count: int = 1
    early: bool = False
    early_by: datetime | None = None


def schedule_rows(connection: Connection, schedule_ids: Collection[int]) -> list[ScheduleRow]:
    statement = (
        f"SELECT j.id, j.name, j.status, j.next_at, {PAUSED_BY} AS paused FROM {SCHEDULES} j WHERE j.id {AMONG_IDS}"
    )
    return [ScheduleRow(**row._mapping) for row in run(connection, statement, ids=sorted(schedule_ids))]


def ran_early_ahead(connection: Connection) -> list[Row[Any]]:
    """Return the future occurrences that a wrong clock has already run: ``name``, ``definition``, ``last_for``."""
    rows = run(
        connection,
        f"SELECT s.name, s.definition, c.last_for FROM {OCCURRENCES} c JOIN {SCHEDULES} s ON s.id = c.schedule_id "
        f"WHERE c.last_for > {NOW} AND c.outcome = 'enqueued' AND c.reason LIKE '{RAN_EARLY}%' "
        "ORDER BY c.last_for LIMIT :most",
        most=EARLY_READ,
    )
    return list(rows)


def next_due(connection: Connection, limit: int | None) -> list[int]:
    """Return the first *limit* active schedules by their next run, even if paused.

    Schedules that are never due again come last.

    If *limit* is None, all schedules are returned.
    """
    statement = (
        f"SELECT j.id FROM {SCHEDULES} j WHERE j.status = 'active' ORDER BY j.next_at IS NULL, j.next_at, j.name "
        "LIMIT :limit"
    )
    return list(run(connection, statement, limit=2**31 - 1 if limit is None else limit).scalars())


def active_names(connection: Connection) -> dict[int, str]:
    """Return the names of all active schedules, by id."""
    rows = run(connection, f"SELECT j.id, j.name FROM {SCHEDULES} j WHERE j.status = 'active'")
    return {row.id: row.name for row in rows}


def newest_runs(connection: Connection, schedule_ids: Collection[int], rows: int) -> dict[int, list[LedgerRun]]:
    """Return each schedule's newest *rows* ledger rows, newest first, without rows that a wrong clock dated ahead."""
    ledger = run(
        connection,
        "SELECT c.schedule_id, c.last_for, c.outcome, c.reason, c.job_id, c.count AS occurrences "
        f"FROM {NEWEST_OF_EACH} ORDER BY c.schedule_id, c.last_for DESC",
        ids=sorted(schedule_ids),
        rows_each=rows,
    ).all()
    ids = {row.job_id for row in ledger if row.job_id is not None and row.outcome == "enqueued"}
    jobs = _jobs(connection, ids)
    pruned = pruned_dead(connection, ids - jobs.keys())
    lists: dict[int, list[LedgerRun]] = {}
    for row in ledger:
        job = jobs.get(row.job_id) if row.outcome == "enqueued" else None
        its = replace(_with_job(row.last_for, row.outcome, row.job_id, job, pruned), count=row.occurrences)
        if ran_early(row.reason, None if job is None else job.attempts):
            its = replace(its, early=True, early_by=early_by(row.reason))
        lists.setdefault(row.schedule_id, []).append(its)
    return lists


def newest_triggered(connection: Connection, schedule_ids: Collection[int]) -> dict[int, LedgerRun]:
    """Return, by schedule id, the newest run that a person triggered, in the form of a ledger row."""
    rows = run(
        connection,
        f"""
        SELECT t.schedule_id, a.at, a.detail FROM (
          SELECT s.id AS schedule_id, (SELECT n.id FROM {AUDIT} n WHERE n.action = 'trigger' AND n.subject = s.name
            ORDER BY n.at DESC, n.id DESC LIMIT 1) AS newest
          FROM {SCHEDULES} s WHERE s.id {AMONG_IDS}) t JOIN {AUDIT} a ON a.id = t.newest""",
        ids=sorted(schedule_ids),
    )
    asked = {row.schedule_id: (row.at, triggered_job(row.detail)) for row in rows}
    ids = {job_id for _, job_id in asked.values() if job_id is not None}
    jobs = _jobs(connection, ids)
    pruned = pruned_dead(connection, ids - jobs.keys())
    return {
        schedule_id: _with_job(at, "enqueued", job_id, jobs.get(job_id), pruned)
        for schedule_id, (at, job_id) in asked.items()
        if job_id is not None
    }


def longest_running(connection: Connection, schedule_ids: Collection[int]) -> dict[int, LedgerRun]:
    """Return, by schedule id, the job of the schedule that has been running for longest.

    Later occurrences may have been skipped or triggered since, so that job need not be among the newest runs.
    """
    rows = run(
        connection,
        f"""
        SELECT s.id AS schedule_id, j.id, j.started_at, j.scheduled_for FROM {JOBS} j JOIN {SCHEDULES} s
          ON s.name = j.schedule AND s.id {AMONG_IDS}
        WHERE j.locked_until IS NOT NULL AND j.started_at IS NOT NULL ORDER BY j.started_at DESC""",
        ids=sorted(schedule_ids),
    )
    return {
        row.schedule_id: LedgerRun(
            row.scheduled_for or row.started_at, "enqueued", row.id, "running", started_at=row.started_at
        )
        for row in rows
    }


def _jobs(connection: Connection, ids: Collection[int]) -> dict[int, Row[Any]]:
    # Find the last attempt by a subquery, since PostgreSQL may turn a join into a scan of all attempts.
    # If a thread outlived its timeout, last_failed_at is when a tick recovered the job. Its attempt ended before that.
    found = run(
        connection,
        f"""
        SELECT j.id, j.status, j.attempts, j.started_at, j.finished_at,
          coalesce((SELECT r.finished_at FROM {JOB_RUNS} r WHERE r.job_id = j.id AND r.attempt = j.attempts),
            j.last_failed_at) AS last_failed_at,
          (SELECT {RUN_SECONDS} FROM {JOB_RUNS} r
           WHERE r.job_id = j.id AND r.attempt = j.attempts AND r.outcome <> 'lost') AS seconds
        FROM {JOBS} j WHERE j.id {AMONG_IDS}""",
        ids=sorted(ids),
    )
    return {row.id: row for row in found}


def _with_job(
    at: datetime, outcome: str, job_id: int | None, job: Row[Any] | None, pruned: Collection[int]
) -> LedgerRun:
    """Join a ledger row and its job. *pruned* are the dead jobs that retention deleted."""
    if job is None:
        return LedgerRun(at, outcome, job_id, "dead" if outcome == "enqueued" and job_id in pruned else None)
    took = None if job.seconds is None else timedelta(seconds=float(job.seconds))
    return LedgerRun(at, outcome, job_id, job.status, job.started_at, job.finished_at, job.last_failed_at, took)


def with_long_runs(connection: Connection, *, longer_than: timedelta, among_last: int, limit: int) -> list[int]:
    """Return up to *limit* active schedules, by id, with a run longer than *longer_than*.

    Consider the runs in progress, and the last *among_last* successful runs of all jobs.
    """
    rows = run(
        connection,
        f"""
        SELECT s.id FROM {SCHEDULES} s WHERE s.status = 'active' AND s.name IN (
          SELECT j.schedule FROM {JOBS} j
          WHERE j.locked_until IS NOT NULL AND j.schedule IS NOT NULL AND j.started_at <= {SOME_AGO}
          UNION
          SELECT (SELECT j.schedule FROM {JOBS} j WHERE j.id = r.job_id) FROM (
            SELECT job_id, started_at, finished_at FROM {JOB_RUNS} WHERE outcome = 'succeeded'
            ORDER BY finished_at DESC LIMIT :among_last) r
          WHERE {RUN_SECONDS} >= :longer_s)
        ORDER BY s.id LIMIT :limit""",
        ago_s=-longer_than.total_seconds(),
        longer_s=longer_than.total_seconds(),
        among_last=among_last,
        limit=limit,
    )
    return list(rows.scalars())
