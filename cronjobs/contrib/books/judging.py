"""A schedule's books: compare what was due by its definitions with the ledger and the jobs. Pure.

Due instants are whole seconds since 1970. There may be a million of them, and datetimes would take ten times as long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import pairwise
from shlex import quote
from typing import Final
from zoneinfo import ZoneInfo

from cronjobs.contrib.books.statements import Entry, UnnamedJob
from cronjobs.desk.insight.formatting import LocalTimes, in_full
from cronjobs.desk.insight.schedule_history import DefinitionPeriod
from cronjobs.engine.crontime.timing import Timing
from cronjobs.model import in_zone

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SECOND: Final = timedelta(seconds=1)
MICROS: Final = 1_000_000

SETTLED: Final = ("ran", "failed", "skipped", "missed", "coalesced")
OPEN: Final = ("unsettled", "waiting", "running")
# These counts are not results. In this order, they count the occurrences whose job is pruned, those whose ledger row is
# pruned, those that cannot be judged, and those that ran without being due.
BESIDE: Final = ("pruned", "beyond", "unjudged", "extra")

OF_JOB: Final = {
    "queued": "waiting",
    "failed": "waiting",
    "running": "running",
    "succeeded": "ran",
    "dead": "failed",
    "cancelled": "failed",
}


@dataclass(frozen=True)
class Period:
    """The period from ``begin`` to ``end``, and the instants from which ledger rows and jobs are complete.

    The database still has all ledger rows from ``ledger_from`` on, all jobs from ``jobs_from`` on, and all dead or
    cancelled jobs from ``dead_from`` on. By today's retention, the database should have all jobs from ``kept_from`` on.
    """

    begin: datetime
    end: datetime
    ledger_from: datetime
    jobs_from: datetime
    dead_from: datetime
    kept_from: datetime


@dataclass(frozen=True)
class Doubt:
    """A span (``after``, ``until``] for which nobody knows which occurrences were due."""

    after: datetime
    until: datetime
    why: str


@dataclass(frozen=True)
class Account:
    """The evidence for one schedule's books. ``owed`` lists the spans (after, until] that a pause still holds back.

    ``open_because`` says why some due occurrences are not settled. ``backfills`` lists ranges that an operator
    backfilled. ``early`` lists occurrences that a wrong clock ran before they were due, and that have not run again
    since.
    """

    schedule: str
    timezone: str
    eras: Sequence[DefinitionPeriod]
    entries: Sequence[Entry]
    seen_until: datetime
    owed: Sequence[tuple[datetime, datetime]] = ()
    doubts: Sequence[Doubt] = ()
    backfills: Sequence[tuple[datetime, datetime]] = ()
    unnamed: Sequence[UnnamedJob] = ()
    open_because: str = ""
    early: Sequence[datetime] = ()


@dataclass
class DayBook:
    """One day of a schedule, in the schedule's time zone. The keys of ``counts`` are those in SETTLED, OPEN and BESIDE.

    Apart from open and pruned occurrences, the books balance if due = ran + failed + skipped + missed + coalesced.
    ``differences`` is the number of occurrences that do not balance.
    """

    schedule: str
    day: date
    timezone: str
    due: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0  # the number of failed occurrences whose job was cancelled
    differences: int = 0

    @property
    def open(self) -> int:
        return sum(self.counts[word] for word in OPEN)


@dataclass(frozen=True)
class Difference:
    """``count`` occurrences from ``first`` to ``last`` do not balance. ``command`` explains them."""

    schedule: str
    first: datetime
    last: datetime
    count: int
    text: str
    command: str


@dataclass(frozen=True)
class Book:
    """One schedule's books. ``notes`` explain which occurrences are open and which could not be judged."""

    days: list[DayBook]
    differences: list[Difference]
    notes: list[str]


def keep(account: Account, period: Period) -> Book:
    """Return one schedule's books. Leave out days that have no due occurrences and no rows."""
    return _Bookkeeper(account, period).book()


