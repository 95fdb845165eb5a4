"""All statements of the read-only commands: status, jobs, schedules, history. Nothing here writes.

A million finished jobs must not slow these commands down. So every statement uses an index. Some have a shape that
makes the planner choose the index. A test checks the query plans on both databases.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    CompoundSelect,
    Connection,
    Executable,
    Row,
    Select,
    Text,
    and_,
    cast,
    func,
    literal_column,
    or_,
    select,
    text,
    union_all,
)

from cronjobs.engine.database.tables import UNSETTLED_DEAD_SQL, audit, job_runs, jobs, occurrences, schedules
from cronjobs.engine.probe.idle_conditions import IS_EXEC, WAITING
from cronjobs.engine.probe.sql_text import (
    AUDIT,
    JOB_RUNS,
    JOB_TYPE_LISTS,
    JOBS,
    NOW,
    OCCURRENCES,
    QUEUES,
    SCHEDULES,
    TICKS,
    after_now,
    either,
    shifted,
)
from cronjobs.engine.rules.causes import cause_of
from cronjobs.engine.rules.error_groups import ERROR_READ
from cronjobs.engine.rules.occurrences import BACKFILLED, BEFORE, RAN_EARLY
from cronjobs.engine.store.claims import PLAIN, TIMED
from cronjobs.engine.store.shown_columns import LONGEST, beginning, columns_shown, fetched, shown
from cronjobs.engine.store.sql import AMONG_IDS, AMONG_NAMES, run
from cronjobs.model import FINAL, Status

HOSTS_AT_MOST: Final = 200  # hosts to read; in containers every tick may have a host name of its own
STREAM_BATCH: Final = 2000  # rows in memory at once
DID_NOT_RUN: Final = ("missed", "skipped", "coalesced", "early")  # outcomes without a run at the due time

# If an occurrence's row now says "enqueued", its outcome at the due time may have been different. The row's reason says
# which: a wrong clock ran the occurrence early, or a person's backfill ran it after it had been missed or skipped.
_LATER_OR_EARLIER: Final = {"early": f"{RAN_EARLY}%"} | {
    became: f"{BACKFILLED} %{BEFORE}{became}%" for became in ("missed", "skipped")
}
_AT_ITS_TIME: Final = (
    "CASE "
    + " ".join(
        f"WHEN c.outcome = 'enqueued' AND c.reason LIKE '{text_}' THEN '{became}'"
        for became, text_ in _LATER_OR_EARLIER.items()
    )
    + " ELSE c.outcome END"
)


_LATE_BEFORE: Final = after_now(":late_s")


def _due(waiting: str) -> str:
    """Return SQL that counts the due jobs among *waiting* by type and queue. It reads only an index by type."""
    return f"""
      SELECT j.queue, j.job_type, count(*) AS due, count(CASE WHEN j.run_at <= {_LATE_BEFORE} THEN 1 END) AS late,
        min(j.run_at) AS run_at
      FROM {JOBS} j WHERE j.{waiting} AND j.run_at <= {NOW} GROUP BY j.job_type, j.queue"""


# For a condition without an index: without the subquery, PostgreSQL would compute the time for each row.
_NOW_ONCE: Final = either(postgresql=f"(SELECT {NOW})", sqlite=NOW)
_DUE_BY_TYPE: Final = _due(PLAIN)
_DUE_BY_TYPE_TIMED: Final = _due(TIMED)
# Do not write "l.host = h.name" here: for a host that stopped ticking PostgreSQL would read back through all later
# ticks.
_LAST_OF_HOST: Final = f"(SELECT l.id FROM {TICKS} l WHERE l.host <= h.name ORDER BY l.host DESC, l.id DESC LIMIT 1)"
RUN_SECONDS: Final = either(
    postgresql="extract(epoch FROM r.finished_at - r.started_at)", sqlite="(r.finished_at - r.started_at) / 1e6"
)


# --- status -----------------------------------------------------------------------------------------------------------


MOST_QUEUES: Final = 1000  # most queues listed one by one; the rest are summed up
MOST_GROUPS: Final = 1000  # groups of due jobs to read, by queue and type

# Any enqueuer can invent queues and types, so no command lists all of them. The rest are summed up.
_BY_QUEUE: Final = f"""
  WITH each AS (
    SELECT j.queue, count(*) AS waiting, count(*) FILTER (WHERE j.status = 'failed') AS failed,
      count(*) FILTER (WHERE j.run_at <= {_NOW_ONCE}) AS due,
      min(j.run_at) FILTER (WHERE j.run_at <= {_NOW_ONCE}) AS run_at
    FROM {JOBS} j WHERE j.{WAITING} GROUP BY j.queue)
  SELECT queue, waiting, failed, due, run_at, count(*) OVER () AS queues, CAST(sum(waiting) OVER () AS bigint) AS waits,
    CAST(sum(failed) OVER () AS bigint) AS fails, CAST(sum(due) OVER () AS bigint) AS dues,
    min(run_at) OVER () AS read_at
  FROM each ORDER BY (
    SELECT count(*) FROM {QUEUES} q WHERE q.name = each.queue AND q.max_waiting IS NOT NULL) DESC, waiting DESC, queue
  LIMIT :limit"""


class WaitingQueue(NamedTuple):
    """How many jobs of a queue are waiting, and how many of these have failed or are due.

    ``run_at`` is the oldest due job's.
    """

    queue: str
    waiting: int
    failed: int
    due: int
    run_at: datetime | None


class WaitingQueues(NamedTuple):
    """Capped queues and the fullest of the rest, sorted by name.

    ``others`` is the number of queues not listed, and ``in_others`` counts their jobs.
    """

    queues: list[WaitingQueue]
    others: int
    in_others: WaitingQueue
    oldest_due_at: datetime | None


def waiting_by_queue(connection: Connection) -> WaitingQueues:
    """Count the waiting jobs of each queue, in one pass over the index of waiting jobs by queue.

    No index contains the status, so each row is looked up. Neighbours in this index, unlike those in the index by type,
    were often enqueued together, so their rows lie close to each other.
    """
    rows = run(connection, _BY_QUEUE, limit=MOST_QUEUES).all()
    found = [WaitingQueue(row.queue, row.waiting, row.failed, row.due, row.run_at) for row in rows]
    if not rows:
        return WaitingQueues([], 0, WaitingQueue("", 0, 0, 0, None), None)
    whole = rows[0]
    waiting, failed, due = (sum(getattr(each, what) for each in found) for what in ("waiting", "failed", "due"))
    rest = WaitingQueue("", whole.waits - waiting, whole.fails - failed, whole.dues - due, None)
    return WaitingQueues(sorted(found), whole.queues - len(found), rest, whole.read_at)


# Known types come first, then the oldest jobs. So jobs that a stranger enqueues today cannot hide jobs that have waited
# longer.
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

    A group is ``known`` if the caller knows its type. The numbers cover the groups that were not read: ``late`` counts
    their late jobs of known types, ``types`` their unknown types, and ``due`` the due jobs of these unknown types.
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
    """Return when the first late job of a queue and type could first have run: when it existed and was due.

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

    With *with_exec*, runs of exec are included. ``recorded`` is the outcome that a tick has already recorded for an
    attempt whose thread kept running. The lease of such an attempt ends by itself.
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


