"""Search jobs, or choose many jobs to change. Each search or step reads a bounded number of rows.

An index finds rows by status, ``since`` and ids. Python checks each of these rows against the rest of the Filter. So a
search for a rare word does not read a million rows: it stops, reports how many rows it has read, and can continue after
the last of them. The search compares masked texts. Otherwise a visitor could find out a secret letter by letter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, or_, select, text, union_all

from cronjobs import masking
from cronjobs.desk.store.explaining import job_of_key
from cronjobs.desk.store.listing import Filter, in_status, jobs_by_id
from cronjobs.engine.database.tables import UNSETTLED_DEAD_SQL, audit, jobs
from cronjobs.engine.rules.causes import cause_of
from cronjobs.engine.rules.error_groups import ERROR_READ
from cronjobs.engine.store.operating import TAKES
from cronjobs.engine.store.shown_columns import shown
from cronjobs.model import FINAL, Status
from cronjobs.reserved import EXEC_PREFIX

READ: Final = 10_000  # one search reads at most this many rows
BATCH: Final = 2_000  # at most this many rows are in memory at once

_FINAL_SORTS: Final = ("-ended", "ended")
_WAITING_SORTS: Final = ("-id", "id", "due", "-due")
_COLUMNS: Final = {"id": jobs.c.id, "ended": jobs.c.finished_at, "due": jobs.c.run_at}


class Place(NamedTuple):
    """The position of a row in the requested order. ``at`` is None if rows are ordered by id alone."""

    at: datetime | None
    job_id: int


@dataclass(frozen=True)
class Looked:
    """Matching jobs, in order.

    ``read`` is how many rows were checked. ``place`` is the position of the last of them, or None if no row is left.
    """

    jobs: Sequence[Row[Any]] = ()
    read: int = 0
    place: Place | None = None
    found_all: bool = True  # False if the search stopped at *limit* jobs


def sorts_of(wanted: Filter) -> tuple[str, ...]:
    """Return the sort orders that an index supports, with the default first. A leading "-" means descending order."""
    status = wanted.only_status
    if status is None or wanted.ids or wanted.key is not None:
        return ("-id", "id")
    if status in FINAL:
        return _FINAL_SORTS
    return ("-id", "id") if status is Status.RUNNING else _WAITING_SORTS


def look(connection: Connection, wanted: Filter, sort: str, after: Place | None, limit: int) -> Looked:
    """Return the first *limit* matching jobs after *after*, among the next READ rows that an index finds.

    *sort* is one of the orders that ``sorts_of`` returns.
    """
    wanted = _with_ids(connection, wanted)
    if wanted.ids == NOBODY:
        return Looked()
    column = _COLUMNS[sort.lstrip("-")]
    found: list[int] = []
    last: Any = None
    read = 0
    with closing(_rows(connection, wanted, sort, after, READ + 1)) as rows:
        for row in rows:
            if read == READ or len(found) == limit:
                at = None if column is jobs.c.id else getattr(last, column.name)
                return Looked(jobs_by_id(connection, found), read, Place(at, last.id), len(found) < limit)
            read, last = read + 1, row
            if passes(wanted, row):
                found.append(row.id)
    return Looked(jobs_by_id(connection, found), read)


NOBODY: Final = (0,)  # no job has this id


def _with_ids(connection: Connection, wanted: Filter) -> Filter:
    """Replace the filter's key with the id of the job that has it, or else of the last job that released it."""
    if wanted.key is None:
        return wanted
    found = job_of_key(connection, wanted.key)
    return replace(
        wanted, key=None, ids=NOBODY if found is None or (wanted.ids and found not in wanted.ids) else (found,)
    )


def _rows(connection: Connection, wanted: Filter, sort: str, after: Place | None, most: int) -> Generator[Any]:
    columns, status = _needed(connection, wanted), wanted.only_status
    query: Select[Any]
    order: ColumnElement[Any]
    number: ColumnElement[Any]
    if status in FINAL and not wanted.ids:
        query = select(*columns).where(*_indexed(wanted, status))
        order = _COLUMNS[sort.lstrip("-")]
        number = jobs.c.id
    elif status is None and wanted.since is None:
        query = select(*columns).where(*_among(wanted))
        order = number = jobs.c.id
    else:
        parts = (select(*columns).where(*_indexed(wanted, one), *_among(wanted)) for one in wanted.possible_statuses)
        found = union_all(*parts).subquery()
        query = select(found)
        # Without "+ 0", SQLite or PostgreSQL might walk the whole table by id and check the conditions row by row.
        number = found.c.id + 0
        order = number if sort.lstrip("-") == "id" else found.c[_COLUMNS[sort.lstrip("-")].name]
    down = sort.startswith("-")
    if after is not None:
        query = query.where(_behind(order, number, after, down))
    ways = [each.desc() if down else each.asc() for each in ([number] if order is number else [order, number])]
    result = connection.execute(query.order_by(*ways).limit(most), execution_options={"yield_per": BATCH})
    with closing(result) as rows:
        yield from rows


