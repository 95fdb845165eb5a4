"""Find out how queues change: how many jobs are due now, how many were due ten minutes ago, and how many succeed."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from sqlalchemy import Connection

from cronjobs.engine.probe.idle_conditions import WAITING
from cronjobs.engine.probe.sql_text import JOBS, NOW, after_now
from cronjobs.engine.store.sql import run

WINDOW: Final = timedelta(minutes=10)
# Read at most this many ended jobs. If more have ended, the comparison is with a later instant.
ENDS_READ: Final = 2000
CAME_READ: Final = 2000  # read at most this many new jobs in each queue

_TREND_FROM: Final = after_now(f"-{WINDOW.total_seconds():.0f}")
# Use the index of ended jobs, in which the jobs of each status are together.
_ENDED_LATELY: Final = " UNION ALL ".join(
    f"""SELECT * FROM (SELECT e.status, e.queue, e.run_at, e.started_at, e.finished_at FROM {JOBS} e
        WHERE e.status = '{status}' AND e.finished_at IS NOT NULL AND e.finished_at >= {_TREND_FROM}
        ORDER BY e.finished_at DESC LIMIT :ends) AS {status}"""
    for status in ("succeeded", "dead", "cancelled")
)


def compared_with(connection: Connection) -> datetime:
    """Return the instant to compare the present with: ten minutes ago, or later if very many jobs ended since then."""
    now = run(connection, f"SELECT {_TREND_FROM} AS now").scalar_one()
    statement = f"SELECT count(*) AS ended, min(finished_at) AS finished_at FROM ({_ENDED_LATELY}) l GROUP BY status"
    lists = run(connection, statement, ends=ENDS_READ)
    since: datetime = max([now, *(row.finished_at for row in lists if row.ended >= ENDS_READ)])
    return since


def changes(connection: Connection, queues: Collection[str], since: datetime) -> dict[str, int]:
    """Return, by queue, how many more jobs are due now than at *since*. A negative number means fewer.

    If a job had an attempt after *since* and is due again, it counts as unchanged. The job existed at *since*, but
    nobody knows whether it was due then, because its former run_at is not kept. The result leaves out queues in which
    more than CAME_READ jobs have fallen due since.
    """
    began = run(
        connection,
        f"""
        SELECT l.queue, count(*) AS jobs FROM (
          {_ENDED_LATELY}
          UNION ALL SELECT r.status, r.queue, r.run_at, r.started_at, r.finished_at FROM {JOBS} r
          WHERE r.locked_until IS NOT NULL) l
        WHERE l.started_at > :since AND l.run_at <= :since GROUP BY l.queue""",
        ends=ENDS_READ,
        since=since,
    )
    gone = {row.queue: row.jobs for row in began}
    found = {}
    for queue in queues:
        # Read each priority separately, since each is one range of the index of waiting jobs.
        came = run(
            connection,
            f"""
            SELECT count(*) AS jobs, count(CASE WHEN started_at > :since AND created_at <= :since THEN 1 END) AS again
            FROM (SELECT w.started_at, w.created_at FROM {_PRIORITIES} CROSS JOIN {JOBS} w
            WHERE w.{WAITING} AND w.queue = :queue AND w.priority = p.priority AND w.run_at > :since
              AND w.run_at <= {NOW} LIMIT :most) AS came""",
            queue=queue,
            since=since,
            most=CAME_READ + 1,
        ).one()
        if came.jobs <= CAME_READ:
            found[queue] = came.jobs - came.again - gone.get(queue, 0)
    return found


class SucceededLately(NamedTuple):
    """How many jobs of a queue, type and key succeeded.

    ``finished_at`` is the earliest end among the jobs that were read.
    """

    queue: str
    job_type: str
    concurrency_key: str | None
    jobs: int
    finished_at: datetime


def succeeded_lately(connection: Connection, within: timedelta) -> list[SucceededLately]:
    """Return the jobs that succeeded no more than *within* ago, or only the newest ENDS_READ if there are more."""
    rows = run(
        connection,
        f"""
        SELECT queue, job_type, concurrency_key, count(*) AS jobs, min(finished_at) AS finished_at FROM (
          SELECT e.queue, e.job_type, e.concurrency_key, e.finished_at FROM {JOBS} e
          WHERE e.status = 'succeeded' AND e.finished_at IS NOT NULL AND e.finished_at >= {after_now(":within_s")}
          ORDER BY e.finished_at DESC LIMIT :most) l
        GROUP BY queue, job_type, concurrency_key""",
        within_s=-within.total_seconds(),
        most=ENDS_READ,
    )
    return [SucceededLately._make(row) for row in rows]


_PRIORITIES: Final = "(" + " UNION ALL ".join(f"SELECT {priority} AS priority" for priority in range(10)) + ") AS p"