def last_ticks(connection: Connection) -> list[Row[Any]]:
    """Return the last tick of each host, newest first.

    This takes one index step per host, however many ticks there are. If there are more than HOSTS_AT_MOST hosts, only
    the first ones by name are read. The newest tick is always included.
    """
    found = run(
        connection,
        f"""
        WITH RECURSIVE host(name, number) AS (
          SELECT min(t.host), 1 FROM {TICKS} t
          UNION ALL
          SELECT (SELECT min(t.host) FROM {TICKS} t WHERE t.host > h.name), h.number + 1 FROM host h
          WHERE h.name IS NOT NULL AND h.number < :hosts)
        SELECT t.* FROM host h JOIN {TICKS} t ON t.id = {_LAST_OF_HOST}""",
        hosts=HOSTS_AT_MOST,
    ).all()
    newest = run(connection, f"SELECT t.* FROM {TICKS} t WHERE t.id = (SELECT max(id) FROM {TICKS})").all()
    ticks = {row.id: row for row in (*newest, *found)}
    return sorted(ticks.values(), key=lambda row: (row.started_at, row.id), reverse=True)


# --- jobs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Filter:
    """The filter of a list of jobs. A field that is None matches every job.

    A job passes ``since`` if it was created, begun, failed or ended then or later. ``cause`` is the key of a cause of
    death; it matches dead jobs that nobody has dealt with. ``bounded_search``, which reads a bounded number of jobs,
    uses the parts, the key and the ids.
    """

    job_type: str | None = None
    status: Status | None = None
    queue: str | None = None
    schedule: str | None = None
    since: datetime | None = None
    error_type: str | None = None
    cause: str | None = None
    type_part: str | None = None
    error_part: str | None = None
    key: str | None = None
    ids: tuple[int, ...] = ()


