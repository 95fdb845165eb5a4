"""Read lists of jobs, and what is shown with a job: its attempts, its occurrences, a schedule's ledger."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final

from sqlalchemy import (
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

from cronjobs.engine.database.tables import UNSETTLED_DEAD_SQL, job_runs, jobs, occurrences, schedules
from cronjobs.engine.probe.idle_conditions import WAITING
from cronjobs.engine.probe.sql_text import JOB_RUNS
from cronjobs.engine.rules.causes import cause_of
from cronjobs.engine.rules.error_groups import ERROR_READ
from cronjobs.engine.store.shown_columns import fetched, shown
from cronjobs.engine.store.sql import run
from cronjobs.model import FINAL, Status

STREAM_BATCH: Final = 2000  # how many rows are in memory at once


@dataclass(frozen=True)
class Filter:
    """The filter of a list of jobs. A field that is None or () matches every job.

    A job passes ``since`` if it was created, began, failed or ended at that time or later. ``cause`` is the key of a
    cause of death, and matches the dead jobs with that cause that nobody has dealt with. ``bounded_search``, which
    reads a bounded number of jobs, uses ``type_part``, ``error_part``, ``key`` and ``ids``.
    """

    job_type: str | None = None
    statuses: tuple[Status, ...] = ()
    queue: str | None = None
    schedule: str | None = None
    concurrency_key: str | None = None
    since: datetime | None = None
    error_type: str | None = None
    cause: str | None = None
    type_part: str | None = None
    error_part: str | None = None
    key: str | None = None
    ids: tuple[int, ...] = ()

    @property
    def possible_statuses(self) -> tuple[Status, ...]:
        """The statuses that matching jobs can have. Only dead jobs have a cause."""
        return (Status.DEAD,) if self.cause is not None else self.statuses or tuple(Status)

    @property
    def only_status(self) -> Status | None:
        """The status of every matching job, or None if the statuses may differ."""
        return self.possible_statuses[0] if len(self.possible_statuses) == 1 else None


def list_jobs(connection: Connection, wanted: Filter, limit: int) -> Sequence[Row[Any]]:
    """Return up to *limit* jobs, newest first. For a final status, the jobs that ended last come first.

    Statuses and ``since`` use the indexes of waiting, running and ended jobs. For the other filters, jobs are read from
    the newest back until *limit* are found.
    """
    if wanted.cause is not None:
        with closing(_of_cause(connection, wanted, jobs.c.id)) as rows:
            ids = [row.id for row in islice(rows, limit)]
        return jobs_by_id(connection, ids)

    def query(with_json: bool) -> Select[Any]:
        return _filtered(wanted, shown(connection, jobs.c, with_json=with_json), limit).limit(limit)

    return fetched(connection, query)


def jobs_by_id(connection: Connection, ids: Sequence[int]) -> list[Row[Any]]:
    """Return the existing jobs among *ids*, in the order of *ids*."""
    found: dict[int, Row[Any]] = {}
    for first in range(0, len(ids), STREAM_BATCH):
        batch = ids[first : first + STREAM_BATCH]

        def query(with_json: bool, batch: Sequence[int] = batch) -> Select[Any]:
            return select(*shown(connection, jobs.c, with_json=with_json)).where(jobs.c.id.in_(batch))

        found |= {row.id: row for row in fetched(connection, query)}
    return [found[id_] for id_ in ids if id_ in found]


def _of_cause(connection: Connection, wanted: Filter, *columns: ColumnElement[Any]) -> Generator[Any]:
    """Yield the open dead jobs of the cause, most recent death first.

    Only Python code can determine a job's cause, so this reads all dead jobs that pass the other filters, one after
    another.
    """
    since = [] if wanted.since is None else [jobs.c.finished_at >= wanted.since]
    why = [each.label(f"why_{each.name}") for each in shown(connection, (jobs.c.job_type, jobs.c.error_type))]
    query = (
        select(*columns, *why, _ERROR)
        .where(text(UNSETTLED_DEAD_SQL), *since, *without_index(wanted))
        .order_by(jobs.c.finished_at.desc(), jobs.c.id.desc())
    )
    with closing(connection.execute(query, execution_options={"yield_per": STREAM_BATCH})) as rows:
        for row in rows:
            if cause_of(row.why_job_type, row.why_error_type, row.error).key == wanted.cause:
                yield row


def _filtered(wanted: Filter, columns: Sequence[ColumnElement[Any]], limit: int) -> Select[Any]:
    chosen: Select[Any] = select(*columns).where(*without_index(wanted))
    if wanted.only_status in FINAL:
        ended = [*in_status(wanted.only_status, wanted.since), *without_index(wanted)]
        # The index does not contain the id, so the database must sort rows. The bound ``since`` leaves only few rows to
        # sort. Without the bound, PostgreSQL sorted all rows when it had no statistics.
        last = select(jobs.c.finished_at).where(*ended).order_by(jobs.c.finished_at.desc()).limit(limit).subquery()
        since = select(func.min(last.c.finished_at)).scalar_subquery()
        return chosen.where(*ended, jobs.c.finished_at >= since).order_by(jobs.c.finished_at.desc(), jobs.c.id.desc())
    chosen = chosen.order_by(jobs.c.id.desc())
    if wanted.since is None and not wanted.statuses:
        return chosen
    # Use a subquery and "+ 0". Without them, either database may read the whole table to order it by id.
    found = _of_statuses(wanted, jobs.c.id).subquery()
    newest = select(found.c.id).order_by((found.c.id + 0).desc()).limit(limit)
    return chosen.where(jobs.c.id.in_(newest))


def without_index(wanted: Filter) -> list[ColumnElement[bool]]:
    """Return the filter's conditions that have no index."""
    columns = ("job_type", "queue", "schedule", "concurrency_key")
    plain = {column: getattr(wanted, column) for column in columns}
    found = [jobs.c[column] == value for column, value in plain.items() if value is not None]
    if (name := wanted.error_type) is not None:
        # As in a retry policy, a name without its module matches the class of any module.
        # Do not use LIKE, because SQLite's LIKE ignores case.
        end = func.substr(jobs.c.error_type, func.length(jobs.c.error_type) - len(name))
        found.append(or_(jobs.c.error_type == name, end == f".{name}"))
    return found