def _behind(order: ColumnElement[Any], number: ColumnElement[Any], place: Place, down: bool) -> ColumnElement[bool]:
    beyond = number < place.job_id if down else number > place.job_id
    if place.at is None or order is number:
        return beyond
    if down:
        return and_(order <= place.at, or_(order < place.at, beyond))
    return and_(order >= place.at, or_(order > place.at, beyond))


def _needed(connection: Connection, wanted: Filter) -> list[ColumnElement[Any]]:
    """Return the columns that ``passes`` needs. Error texts are long, so they are read only for filters on errors."""
    c = jobs.c
    plain = [c.id, c.job_type, c.status, c.queue, c.schedule, c.error_type, c.run_at, c.finished_at]
    columns = [*shown(connection, plain)]
    if wanted.error_part is not None or wanted.cause is not None:
        columns.append(func.substr(c.last_error, 1, ERROR_READ + 1).label("error"))
    return columns


def _indexed(wanted: Filter, status: Status) -> list[ColumnElement[bool]]:
    dead = [] if wanted.cause is None else [text(UNSETTLED_DEAD_SQL)]
    return [*in_status(status, wanted.since), *dead]  # type: ignore[list-item]  # a text() is a condition, too


def _among(wanted: Filter) -> list[ColumnElement[bool]]:
    return [jobs.c.id.in_(wanted.ids)] if wanted.ids else []


def passes(wanted: Filter, row: Any) -> bool:
    """Whether *row*, which an index has found, passes the rest of the filter."""
    if wanted.statuses and row.status not in wanted.statuses:
        return False
    exactly = (
        (wanted.queue, row.queue),
        (wanted.schedule, row.schedule),
        (wanted.job_type, row.job_type),
        (wanted.error_type, row.error_type),
    )
    if any(asked is not None and asked != found for asked, found in exactly):
        return False
    if wanted.type_part is not None and not _has(row.job_type, wanted.type_part):
        return False
    if wanted.error_part is not None:
        error = ": ".join(part for part in (row.error_type, row.error) if part)
        if not _has(error, wanted.error_part):
            return False
    return wanted.cause is None or cause_of(row.job_type, row.error_type, row.error).key == wanted.cause


def _has(whole: str, part: str) -> bool:
    part = part.casefold()
    if masking.MASK not in part and part not in whole.casefold():
        return False
    return part in masking.hide(whole).casefold()


# --- change many jobs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bulk:
    """A change to the jobs that match ``wanted``, have ids up to ``upper``, and have not changed since ``as_of``."""

    verb: str
    wanted: Filter
    upper: int
    as_of: datetime


@dataclass
class Kinds:
    """How many jobs a change applies to, by type and status. If ``read`` is given, only that many rows were checked."""

    jobs: Counter[tuple[str, str]] = field(default_factory=Counter)
    read: int | None = None


@dataclass(frozen=True)
class Chosen:
    """The ids of chosen jobs, largest first. The next step begins with the id ``below`` (0: no job is left)."""

    ids: Sequence[int]
    below: int


def choose_some(connection: Connection, bulk: Bulk, below: int, limit: int) -> Chosen:
    """Choose the next *limit* jobs with ids up to *below*, among the next READ rows that an index finds."""
    wanted = _with_ids(connection, bulk.wanted)
    ids: list[int] = []
    read = 0
    last = 0
    with closing(_changeable(connection, bulk, wanted, min(below, bulk.upper), READ + 1)) as rows:
        for row in rows:
            if len(ids) == limit or read == READ:
                return Chosen(ids, last - 1)
            read, last = read + 1, row.id
            if allows(bulk.verb, row.job_type, row.status) and passes(wanted, row):
                ids.append(row.id)
    return Chosen(ids, 0)


def kinds(connection: Connection, bulk: Bulk, below: int, above: int = 0) -> Kinds:
    """Count the jobs with ids above *above* and up to *below* that the change still has to change.

    If SQL can check the whole filter, count them all. If Python has to check each row, stop after READ rows.
    """
    wanted = _with_ids(connection, bulk.wanted)
    below = min(below, bulk.upper)
    if wanted.cause is None and wanted.type_part is None and wanted.error_part is None:
        each = _all_changeable(connection, bulk, wanted, below, above).subquery()
        plain = {"queue": wanted.queue, "schedule": wanted.schedule}
        count = (
            select(each.c.job_type, each.c.status, func.count().label("jobs"))
            .where(*(each.c[name] == value for name, value in plain.items() if value is not None))
            .group_by(each.c.job_type, each.c.status)
        )
        counted = [row for row in connection.execute(count) if allows(bulk.verb, row.job_type, row.status)]
        return Kinds(Counter({(row.job_type, row.status): row.jobs for row in counted}))
    found = Kinds()
    with closing(_changeable(connection, bulk, wanted, below, READ + 1, above)) as rows:
        for row in islice(rows, READ):
            if allows(bulk.verb, row.job_type, row.status) and passes(wanted, row):
                found.jobs[row.job_type, row.status] += 1
        found.read = READ if next(rows, None) is not None else None
    return found