def list_jobs(connection: Connection, wanted: Filter, limit: int) -> Sequence[Row[Any]]:
    """Return up to *limit* jobs, newest first. For a final status, the last to end come first.

    Status and ``since`` use the indexes of waiting, running and ended jobs. For the other filters, jobs are read from
    the newest back until *limit* are found.
    """
    if wanted.cause is not None:
        return _list_of_cause(connection, wanted, limit)

    def query(with_json: bool) -> Select[Any]:
        return _filtered(wanted, shown(connection, jobs.c, with_json=with_json), limit).limit(limit)

    return fetched(connection, query)


def _list_of_cause(connection: Connection, wanted: Filter, limit: int) -> list[Row[Any]]:
    with closing(_of_cause(connection, wanted, jobs.c.id)) as rows:
        ids = [row.id for row in islice(rows, limit)]
    return jobs_by_id(connection, ids)


def jobs_by_id(connection: Connection, ids: Sequence[int]) -> list[Row[Any]]:
    """Return those of the jobs that exist, in the order of *ids*."""
    found: dict[int, Row[Any]] = {}
    for first in range(0, len(ids), STREAM_BATCH):
        batch = ids[first : first + STREAM_BATCH]

        def query(with_json: bool, batch: Sequence[int] = batch) -> Select[Any]:
            return select(*shown(connection, jobs.c, with_json=with_json)).where(jobs.c.id.in_(batch))

        found |= {row.id: row for row in fetched(connection, query)}
    return [found[id_] for id_ in ids if id_ in found]


def _of_cause(connection: Connection, wanted: Filter, *columns: ColumnElement[Any]) -> Generator[Any]:
    """Yield the open dead jobs of the cause, the last to die first.

    Only Python code can determine a job's cause, so this reads all dead jobs that pass the other filters, one after
    another.
    """
    since = [] if wanted.since is None else [jobs.c.finished_at >= wanted.since]
    why = [each.label(f"why_{each.name}") for each in shown(connection, (jobs.c.job_type, jobs.c.error_type))]
    query = (
        select(*columns, *why, _ERROR)
        .where(text(UNSETTLED_DEAD_SQL), *since, *_plainly(wanted))
        .order_by(jobs.c.finished_at.desc(), jobs.c.id.desc())
    )
    with closing(connection.execute(query, execution_options={"yield_per": STREAM_BATCH})) as rows:
        for row in rows:
            if cause_of(row.why_job_type, row.why_error_type, row.error).key == wanted.cause:
                yield row


def _filtered(wanted: Filter, columns: Sequence[ColumnElement[Any]], limit: int) -> Select[Any]:
    chosen: Select[Any] = select(*columns).where(*_plainly(wanted))
    if wanted.status in FINAL:
        ended = [*in_status(wanted.status, wanted.since), *_plainly(wanted)]
        # The index does not contain the id, so rows must be sorted. The rows from ``since`` on are few. Without that
        # bound and without statistics, PostgreSQL sorted all rows.
        last = select(jobs.c.finished_at).where(*ended).order_by(jobs.c.finished_at.desc()).limit(limit).subquery()
        since = select(func.min(last.c.finished_at)).scalar_subquery()
        return chosen.where(*ended, jobs.c.finished_at >= since).order_by(jobs.c.finished_at.desc(), jobs.c.id.desc())
    chosen = chosen.order_by(jobs.c.id.desc())
    if wanted.status is None and wanted.since is None:
        return chosen
    # Use a subquery and "+ 0": with both this condition and an order by id, either database may walk the whole table.
    statuses = list(Status) if wanted.status is None else [wanted.status]
    found = _of_statuses(wanted, statuses, jobs.c.id).subquery()
    newest = select(found.c.id).order_by((found.c.id + 0).desc()).limit(limit)
    return chosen.where(jobs.c.id.in_(newest))


def _plainly(wanted: Filter) -> list[ColumnElement[bool]]:
    """Return the filter's conditions that have no index."""
    plain = {"job_type": wanted.job_type, "queue": wanted.queue, "schedule": wanted.schedule}
    return [
        jobs.c[column] == value
        for column, value in (plain | {"error_type": wanted.error_type}).items()
        if value is not None
    ]