def in_status(status: Status, since: datetime | None) -> list[ColumnElement[bool]]:
    """Return the conditions for jobs in *status* that pass *since* (see ``Filter``), in the form for the index."""
    # Use a literal, since with a bound value the planner cannot use a partial index.
    exactly = jobs.c.status == literal_column(f"'{status}'")
    if status in FINAL:
        return [jobs.c.finished_at.is_not(None), exactly, *([] if since is None else [jobs.c.finished_at >= since])]
    index = jobs.c.locked_until.is_not(None) if status is Status.RUNNING else and_(text(WAITING), exactly)
    if since is None:
        return [index]
    return [index, or_(jobs.c.created_at >= since, jobs.c.started_at >= since, jobs.c.last_failed_at >= since)]


def choose(connection: Connection, wanted: Filter) -> Iterator[Row[Any]]:
    """Yield every job that passes *wanted*, from one snapshot.

    The rows are streamed, so a hundred thousand rows are never in memory at once.
    """
    columns = shown(
        connection,
        (jobs.c.id, jobs.c.job_type, jobs.c.status, jobs.c.locked_by, jobs.c.finished_at, jobs.c.dismissed_at),
    )
    if wanted.cause is not None:
        return _of_cause(connection, wanted, *columns)
    return _stream(connection, _of_statuses(wanted, *columns))


def unfinished_of(connection: Connection, names: Collection[str]) -> Sequence[Row[Any]]:
    """Count the waiting and running jobs of the schedules *names*, by schedule and status."""
    wanted = Filter(statuses=(Status.QUEUED, Status.FAILED, Status.RUNNING))
    found = _of_statuses(wanted, jobs.c.schedule, jobs.c.status).subquery()
    count = select(found.c.schedule, found.c.status, func.count().label("jobs"))
    return connection.execute(
        count.where(found.c.schedule.in_(names)).group_by(found.c.schedule, found.c.status).order_by(found.c.schedule)
    ).all()


