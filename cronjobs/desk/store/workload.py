"""Count the jobs that wait, run or are dead, for ``status``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row

from cronjobs.engine.probe.idle_conditions import IS_EXEC, WAITING
from cronjobs.engine.probe.sql_text import JOB_RUNS, JOBS, NOW, QUEUES, after_now, either
from cronjobs.engine.store.claims import PLAIN, TIMED
from cronjobs.engine.store.shown_columns import LONGEST
from cronjobs.engine.store.sql import AMONG_NAMES, run

_LATE_BEFORE: Final = after_now(":late_s")


def _due(waiting: str) -> str:
    """Return SQL that counts the due jobs among *waiting* by type and queue. The SQL reads only an index by type."""
    return f"""
      SELECT j.queue, j.job_type, count(*) AS due, count(CASE WHEN j.run_at <= {_LATE_BEFORE} THEN 1 END) AS late,
        min(j.run_at) AS run_at
      FROM {JOBS} j WHERE j.{waiting} AND j.run_at <= {NOW} GROUP BY j.job_type, j.queue"""


# Use this in a condition without an index. Without the subquery, PostgreSQL would compute the time for each row.
_NOW_ONCE: Final = either(postgresql=f"(SELECT {NOW})", sqlite=NOW)

_DUE_BY_TYPE: Final = _due(PLAIN)
_DUE_BY_TYPE_TIMED: Final = _due(TIMED)

_PUT_OFF_SECONDS: Final = either(
    postgresql="extract(epoch FROM j.run_at - j.last_failed_at)", sqlite="(j.run_at - j.last_failed_at) / 1e6"
)
RUN_SECONDS: Final = either(
    postgresql="extract(epoch FROM r.finished_at - r.started_at)", sqlite="(r.finished_at - r.started_at) / 1e6"
)

MOST_QUEUES: Final = 1000  # list at most this many queues, and sum up the rest
MOST_GROUPS: Final = 1000  # read at most this many groups of due jobs, by queue and type

# If runners release a job's claims this often in a row, there is a lasting cause.
OFTEN_RELEASED: Final = 3
# True if the runner gave a reason when it released the last claim. Such a release also made the job due later.
_PUT_OFF: Final = f"j.status = 'queued' AND j.attempts >= {OFTEN_RELEASED} AND j.last_failed_at >= j.started_at"

# Any enqueuer can invent queues and types, so no command lists all of them. The commands sum up the rest.
_BY_QUEUE: Final = f"""
  WITH each AS (
    SELECT j.queue, count(*) AS waiting, count(*) FILTER (WHERE j.status = 'failed') AS failed,
      count(*) FILTER (WHERE j.run_at <= {_NOW_ONCE}) AS due,
      min(j.run_at) FILTER (WHERE j.run_at <= {_NOW_ONCE}) AS run_at, count(*) FILTER (WHERE {_PUT_OFF}) AS put_off
    FROM {JOBS} j WHERE j.{WAITING} GROUP BY j.queue)
  SELECT queue, waiting, failed, due, run_at, count(*) OVER () AS queues, CAST(sum(waiting) OVER () AS bigint) AS waits,
    CAST(sum(failed) OVER () AS bigint) AS fails, CAST(sum(due) OVER () AS bigint) AS dues,
    min(run_at) OVER () AS read_at, CAST(sum(put_off) OVER () AS bigint) AS put_offs
  FROM each ORDER BY (
    SELECT count(*) FROM {QUEUES} q WHERE q.name = each.queue AND q.max_waiting IS NOT NULL) DESC, waiting DESC, queue
  LIMIT :limit"""


class WaitingQueue(NamedTuple):
    """How many jobs of a queue are waiting, and how many of these have failed or are due.

    ``run_at`` is when the oldest due job became due.
    """

    queue: str
    waiting: int
    failed: int
    due: int
    run_at: datetime | None


class WaitingQueues(NamedTuple):
    """The capped queues and the fullest other queues, sorted by name.

    ``others`` is the number of queues not listed, and ``in_others`` counts their jobs. If ``put_off`` is 0, then
    ``often_released`` finds nothing.
    """

    queues: list[WaitingQueue]
    others: int
    in_others: WaitingQueue
    oldest_due_at: datetime | None
    put_off: int = 0


def waiting_by_queue(connection: Connection) -> WaitingQueues:
    """Count the waiting jobs of each queue, in one pass over the index of waiting jobs by queue.

    No index contains the status, so the database looks up each row. The statement uses the index by queue, because
    neighbours in that index were often enqueued together, so their rows lie close to each other. In the index by type,
    the rows of neighbours do not lie close to each other.
    """
    rows = run(connection, _BY_QUEUE, limit=MOST_QUEUES).all()
    found = [WaitingQueue(row.queue, row.waiting, row.failed, row.due, row.run_at) for row in rows]
    if not rows:
        return WaitingQueues([], 0, WaitingQueue("", 0, 0, 0, None), None)
    whole = rows[0]
    waiting, failed, due = (sum(getattr(each, what) for each in found) for what in ("waiting", "failed", "due"))
    rest = WaitingQueue("", whole.waits - waiting, whole.fails - failed, whole.dues - due, None)
    return WaitingQueues(sorted(found), whole.queues - len(found), rest, whole.read_at, whole.put_offs)


class OftenReleased(NamedTuple):
    """Jobs of one queue and type that runners claimed and released again and again, each time with a reason.

    ``created_at`` is when the oldest of these jobs was made. ``times``: how often one of them was released in a row.
    ``error`` is the last reason for one of them.
    """

    queue: str
    job_type: str
    jobs: int
    created_at: datetime
    times: int
    error: str


def often_released(connection: Connection, late: timedelta, limit: int) -> list[OftenReleased]:
    """Return waiting jobs whose last claims were all released, grouped by queue and type, the largest groups first.

    Each release made the job due later, so these jobs do not look late. Jobs that have been due for *late* are left
    out, and so are jobs that releases have delayed by less than *late*, as a deploy may do.
    """
    rows = run(
        connection,
        f"""
        SELECT g.queue, g.job_type, g.jobs, g.created_at, g.times,
          (SELECT substr(e.last_error, 1, :longest) FROM {JOBS} e WHERE e.id = g.newest) AS error
        FROM (
          SELECT queue, job_type, count(*) AS jobs, min(created_at) AS created_at, max(released) AS times,
            max(id) AS newest
          FROM (
            SELECT j.id, j.queue, substr(j.job_type, 1, :longest) AS job_type, j.created_at,
              {_PUT_OFF_SECONDS} AS put_off_s,
              j.attempts - coalesce((SELECT max(r.attempt) FROM {JOB_RUNS} r WHERE r.job_id = j.id), 0) AS released
            FROM {JOBS} j
            WHERE j.{WAITING} AND {_PUT_OFF} AND j.run_at > {_LATE_BEFORE} AND j.created_at <= {_LATE_BEFORE}) AS each
          WHERE released >= {OFTEN_RELEASED} AND released * put_off_s + :late_s > 0 GROUP BY queue, job_type) AS g
        ORDER BY g.jobs DESC, g.queue, g.job_type LIMIT :limit""",
        late_s=-late.total_seconds(),
        longest=LONGEST,
        limit=limit,
    )
    return [OftenReleased._make(row) for row in rows]


# Groups of known types come before groups of unknown types, and within each kind the group with the oldest job is
# first. So jobs that a stranger enqueues today cannot hide jobs that have waited longer.
_DUE_GROUPS: Final = f"""
  WITH each AS (
    SELECT w.queue, w.job_type, CAST(sum(w.due) AS bigint) AS due, CAST(sum(w.late) AS bigint) AS late,
      min(w.run_at) AS run_at, max(CASE WHEN w.job_type {AMONG_NAMES} THEN 1 ELSE 0 END) AS known
    FROM ({_DUE_BY_TYPE} UNION ALL {_DUE_BY_TYPE_TIMED}) AS w GROUP BY w.queue, w.job_type)
  SELECT queue, job_type, due, late, run_at, known,
    CAST(coalesce(sum(late) FILTER (WHERE known = 1) OVER (), 0) AS bigint) AS lates,
    CAST(coalesce(sum(due) FILTER (WHERE known = 0) OVER (), 0) AS bigint) AS unknown_due,
    (SELECT count(DISTINCT u.job_type) FROM each u WHERE u.known = 0) AS unknown_types
  FROM each ORDER BY known DESC, run_at, queue, job_type LIMIT :limit"""

OLDEST_READ: Final = 100


def _oldest(waiting: str) -> str:
    return f"""
      SELECT * FROM (
        SELECT j.run_at, j.created_at FROM {JOBS} j
        WHERE j.{waiting} AND j.job_type = :job_type AND j.queue = :queue AND j.run_at <= {_LATE_BEFORE}
        ORDER BY j.run_at LIMIT :most) AS oldest"""


_LATE_FROM: Final = f"""
  SELECT min(CASE WHEN w.created_at > w.run_at THEN w.created_at ELSE w.run_at END) AS run_at
  FROM ({_oldest(PLAIN)} UNION ALL {_oldest(TIMED)}) AS w WHERE w.created_at <= {_LATE_BEFORE}"""


class DueGroups(NamedTuple):
    """Due jobs, grouped by queue and type.

    A group is ``known`` if the caller knows its type. Three numbers sum up the groups that were not read: ``late``
    counts late jobs of known types, ``types`` counts unknown types, and ``due`` counts the due jobs of these unknown
    types.
    """

    groups: Sequence[Row[Any]]
    late: int = 0
    types: int = 0
    due: int = 0


def due_groups(connection: Connection, late: timedelta, known: Collection[str]) -> DueGroups:
    """Count due and late jobs by queue and type. *known* are the types that the caller knows.

    This reads only the indexes of waiting jobs by type, in index order, so it sorts nothing.
    """
    rows = run(connection, _DUE_GROUPS, late_s=-late.total_seconds(), names=sorted(known), limit=MOST_GROUPS).all()
    if not rows:
        return DueGroups(rows)
    strange = [row for row in rows if not row.known]
    return DueGroups(
        rows,
        rows[0].lates - sum(row.late for row in rows if row.known),
        rows[0].unknown_types - len({row.job_type for row in strange}),
        rows[0].unknown_due - sum(row.due for row in strange),
    )


def waiting_by_other_types(connection: Connection, known: Collection[str], limit: int) -> dict[str, int]:
    """Count the waiting jobs, due or not, of types that are not *known*. Return the *limit* most frequent types."""
    rows = run(
        connection,
        f"SELECT j.job_type, count(*) AS jobs FROM {JOBS} j WHERE j.{WAITING} AND NOT (j.job_type {AMONG_NAMES}) "
        "GROUP BY j.job_type ORDER BY jobs DESC, j.job_type LIMIT :limit",
        names=sorted(known),
        limit=limit,
    )
    return {row.job_type: row.jobs for row in rows}


def late_from(connection: Connection, queue: str, job_type: str, late: timedelta) -> datetime | None:
    """Return when the first late job of a queue and type could have run, because it existed and was due.

    Only the OLDEST_READ jobs that fell due first are read. Returns None if all of these were created less than *late*
    ago.
    """
    at: datetime | None = run(
        connection, _LATE_FROM, queue=queue, job_type=job_type, late_s=-late.total_seconds(), most=OLDEST_READ
    ).scalar()
    return at


def running_jobs(
    connection: Connection, limit: int, queue: str | None = None, *, with_exec: bool = True
) -> Sequence[Row[Any]]:
    """Return leased jobs, the longest running first. If *queue* is None, jobs of all queues are returned.

    With *with_exec*, runs of exec are included. ``recorded`` is the attempt's outcome, if a tick has already recorded
    that outcome although the attempt's thread still runs. The lease of such an attempt ends by itself.
    """
    return run(
        connection,
        f"""
        SELECT id, job_type, queue, schedule, attempts, failures, max_attempts, started_at, locked_by, locked_until,
          cancel_requested_at,
          (SELECT r.outcome FROM {JOB_RUNS} r WHERE r.job_id = j.id AND r.attempt = j.attempts) AS recorded
        FROM {JOBS} j
        WHERE locked_until IS NOT NULL AND (CAST(:queue AS text) IS NULL OR queue = CAST(:queue AS text))
          AND (:with_exec OR NOT {IS_EXEC})
        ORDER BY started_at, id LIMIT :limit""",
        limit=limit,
        queue=queue,
        with_exec=with_exec,
    ).all()


def running_count(connection: Connection) -> tuple[int, int]:
    """Return how many jobs are leased, and how many of these leases have expired."""
    row = run(
        connection,
        f"SELECT count(*) AS leased, count(CASE WHEN locked_until < {NOW} THEN 1 END) AS overdue FROM {JOBS} "
        "WHERE locked_until IS NOT NULL",
    ).one()
    return row.leased, row.overdue


def dead_counts(connection: Connection) -> dict[str, int]:
    """Return how many jobs are dead: in total, in the last 24 hours and in the last hour."""
    row = run(
        connection,
        f"""
        SELECT count(*) AS total, count(CASE WHEN finished_at >= {after_now("-86400")} THEN 1 END) AS last_24h,
          count(CASE WHEN finished_at >= {after_now("-3600")} THEN 1 END) AS last_1h
        FROM {JOBS} WHERE status = 'dead' AND finished_at IS NOT NULL""",
    ).one()
    return dict(row._mapping)


def newest_keys(connection: Connection, most: int) -> list[str | None]:
    """Return the concurrency keys of the newest *most* jobs, newest first, with None for a job without a key."""
    statement = f"SELECT concurrency_key FROM {JOBS} ORDER BY id DESC LIMIT :most"
    return list(run(connection, statement, most=most).scalars())


def typical_runs(connection: Connection, last: int, at_least: int) -> dict[str, timedelta]:
    """Return the average duration by job type over the *last* successful runs, for types with *at_least* runs or more.

    The type is looked up for each run, because PostgreSQL may turn a join into a scan of all jobs.
    """
    rows = run(
        connection,
        f"""
        SELECT job_type, avg({RUN_SECONDS}) AS seconds FROM (
          SELECT started_at, finished_at,
            (SELECT substr(j.job_type, 1, :longest) FROM {JOBS} j WHERE j.id = last.job_id) AS job_type
          FROM (
            SELECT job_id, started_at, finished_at FROM {JOB_RUNS} WHERE outcome = 'succeeded'
            ORDER BY finished_at DESC LIMIT :last) last) r
        WHERE job_type IS NOT NULL GROUP BY job_type HAVING count(*) >= :at_least ORDER BY job_type""",
        last=last,
        at_least=at_least,
        longest=LONGEST,
    )
    return {row.job_type: timedelta(seconds=float(row.seconds)) for row in rows}
