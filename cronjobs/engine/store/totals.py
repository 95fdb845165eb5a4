"""How much ever ended: what is gone, what was counted among the rows that remain, and the rest, which is read.

``cronjobs_totals`` has the first two as its parts "gone" and "counted". The mark says which rows the second one is
about, so that whoever deletes or revives a row knows whether to take it out there. docs/adr/0018 has the proof.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row

from cronjobs.engine.database.column_types import to_microseconds
from cronjobs.engine.probe.sql_text import JOB_RUNS, JOBS, NOW, OCCURRENCES, TOTALS, either
from cronjobs.engine.rules.histogram import BOUNDS, NO_BUCKET, bucket_of
from cronjobs.engine.store.sql import JSON_TYPE, database_now, group, is_postgresql, json_text, run
from cronjobs.text import clean

# A row that ended this long ago is visible to everyone, unless it is one of the attempts that the mark names.
SETTLED: Final = timedelta(seconds=60)
BATCH: Final = 10_000  # rows that one transaction counts
FAR: Final = 100_000  # rows
MOST_IDS: Final = 20_000  # ids that it goes forward: it reads those jobs, ended or not
LONGEST_LABEL: Final = 300  # characters
MOST_NAMES: Final = {"attempts": 200, "jobs": 200, "scheduled": 1000, "occurrences": 1000}
OTHER: Final = "other"  # the name of all names beyond these

GONE, COUNTED = "gone", "counted"
STATUSES: Final = ("succeeded", "dead", "cancelled")


class Key(NamedTuple):
    """What is counted: kind "attempts" and "jobs" by job type, "scheduled" and "occurrences" by schedule."""

    kind: str
    name: str
    outcome: str
    bucket: int = NO_BUCKET


class Sum(NamedTuple):
    """How many, how long in all, and when the last one ended (both in microseconds).

    The former is a float, which plain SQL with instants of 1973 cannot make overflow; up to 285 years it is exact.
    """

    number: int
    micros: float = 0
    newest: int | None = None

    def plus(self, other: Sum) -> Sum:
        newest = max((each for each in (self.newest, other.newest) if each is not None), default=None)
        return Sum(self.number + other.number, self.micros + other.micros, newest)


Sums = dict[Key, Sum]


def add(sums: Sums, key: Key, more: Sum) -> None:
    sums[key] = sums[key].plus(more) if key in sums else more


@dataclass(frozen=True)
class CountedUpTo:
    """What is counted: of the jobs up to ``id`` all that ended before ``until``, except of the ``pending`` attempts.

    Those ran when the mark was set, so that their ends may come in late, with an earlier instant. ``until`` None:
    nothing is counted yet.
    """

    id: int = 0
    until: datetime | None = None
    pending: frozenset[tuple[int, int]] = frozenset()

    def has_attempt(self, job_id: int, attempt: int, finished_at: datetime) -> bool:
        return self._has(job_id, finished_at) and (job_id, attempt) not in self.pending

    def has_job(self, job_id: int, finished_at: datetime) -> bool:
        return self._has(job_id, finished_at) and job_id not in {pending for pending, _ in self.pending}

    def _has(self, job_id: int, finished_at: datetime) -> bool:
        return self.until is not None and job_id <= self.id and finished_at < self.until


def _each(alias: str, columns: str, table: str, by: str) -> str:
    """One row for each of the rows before it; see ``its_job``."""
    return either(
        postgresql=f"CROSS JOIN LATERAL (SELECT {columns} FROM {table} {alias} WHERE {by} LIMIT 1) {alias}",
        sqlite=f"JOIN {table} {alias} ON {by}",
    )


def _micros(span: str) -> str:
    # A clock that was set back must not make a negative time.
    return either(postgresql=f"greatest(0, extract(epoch FROM {span}) * 1000000)", sqlite=f"max(0, {span})")


_TOTAL_ROWS: Final = group(
    "rows",
    {"part": "text", "kind": "text", "name": "text", "outcome": "text", "bucket": "int"}
    | {"number": "bigint", "micros": "float8", "newest": "bigint"},
)
_WAS_PENDING: Final = group("was", {"job_id": "bigint", "attempt": "int"})
_NOW_PENDING: Final = group("pending", {"job_id": "bigint", "attempt": "int"})
# Whoever counts waits for apps that cancel in long transactions (they share the row), and nobody else does.
_TO_LEAVE: Final = either(postgresql="FOR NO KEY UPDATE", sqlite="")
_IF_FREE: Final = either(postgresql="FOR UPDATE SKIP LOCKED", sqlite="")
_BUCKET: Final = (
    "CASE WHEN micros IS NULL THEN -1 "
    + " ".join(f"WHEN micros <= {bound} THEN {n}" for n, bound in enumerate(BOUNDS))
    + f" ELSE {len(BOUNDS)} END"
)
# Nobody saw when a lost attempt ended. A job that never began has waited for nothing.
_RUN_MICROS: Final = f"CASE WHEN r.outcome <> 'lost' THEN {_micros('r.finished_at - r.started_at')} END"
_WAIT_MICROS: Final = (
    f"CASE WHEN j.status <> 'cancelled' AND j.started_at IS NOT NULL THEN {_micros('j.started_at - j.run_at')} END"
)
_NEWEST_END: Final = either(
    postgresql="CAST(least(extract(epoch FROM max(finished_at)), 1e12) * 1000000 AS bigint)",  # it may say infinity
    sqlite="max(finished_at)",
)
# Each by its id: without statistics PostgreSQL would read all jobs in order beside the few attempts.
_ITS_JOB: Final = _each("j", "j.job_type, j.locked_until, j.attempts", JOBS, "j.id = r.job_id")
_LATE_RUN: Final = _each("r", "r.*", JOB_RUNS, "r.job_id = w.job_id AND r.attempt = w.attempt")
_LATE_JOB: Final = _each("j", "j.*", JOBS, "j.id = w.job_id")
_STILL_RUNS: Final = "(j.locked_until IS NOT NULL AND j.attempts = r.attempt)"


def _label(text: str) -> str:
    return clean(text[:LONGEST_LABEL])


# --- the mark ---------------------------------------------------------------------------------------------------------

_THE_MARK: Final = f"FROM {TOTALS} t WHERE t.part = 'mark'"


def read_mark(connection: Connection) -> CountedUpTo | None:
    """The mark; None: it cannot be read, so that what is said to be counted means nothing."""
    return _mark(run(connection, f"SELECT t.detail {_THE_MARK}").first())


def _locked(connection: Connection, lock: str) -> Row[Any] | None:
    """The mark's row, locked; None: someone else has it, and *lock* does not wait."""
    statement = f"SELECT t.detail {_THE_MARK}"
    found = run(connection, f"{statement} {lock}").first()
    if found is None and run(connection, statement).first() is None:  # someone has emptied the table
        run(
            connection,
            f"""INSERT INTO {TOTALS} (part, kind, name, outcome, bucket) VALUES ('mark', '', '', '', -1)
               ON CONFLICT (part, kind, name, outcome, bucket) DO NOTHING""",
        )
        found = run(connection, f"{statement} {lock}").first()
    return found