class _Bookkeeper:
    def __init__(self, account: Account, period: Period) -> None:
        self.account, self.period = account, period
        days = _days(account.timezone, period.begin, period.end)
        self.starts = [start for _, start in days]
        self.days = [DayBook(account.schedule, day, account.timezone) for day, _ in days]
        self.due = [second for after, until, timing in self._judged() for second in timing.seconds(after, until)]
        self.cover = bytearray(len(self.due))
        self.differences: list[Difference] = []
        self.unnamed = {job.at / MICROS: job for job in account.unnamed}
        self.gone_early = 0  # the number of missing jobs that today's retention cannot have pruned yet

    def book(self) -> Book:
        if not self.days:
            return Book([], [], [])
        for start, end, day in zip(self.starts, [*self.starts[1:], None], self.days, strict=True):
            upto = len(self.due) if end is None else bisect_left(self.due, end)
            day.due = upto - bisect_left(self.due, start)
        self._enter_all()
        self._look_for_doubles()
        self._look_for_gaps()
        for job in self.unnamed.values():
            self._unnamed(job)
        days = [day for day in self.days if day.due or day.counts or day.differences]
        return Book(days, sorted(self.differences, key=lambda each: (each.first, each.last)), list(self._notes()))

    # --- what was due -------------------------------------------------------------------------------------------------

    def _judged(self) -> Iterator[tuple[datetime, datetime, Timing]]:
        """Yield the spans of the period in which a definition was in force, except the spans in doubt."""
        for era in self.account.eras:
            clipped = era.clipped(self.period.begin, self.period.end)
            if era.timing is None or clipped is None:
                continue
            after, until = clipped
            for doubt in sorted(self.account.doubts, key=lambda each: each.after):
                if doubt.until <= after or doubt.after >= until:
                    continue
                if after < doubt.after:
                    yield after, doubt.after, era.timing
                after = doubt.until
            if after < until:
                yield after, until, era.timing

    def _doubted(self, first: int, last: int) -> bool:
        return any(_micros(doubt.after) < last and first <= _micros(doubt.until) for doubt in self.account.doubts)

    # --- the ledger ---------------------------------------------------------------------------------------------------

    def _enter_all(self) -> None:
        """Enter the ledger rows. Most rows record just the next due occurrence, and take a fast path."""
        due, day, place, until = self.due, -1, 0, 0
        for entry in self.account.entries:
            quick = entry.first == entry.last and entry.number == 1 and place < len(due)
            if entry.outcome == "enqueued" and entry.job not in OF_JOB:
                quick = False
            if not quick or entry.first != due[place] * MICROS:
                self._enter(entry)
                place = bisect_right(due, entry.last // MICROS)
                continue
            if due[place] >= until or day < 0:
                day = bisect_right(self.starts, due[place]) - 1
                until = self.starts[day + 1] if day + 1 < len(self.starts) else due[-1] + 1
            self.days[day].counts[OF_JOB[entry.job or ""] if entry.outcome == "enqueued" else entry.outcome] += 1
            self.days[day].cancelled += entry.job == "cancelled"
            self.cover[place] = min(2, self.cover[place] + 1)
            place += 1

    def _enter(self, entry: Entry) -> None:
        low = bisect_left(self.due, -(-entry.first // MICROS))
        high = bisect_right(self.due, entry.last // MICROS)
        if entry.outcome == "enqueued":
            word = self._made(entry)
        else:
            word = entry.outcome
        self._count(low, high, word, cancelled=entry.job == "cancelled")
        if entry.first != entry.last or high - low != 1 or entry.number != 1:
            self._check_range(entry, low, high)

    def _made(self, entry: Entry) -> str | None:
        """Return the result of an occurrence's job. If the job is missing, record a difference and return None."""
        if entry.job in OF_JOB:
            return OF_JOB[entry.job]
        at = _instant(entry.last)
        if entry.job is None and entry.job_id is not None and (at < self.period.jobs_from or entry.by == "early"):
            if at >= self.period.kept_from and entry.by != "early":
                self.gone_early += 1
                return "pruned"
            # Retention keeps all dead and cancelled jobs from dead_from on, so a missing job must have succeeded.
            return "ran" if at >= self.period.dead_from else "pruned"
        if entry.job_id is None:
            text = "the ledger says that a tick made a job, but does not name it"
        elif entry.job is None:
            text = f"job {entry.job_id} ran the occurrence and is missing, although retention cannot have pruned it yet"
        else:
            text = f"the ledger names job {entry.job_id} for the occurrence, but that job belongs to another occurrence"
        if not self._doubted(entry.first, entry.last):
            self._differ(entry.first, entry.last, 1, text)
        return None

    def _count(self, low: int, high: int, word: str | None, *, cancelled: bool) -> None:
        while low < high:
            day = self._day(self.due[low])
            place = bisect_right(self.starts, self.due[low])
            upto = min(high, bisect_left(self.due, self.starts[place], low)) if place < len(self.starts) else high
            if word is not None:
                day.counts[word] += upto - low
            if cancelled:
                day.cancelled += upto - low
            for number in range(low, upto):
                self.cover[number] = min(2, self.cover[number] + 1)
            low = upto

    def _check_range(self, entry: Entry, low: int, high: int) -> None:
        """Check that a row's range begins and ends with a due occurrence, and that the row's count is right."""
        inside = entry.first >= _micros(self.period.begin) and entry.last <= _micros(self.period.end)
        if self._doubted(entry.first, entry.last):
            self._day(max(entry.first // MICROS, self.starts[0])).counts["unjudged"] += max(
                0, entry.number - high + low
            )
            return
        if inside:
            were_due = high - low
            ends = were_due > 0 and (self.due[low] * MICROS, self.due[high - 1] * MICROS) == (entry.first, entry.last)
        else:
            first, last = _instant(entry.first), _instant(entry.last)
            spans = [(era.timing, era.clipped(first, last)) for era in self.account.eras]
            were_due = sum(timing.span(*span)[0] for timing, span in spans if timing and span)
            ends = True
        if were_due == entry.number and ends:
            return
        if were_due == 0 and entry.number == 1 and self._asked_for(entry):
            self._day(entry.last // MICROS).counts["extra"] += 1
            return
        said = f'the ledger says "{entry.outcome}"'
        if were_due == 0:
            text = f"{said}, but under the definition in force then, nothing was due"
        elif were_due == entry.number:
            text = f"{said} for a range, but nothing was due at its first or last instant"
        else:
            text = (
                f"{said} for {entry.number:,} occurrences, but under the definition in force then, {were_due:,} were "
                "due"
            )
        self._differ(entry.first, entry.last, max(1, abs(entry.number - were_due)), text)

    def _asked_for(self, entry: Entry) -> bool:
        """Whether a backfill or a wrong clock explains a run that was not due."""
        at = _instant(entry.last)
        return entry.by == "early" or (
            entry.by == "backfill" and any(first <= at <= last for first, last in self.account.backfills)
        )

    def _look_for_doubles(self) -> None:
        for low, high in _runs(self.cover, 2):
            text = "more than one ledger row covers the same occurrence"
            self._differ(self.due[low] * MICROS, self.due[high - 1] * MICROS, high - low, text, low)

    # --- what the ledger lacks ----------------------------------------------------------------------------------------

    def _look_for_gaps(self) -> None:
        for low, high in _runs(self.cover, 0):
            lost: list[int] = []
            for number in range(low, high):
                word = self._open(_instant(self.due[number] * MICROS))
                if word is None:
                    lost.append(number)
                else:
                    self._day(self.due[number]).counts[word] += 1
            for first, last in _neighbours(lost):
                jobs = [job for number in range(first, last + 1) if (job := self.unnamed.pop(self.due[number], None))]
                text = "the ledger has no row for the occurrence" + (f", but job {jobs[0].id} exists" if jobs else "")
                self._differ(self.due[first] * MICROS, self.due[last] * MICROS, last - first + 1, text, first)

    def _open(self, at: datetime) -> str | None:
        if at > self.account.seen_until or any(after < at <= until for after, until in self.account.owed):
            return "unsettled"
        return "beyond" if at < self.period.ledger_from else None

    def _unnamed(self, job: UnnamedJob) -> None:
        if job.at >= _micros(self.period.ledger_from) and not self._doubted(job.at, job.at):
            self._differ(job.at, job.at, 1, f"job {job.id} exists, but the ledger does not name it")

    # --- texts --------------------------------------------------------------------------------------------------------

    def _differ(self, first: int, last: int, count: int, text: str, place: int | None = None) -> None:
        if place is None:
            self._day(max(first // MICROS, self.starts[0])).differences += count
        else:
            for number in range(place, place + count):
                self._day(self.due[number]).differences += 1
        begin, end = _instant(first), _instant(last)
        command = self._explain(begin, end)
        self.differences.append(Difference(self.account.schedule, begin, end, count, text, command))

    def _explain(self, first: datetime, last: datetime) -> str:
        zone = ZoneInfo(self.account.timezone)
        instants = [in_zone(at, zone).isoformat(timespec="seconds") for at in (first, last)]
        when = f"--at {instants[0]}" if first == last else f"--from {instants[0]} --to {instants[1]}"
        return f"cronjobs explain {quote(self.account.schedule)} {when}"

    def _notes(self) -> Iterator[str]:
        total = sum((day.counts for day in self.days), Counter[str]())
        if total["unsettled"]:
            yield f"occurrences that are due but not settled: {total['unsettled']:,} ({self.account.open_because})"
        if total["waiting"] or total["running"]:
            command = f"cronjobs jobs list --schedule {quote(self.account.schedule)}"
            yield f"waiting jobs: {total['waiting']:,}, running jobs: {total['running']:,}; {command}"
        if total["beyond"]:
            kept = in_full(self.period.ledger_from, self.account.timezone)
            yield (
                f"occurrences without a ledger row: {total['beyond']:,}; the ledger only goes back to {kept} "
                "(retention.occurrences)"
            )
        if pruned := total["pruned"] - self.gone_early:
            yield f"occurrences whose jobs are pruned: {pruned:,}; nobody can tell whether the jobs succeeded or failed"
        if self.gone_early:
            yield (
                f"occurrences whose jobs are missing: {self.gone_early:,}; nobody can tell whether the jobs succeeded "
                "or failed. The current retention would have kept the jobs: it was shorter until recently, or someone "
                "deleted the rows"
            )
        if total["extra"]:
            yield (
                f"occurrences that ran without being due: {total['extra']:,}; the cause is a backfill under another "
                "definition, or a wrong clock"
            )
        if early := self.account.early:
            command = self._explain(early[0], early[-1])
            yield f"{len(early):,} of the occurrences ran early, because a clock was ahead: {command}"
        for doubt in self.account.doubts:
            if doubt.after < self.period.end and doubt.until > self.period.begin:
                times = LocalTimes(doubt.after, self.account.timezone)
                yield f"not judged from {times.dated(doubt.after)} to {times.full(doubt.until)}: {doubt.why}"

    def _day(self, second: int) -> DayBook:
        return self.days[max(0, bisect_right(self.starts, second) - 1)]


def _runs(cover: bytearray, value: int) -> Iterator[tuple[int, int]]:
    """Yield (start, exclusive end) of each unbroken run of the byte *value* in *cover*."""
    begin = cover.find(value)
    while begin >= 0:
        end = begin
        while end < len(cover) and cover[end] == value:
            end += 1
        yield begin, end
        begin = cover.find(value, end)


def _neighbours(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    cuts = [place for place, (one, other) in enumerate(pairwise(numbers), 1) if other != one + 1]
    for low, high in pairwise([0, *cuts, len(numbers)]):
        if low < high:
            yield numbers[low], numbers[high - 1]


@lru_cache(maxsize=64)
def _days(timezone: str, begin: datetime, end: datetime) -> tuple[tuple[date, int], ...]:
    """Return the zone's days from *begin* to *end*, each with its start. Leave out dates that the zone skipped."""
    zone = ZoneInfo(timezone)
    day, last = in_zone(begin, zone).date(), in_zone(end, zone).date()
    found: list[tuple[date, int]] = []
    while begin <= end and day <= last:
        start = int((datetime.combine(day, time(), zone) - EPOCH).total_seconds())
        if found and found[-1][1] >= start:
            found.pop()
        found.append((day, start))
        day += timedelta(days=1)
    return tuple(found)


def _micros(instant: datetime) -> int:
    return (instant - EPOCH) // timedelta(microseconds=1)


def _instant(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def total_of(days: Sequence[DayBook]) -> DayBook:
    """Return the sum of *days*, with the labels of the first day."""
    total = DayBook(days[0].schedule, days[0].day, days[0].timezone)
    for day in days:
        total.due += day.due
        total.counts.update(day.counts)
        total.cancelled += day.cancelled
        total.differences += day.differences
    return total