def in_status(status: Status, since: datetime | None) -> list[ColumnElement[bool]]:
    """Return the conditions for jobs in *status* that pass *since* (see ``Filter``), as the index needs them."""
    # Literal, never bound: a bound value hides a partial index from the planner.
    exactly = jobs.c.status == literal_column(f"'{status}'")
    if status in FINAL:
        return [jobs.c.finished_at.is_not(None), exactly, *([] if since is None else [jobs.c.finished_at >= since])]
    index = jobs.c.locked_until.is_not(None) if status is Status.RUNNING else and_(text(WAITING), exactly)
    if since is None:
        return [index]
    return [index, or_(jobs.c.created_at >= since, jobs.c.started_at >= since, jobs.c.last_failed_at >= since)]


def choose(connection: Connection, wanted: Filter, statuses: Collection[Status]) -> Iterator[Row[Any]]:
    """Yield every job in *statuses* that passes *wanted*, from one snapshot.

    The rows are streamed, so a hundred thousand rows are never in memory at once.
    """
    columns = shown(
        connection,
        (jobs.c.id, jobs.c.job_type, jobs.c.status, jobs.c.locked_by, jobs.c.finished_at, jobs.c.dismissed_at),
    )
    if wanted.cause is not None:
        return _of_cause(connection, wanted, *columns)
    return _stream(connection, _of_statuses(wanted, statuses, *columns))


def error_groups(
    connection: Connection, wanted: Filter, statuses: Collection[Status], limit: int, newest: int | None = None
) -> Iterator[Row[Any]]:
    """Group jobs by their type and by the kind and text of their last error. Yield the largest groups first.

    A group has its number of jobs, its first and last time, and one job's id. ``all_jobs`` counts the jobs of all
    groups, although at most *limit* groups are returned. Only the last *newest* jobs to enter each status are read. If
    *newest* is None, all are read.
    """
    seen_at = func.coalesce(jobs.c.last_failed_at, jobs.c.finished_at, jobs.c.created_at).label("seen_at")
    kind = shown(connection, (jobs.c.id, jobs.c.job_type, jobs.c.error_type))
    each = _of_statuses(wanted, statuses, *kind, _ERROR, seen_at, newest=newest).subquery()
    key = (each.c.error_type, each.c.error, each.c.job_type)
    count = func.count().label("jobs")
    first, last = func.min(each.c.seen_at).label("first_seen_at"), func.max(each.c.seen_at).label("last_seen_at")
    in_all = func.sum(func.count()).over().label("all_jobs")
    grouped = select(*key, count, in_all, first, last, func.max(each.c.id).label("sample_job_id")).group_by(*key)
    return _stream(connection, grouped.order_by(count.desc(), literal_column("sample_job_id").desc()).limit(limit))


# Read only the beginning of an error. It shows what went wrong, and kilobytes do not belong in a grouping key.
_ERROR: Final = cast(func.substr(jobs.c.last_error, 1, ERROR_READ + 1), Text).label("error")


def newest_of(status: Status, since: datetime | None, most: int) -> Select[Any]:
    """Return a query for the ids of the last *most* jobs to enter *status*. It uses the status's index."""
    at = jobs.c.finished_at if status in FINAL else jobs.c.last_failed_at
    return select(jobs.c.id).where(*in_status(status, since)).order_by(at.desc(), jobs.c.id.desc()).limit(most)


def more_than(connection: Connection, status: Status, since: datetime | None, count: int) -> bool:
    return connection.execute(newest_of(status, since, 1).offset(count)).first() is not None


def _of_statuses(
    wanted: Filter, statuses: Collection[Status], *columns: ColumnElement[Any], newest: int | None = None
) -> CompoundSelect[Any]:
    meant = [status for status in statuses if wanted.status in (None, status)]
    chosen = {
        status: in_status(status, wanted.since)
        if newest is None
        else [jobs.c.id.in_(select(newest_of(status, wanted.since, newest).subquery().c.id))]
        for status in meant
    }
    return union_all(*(select(*columns).where(*chosen[status], *_plainly(wanted)) for status in meant))


def _stream(connection: Connection, query: Executable) -> Iterator[Row[Any]]:
    return iter(connection.execute(query, execution_options={"yield_per": STREAM_BATCH}))


def one_job(connection: Connection, job_id: int) -> Row[Any] | None:
    def query(with_json: bool) -> Select[Any]:
        return select(*shown(connection, jobs.c, with_json=with_json)).where(jobs.c.id == job_id)

    return next(iter(fetched(connection, query)), None)