def error_groups(connection: Connection, wanted: Filter, limit: int, newest: int | None = None) -> Iterator[Row[Any]]:
    """Group jobs by their type and by the kind and text of their last error. Yield the largest groups first.

    Each group has the number of its jobs, the times at which they were first and last seen, and the id of one job.
    ``all_jobs`` counts the jobs of all groups, although at most *limit* groups are returned. Only the last *newest*
    jobs to enter each status are read. If *newest* is None, all jobs are read.
    """
    seen_at = func.coalesce(jobs.c.last_failed_at, jobs.c.finished_at, jobs.c.created_at).label("seen_at")
    kind = shown(connection, (jobs.c.id, jobs.c.job_type, jobs.c.error_type))
    each = _of_statuses(wanted, *kind, _ERROR, seen_at, newest=newest).subquery()
    key = (each.c.error_type, each.c.error, each.c.job_type)
    count = func.count().label("jobs")
    first, last = func.min(each.c.seen_at).label("first_seen_at"), func.max(each.c.seen_at).label("last_seen_at")
    in_all = func.sum(func.count()).over().label("all_jobs")
    grouped = select(*key, count, in_all, first, last, func.max(each.c.id).label("sample_job_id")).group_by(*key)
    return _stream(connection, grouped.order_by(count.desc(), literal_column("sample_job_id").desc()).limit(limit))


# Read only the beginning of an error. It shows what went wrong, and kilobytes do not belong in a grouping key.
_ERROR: Final = cast(func.substr(jobs.c.last_error, 1, ERROR_READ + 1), Text).label("error")


def newest_of(status: Status, since: datetime | None, most: int) -> Select[Any]:
    """Return a query for the ids of the last *most* jobs to enter *status*. The query uses the index of that status."""
    at = jobs.c.finished_at if status in FINAL else jobs.c.last_failed_at
    return select(jobs.c.id).where(*in_status(status, since)).order_by(at.desc(), jobs.c.id.desc()).limit(most)


def more_than(connection: Connection, status: Status, since: datetime | None, count: int) -> bool:
    return connection.execute(newest_of(status, since, 1).offset(count)).first() is not None


def _of_statuses(wanted: Filter, *columns: ColumnElement[Any], newest: int | None = None) -> CompoundSelect[Any]:
    chosen = [
        in_status(status, wanted.since)
        if newest is None
        else [jobs.c.id.in_(select(newest_of(status, wanted.since, newest).subquery().c.id))]
        for status in wanted.possible_statuses
    ]
    return union_all(*(select(*columns).where(*each, *without_index(wanted)) for each in chosen))


def _stream(connection: Connection, query: Executable) -> Iterator[Row[Any]]:
    return iter(connection.execute(query, execution_options={"yield_per": STREAM_BATCH}))


def attempts_of(connection: Connection, job_id: int, limit: int | None) -> tuple[int, Sequence[Row[Any]]]:
    """Return how many attempts of a job are recorded, and the newest *limit* of them, oldest first.

    If *limit* is None, all attempts are returned.
    """
    query = (
        select(*shown(connection, job_runs.c)).where(job_runs.c.job_id == job_id).order_by(job_runs.c.attempt.desc())
    )
    newest = connection.execute(query if limit is None else query.limit(limit)).all()
    count = run(connection, f"SELECT count(*) FROM {JOB_RUNS} WHERE job_id = :id", id=job_id).scalar_one()
    return count, newest[::-1]


def occurrences_of(connection: Connection, job_id: int) -> Sequence[Row[Any]]:
    """Return the ledger rows of occurrences that created the job, were coalesced into it, or were skipped for it."""
    return connection.execute(
        select(occurrences, schedules.c.name.label("schedule"))
        .join(schedules, schedules.c.id == occurrences.c.schedule_id)
        .where(occurrences.c.job_id == job_id)
        .order_by(occurrences.c.last_for)
    ).all()


def ledger(connection: Connection, schedule_id: int, limit: int) -> Sequence[Row[Any]]:
    """Return the newest *limit* ledger rows of a schedule, newest first, with the status of their jobs."""
    return connection.execute(
        select(occurrences, jobs.c.status.label("job_status"))
        .outerjoin(jobs, jobs.c.id == occurrences.c.job_id)
        .where(occurrences.c.schedule_id == schedule_id)
        .order_by(occurrences.c.last_for.desc())
        .limit(limit)
    ).all()