def _mark(row: Row[Any] | None) -> CountedUpTo | None:
    detail = None if row is None else row.detail
    if not isinstance(detail, dict):
        return None
    try:
        pending = frozenset((int(job_id), int(attempt)) for job_id, attempt in detail["pending"])
        until = None if detail["until"] is None else datetime.fromisoformat(detail["until"])
        return None if until is not None and until.tzinfo is None else CountedUpTo(int(detail["id"]), until, pending)
    except (KeyError, TypeError, ValueError):  # edited by hand
        return None


def _set_mark(connection: Connection, mark: CountedUpTo) -> None:
    until = None if mark.until is None else mark.until.isoformat()
    detail = json_text({"id": mark.id, "until": until, "pending": sorted(mark.pending)})
    run(
        connection,
        f"""INSERT INTO {TOTALS} AS t (part, kind, name, outcome, bucket, detail)
           VALUES ('mark', '', '', '', -1, CAST(:detail AS {JSON_TYPE}))
           ON CONFLICT (part, kind, name, outcome, bucket) DO UPDATE SET detail = excluded.detail""",
        detail=detail,
    )


# --- who deletes or revives rows --------------------------------------------------------------------------------------


@dataclass
class Leaving:
    """The rows that a transaction takes away: they go on counting, as gone.

    It waits for whoever counts just now; only one at a time does. Call ``write`` before the transaction ends.
    """

    connection: Connection
    _gone: Sums = field(default_factory=dict)
    _counted: Sums = field(default_factory=dict)  # with negative numbers

    def __post_init__(self) -> None:
        self._mark = _mark(_locked(self.connection, _TO_LEAVE)) or CountedUpTo()

    def attempts(self, rows: Iterable[Any]) -> None:
        """*rows*: job_id, attempt, job_type, outcome, started_at, finished_at."""
        for row in rows:
            took = None if row.outcome == "lost" else _between(row.started_at, row.finished_at)
            key = Key("attempts", _label(row.job_type), row.outcome, bucket_of(took))
            self._leave(key, Sum(1, took or 0), self._mark.has_attempt(row.job_id, row.attempt, row.finished_at))

    def jobs(self, rows: Iterable[Any]) -> None:
        """*rows* of ended jobs: id, job_type, schedule, status, run_at, started_at, finished_at."""
        for row in rows:
            waited = None
            if row.status != "cancelled" and row.started_at is not None:
                waited = _between(row.run_at, row.started_at)
            counted = self._mark.has_job(row.id, row.finished_at)
            self._leave(Key("jobs", _label(row.job_type), row.status, bucket_of(waited)), Sum(1, waited or 0), counted)
            if row.schedule is not None:
                newest = to_microseconds(row.finished_at)
                self._leave(Key("scheduled", _label(row.schedule), row.status), Sum(1, 0, newest), counted)

    def _leave(self, key: Key, one: Sum, counted: bool) -> None:
        add(self._gone, key, one)
        if counted:
            add(self._counted, key, Sum(-one.number, -one.micros))

    def write(self) -> None:
        if self._gone:
            _put(self.connection, {GONE: self._gone, COUNTED: self._counted})