def attempts_of(connection: Connection, job_id: int, limit: int | None) -> tuple[int, Sequence[Row[Any]]]:
    """Return how many attempts of a job are recorded, and the newest *limit* of them, oldest first.

    If *limit* is None, all are returned.
    """
    query = (
        select(*shown(connection, job_runs.c)).where(job_runs.c.job_id == job_id).order_by(job_runs.c.attempt.desc())
    )
    newest = connection.execute(query if limit is None else query.limit(limit)).all()
    count = run(connection, f"SELECT count(*) FROM {JOB_RUNS} WHERE job_id = :id", id=job_id).scalar_one()
    return count, newest[::-1]


def occurrences_of(connection: Connection, job_id: int) -> Sequence[Row[Any]]:
    """Return the ledger rows that a job was created for, and those coalesced into it or skipped because of it."""
    return connection.execute(
        select(occurrences, schedules.c.name.label("schedule"))
        .join(schedules, schedules.c.id == occurrences.c.schedule_id)
        .where(occurrences.c.job_id == job_id)
        .order_by(occurrences.c.last_for)
    ).all()


# --- schedules --------------------------------------------------------------------------------------------------------


def ledger(connection: Connection, schedule_id: int, limit: int) -> Sequence[Row[Any]]:
    """Return the newest *limit* ledger rows of a schedule, newest first, with the status of their jobs."""
    return connection.execute(
        select(occurrences, jobs.c.status.label("job_status"))
        .outerjoin(jobs, jobs.c.id == occurrences.c.job_id)
        .where(occurrences.c.schedule_id == schedule_id)
        .order_by(occurrences.c.last_for.desc())
        .limit(limit)
    ).all()


# --- history ----------------------------------------------------------------------------------------------------------

_WHEN: Final = {"attempt": "r.finished_at", "death": "j.finished_at", "occurrence": "c.last_for"}
_WHO: Final = f"""CAST(substr(j.schedule, 1, {LONGEST}) AS text) AS schedule,
            CASE WHEN j.schedule IS NULL THEN CAST(substr(j.job_type, 1, {LONGEST}) AS text) END AS job_type"""
# Leave out tracebacks and outputs: one night's can add up to hundreds of megabytes. "jobs show" prints them.
_BRIEF: Final = [column for column in job_runs.c if column.name not in ("traceback", "output")]


def attempts_since(
    connection: Connection,
    since: datetime,
    limit: int,
    *,
    names: Collection[str] | None = None,
    job_type: str | None = None,
    outcomes: Collection[str] | None = None,
    until: datetime | None = None,
) -> Sequence[Row[Any]]:
    """Return the newest *limit* attempts that ended from *since* on and before *until*, newest first."""
    query: Select[Any] = (
        select(*shown(connection, [*_BRIEF, jobs.c.job_type, jobs.c.schedule, jobs.c.scheduled_for]))
        .join(jobs, jobs.c.id == job_runs.c.job_id)
        .where(job_runs.c.finished_at >= since)
        .order_by(job_runs.c.finished_at.desc(), job_runs.c.job_id.desc(), job_runs.c.attempt.desc())
        .limit(limit)
    )
    query = query.where(*_plainly(Filter(job_type=job_type)), *_of_schedule(names))
    if outcomes is not None:
        query = query.where(job_runs.c.outcome.in_(list(outcomes)))
    return connection.execute(_before(query, job_runs.c.finished_at, until)).all()


def _of_schedule(names: Collection[str] | None) -> list[ColumnElement[bool]]:
    """Return the condition for jobs of the schedule that has had these *names*.

    An ended job keeps the name that its schedule had then.
    """
    return [] if names is None else [jobs.c.schedule.in_(list(names))]


def _before(query: Select[Any], column: Column[Any], until: datetime | None) -> Select[Any]:
    return query if until is None else query.where(column < until)


