"""What ``status`` reads to report every problem: deaths, runs that did not happen, ticks that fire no schedules.

Every statement uses an index and is bounded, however many jobs have finished; a test checks the plans.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs.database.tables import UNSETTLED_DEAD_SQL
from cronjobs.probe.question import after_now
from cronjobs.records import dataclass
from cronjobs.store.sql import define, run

DEATHS_COUNTED: Final = 10_000
DEATHS_NAMED: Final = 1000
TICKS_READ: Final = 1500  # how far back to look for when something began: a day of ticks each minute

define(
    undealt=UNSETTLED_DEAD_SQL,
    some_ago=after_now(":ago_s"),
    later_ago=after_now(":later_s"),
)


@dataclass(frozen=True)
class Deaths:
    """Dead jobs that were not retried, cancelled or dismissed: how many, at most DEATHS_COUNTED, and since when.

    ``newest``: the ids of those that died last, at most DEATHS_NAMED.
    """

    count: int
    since: datetime | None
    newest: tuple[int, ...] = ()


def deaths(connection: Connection) -> Deaths:
    row = run(
        connection,
        "SELECT count(*) AS deaths, min(finished_at) AS finished_at FROM (SELECT j.finished_at FROM {jobs} j "
        "WHERE {undealt} ORDER BY j.finished_at LIMIT :most) AS dead",
        most=DEATHS_COUNTED,
    ).one()
    if not row.deaths:
        return Deaths(0, None)
    newest = "SELECT j.id FROM {jobs} j WHERE {undealt} ORDER BY j.finished_at DESC LIMIT :most"
    return Deaths(row.deaths, row.finished_at, tuple(run(connection, newest, most=DEATHS_NAMED).scalars()))


@dataclass(frozen=True)
class Happened:
    """A ledger row and its job's state; ``status`` None: it has no job, or the job was pruned."""

    schedule_id: int
    first_for: datetime
    last_for: datetime
    outcome: str
    reason: str | None
    decided_at: datetime
    job_id: int | None
    status: str | None
    failures: int  # of the job: attempts that failed or were lost
    dismissed: bool

    @property
    def went_well(self) -> bool:
        """It ran and succeeded, or so long ago that its job was pruned."""
        return self.outcome in ("enqueued", "coalesced") and self.status in ("succeeded", None)


def lately(connection: Connection, schedule_ids: Collection[int], rows: int) -> dict[int, list[Happened]]:
    """The newest *rows* ledger rows of each of these schedules, newest first; none that a wrong clock wrote ahead."""
    ledger = run(
        connection,
        # CROSS JOIN: SQLite keeps the order, schedules first. The join starts at the row that is *rows* back.
        """
        SELECT c.schedule_id, c.first_for, c.last_for, c.outcome, c.reason, c.decided_at, c.job_id
        FROM {schedules} s CROSS JOIN {occurrences} c
        WHERE s.id {among_ids} AND c.schedule_id = s.id AND c.last_for <= {now} AND c.last_for >= coalesce(
          (SELECT l.last_for FROM {occurrences} l WHERE l.schedule_id = s.id AND l.last_for <= {now}
           ORDER BY l.last_for DESC LIMIT 1 OFFSET :back),
          (SELECT min(l.last_for) FROM {occurrences} l WHERE l.schedule_id = s.id))
        ORDER BY c.schedule_id, c.last_for DESC""",
        ids=sorted(schedule_ids),
        back=rows - 1,
    ).all()
    # In a statement of its own: joined to so few rows, PostgreSQL would still read all jobs.
    found = run(
        connection,
        """
        SELECT j.id, j.status, j.failures + j.losses AS failures,
          CASE WHEN j.dismissed_at >= j.finished_at THEN 1 ELSE 0 END AS dismissed
        FROM {jobs} j WHERE j.id {among_ids}""",
        ids=sorted({row.job_id for row in ledger if row.job_id is not None}),
    )
    jobs = {row.id: row for row in found}
    lists: dict[int, list[Happened]] = {}
    for row in ledger:
        job = jobs.get(row.job_id)
        states = (None, 0, False) if job is None else (job.status, job.failures, bool(job.dismissed))
        lists.setdefault(row.schedule_id, []).append(Happened(*row, *states))
    return lists