def _between(first: datetime, last: datetime) -> int:
    return max(0, to_microseconds(last) - to_microseconds(first))


def occurrences_gone(connection: Connection, counts: dict[tuple[int, str], int]) -> None:
    """Ledger rows are leaving that had so many occurrences, by schedule id and outcome."""
    gone = {Key("occurrences", str(id_), outcome): Sum(count) for (id_, outcome), count in counts.items() if count > 0}
    if gone:
        _put(connection, {GONE: gone})


def _put(connection: Connection, parts: dict[str, Sums]) -> None:
    """Add these sums; each kind keeps its first names and puts the rest together: see ``named``."""
    known = _names(connection)
    rows = [
        {"part": part, **key._asdict(), **each._asdict()}
        for part, sums in parts.items()
        for key, each in sorted(named(sums, known, storing=True).items())
    ]
    run(
        connection,
        f"""INSERT INTO {TOTALS} AS t (part, kind, name, outcome, bucket, count, micros, newest)
           SELECT r.part, r.kind, r.name, r.outcome, r.bucket, r.number, r.micros, r.newest
           FROM {_TOTAL_ROWS} r WHERE true
           ON CONFLICT (part, kind, name, outcome, bucket) DO UPDATE SET count = t.count + excluded.count,
             micros = t.micros + excluded.micros,
             newest = CASE WHEN t.newest IS NULL OR excluded.newest > t.newest THEN excluded.newest
                           ELSE t.newest END""",
        rows=rows,
    )


def _names(connection: Connection) -> dict[str, set[str]]:
    known: dict[str, set[str]] = {kind: set() for kind in MOST_NAMES}
    for row in run(connection, f"SELECT DISTINCT t.kind, t.name FROM {TOTALS} t WHERE t.part IN ('gone', 'counted')"):
        known.setdefault(row.kind, set()).add(row.name)
    return known


def named(sums: Sums, known: dict[str, set[str]], *, storing: bool = False) -> Sums:
    """*sums* with the names beyond the first ones of each kind put together; *known* gets the names that are new.

    The first, not the largest: a name that came and went among the largest would let counters go back. Of names that
    come at once the largest are taken. Occurrences are stored by id, and so are few.
    """
    sizes: dict[tuple[str, str], int] = {}
    for key, each in sums.items():
        sizes[key.kind, key.name] = sizes.get((key.kind, key.name), 0) + abs(each.number)
    for kind, name in sorted(sizes, key=lambda one: (-sizes[one], one)):
        taken = known.setdefault(kind, set())
        if (storing and kind == "occurrences") or len(taken) < MOST_NAMES[kind]:
            taken.add(name)
    found: Sums = {}
    for key, each in sums.items():
        add(found, key if key.name in known[key.kind] else key._replace(name=OTHER), each)
    return found


# --- counting ---------------------------------------------------------------------------------------------------------