def deaths_since(
    connection: Connection,
    since: datetime,
    limit: int,
    *,
    names: Collection[str] | None = None,
    job_type: str | None = None,
    until: datetime | None = None,
) -> Sequence[Row[Any]]:
    """Return the newest *limit* jobs that died from *since* on and before *until* and are still dead, newest first."""
    dismissed = and_(jobs.c.dismissed_at.is_not(None), jobs.c.dismissed_at >= jobs.c.finished_at)
    columns = (jobs.c.job_type, jobs.c.schedule, jobs.c.scheduled_for, jobs.c.finished_at, jobs.c.error_type)
    query: Select[Any] = (
        select(
            jobs.c.id.label("job_id"),
            *shown(connection, columns),
            beginning(jobs.c.last_error).label("error"),
            dismissed.label("dismissed"),
        )
        .where(*in_status(Status.DEAD, since), *_plainly(Filter(job_type=job_type)), *_of_schedule(names))
        .order_by(jobs.c.finished_at.desc(), jobs.c.id.desc())
        .limit(limit)
    )
    return connection.execute(_before(query, jobs.c.finished_at, until)).all()


def not_run_since(
    connection: Connection,
    since: datetime,
    limit: int,
    *,
    schedule_ids: Collection[int] | None = None,
    outcomes: Collection[str] = DID_NOT_RUN,
    until: datetime | None = None,
) -> Sequence[Row[Any]]:
    """Return the newest *limit* ledger rows of occurrences that did not run at their time, newest first.

    Only rows with these *outcomes* are returned. ``outcome`` is the row's own outcome, or "early", or the outcome that
    the row had before a backfill ran the occurrence.
    """
    rows = occurrences.alias("c")
    at_its_time: ColumnElement[str] = literal_column(_AT_ITS_TIME, Text)
    others = [each for each in rows.c if each.name != "outcome"]
    query = (
        select(*others, at_its_time.label("outcome"), schedules.c.name.label("schedule"))
        .join(schedules, schedules.c.id == rows.c.schedule_id)
        .where(rows.c.last_for >= since, at_its_time.in_(list(outcomes)))
        .order_by(rows.c.last_for.desc(), rows.c.schedule_id.desc())
        .limit(limit)
    )
    if schedule_ids is not None:
        query = query.where(rows.c.schedule_id.in_(list(schedule_ids)))
    return connection.execute(_before(query, rows.c.last_for, until)).all()


def newest_begin(connection: Connection, kind: str, most: int, since: datetime, until: datetime | None) -> datetime:
    """Return *since*, or the instant of the *most*-th newest row of this *kind* if there are more rows.

    *kind* is "attempt" or "occurrence".
    """
    column = {"attempt": job_runs.c.finished_at, "occurrence": occurrences.c.last_for}[kind]
    query = select(column).where(column >= since).order_by(column.desc()).limit(2).offset(most - 1)
    found = connection.execute(_before(query, column, until)).scalars().all()
    return found[0] if len(found) == 2 else since


def tallies(
    connection: Connection,
    since: Mapping[str, datetime],
    most: int,
    *,
    names: Collection[str] | None = None,
    job_type: str | None = None,
    schedule_ids: Collection[int] | None = None,
    outcome: str | None = None,
    until: datetime | None = None,
) -> Sequence[Row[Any]]:
    """Count attempts, deaths and occurrences without a run, by outcome, and by schedule or else job type.

    *since* has one instant for each kind: attempt, death, occurrence. For each outcome, the *most* largest groups are
    returned; ``in_all`` is the sum of all groups. ``job_id`` and ``reason`` are None if a group has several. The
    database does the counting, so a million rows stay there.
    """
    before = {kind: "" if until is None else f" AND {column} < :until" for kind, column in _WHEN.items()}
    of_job = f"""(:any_name OR j.schedule {AMONG_NAMES})
        AND (CAST(:job_type AS text) IS NULL OR j.job_type = CAST(:job_type AS text))"""
    rows = run(
        connection,
        f"""
        WITH each AS (
          SELECT {_WHO}, r.outcome, 1 AS number, r.started_at AS first_at, r.started_at AS last_at,
            {RUN_SECONDS} AS seconds, r.job_id, NULL AS reason
          FROM {JOB_RUNS} r JOIN {JOBS} j ON j.id = r.job_id
          WHERE r.finished_at >= :attempts_since{before["attempt"]} AND {of_job}
          UNION ALL
          SELECT {_WHO}, 'dead', 1, j.finished_at, j.finished_at, NULL, j.id, NULL FROM {JOBS} j
          WHERE j.status = 'dead' AND j.finished_at IS NOT NULL AND j.finished_at >= :deaths_since{before["death"]}
            AND {of_job}
          UNION ALL
          SELECT s.name, NULL, {_AT_ITS_TIME}, c.count, c.first_for, c.last_for, NULL, c.job_id, c.reason
          FROM {OCCURRENCES} c JOIN {SCHEDULES} s ON s.id = c.schedule_id
          WHERE {_AT_ITS_TIME} IN {DID_NOT_RUN} AND c.last_for >= :occurrences_since{before["occurrence"]}
            AND (:any_schedule OR s.id {AMONG_IDS})),
        sums AS (
          SELECT schedule, job_type, outcome, CAST(sum(number) AS bigint) AS number, min(first_at) AS first_at,
            max(last_at) AS last_at, sum(seconds) / sum(number) AS seconds, max(seconds) AS longest,
            CASE WHEN min(job_id) = max(job_id) THEN min(job_id) END AS job_id,
            CASE WHEN min(reason) = max(reason) THEN min(reason) END AS reason
          FROM each WHERE CAST(:outcome AS text) IS NULL OR outcome = CAST(:outcome AS text)
          GROUP BY schedule, job_type, outcome)
        SELECT * FROM (
          SELECT sums.*, CAST(sum(number) OVER (PARTITION BY outcome) AS bigint) AS in_all,
            row_number() OVER (PARTITION BY outcome ORDER BY number DESC, schedule, job_type) AS place
          FROM sums) placed
        WHERE place <= :most ORDER BY first_at, schedule, job_type, outcome""",
        **{f"{kind}s_since": at for kind, at in since.items()},
        **({} if until is None else {"until": until}),
        any_name=names is None,
        names=list(names or ()),
        job_type=job_type,
        any_schedule=schedule_ids is None,
        ids=list(schedule_ids or ()),
        outcome=outcome,
        most=most,
    )
    return rows.all()