def dealt_with_at(connection: Connection, schedule: str) -> datetime | None:
    """When a person last triggered or backfilled *schedule*."""
    at: datetime | None = run(
        connection,
        "SELECT max(a.at) AS at FROM {audit} a WHERE a.action IN ('trigger', 'backfill') AND a.subject = :schedule",
        schedule=schedule,
    ).scalar()
    return at


def fired_lately(connection: Connection, within: timedelta) -> bool:
    """Whether a tick with schedules switched on began within that time; ticks of older versions count as such."""
    statement = (
        "SELECT 1 FROM {ticks} t WHERE t.started_at >= {some_ago} AND coalesce(t.schedules_on, 1) = 1 "
        "ORDER BY t.started_at DESC LIMIT 1"
    )
    return run(connection, statement, ago_s=-within.total_seconds()).first() is not None


def last_fired_at(connection: Connection) -> datetime | None:
    """When the last tick with schedules switched on began, among the last TICKS_READ."""
    at: datetime | None = run(
        connection,
        "SELECT max(t.started_at) AS started_at FROM (SELECT i.started_at, i.schedules_on FROM {ticks} i "
        "ORDER BY i.id DESC LIMIT :most) AS t WHERE coalesce(t.schedules_on, 1) = 1",
        most=TICKS_READ,
    ).scalar()
    return at


def recorded_since(connection: Connection, host: str, *names: str) -> datetime | None:
    """Since when all ticks of this host have recorded one of these *names*; None: the last one did not."""
    since = None
    rows = run(
        connection,
        "SELECT t.started_at, t.did FROM {ticks} t WHERE t.host = :host ORDER BY t.id DESC LIMIT :most",
        host=host,
        most=TICKS_READ,
    )
    for row in rows:
        if not isinstance(row.did, Mapping) or row.did.keys().isdisjoint(names):
            break
        since = row.started_at
    return since


@dataclass(frozen=True)
class Killed:
    """Ticks of a host that did not end: how many of those that began in the last time, and when the first began."""

    ticks: int
    since: datetime
    within: timedelta


def killed_lately(connection: Connection, within: timedelta, longest: timedelta, least: int) -> dict[str, Killed]:
    """By host; a tick that began more than *longest* ago has ended, or was killed. Hosts with *least* or more."""
    rows = run(
        connection,
        """
        SELECT t.host, count(*) AS ticks, min(t.started_at) AS started_at FROM {ticks} t
        WHERE t.started_at >= {some_ago} AND t.started_at <= {later_ago} AND t.finished_at IS NULL
        GROUP BY t.host HAVING count(*) >= :least ORDER BY t.host""",
        ago_s=-within.total_seconds(),
        later_s=-longest.total_seconds(),
        least=least,
    )
    return {row.host: Killed(row.ticks, row.started_at, within) for row in rows}


def files_between(connection: Connection, ago: timedelta, until: timedelta) -> set[str]:
    """Fingerprints of the files that ticks had from *ago* before now to *until* before now."""
    rows = run(
        connection,
        "SELECT DISTINCT t.fingerprint FROM {ticks} t WHERE t.started_at >= {some_ago} "
        "AND t.started_at <= {later_ago} AND t.fingerprint IS NOT NULL",
        ago_s=-ago.total_seconds(),
        later_s=-until.total_seconds(),
    )
    return set(rows.scalars())


def scheduled_and_waiting(connection: Connection) -> dict[str, datetime]:
    """By queue, since when the oldest due job of a schedule waits there."""
    rows = run(
        connection,
        "SELECT queue, min(run_at) AS run_at FROM {jobs} WHERE schedule IS NOT NULL AND finished_at IS NULL "
        "AND {waiting} AND run_at <= {now} GROUP BY queue ORDER BY queue",
    )
    return {row.queue: row.run_at for row in rows}