def count_on(connection: Connection, most: int = BATCH) -> bool:
    """Count about *most* more of the ended rows; return whether that leaves some. One short transaction of its own.

    If someone else is counting it does nothing.
    """
    locked = _locked(connection, _IF_FREE)
    if locked is None:
        return False
    mark = _mark(locked)
    seen = run(connection, f"SELECT {NOW} AS now, (SELECT coalesce(max(j.id), 0) FROM {JOBS} j) AS newest").one()
    # After the lock, and before anything is counted: whatever is not visible by now belongs to one of these, or is
    # claimed after this statement, and so ends after it.
    leased = run(connection, f"SELECT j.id, j.attempts FROM {JOBS} j WHERE j.locked_until IS NOT NULL")
    pending = frozenset((row.id, row.attempts) for row in leased)
    if mark is None or (mark.until is not None and mark.until > seen.now):
        # A clock was wrong, or someone has edited it: what is counted is only a shortcut, and can be counted again.
        run(connection, f"DELETE FROM {TOTALS} WHERE part = 'counted'")
        mark = CountedUpTo()
    settled = seen.now - SETTLED if mark.until is None else max(seen.now - SETTLED, mark.until)
    until = _bound(connection, mark.until, settled, most)
    newest = seen.newest if mark.until is None else min(seen.newest, mark.id + MOST_IDS)
    further = CountedUpTo(newest, until, pending)
    sums = _ended(connection, mark, further)
    if sums:
        _put(connection, {COUNTED: sums})
    _set_mark(connection, further)
    return bool(until < settled or newest < seen.newest)


def _bound(connection: Connection, after: datetime | None, settled: datetime, most: int) -> datetime:
    """An instant up to *settled*, before which there are about *most* uncounted rows; later than *after*."""
    sources = [f"{JOB_RUNS} r WHERE TRUE"]
    sources += [f"{JOBS} r WHERE r.finished_at IS NOT NULL AND r.status = '{status}'" for status in STATUSES]
    beyond, place = " AND r.finished_at < :settled", {"settled": settled}  # what plain SQL wrote may be infinity
    if after is not None:
        beyond, place = f"{beyond} AND r.finished_at >= :after", place | {"after": after}
    found = settled
    for source in sources:
        skip = most
        while True:
            statement = f"SELECT r.finished_at FROM {source}{beyond} ORDER BY r.finished_at LIMIT 1 OFFSET :skip"
            at = run(connection, statement, skip=skip, **place).scalar()
            if at is None or after is None or at > after:
                break
            skip *= 4  # so many ended at one instant
        if at is not None:
            found = min(found, at)
    return found


def far_behind(connection: Connection) -> bool:
    """Whether so much is uncounted that reading it would take seconds, as after an upgrade."""
    mark = read_mark(connection) or CountedUpTo()
    settled = database_now(connection) - SETTLED
    return _bound(connection, mark.until, settled, FAR) < settled


def uncounted(connection: Connection, mark: CountedUpTo) -> Sums:
    """What ended, and is not counted."""
    return _ended(connection, mark, None)


def _ended(connection: Connection, mark: CountedUpTo, further: CountedUpTo | None) -> Sums:
    """What *mark* does not count and *further* does; None: all that it does not count."""
    place: dict[str, Any] = {} if mark.until is None else {"until": mark.until, "id": mark.id}
    if mark.until is not None:
        place["was"] = _pairs(mark.pending)
    if further is not None:
        place |= {"upto": further.until, "upto_id": further.id, "pending": _pairs(further.pending)}
    sums: Sums = {}
    for row in run(connection, _runs_statement(mark, further), **place):
        add(sums, Key("attempts", _label(row.name), row.outcome, row.bucket), Sum(row.number, row.micros or 0))
    for row in run(connection, _jobs_statement(mark, further), **place):
        add(sums, Key("jobs", _label(row.name), row.status, row.bucket), Sum(row.number, row.micros or 0))
        if row.schedule is not None:
            add(sums, Key("scheduled", _label(row.schedule), row.status), Sum(row.number, 0, row.newest))
    return sums


def _pairs(pending: Collection[tuple[int, int]]) -> list[dict[str, int]]:
    return [{"job_id": job_id, "attempt": attempt} for job_id, attempt in sorted(pending)]


# "IS TRUE": an index on that column would be the worse one.
_EARLIER: Final = "({0}.finished_at < :until) IS TRUE"