def acts(
    connection: Connection,
    actions: Collection[str],
    since: datetime | None,
    limit: int,
    until: datetime | None = None,
) -> Sequence[Row[Any]]:
    """Return the newest *limit* audit entries with these *actions* from *since* on and before *until*, oldest first."""

    def query(with_json: bool) -> Select[Any]:
        found = select(*shown(connection, audit.c, with_json=with_json)).where(audit.c.action.in_(list(actions)))
        found = _before(found if since is None else found.where(audit.c.at >= since), audit.c.at, until)
        return found.order_by(audit.c.at.desc(), audit.c.id.desc()).limit(limit)

    return fetched(connection, query)[::-1]


def named_jobs(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[str, str | None]]:
    """Return the job type and the schedule of each of these jobs that still exists, by id."""
    found: dict[int, tuple[str, str | None]] = {}
    statement = f"SELECT j.id, {columns_shown('job_type', 'schedule')} FROM {JOBS} j WHERE j.id {AMONG_IDS}"
    for first in range(0, len(ids), STREAM_BATCH):
        batch = ids[first : first + STREAM_BATCH]
        found |= {row.id: (row.job_type, row.schedule) for row in run(connection, statement, ids=batch)}
    return found


def spans_at_work(
    connection: Connection, ids: Sequence[int], since: datetime
) -> dict[int, list[tuple[datetime, datetime | None]]]:
    """Return from when to when these jobs were running, by id, if they still were at *since*. None: still running."""
    found: dict[int, list[tuple[datetime, datetime | None]]] = {}
    statement = f"""
        SELECT r.job_id, r.started_at, r.finished_at FROM {JOB_RUNS} r
        WHERE r.job_id {AMONG_IDS} AND r.finished_at >= :since
        UNION ALL
        SELECT j.id AS job_id, j.started_at, j.finished_at FROM {JOBS} j
        WHERE j.id {AMONG_IDS} AND j.status = 'running' AND j.started_at IS NOT NULL"""
    for first in range(0, len(ids), STREAM_BATCH):
        for row in run(connection, statement, ids=ids[first : first + STREAM_BATCH], since=since):
            found.setdefault(row.job_id, []).append((row.started_at, row.finished_at))
    return found


