"""Every statement of ``history --around``: what the rows show about one instant. Bounded, and by indexes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, or_, select

from cronjobs.database.tables import audit, findings, job_runs, jobs
from cronjobs.store import unresolved  # noqa: F401  its fragment: undealt
from cronjobs.store.shown import fetched, shown
from cronjobs.store.sql import run

RUNS_READ: Final = 5000  # that ended after the instant, the first of them
LEDGER_READ: Final = 5000  # rows, the newest before the instant
PAUSES_READ: Final = 5000
COUNTED: Final = 10_000
FINDINGS_SHOWN: Final = 50
FINDING_COLUMNS: Final = ("id", "finding", "severity", "text", "command", "began_at", "found_at", "ended_at")


def ended_after(connection: Connection, at: datetime) -> Sequence[Row[Any]]:
    """The first RUNS_READ attempts that ended after *at*, with their jobs."""
    brief = [column for column in job_runs.c if column.name not in ("traceback", "output")]
    query: Select[Any] = (
        select(*shown(connection, [*brief, jobs.c.job_type, jobs.c.queue, jobs.c.schedule, jobs.c.run_at]))
        .join(jobs, jobs.c.id == job_runs.c.job_id)
        .where(job_runs.c.finished_at > at)
        .order_by(job_runs.c.finished_at)
        .limit(RUNS_READ)
    )
    return connection.execute(query).all()


def running_now(connection: Connection) -> Sequence[Row[Any]]:
    """Attempts that run now: as ``ended_after`` has them, without an end."""
    columns = (jobs.c.job_type, jobs.c.queue, jobs.c.schedule, jobs.c.run_at, jobs.c.started_at)
    query = (
        select(
            jobs.c.id.label("job_id"),
            jobs.c.attempts.label("attempt"),
            jobs.c.locked_by.label("runner"),
            *shown(connection, columns),
        )
        .where(jobs.c.locked_until.is_not(None), jobs.c.started_at.is_not(None))
        .order_by(jobs.c.started_at, jobs.c.id)
        .limit(RUNS_READ)
    )
    return connection.execute(query).all()


def still_waiting(connection: Connection, at: datetime) -> tuple[int, datetime | None]:
    """How many of the jobs that wait now were there and due at *at* (at most COUNTED), and the oldest ``run_at``."""
    row = run(
        connection,
        "SELECT count(*) AS jobs, min(run_at) AS run_at FROM (SELECT j.run_at FROM {jobs} j WHERE j.{waiting} "
        "AND j.run_at <= :at AND j.created_at <= :at LIMIT :most) AS w",
        at=at,
        most=COUNTED,
    ).one()
    return row.jobs, row.run_at


def dead_by(connection: Connection, at: datetime) -> tuple[int, datetime | None]:
    """How many jobs had died by *at* and nobody has dealt with since, at most COUNTED, and when the first died."""
    row = run(
        connection,
        "SELECT count(*) AS deaths, min(finished_at) AS finished_at FROM (SELECT j.finished_at FROM {jobs} j "
        "WHERE {undealt} AND j.finished_at <= :at ORDER BY j.finished_at LIMIT :most) AS dead",
        at=at,
        most=COUNTED,
    ).one()
    return row.deaths, row.finished_at


def settled_between(connection: Connection, begin: datetime, end: datetime) -> Sequence[Row[Any]]:
    """Ledger rows that were written in [*begin*, *end*), oldest first, among the LEDGER_READ newest due by *end*."""
    return run(
        connection,
        """
        SELECT l.*, (SELECT s.name FROM {schedules} s WHERE s.id = l.schedule_id) AS schedule FROM (
          SELECT c.* FROM {occurrences} c WHERE c.last_for < :end ORDER BY c.last_for DESC LIMIT :most) l
        WHERE l.decided_at >= :begin AND l.decided_at < :end ORDER BY l.last_for, l.schedule_id""",
        begin=begin,
        end=end,
        most=LEDGER_READ,
    ).all()


def pause_trail(connection: Connection, at: datetime) -> Sequence[Row[Any]]:
    """What was paused and resumed by *at*, oldest first."""

    def query(with_json: bool) -> Select[Any]:
        return (
            select(*shown(connection, audit.c, with_json=with_json))
            .where(audit.c.action.in_(["pause", "resume"]), audit.c.at <= at)
            .order_by(audit.c.at.desc(), audit.c.id.desc())
            .limit(PAUSES_READ)
        )

    return fetched(connection, query)[::-1]


def findings_at(connection: Connection, at: datetime) -> tuple[datetime | None, Sequence[Row[Any]]]:
    """Since when findings are kept (None: no tick has alerts), and those that held at *at*, the oldest first."""
    first = connection.execute(select(findings.c.found_at).order_by(findings.c.id).limit(1)).scalar()
    held = (
        select(*shown(connection, [findings.c[name] for name in FINDING_COLUMNS]))
        .where(findings.c.began_at <= at, or_(findings.c.ended_at.is_(None), findings.c.ended_at > at))
        .order_by(findings.c.began_at, findings.c.id)
        .limit(FINDINGS_SHOWN)
    )
    return first, connection.execute(held).all()