def _runs_statement(mark: CountedUpTo, further: CountedUpTo | None) -> str:
    if further is None:
        rest = f"NOT {_STILL_RUNS}"  # its time-out is recorded, and may be replaced by a result
    else:
        rest = f"""r.finished_at < :upto AND r.job_id <= :upto_id
          AND (r.job_id, r.attempt) NOT IN (SELECT n.job_id, n.attempt FROM {_NOW_PENDING} n)"""
    wheres = [(f"{JOB_RUNS} r JOIN {JOBS} j ON j.id = r.job_id", "TRUE")]
    if mark.until is not None:
        earlier = _EARLIER.format("r")
        source = f"{JOB_RUNS} r {_ITS_JOB}"
        late = f"{_WAS_PENDING} w {_LATE_RUN} {_ITS_JOB}"
        wheres = [
            (source, "r.finished_at >= :until"),
            (source, f"r.job_id > :id AND {earlier}"),
            (late, f"r.job_id <= :id AND {earlier}"),
        ]
    selected = [
        f"SELECT j.job_type AS name, r.outcome, {_RUN_MICROS} AS micros FROM {tables} WHERE {where} AND {rest}"
        for tables, where in wheres
    ]
    return (
        f"SELECT substr(name, 1, {LONGEST_LABEL}) AS name, outcome, {_BUCKET} AS bucket, count(*) AS number, "
        f"sum(CAST(micros AS double precision)) AS micros FROM ({' UNION ALL '.join(selected)}) AS e GROUP BY 1, 2, 3"
    )


def _jobs_statement(mark: CountedUpTo, further: CountedUpTo | None) -> str:
    rest = "TRUE"
    if further is not None:
        rest = f"j.finished_at < :upto AND j.id <= :upto_id AND j.id NOT IN (SELECT n.job_id FROM {_NOW_PENDING} n)"
    ended = [(f"{JOBS} j", f"j.finished_at IS NOT NULL AND j.status = '{status}'") for status in STATUSES]
    wheres = ended
    if mark.until is not None:
        earlier = f"{_EARLIER.format('j')} AND (j.finished_at IS NOT NULL) IS TRUE"
        late = f"(SELECT DISTINCT p.job_id FROM {_WAS_PENDING} p) w {_LATE_JOB}"
        wheres = [(table, f"{where} AND j.finished_at >= :until") for table, where in ended]
        wheres += [(f"{JOBS} j", f"j.id > :id AND {earlier}"), (late, f"j.id <= :id AND {earlier}")]
    selected = [
        f"SELECT j.job_type AS name, j.schedule, j.status, {_WAIT_MICROS} AS micros, j.finished_at "
        f"FROM {tables} WHERE {where} AND {rest}"
        for tables, where in wheres
    ]
    return (
        f"SELECT substr(name, 1, {LONGEST_LABEL}) AS name, substr(schedule, 1, {LONGEST_LABEL}) AS schedule, status, "
        f"{_BUCKET} AS bucket, count(*) AS number, sum(CAST(micros AS double precision)) AS micros, "
        f"{_NEWEST_END} AS newest "
        f"FROM ({' UNION ALL '.join(selected)}) AS e GROUP BY 1, 2, 3, 4"
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def all_that_ended(connection: Connection) -> Sums:
    """All attempts, jobs and occurrences that ever ended, in one snapshot (begin it with ``one_snapshot``)."""
    mark = read_mark(connection)
    sums: Sums = {}
    known: dict[str, set[str]] = {kind: set() for kind in MOST_NAMES}
    stored = run(
        connection,
        f"SELECT t.part, t.kind, t.name, t.outcome, t.bucket, t.count AS number, t.micros, t.newest FROM {TOTALS} t "
        "WHERE t.part IN ('gone', 'counted') ORDER BY t.kind, t.name",
    )
    for row in stored:
        if row.part == COUNTED and mark is None:
            continue
        if row.kind in known:
            known[row.kind].add(row.name)
        add(sums, Key(row.kind, row.name, row.outcome, row.bucket), Sum(row.number, row.micros, row.newest))
    for key, each in named(uncounted(connection, mark or CountedUpTo()), known).items():
        add(sums, key, each)
    for (schedule_id, outcome), count in _occurrences(connection).items():
        add(sums, Key("occurrences", str(schedule_id), outcome), Sum(count))
    return sums


def _occurrences(connection: Connection) -> dict[tuple[int, str], int]:
    rows = run(
        connection,
        f"SELECT c.schedule_id, c.outcome, CAST(sum(c.count) AS bigint) AS number FROM {OCCURRENCES} c "
        "WHERE c.count > 0 GROUP BY c.schedule_id, c.outcome",
    )
    return {(row.schedule_id, row.outcome): row.number for row in rows}


def one_snapshot(connection: Connection) -> None:
    """Let all statements of this transaction, which has just begun, see the same; SQLite's always do."""
    if is_postgresql(connection):
        run(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