def code_changes(connection: Connection, since: datetime, until: datetime | None, limit: int) -> Sequence[Row[Any]]:
    """Return the newest *limit* ticks whose version or job types differ from those of their host's previous tick.

    Only ticks that loaded handlers are compared. ``names`` and ``old_names`` are the job types.
    """
    before = "" if until is None else " AND t.started_at < :until"
    return run(
        connection,
        f"""
        SELECT pair.host, pair.started_at, pair.version, pair.old_version, n.names, o.names AS old_names
        FROM (
          SELECT t.host, t.started_at, t.version, t.job_types, lag(t.version) OVER mine AS old_version,
            lag(t.job_types) OVER mine AS old_types
          FROM {TICKS} t WHERE t.job_types IS NOT NULL AND t.started_at >= :since{before}
          WINDOW mine AS (PARTITION BY t.host ORDER BY t.started_at, t.id)) pair
        LEFT JOIN {JOB_TYPE_LISTS} n ON n.hash = pair.job_types LEFT JOIN {JOB_TYPE_LISTS} o ON o.hash = pair.old_types
        WHERE pair.version <> pair.old_version OR pair.job_types <> pair.old_types
        ORDER BY pair.started_at DESC LIMIT :limit""",
        since=since,
        **({} if until is None else {"until": until}),
        limit=limit,
    ).all()


def clocks_set_back(connection: Connection, since: datetime, by: timedelta) -> Sequence[Row[Any]]:
    """Return the pairs of ticks between which the clock was set back by more than *by*.

    The first tick of each pair began after *since*. ``finished_at`` is the start of the last tick whose clock was
    ahead, and ``started_at`` that of the next tick. The next tick's end is compared, because a tick that was frozen was
    written long after it began.
    """
    return run(
        connection,
        f"""
        SELECT ahead_at AS finished_at, n.started_at FROM (
          SELECT t.started_at AS ahead_at, (SELECT a.id FROM {TICKS} a
            WHERE a.id > t.id AND a.finished_at IS NOT NULL ORDER BY a.id LIMIT 1) AS next_id
          FROM {TICKS} t WHERE t.started_at >= :since) AS pairs JOIN {TICKS} n ON n.id = next_id
        WHERE n.finished_at < {shifted("ahead_at", "-:by_s")} ORDER BY ahead_at""",
        since=since,
        by_s=by.total_seconds(),
    ).all()


def tick_gaps(connection: Connection, since: datetime, gap: timedelta) -> Sequence[Row[Any]]:
    """Return the gaps longer than *gap* from the end of all earlier ticks to the start of the next tick.

    ``host`` and ``did`` are the next tick's.

    The search begins with the tick before *since*. The caller adds the gap from the last tick to now. There is no gap
    if a tick whose clock was ahead ran meanwhile. That tick's id lies between the ids of the ticks before and after,
    although its time does not.
    """
    return run(
        connection,
        f"""
        SELECT quiet_from AS started_at, next_at AS finished_at, host, did FROM (
          SELECT t.started_at AS next_at, t.host, t.did, t.id AS next_id,
            lag(t.id) OVER (ORDER BY t.started_at, t.id) AS last_id,
            max(coalesce(t.finished_at, t.started_at)) OVER (
              ORDER BY t.started_at, t.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS quiet_from
          FROM {TICKS} t WHERE t.started_at >= coalesce(
            (SELECT max(b.started_at) FROM {TICKS} b WHERE b.started_at <= :since), :since)) AS pairs
        WHERE quiet_from < {shifted("next_at", "-:gap_s")} AND NOT EXISTS (SELECT 1 FROM {TICKS} a
          WHERE a.id > last_id AND a.id < next_id AND a.started_at > {shifted("next_at", ":gap_s")})
        ORDER BY next_at""",
        since=since,
        gap_s=gap.total_seconds(),
    ).all()


def ticks_without_end(connection: Connection, since: datetime, until: datetime, limit: int) -> Sequence[Row[Any]]:
    """Return the newest *limit* ticks that began from *since* to *until* and never recorded their end."""
    return run(
        connection,
        f"""SELECT t.host, t.started_at FROM {TICKS} t
           WHERE t.started_at >= :since AND t.started_at < :until AND t.finished_at IS NULL
           ORDER BY t.started_at DESC LIMIT :limit""",
        since=since,
        until=until,
        limit=limit,
    ).all()


def ticked_at_least(connection: Connection, host: str, times: int) -> bool:
    """Whether *host* has ticked at least *times* times, as far as the stored rows show."""
    statement = f"SELECT 1 FROM {TICKS} t WHERE t.host = :host ORDER BY t.id DESC LIMIT 1 OFFSET :before"
    return run(connection, statement, host=host, before=times - 1).first() is not None


def defined_at(connection: Connection, schedule: str) -> datetime | None:
    """Return when the schedule's definition last took effect."""
    statement = f"SELECT max(a.at) AS at FROM {AUDIT} a WHERE a.action = 'define' AND a.subject = :schedule"
    at: datetime | None = run(connection, statement, schedule=schedule).scalar()
    return at