def allows(verb: str, job_type: str, status: str) -> bool:
    """Whether the action *verb* applies to a job of this type and status.

    A run of ``cronjobs exec`` can be neither retried nor stopped, because cron starts it.
    """
    if status not in TAKES[verb]:
        return False
    by_exec = job_type.startswith(EXEC_PREFIX)
    return not by_exec or verb == "dismiss" or (verb == "cancel" and status != Status.RUNNING)


def _changeable(
    connection: Connection, bulk: Bulk, wanted: Filter, below: int, most: int, above: int = 0
) -> Generator[Any]:
    found = _all_changeable(connection, bulk, wanted, below, above).subquery()
    query = select(found).order_by((found.c.id + 0).desc()).limit(most)
    with closing(connection.execute(query, execution_options={"yield_per": BATCH})) as rows:
        yield from rows


def _all_changeable(connection: Connection, bulk: Bulk, wanted: Filter, below: int, above: int) -> Any:
    columns = _needed(connection, wanted)
    meant = [status for status in TAKES[bulk.verb] if status in wanted.possible_statuses]
    parts = [
        select(*columns).where(
            *_indexed(wanted, status),
            *_among(wanted),
            *_unchanged(bulk, status),
            # "+ 0" makes the database use the index on the status instead of reading the whole table by id.
            jobs.c.id + 0 <= below,
            jobs.c.id + 0 > above,
        )
        for status in meant
    ]
    return union_all(*parts) if parts else select(*columns).where(jobs.c.id.in_(NOBODY))


def _unchanged(bulk: Bulk, status: Status) -> list[ColumnElement[bool]]:
    """Return the conditions for jobs that this change has not changed yet.

    It may already have retried a job that failed or died after ``as_of``, so leave such a job alone.
    """
    c = jobs.c
    if status in FINAL:
        dealt = [text(UNSETTLED_DEAD_SQL)] if bulk.verb == "dismiss" else []
        return [c.finished_at <= bulk.as_of, *dealt]  # type: ignore[list-item]
    if status is Status.FAILED:
        return [func.coalesce(c.last_failed_at, c.created_at) <= bulk.as_of]
    if status is Status.RUNNING:
        return [c.cancel_requested_at.is_(None)]  # jobs that nobody has asked to stop yet
    return []


SOME: Final = 3
# Read at most this many rows of the audit trail. Each row covers up to operating.BATCH jobs.
ACTS_READ: Final = 5_000


def done_so_far(connection: Connection, bulk: Bulk, of: Mapping[str, str]) -> Counter[str]:
    """Count, by actor, the jobs that a change has changed so far. *of* is the filter in the change's audit entries."""
    done: Counter[str] = Counter()
    for row in _acts(connection, bulk, of, audit.c.subject == "jobs"):
        done[row.actor] += len(row.detail.get("ids", ()))
    return done


def some_done(connection: Connection, bulk: Bulk, of: Mapping[str, str]) -> Sequence[int]:
    """Return the ids of a few jobs that a change has changed so far."""
    ids = (id_ for row in _acts(connection, bulk, of, audit.c.subject == "jobs") for id_ in row.detail.get("ids", ()))
    return list(islice(ids, SOME))


def asked_so_far(connection: Connection, bulk: Bulk, of: Mapping[str, str]) -> int:
    """Return how many running jobs a cancel has asked to stop. Each such job has its own audit entry."""
    return sum(1 for _ in _acts(connection, bulk, of, audit.c.subject != "jobs"))


def _acts(connection: Connection, bulk: Bulk, of: Mapping[str, str], subject: ColumnElement[bool]) -> Generator[Any]:
    rows = connection.execute(
        select(audit.c.actor, audit.c.detail)
        .where(audit.c.action == bulk.verb, subject, audit.c.at >= bulk.as_of)
        .order_by(audit.c.at)
        .limit(ACTS_READ)
    )
    for row in rows:
        if isinstance(row.detail, dict) and row.detail.get("filter") == of:
            yield row


def newest_id(connection: Connection) -> int:
    """Return the newest job's id, or 0 if there are no jobs."""
    newest: int = connection.execute(select(func.coalesce(func.max(jobs.c.id), 0))).scalar_one()
    return newest
