"""The SQL of ``books``: ledger rows with the status of their jobs, and schedules' jobs that are in no ledger row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row

from cronjobs.engine.probe.sql_text import JOBS, OCCURRENCES, TICKS, either, shifted
from cronjobs.engine.rules.occurrences import BACKFILLED, RAN_EARLY, only_ran_early
from cronjobs.engine.store.given_up import pruned_dead
from cronjobs.engine.store.sql import run

# The range of Python's datetime (years 1 to 9999) in seconds since 1970, less a day at each end for time zones.
FIRST_S, LAST_S = -62_135_510_400, 253_402_214_400


def _microseconds(column: str) -> str:
    """Return SQL that reads an instant as a number, which is fast. Clamp "infinity", which any SQL may have stored."""
    return either(
        postgresql=f"CAST(greatest(least(extract(epoch FROM {column}), {LAST_S}), {FIRST_S}) * 1000000 AS bigint)",
        sqlite=column,
    )


_FIRST_MICROS: Final = _microseconds("c.first_for")
_LAST_MICROS: Final = _microseconds("c.last_for")
_JOB_MICROS: Final = _microseconds("j.scheduled_for")
_A_WHILE_BEFORE: Final = shifted(":at", "-600")
_A_WHILE_AFTER: Final = shifted(":at", "600")
# A tick may write its row after the rows of ticks that began up to two minutes later.
_JUST_BEFORE: Final = shifted(":at", "-120")

# Ticks get their ids in the order in which they write their rows. So if a tick with a higher id began earlier, the
# clock was set back.
_SET_BACK = f"""
  SELECT 1 FROM {TICKS} o CROSS JOIN {TICKS} t
  WHERE o.started_at > :at AND o.started_at <= {_A_WHILE_AFTER}
    AND t.started_at <= :at AND t.started_at >= {_A_WHILE_BEFORE} AND t.id > o.id LIMIT 1"""

# Like _SET_BACK, but for a clock set back by any amount. Such a clock went through the time before :at twice, so the
# last ticks before :at have higher ids than the ticks at :at. Check these last ticks first, and search for the first
# tick of the second pass only if there was a second pass.
_AT_WORK = (
    f"(SELECT min(o.id) FROM {TICKS} o WHERE o.started_at >= {_JUST_BEFORE} AND o.started_at <= {_A_WHILE_AFTER})"
)
_LIVED_AGAIN = f"""
  SELECT min(t.started_at) AS started_at FROM {TICKS} t
  WHERE t.started_at >= :begin AND t.started_at < {_JUST_BEFORE} AND t.id > {_AT_WORK}
    AND EXISTS (
      SELECT 1 FROM (
        SELECT l.id FROM {TICKS} l WHERE l.started_at < {_JUST_BEFORE} ORDER BY l.started_at DESC LIMIT 100) n
      WHERE n.id > {_AT_WORK})"""

# Scalar subqueries, not a join, for which the planner might read the whole job table.
_ENTRIES = f"""
  SELECT {_FIRST_MICROS} AS first_micros, {_LAST_MICROS} AS last_micros, c.count, c.outcome,
    CASE WHEN c.reason LIKE '{BACKFILLED}%' THEN 'backfill'
      WHEN c.reason LIKE '{RAN_EARLY}%' THEN 'early' END AS made_by,
    c.job_id,
    CASE WHEN c.outcome = 'enqueued' THEN
      (SELECT CASE WHEN j.scheduled_for = c.last_for THEN j.status ELSE 'other' END
       FROM {JOBS} j WHERE j.id = c.job_id) END AS job
  FROM {OCCURRENCES} c
  WHERE c.schedule_id = :schedule_id AND c.last_for >= :begin AND c.first_for <= :end ORDER BY c.last_for"""


def _unnamed(which: str) -> str:
    # Find unfinished jobs by the schedule index, and finished jobs by finished_at. A job that was cancelled before it
    # began does not count as a run. engine/schedules/wrong_clock.py explains why not.
    return f"""
  SELECT j.id, j.schedule, {_JOB_MICROS} AS micros FROM {JOBS} j
  WHERE {which} AND j.schedule IS NOT NULL AND j.schedule > ''
    AND j.scheduled_for >= :begin AND j.scheduled_for <= :end
    AND (j.enqueued_by LIKE 'schedule %' OR j.enqueued_by LIKE 'backfill %')
    AND NOT (j.status = 'cancelled' AND j.attempts = 0)
    AND NOT EXISTS (SELECT 1 FROM {OCCURRENCES} c
      WHERE c.job_id IS NOT NULL AND c.job_id = j.id AND c.outcome = 'enqueued')
  LIMIT :most"""


_WHICH = (
    "j.finished_at IS NULL",
    *(
        f"j.finished_at IS NOT NULL AND j.status = '{status}' AND j.finished_at >= :begin"
        for status in ("succeeded", "dead", "cancelled")
    ),
)


class Entry(NamedTuple):
    """A ledger row about ``number`` occurrences. ``first`` and ``last`` are in microseconds since 1970.

    ``by`` is "backfill", "early" (a wrong clock made the job), or None. ``job`` is the status of the job that the row
    names, "other" if that job belongs to another occurrence, or None if there is no such job.
    """

    first: int
    last: int
    number: int
    outcome: str
    by: str | None
    job_id: int | None
    job: str | None


class UnnamedJob(NamedTuple):
    """A schedule's job that is named in no ledger row. ``at`` is its ``scheduled_for``, in microseconds since 1970."""

    id: int
    schedule: str
    at: int


