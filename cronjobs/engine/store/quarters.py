"""The recent outcomes of schedules' occurrences, as strips of letters for the web pages, and the table that caches
closed hours.

A row of ``cronjobs_quarters`` is one hour of one schedule in which nothing can change any more. Hours without a row are
read from the ledger, so the table may be empty. Each row saves reading up to sixty occurrences and their jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.engine.crontime.timing import Timing, timing
from cronjobs.engine.probe.sql_text import JOBS, NOW, OCCURRENCES, QUARTERS, SCHEDULES, either
from cronjobs.engine.rules.occurrences import RAN_EARLY
from cronjobs.engine.rules.quarters import (
    FINAL_LETTERS,
    HOUR,
    IN_AN_HOUR,
    NOTHING,
    QUARTER,
    WAITING,
    ResultSpan,
    evenly,
    gaps,
    number_of,
    painted,
    worse,
)
from cronjobs.engine.store.given_up import pruned_dead
from cronjobs.engine.store.sql import AMONG_IDS, group, run
from cronjobs.errors import CronjobsError

# In the row with this schedule_id, ``hour`` says until when all hours are closed. Real ids begin with 1.
MARK: Final = 0
# The row with schedule_id MARK and this hour, which is before all real hours, serves as the lock.
NEVER: Final = datetime(2000, 1, 1, tzinfo=UTC)
KEPT: Final = timedelta(hours=26)
# Do not count the occurrences of a longer range, because that takes too long.
COUNTED: Final = timedelta(days=31)
MICROSECOND: Final = timedelta(microseconds=1)
SECONDS: Final = int(QUARTER.total_seconds())
# An hour stays open this long after its end, because its last jobs may still be running.
LATEST: Final = timedelta(minutes=5)


def quarter_sql(instant: str) -> str:
    """Return SQL for the number of the quarter-hour that contains *instant*."""
    return either(
        postgresql=f"CAST(floor(extract(epoch FROM {instant}) / 900) AS bigint)", sqlite=f"({instant} / 900000000)"
    )


_QUARTER_OF_FIRST: Final = quarter_sql("c.first_for")
_QUARTER_OF_LAST: Final = quarter_sql("c.last_for")
# The status of the job that an occurrence created. Use a subquery, because for a join PostgreSQL might read all jobs.
_STATUS_OF_JOB: Final = (
    f"CASE WHEN c.outcome = 'enqueued' THEN (SELECT r.status FROM {JOBS} r WHERE r.id = c.job_id) END"
)
_EARLY: Final = f"c.outcome = 'enqueued' AND c.reason LIKE '{RAN_EARLY}%'"
# Select instants only for the few rows that need them, because decoding instants takes longer than everything else
# here.
_BECAME: Final = f"""c.schedule_id, {_QUARTER_OF_FIRST} AS first_in, {_QUARTER_OF_LAST} AS last_in, c.outcome,
  {_STATUS_OF_JOB} AS status, CAST(c.count AS integer) AS many, CASE WHEN c.count > 2 THEN c.first_for END AS first_for,
  CASE WHEN c.count > 2 OR {_EARLY} THEN c.last_for END AS last_for,
  CASE WHEN {_EARLY} THEN c.reason END AS early,
  CASE WHEN {_EARLY} THEN (SELECT r.attempts FROM {JOBS} r WHERE r.id = c.job_id) END AS attempts,
  CASE WHEN {_EARLY} THEN (SELECT r.started_at FROM {JOBS} r WHERE r.id = c.job_id) END AS began_at,
  CASE WHEN c.outcome = 'enqueued' THEN c.job_id END AS job_id"""
_GAP_ROWS: Final = group("rows", {"schedule_id": "bigint", "begin": "timestamptz", "ends": "timestamptz"})
_HOUR_ROWS: Final = group("rows", {"schedule_id": "bigint", "hour": "timestamptz", "quarters": "text"})
_SPAN_ROWS: Final = group("rows", {"schedule_id": "bigint", "first_for": "timestamptz", "last_for": "timestamptz"})
# A gap is a range of hours that are not closed. The last ledger row of a gap may begin inside the gap and end after it.
_OF_GAP: Final = f"""c.schedule_id = g.schedule_id AND c.last_for >= g.begin AND c.last_for <= coalesce(
  (SELECT n.last_for FROM {OCCURRENCES} n WHERE n.schedule_id = g.schedule_id AND n.last_for >= g.ends
   ORDER BY n.last_for LIMIT 1), g.ends)"""
# The LIMIT prevents PostgreSQL from planning a join.
_IN_GAP: Final = either(
    postgresql=f"LATERAL (SELECT c.* FROM {OCCURRENCES} c WHERE {_OF_GAP} ORDER BY c.last_for LIMIT {1 << 31}) c",
    sqlite=f"{OCCURRENCES} c WHERE {_OF_GAP}",
)


# --- strips -----------------------------------------------------------------------------------------------------------


def strips(connection: Connection, ids: Collection[int], first: int, count: int) -> dict[int, str]:
    """Return, by schedule id, the worst letter of each of *count* quarter-hours, beginning with number *first*.

    An occurrence that is due, but that no tick has settled yet, counts as waiting.
    """
    known = _hours(connection, ids, first)
    open_ranges = [
        {"schedule_id": id_, "begin": _at(begin), "ends": _at(end)}
        for id_ in sorted(ids)
        for begin, end in gaps(first, count, known.get(id_, {}))
    ]
    became = _became_in(connection, open_ranges)
    cells = painted(became, first, count, _due(connection, became))
    waiting = _unsettled(connection, ids, first, count)
    return {
        id_: _with_waiting(
            _with_hours(cells.get(id_, NOTHING * count), first, known.get(id_, {})), first, waiting.get(id_, ())
        )
        for id_ in ids
    }


def _unsettled(connection: Connection, ids: Collection[int], first: int, count: int) -> dict[int, set[int]]:
    """Return, by schedule id, the quarters in which an occurrence is due and not settled yet."""
    rows = run(
        connection,
        f"""SELECT s.id, s.definition, s.next_at, {NOW} AS now FROM {SCHEDULES} s
           WHERE s.id {AMONG_IDS} AND s.next_at <= {NOW}""",
        ids=sorted(ids),
    )
    found: dict[int, set[int]] = {}
    for row in rows:
        quarters = {number_of(row.next_at)}
        if (when := _timing(row.definition)) is not None:
            begin, end = max(row.next_at, _at(first)), min(row.now, _at(first + count))
            quarters |= {second // SECONDS for second in when.seconds(begin - MICROSECOND, end)}
        found[row.id] = {quarter for quarter in quarters if first <= quarter < first + count}
    return found


def _with_waiting(cells: str, first: int, quarters: Iterable[int]) -> str:
    line = list(cells)
    for quarter in quarters:
        line[quarter - first] = worse(line[quarter - first], WAITING)
    return "".join(line)


def _hours(connection: Connection, ids: Collection[int], first: int) -> dict[int, dict[int, str]]:
    """Return the letters of closed hours, by schedule and by the number of the hour's first quarter."""
    rows = run(
        connection,
        f"SELECT q.schedule_id, q.hour, q.quarters FROM {QUARTERS} q WHERE q.schedule_id {AMONG_IDS} "
        "AND q.hour >= :since",
        ids=sorted(ids),
        since=_at(first - first % IN_AN_HOUR),
    )
    found: dict[int, dict[int, str]] = {}
    for row in rows:
        found.setdefault(row.schedule_id, {})[number_of(row.hour)] = row.quarters
    return found


