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
from cronjobs.model import Status

EARLY_READ: Final = 1000  # read at most this many occurrences
PRUNED: Final = "pruned"  # the outcome of a run whose job row is gone
EARLY: Final = "early"  # the outcome of a run that a wrong clock made before it was due


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule. While a pause of the schedule or of everything is in force, ``paused`` says who paused it and why."""

    id: int
    name: str
    status: str
    next_at: datetime | None
    paused: str | None


@dataclass(frozen=True)
class RunFacts:
    """The result of one ledger row, which may stand for several occurrences.

    ``outcome``: the job's status ("failed" means that it will be retried), "pruned", "early" (a wrong clock ran the job
    before it was due), or why there was no run ("missed", "skipped", "coalesced"). ``at``: when the job reached that
    outcome. If the job is queued or pruned, or if no job was made, ``at`` is when the occurrence was due. If
    ``outcome`` is "early", the job ran at or before ``at``. ``took``: the last attempt's duration, if it ended and is
    recorded. ``count``: the number of occurrences.
    """

    outcome: str
    at: datetime
    due_at: datetime
    job_id: int | None
    took: timedelta | None = None
    count: int = 1


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
    """Return the *limit* active schedules (all if None) that are due next, including paused ones.

    Schedules that are never due again come last.
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


def newest_runs(connection: Connection, schedule_ids: Collection[int], rows: int) -> dict[int, list[RunFacts]]:
    """Return each schedule's newest *rows* ledger rows, newest first, without rows that a wrong clock dated ahead."""
    ledger = run(
        connection,
        "SELECT c.schedule_id, c.last_for, c.outcome, c.reason, c.job_id, c.count AS occurrences "
        f"FROM {NEWEST_OF_EACH} ORDER BY c.schedule_id, c.last_for DESC",
        ids=sorted(schedule_ids),
        rows_each=rows,
    ).all()
    ids = {row.job_id for row in ledger if row.job_id is not None and row.outcome == "enqueued"}
    jobs, pruned = _jobs(connection, ids)
    lists: dict[int, list[RunFacts]] = {}
    for row in ledger:
        job, its = None, RunFacts(row.outcome, row.last_for, row.last_for, row.job_id)
        if row.outcome == "enqueued":
            job = jobs.get(row.job_id)
            its = _run(row.last_for, row.job_id, job, pruned)
        attempts, began_at = (None, None) if job is None else (job.attempts, job.started_at)
        if ran_early(row.reason, row.last_for, attempts, began_at):
            outcome = EARLY if its.outcome in (Status.SUCCEEDED, PRUNED) else its.outcome
            its = replace(its, outcome=outcome, at=min(its.at, early_by(row.reason) or its.at))
        lists.setdefault(row.schedule_id, []).append(replace(its, count=row.occurrences))
    return lists


def newest_triggered(connection: Connection, schedule_ids: Collection[int]) -> dict[int, RunFacts]:
    """Return, by schedule id, the newest run that a person triggered. Its due time is when the person triggered it."""
    rows = run(
        connection,
        f"""
        SELECT t.schedule_id, a.at, a.detail FROM (
          SELECT s.id AS schedule_id, (SELECT n.id FROM {AUDIT} n WHERE n.action = 'trigger' AND n.subject = s.name
            ORDER BY n.at DESC, n.id DESC LIMIT 1) AS newest
          FROM {SCHEDULES} s WHERE s.id {AMONG_IDS}) t JOIN {AUDIT} a ON a.id = t.newest""",
        ids=sorted(schedule_ids),
    )
    made = [(row.schedule_id, row.at, job_id) for row in rows if (job_id := triggered_job(row.detail)) is not None]
    jobs, pruned = _jobs(connection, {job_id for *_, job_id in made})
    return {schedule_id: _run(at, job_id, jobs.get(job_id), pruned) for schedule_id, at, job_id in made}


def longest_running(connection: Connection, schedule_ids: Collection[int]) -> dict[int, RunFacts]:
    """Return, by schedule id, the job of the schedule that has been running for longest.

    Since it began, later occurrences may have been skipped or triggered, so it may not be among the newest runs.
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
        row.schedule_id: RunFacts(Status.RUNNING, row.started_at, row.scheduled_for or row.started_at, row.id)
        for row in rows
    }


def _jobs(connection: Connection, ids: set[int]) -> tuple[dict[int, Row[Any]], Collection[int]]:
    """Return the jobs among *ids* that exist, and the dead jobs among them that retention deleted."""
    # Find the last attempt by a subquery, since PostgreSQL may turn a join into a scan of all attempts. If a thread
    # outlived its timeout, last_failed_at is when a tick recovered the job, later than the attempt's end.
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
    jobs = {row.id: row for row in found}
    return jobs, pruned_dead(connection, ids - jobs.keys())


def _run(due_at: datetime, job_id: int | None, job: Row[Any] | None, pruned: Collection[int]) -> RunFacts:
    """Return the result of an occurrence that made a job. *pruned* are the dead jobs that retention deleted."""
    if job is None:
        return RunFacts(Status.DEAD if job_id in pruned else PRUNED, due_at, due_at, job_id)
    reached = {Status.RUNNING: job.started_at, Status.FAILED: job.last_failed_at}.get(job.status, job.finished_at)
    took = None if job.seconds is None else timedelta(seconds=float(job.seconds))
    return RunFacts(job.status, reached or due_at, due_at, job_id, took)


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
