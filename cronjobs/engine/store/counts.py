"""Count what has ended: attempts and jobs by hour and job type; jobs and settled occurrences also by schedule.

The transaction that records an end also inserts rows into ``cronjobs_new_counts``. No transaction updates these rows,
so no transaction waits for the lock of another. In spare time, ``fold`` moves the rows into ``cronjobs_counts``, which
contains sums for each hour, and sums over all hours. docs/adr/0018 gives the reasons for this design.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from cronjobs.engine.probe.sql_text import COUNTS, JOB_RUNS, JOBS, NEW_COUNTS, NOW, either
from cronjobs.engine.store.sql import AMONG_IDS, group, is_postgresql, run
from cronjobs.text import clean

# Fold at most this many rows in one transaction, because on SQLite every other writer waits until it ends.
BATCH: Final = 500
# A tick that has done any work folds the new rows if there are at least this many. Otherwise the hourly round folds
# them.
MANY: Final = 500
KEPT_HOURS: Final = 31 * 24
# This "hour" stands for all hours. Real hours are counted from the beginning of 1970.
EVER: Final = 0
# Counts of these kinds are kept for each hour. Counts of the other kinds are kept only for all hours together.
BY_HOUR: Final = frozenset({"attempts", "jobs"})
LONGEST_LABEL: Final = 300  # in characters
MOST_NAMES: Final = {"attempts": 200, "jobs": 200, "scheduled": 1000, "occurrences": 1000}
OTHER: Final = "other"  # replaces all names beyond MOST_NAMES
# The upper bounds of the buckets of both histograms: how long jobs waited after they were due, and how long attempts
# took. One more bucket counts all longer times.
BOUNDS_S: Final = (0.1, 0.5, 1, 5, 15, 30, 60, 120, 300, 900, 3600, 14400)
BOUNDS: Final = tuple(round(bound * 1_000_000) for bound in BOUNDS_S)
# This bucket number means that nothing was measured: the job never began, or nobody saw the attempt end.
NO_BUCKET: Final = -1


class Key(NamedTuple):
    """The subject of a count.

    ``name`` is a job type for the kinds "attempts" and "jobs", and a schedule for "scheduled" and "occurrences".
    """

    kind: str
    name: str
    outcome: str
    bucket: int = NO_BUCKET
    hour: int = EVER


class Sum(NamedTuple):
    """The number of attempts or jobs that ended, the sum and the maximum of their times, and when the last of them
    ended.

    An attempt's time is how long it ran. A job's time is how long it waited. All times are in microseconds. The total
    is a float, because an integer could overflow if somebody inserted many jobs with a run_at in 1973. A float total is
    exact up to 285 years.
    """

    number: int
    micros: float = 0
    longest: int | None = None
    newest: int | None = None

    def plus(self, other: Sum) -> Sum:
        return Sum(
            self.number + other.number,
            self.micros + other.micros,
            _later(self.longest, other.longest),
            _later(self.newest, other.newest),
        )


Sums = dict[Key, Sum]


def _later(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def add(sums: Sums, key: Key, more: Sum) -> None:
    sums[key] = sums[key].plus(more) if key in sums else more


# --- counting ---------------------------------------------------------------------------------------------------------


def _micros(first: str, last: str) -> str:
    """Return SQL for the microseconds from *first* to *last*, or 0 if the clock was set back in between."""
    return either(
        postgresql=f"CAST(greatest(0, extract(epoch FROM {last} - {first}) * 1000000) AS bigint)",
        sqlite=f"max(0, {last} - {first})",
    )


_THIS_HOUR: Final = either(
    postgresql=f"CAST(floor(extract(epoch FROM {NOW}) / 3600) AS bigint)", sqlite=f"({NOW} / 3600000000)"
)
_TOOK: Final = _micros("r.started_at", "r.finished_at")
_ENDED_MICROS: Final = either(
    postgresql="CAST(extract(epoch FROM e.finished_at) * 1000000 AS bigint)", sqlite="e.finished_at"
)
# Look up each run by its key. Otherwise PostgreSQL, while it has no statistics, reads the whole history to find these
# few runs.
_ITS_RUN: Final = either(
    postgresql=f"CROSS JOIN LATERAL (SELECT r.outcome, r.started_at, r.finished_at FROM {JOB_RUNS} r "
    "WHERE r.job_id = e.id AND r.attempt = e.attempts LIMIT 1) r",
    sqlite=f"JOIN {JOB_RUNS} r ON r.job_id = e.id AND r.attempt = e.attempts",
)
_COUNT_ROWS: Final = group(
    "rows",
    {"hour": "bigint", "kind": "text", "name": "text", "outcome": "text", "bucket": "int"}
    | {"number": "bigint", "micros": "float8", "longest": "bigint", "newest": "bigint"},
)
_OCCURRENCE_ROWS: Final = group("rows", {"schedule_id": "bigint", "outcome": "text", "number": "bigint"})

_BUCKET: Final = (
    "CASE WHEN c.micros IS NULL THEN -1 "
    + " ".join(f"WHEN c.micros <= {bound} THEN {n}" for n, bound in enumerate(BOUNDS))
    + f" ELSE {len(BOUNDS)} END"
)
# Nobody saw when a lost attempt ended, so its duration is unknown.
_ATTEMPTS: Final = f"""
  SELECT 'attempts' AS kind, e.job_type AS name, r.outcome, CASE WHEN r.outcome <> 'lost' THEN {_TOOK} END AS micros,
    CAST(NULL AS bigint) AS newest FROM e {_ITS_RUN}
  UNION ALL"""
_WAITED: Final = (
    f"CASE WHEN e.status <> 'cancelled' AND e.started_at IS NOT NULL THEN {_micros('e.run_at', 'e.started_at')} END"
)
_NOT_WAITED: Final = "CAST(NULL AS bigint)"


def count_ends(connection: Connection, ids: Collection[int]) -> None:
    """Count the attempts of these jobs that this transaction has just ended, and the jobs that ended with them.

    The counts come from the rows, so an attempt that had lost its lease before it ended is not counted. If an attempt
    was recorded as timed out while its thread was still running, it is counted once, with its final outcome. The caller
    has locked the jobs' rows, so no newer attempt exists.
    """
    _count(connection, ids, _ATTEMPTS, _WAITED)


def count_jobs(connection: Connection, ids: Collection[int]) -> None:
    """Count jobs that this transaction ended while they were waiting. Their attempts have already been counted."""
    _count(connection, ids, "", _NOT_WAITED)


def _count(connection: Connection, ids: Collection[int], attempts: str, waited: str) -> None:
    if not ids:
        return
    run(
        connection,
        f"""
        INSERT INTO {NEW_COUNTS} (at_hour, kind, name, outcome, bucket, count, micros, longest, newest)
        WITH e AS MATERIALIZED (
          SELECT j.id, j.attempts, j.job_type, j.schedule, j.status, j.run_at, j.started_at, j.finished_at
          FROM {JOBS} j WHERE j.id {AMONG_IDS})
        SELECT {_THIS_HOUR}, c.kind, substr(c.name, 1, {LONGEST_LABEL}), c.outcome, {_BUCKET}, count(*),
          coalesce(sum(CAST(c.micros AS double precision)), 0), max(c.micros), max(c.newest)
        FROM ({attempts}
          SELECT 'jobs' AS kind, e.job_type AS name, e.status AS outcome, {waited} AS micros,
            CAST(NULL AS bigint) AS newest FROM e WHERE e.finished_at IS NOT NULL
          UNION ALL
          SELECT 'scheduled', e.schedule, e.status, CAST(NULL AS bigint), {_ENDED_MICROS}
          FROM e WHERE e.finished_at IS NOT NULL AND e.schedule IS NOT NULL) c
        GROUP BY 2, 3, 4, 5""",
        ids=sorted(ids),
    )


def count_occurrences(connection: Connection, occurred: Iterable[tuple[int, str, int]]) -> None:
    """Count occurrences that are settled for the first time, given as (schedule id, outcome, number)."""
    numbers: Counter[tuple[int, str]] = Counter()
    for schedule_id, outcome, number in occurred:
        numbers[schedule_id, outcome] += number
    if numbers:
        run(
            connection,
            f"""INSERT INTO {NEW_COUNTS} (at_hour, kind, name, outcome, bucket, count)
               SELECT {_THIS_HOUR}, 'occurrences', CAST(r.schedule_id AS text), r.outcome, -1, r.number
               FROM {_OCCURRENCE_ROWS} r""",
            rows=[
                {"schedule_id": schedule_id, "outcome": outcome, "number": number}
                for (schedule_id, outcome), number in sorted(numbers.items())
            ],
        )


# --- folding ----------------------------------------------------------------------------------------------------------


def many_new(connection: Connection) -> bool:
    return run(connection, f"SELECT 1 FROM {NEW_COUNTS} LIMIT 1 OFFSET :most", most=MANY - 1).first() is not None


def fold(connection: Connection, most: int = BATCH) -> bool:
    """Move up to *most* new rows into the sums. Return whether there may be more.

    Call this in a short transaction of its own. Does nothing while another process is folding.
    """
    if not _alone(connection):
        return False
    lock = "FOR UPDATE SKIP LOCKED" if is_postgresql(connection) else ""
    moved = run(
        connection,
        f"""
        WITH mine AS MATERIALIZED (SELECT n.id FROM {NEW_COUNTS} n ORDER BY n.id LIMIT :most {lock})
        DELETE FROM {NEW_COUNTS} WHERE id IN (SELECT id FROM mine)
        RETURNING at_hour, kind, name, outcome, bucket, count AS number, micros, longest, newest""",
        most=most,
    ).all()
    sums: Sums = {}
    for row in moved:
        key = Key(row.kind, clean(row.name), row.outcome, row.bucket)
        each = Sum(row.number, row.micros, row.longest, row.newest)
        add(sums, key, each)
        # A row has hour 0 if the server's clock started in 1970.
        if row.kind in BY_HOUR and row.at_hour > EVER:
            add(sums, key._replace(hour=row.at_hour), each)
    if sums:
        _put(connection, named(sums, _names(connection), storing=True))
    return len(moved) == most


def _alone(connection: Connection) -> bool:
    """Stop other processes from folding until this transaction ends. Return False if another process is folding now.

    The lock is on a row whose kind is empty. Nobody waits for the lock, because its holder may be frozen.
    """
    if not is_postgresql(connection):
        return True
    statement = f"SELECT 1 FROM {COUNTS} c WHERE c.at_hour = :ever AND c.kind = '' FOR UPDATE SKIP LOCKED"
    if run(connection, statement, ever=EVER).first() is not None:
        return True
    made = run(
        connection,
        f"""INSERT INTO {COUNTS} (at_hour, kind, name, outcome, bucket) VALUES (:ever, '', '', '', -1)
           ON CONFLICT (at_hour, kind, name, outcome, bucket) DO NOTHING RETURNING kind""",
        ever=EVER,
    )
    return made.first() is not None


def _names(connection: Connection) -> dict[str, set[str]]:
    known: dict[str, set[str]] = {}
    for row in run(connection, f"SELECT DISTINCT c.kind, c.name FROM {COUNTS} c WHERE c.at_hour = :ever", ever=EVER):
        known.setdefault(row.kind, set()).add(row.name)
    return known


def _put(connection: Connection, sums: Sums) -> None:
    run(
        connection,
        f"""INSERT INTO {COUNTS} AS c (at_hour, kind, name, outcome, bucket, count, micros, longest, newest)
           SELECT r.hour, r.kind, r.name, r.outcome, r.bucket, r.number, r.micros, r.longest, r.newest
           FROM {_COUNT_ROWS} r WHERE true
           ON CONFLICT (at_hour, kind, name, outcome, bucket) DO UPDATE SET count = c.count + excluded.count,
             micros = c.micros + excluded.micros,
             longest = CASE WHEN c.longest > excluded.longest THEN c.longest
                            ELSE coalesce(excluded.longest, c.longest) END,
             newest = CASE WHEN c.newest > excluded.newest THEN c.newest
                           ELSE coalesce(excluded.newest, c.newest) END""",
        rows=[key._asdict() | each._asdict() for key, each in sorted(sums.items())],
    )


def named(sums: Sums, known: dict[str, set[str]], *, storing: bool = False) -> Sums:
    """Merge the names of a kind beyond MOST_NAMES into OTHER. Add the new names that stay to *known*.

    Keep the names that arrived first, and among names that arrive together, those with the largest counts. If we always
    kept the largest, a name could be dropped and return later, and its counter would go backwards. Stored occurrences
    are not merged, because their names are schedule ids, which are few.
    """
    sizes: Counter[tuple[str, str]] = Counter()
    for key, each in sums.items():
        sizes[key.kind, key.name] += each.number
    for kind, name in sorted(sizes, key=lambda one: (-sizes[one], one)):
        taken = known.setdefault(kind, set())
        if (storing and kind == "occurrences") or len(taken) < MOST_NAMES.get(kind, 0):
            taken.add(name)
    found: Sums = {}
    for key, each in sums.items():
        add(found, key if key.name in known[key.kind] else key._replace(name=OTHER), each)
    return found


def remove_old_hours(connection: Connection) -> bool:
    """Delete the oldest hour if charts no longer show it.

    Return whether an hour was deleted. The sums over all hours are kept.
    """
    gone = run(
        connection,
        f"""DELETE FROM {COUNTS} WHERE at_hour < {_THIS_HOUR} - {KEPT_HOURS}
              AND at_hour = (SELECT min(c.at_hour) FROM {COUNTS} c WHERE c.at_hour > :ever) RETURNING at_hour""",
        ever=EVER,
    )
    return gone.first() is not None


# --- reading ----------------------------------------------------------------------------------------------------------


def all_that_ended(connection: Connection) -> Sums:
    """Return the sums of all attempts, jobs and occurrences that ever ended.

    One statement reads both tables, because ``fold`` may move rows from one table to the other at any time.
    """
    rows: Any = run(
        connection,
        f"""
        SELECT 1 AS folded, c.kind, c.name, c.outcome, c.bucket, c.count AS number, c.micros, c.longest, c.newest
        FROM {COUNTS} c WHERE c.at_hour = :ever AND c.kind <> ''
        UNION ALL
        SELECT 0, n.kind, n.name, n.outcome, n.bucket, CAST(sum(n.count) AS bigint), sum(n.micros), max(n.longest),
          max(n.newest)
        FROM {NEW_COUNTS} n GROUP BY n.kind, n.name, n.outcome, n.bucket""",
        ever=EVER,
    )
    sums: Sums = {}
    new: Sums = {}
    known: dict[str, set[str]] = {}
    for row in rows:
        each = Sum(row.number, row.micros, row.longest, row.newest)
        if row.folded:
            known.setdefault(row.kind, set()).add(row.name)
        add(sums if row.folded else new, Key(row.kind, clean(row.name), row.outcome, row.bucket), each)
    for key, each in named(new, known).items():
        add(sums, key, each)
    return sums


def longest_lately(connection: Connection) -> Sums:
    """Return the longest attempts and waits that ended in this hour or in the hour before, by kind and name."""
    rows: Any = run(
        connection,
        f"""
        SELECT e.kind, e.name, max(e.longest) AS longest FROM (
          SELECT c.kind, c.name, c.longest FROM {COUNTS} c WHERE c.at_hour >= {_THIS_HOUR} - 1
          UNION ALL SELECT n.kind, n.name, n.longest FROM {NEW_COUNTS} n WHERE n.at_hour >= {_THIS_HOUR} - 1) AS e
        WHERE e.longest IS NOT NULL GROUP BY e.kind, e.name""",
    )
    return {Key(row.kind, clean(row.name), ""): Sum(0, longest=row.longest) for row in rows}


class HourSum(NamedTuple):
    """The counts of one hour. Hours are numbered from 1970.

    ``failed`` counts attempts that failed, timed out or were lost. ``timed`` is the number of jobs whose waiting time
    is known, and ``micros`` the total of these times.
    """

    at_hour: int
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    failed: int = 0
    timed: int = 0
    micros: float = 0.0
    longest: int | None = None


def _numbers(**which: str) -> str:
    """Return SQL for one column per condition in *which*. Each sums the counts of the rows that match its condition."""
    return ", ".join(
        f"CAST(sum(CASE WHEN {each} THEN c.count ELSE 0 END) AS bigint) AS {name}" for name, each in which.items()
    )


_FAILED: Final = "c.kind = 'attempts' AND c.outcome IN ('failed', 'timed_out', 'lost')"
_TIMED_JOBS: Final = f"c.kind = 'jobs' AND c.bucket <> {NO_BUCKET}"


def _summed(table: str) -> str:
    """Return SQL that sums a table by hour. It needs no sort, because the primary key has this order."""
    statuses = {status: f"c.kind = 'jobs' AND c.outcome = '{status}'" for status in ("succeeded", "dead", "cancelled")}
    return f"""
      SELECT c.at_hour, {_numbers(**statuses, failed=_FAILED, timed=_TIMED_JOBS)},
        sum(CASE WHEN c.kind = 'jobs' THEN c.micros ELSE 0 END) AS micros,
        max(CASE WHEN c.kind = 'jobs' THEN c.longest END) AS longest
      FROM {table} c WHERE c.at_hour >= :first AND c.at_hour > :ever GROUP BY c.at_hour"""


_BY_HOUR: Final = f"{_summed(COUNTS)} UNION ALL {_summed(NEW_COUNTS)}"


def by_hour(connection: Connection, first: int) -> list[HourSum]:
    """Return the counts of each hour from *first* on, over all job types. An hour may appear twice, or not at all.

    As in ``all_that_ended``, one statement reads both tables.
    """
    return [HourSum(**row._mapping) for row in run(connection, _BY_HOUR, first=first, ever=EVER)]


class TypeSum(NamedTuple):
    """The counts of one job type: ended jobs, how long they waited, failed attempts, and how long attempts ran.

    ``waited`` and ``ran`` are the numbers of jobs and attempts whose time is known. Times are in microseconds.
    ``longest_…`` is None if no time is known.
    """

    name: str
    ended: int
    dead: int
    failed: int
    waited: int
    ran: int
    wait_micros: float
    run_micros: float
    longest_wait: int | None
    longest_run: int | None


def _times(kind: str, word: str) -> str:
    return f"""sum(CASE WHEN c.kind = '{kind}' THEN c.micros ELSE 0 END) AS {word}_micros,
        max(CASE WHEN c.kind = '{kind}' THEN c.longest END) AS longest_{word}"""


_BY_TYPE_NUMBERS: Final = _numbers(
    ended="c.kind = 'jobs'",
    dead="c.kind = 'jobs' AND c.outcome = 'dead'",
    failed=_FAILED,
    waited=_TIMED_JOBS,
    ran=f"c.kind = 'attempts' AND c.bucket <> {NO_BUCKET}",
)
_ENDS: Final = " UNION ALL ".join(
    f"""SELECT c.name, c.kind, c.outcome, c.bucket, c.count, c.micros, c.longest FROM {table} c
      WHERE c.at_hour >= :first AND c.at_hour > :ever AND c.kind IN ('attempts', 'jobs')"""
    for table in (COUNTS, NEW_COUNTS)
)


def by_type(connection: Connection, first: int) -> list[TypeSum]:
    """Return the counts of each job type from hour *first* (numbered from 1970) on.

    Types beyond MOST_NAMES are folded into OTHER.
    """
    rows: Any = run(
        connection,
        f"""SELECT c.name, {_BY_TYPE_NUMBERS}, {_times("jobs", "wait")}, {_times("attempts", "run")}
            FROM ({_ENDS}) c GROUP BY c.name""",
        first=first,
        ever=EVER,
    )
    return [TypeSum(**{**row._mapping, "name": clean(row.name)}) for row in rows]