def _with_hours(cells: str, first: int, hours: Mapping[int, str]) -> str:
    line = list(cells)
    for start, letters in hours.items():
        for place, letter in enumerate(letters, start - first):
            if 0 <= place < len(line):
                line[place] = letter
    return "".join(line)


def _became_in(connection: Connection, ranges: Sequence[dict[str, Any]]) -> list[ResultSpan]:
    if not ranges:
        return []
    rows = run(
        connection,
        f"""
        SELECT {_BECAME}
        FROM {_GAP_ROWS} g CROSS JOIN {_IN_GAP}""",
        rows=list(ranges),
    )
    return _spans(connection, rows)


def _spans(connection: Connection, rows: Iterable[Row[Any]]) -> list[ResultSpan]:
    """Return *rows*, selected by _BECAME.

    A dead job that nobody dismissed still counts as dead after pruning has deleted it.
    """
    became = [ResultSpan._make(row) for row in rows]
    gone = {each.job_id for each in became if each.status is None and each.job_id is not None}
    died = pruned_dead(connection, gone)
    return [each._replace(status="dead") if each.job_id in died else each for each in became] if died else became


def _due(connection: Connection, became: Iterable[ResultSpan]) -> Callable[[ResultSpan, int, int], Iterable[int]]:
    """Return a function for the quarters in which a row's occurrences were due.

    The function uses the schedule's present timing if that gives the row's first and last occurrence, and their number.
    Otherwise, for example for a row of an earlier definition, the function spreads the occurrences evenly.
    """
    wide = sorted({row.schedule_id for row in became if row.span})
    statement = f"SELECT s.id, s.definition FROM {SCHEDULES} s WHERE s.id {AMONG_IDS}"
    timings = {row.id: _timing(row.definition) for row in run(connection, statement, ids=wide)} if wide else {}

    def due(row: ResultSpan, first: int, count: int) -> Iterable[int]:
        when = timings.get(row.schedule_id)
        if when is None or row.span is None or row.span[1] - row.span[0] > COUNTED:
            return evenly(row, first, count)
        after, until = row.span[0] - MICROSECOND, row.span[1]
        if when.span(after, until) != (row.many, *row.span):
            return evenly(row, first, count)
        seconds = when.seconds(max(after, _at(first) - MICROSECOND), min(until, _at(first + count)))
        return {second // SECONDS for second in seconds}

    return due


def _timing(definition: Any) -> Timing | None:
    """Return the timing of *definition*, or None if it cannot be read."""
    try:
        every = definition.get("every_s")
        each = None if every is None else timedelta(seconds=every)
        return timing(definition.get("cron"), each, definition.get("timezone", "UTC"))
    except (CronjobsError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError):
        # Plain SQL may have written anything into the definition.
        return None


def _at(quarter: int) -> datetime:
    return datetime.fromtimestamp(quarter * QUARTER.total_seconds(), UTC)


# --- closed hours -----------------------------------------------------------------------------------------------------


def next_open_hour(connection: Connection, now: datetime) -> datetime | None:
    """Return the first ended hour that is not closed yet and had something due, or None."""
    oldest = _at(number_of(now - timedelta(hours=24)) // IN_AN_HOUR * IN_AN_HOUR)
    marked: datetime | None = run(
        connection,
        f"SELECT q.hour FROM {QUARTERS} q WHERE q.schedule_id = :mark AND q.hour > :never",
        mark=MARK,
        never=NEVER,
    ).scalar()
    hour = oldest if marked is None or marked > now else max(oldest, marked)
    first: datetime | None = run(
        connection,
        f"SELECT c.last_for FROM {OCCURRENCES} c WHERE c.last_for >= :hour ORDER BY c.last_for LIMIT 1",
        hour=hour,
    ).scalar()
    if first is None:
        return None
    hour = _at(number_of(first) // IN_AN_HOUR * IN_AN_HOUR)
    return hour if hour + HOUR + LATEST <= now else None


def close_hour(connection: Connection, now: datetime) -> bool:
    """Close the oldest ended hour that is still open, in one transaction. Return False if no hour can be closed."""
    _alone(connection)
    hour = next_open_hour(connection, now)
    if hour is None:
        return False
    _keep(connection, hour, _closed_in(connection, hour))
    return True


def _alone(connection: Connection) -> None:
    """Let no other transaction close an hour or rewrite occurrences until this transaction ends.

    Wait for any transaction that has already begun to close an hour or to rewrite occurrences.
    """
    # Lock a row that is never deleted. If the row that a session waits for is deleted, the session goes on without a
    # lock.
    run(
        connection,
        f"""INSERT INTO {QUARTERS} AS q (schedule_id, hour, quarters) VALUES (:mark, :never, '')
           ON CONFLICT (schedule_id, hour) DO UPDATE SET quarters = excluded.quarters""",
        mark=MARK,
        never=NEVER,
    )


def _closed_in(connection: Connection, hour: datetime) -> list[dict[str, Any]]:
    """Return the rows to store for *hour*: one for each schedule whose occurrences in the hour can no longer change."""
    ends = hour + HOUR
    settled = run(
        connection,
        f"""
        SELECT j.id FROM {SCHEDULES} j WHERE j.seen_until >= :ends AND j.owed IS NULL AND coalesce(
          (SELECT c.first_for FROM {OCCURRENCES} c WHERE c.schedule_id = j.id AND c.last_for >= :ends
           ORDER BY c.last_for LIMIT 1), :ends) >= :ends""",
        ends=ends,
    )
    ids = set(settled.scalars())
    rows = run(
        connection,
        f"""
        SELECT {_BECAME}
        FROM {OCCURRENCES} c WHERE c.last_for >= :hour AND c.last_for < :ends""",
        hour=hour,
        ends=ends,
    )
    first = number_of(hour)
    became = _spans(connection, rows)
    due = _due(connection, became)
    ids -= {each.schedule_id for each in became if each.letter not in FINAL_LETTERS}
    found = painted((each for each in became if each.schedule_id in ids), first, IN_AN_HOUR, due)
    return [{"schedule_id": id_, "hour": hour, "quarters": letters} for id_, letters in sorted(found.items())]


def _keep(connection: Connection, hour: datetime, rows: Sequence[dict[str, Any]]) -> None:
    """Write the *rows* of *hour*, mark the hour as closed, and delete rows that are too old for any strip."""
    mark = {"schedule_id": MARK, "hour": hour + HOUR, "quarters": ""}
    run(
        connection,
        f"DELETE FROM {QUARTERS} WHERE (schedule_id = :mark OR hour < :before) AND hour > :never",
        mark=MARK,
        never=NEVER,
        before=hour - KEPT,
    )
    run(
        connection,
        f"""INSERT INTO {QUARTERS} AS q (schedule_id, hour, quarters)
           SELECT r.schedule_id, r.hour, r.quarters FROM {_HOUR_ROWS} r WHERE true
           ON CONFLICT (schedule_id, hour) DO UPDATE SET quarters = excluded.quarters""",
        rows=[mark, *rows],
    )


def forget_hours(connection: Connection, spans: Sequence[dict[str, Any]]) -> None:
    """Reopen the hours in *spans* (schedule_id, first_for, last_for). The caller will write their occurrences again."""
    _alone(connection)
    rows = [span | {"first_for": _at(number_of(span["first_for"]) // IN_AN_HOUR * IN_AN_HOUR)} for span in spans]
    run(
        connection,
        f"""DELETE FROM {QUARTERS} WHERE EXISTS (
             SELECT 1 FROM {_SPAN_ROWS} r WHERE r.schedule_id = {QUARTERS}.schedule_id
               AND {QUARTERS}.hour >= r.first_for AND {QUARTERS}.hour <= r.last_for)""",
        rows=rows,
    )