def entries(connection: Connection, schedule_id: int, begin: datetime, end: datetime) -> list[Entry]:
    """Return a schedule's ledger rows that overlap [*begin*, *end*], oldest first."""
    rows: Sequence[Row[Any]] = run(connection, _ENTRIES, schedule_id=schedule_id, begin=begin, end=end).all()
    found = list(map(Entry._make, rows))
    dead = pruned_dead(connection, [each.job_id for each in found if each.job is None and each.job_id is not None])
    return [each._replace(job="dead") if each.job is None and each.job_id in dead else each for each in found]


def ran_early_at(connection: Connection, schedule_id: int, begin: datetime, end: datetime) -> list[datetime]:
    """Return the occurrences that a wrong clock ran before they were due, and that have not run again since."""
    rows = run(
        connection,
        f"""
        SELECT c.last_for, c.reason, j.status, j.attempts, j.started_at
        FROM {OCCURRENCES} c LEFT JOIN {JOBS} j ON j.id = c.job_id
        WHERE c.schedule_id = :schedule_id AND c.last_for >= :begin AND c.last_for <= :end AND c.outcome = 'enqueued'
          AND c.reason LIKE '{RAN_EARLY}%' ORDER BY c.last_for""",
        schedule_id=schedule_id,
        begin=begin,
        end=end,
    )
    return [
        row.last_for
        for row in rows
        if only_ran_early(row.reason, row.last_for, row.status, row.attempts, row.started_at)
    ]


def unnamed_jobs(connection: Connection, begin: datetime, end: datetime, most: int) -> Iterator[UnnamedJob]:
    """Yield schedules' jobs that are in no ledger row, unordered, at most *most* for each condition in _WHICH."""
    for which in _WHICH:
        rows = run(connection, _unnamed(which), begin=begin, end=end, most=most)
        yield from map(UnnamedJob._make, rows.all())


def oldest_succeeded(connection: Connection) -> datetime | None:
    """Return when the oldest succeeded job in the database ended, or None if there is none."""
    at: datetime | None = run(
        connection,
        f"SELECT j.finished_at FROM {JOBS} j WHERE j.finished_at IS NOT NULL AND j.status = 'succeeded' "
        "ORDER BY j.finished_at LIMIT 1",
    ).scalar()
    return at


def clock_set_back(connection: Connection, begin: datetime, at: datetime) -> datetime | None:
    """Return the start of the time before *at* that the clock went through twice, because it was set back.

    The start is never before *begin*. If the only clock that was set back had been at most ten minutes ahead of *at*,
    return *at*. If ticks show no clock that was set back, return None.
    """
    began: datetime | None = run(connection, _LIVED_AGAIN, begin=begin, at=at).scalar()
    if began is not None:
        return began
    return at if run(connection, _SET_BACK, at=at).first() is not None else None
