"""The instants at which a schedule is due, in UTC. A schedule has a cron expression in a time zone, or an interval.

We use croniter only to find the calendar days that match, because croniter handles clock changes wrongly: version 7.0
fires fixed times twice in the repeated hour, and fires wildcard minutes at wrong times after a gap. croniter is also
slow: with 26–70 µs per step, it would take 15 s to count the minutes of a year. The calendar days that croniter finds
are right. We cache these days by month, and compute the instants ourselves, one UTC day at a time. The instants of a
UTC day depend only on that day. So we can walk through a range of days, count its instants, and read it from the end.

Clock changes follow Debian's cron(8): "If the time has moved forwards, those jobs which would have run in the time that
was skipped will be run soon after the change. Conversely, if the time has moved backwards […], those jobs that fall
into the repeated time will not be re-run. Only jobs that run at a particular time (not specified as @hourly, nor with
'*' in the hour or minute specifier) are affected." Debian's cron applies these rules to changes of up to 3 hours.
cronjobs applies them to changes of any size. So if a zone skips a whole day, a job that is due on that day runs once,
after the change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import takewhile
from typing import Final
from zoneinfo import ZoneInfo

from cronjobs.engine.crontime.grammar import CronExpression, parse
from cronjobs.engine.crontime.zone_names import HOST_ZONES, zone_exists, zone_meant
from cronjobs.errors import CronError, UsageError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = timedelta(days=1)
_DAY_S: Final = 86_400
# These days are more than a day away from the ends of datetime's range, because the day before and the day after each
# day must exist as well.
_FIRST_DAY: Final = date(1, 1, 3)
_LAST_DAY: Final = date(9999, 12, 29)

# How many occurrences a range has, the first of them, and the last.
Span = tuple[int, datetime | None, datetime | None]


def fire_times(cron: str | CronExpression, timezone: str, after: datetime) -> Iterator[datetime]:
    """Yield the instants after *after* at which *cron* is due in *timezone*, in UTC, oldest first, up to the year 9999.

    Clock changes are handled as in Debian's cron(8). An expression whose minute and hour fields do not start with ``*``
    has fixed times. If a clock change skips a fixed time, the expression is due once, at the first valid instant after
    the gap. If a clock change repeats a fixed time, the expression is due only the first time. All other expressions
    are due at every matching instant. Raises CronError for an invalid expression or zone, and UsageError if *after* is
    not timezone-aware.
    """
    return CronTiming(parse(cron) if isinstance(cron, str) else cron, timezone).after(after)


def timing(cron: str | None, every: timedelta | None, timezone: str) -> Timing:
    """Return a schedule's timing. Exactly one of *cron* and *every* must be given. Raises CronError."""
    if cron is not None and every is None:
        return CronTiming(parse(cron), timezone)
    if every is not None and cron is None:
        return EveryTiming(every)
    raise CronError('a schedule has either "cron" or "every": write exactly one of these keys')


@dataclass(frozen=True, slots=True)
class CronTiming:
    """A cron expression on the wall clock of a time zone. Raises CronError if the zone is unknown. The error suggests a
    zone.
    """

    expression: CronExpression
    timezone: str

    def __post_init__(self) -> None:
        zone_named(self.timezone)

    def after(self, instant: datetime) -> Iterator[datetime]:
        """Yield the occurrences after *instant*, in UTC, oldest first."""
        return self._after(_utc(instant))

    def _after(self, start: datetime) -> Iterator[datetime]:
        for midnight, seconds in self._fires(start.date(), _LAST_DAY):
            for second in seconds[_up_to(start, midnight, seconds) :]:
                yield midnight + timedelta(seconds=second)

    def span(self, after: datetime, until: datetime) -> Span:
        """Return the number of occurrences later than *after*, up to and including *until*, the first and the last.

        Takes one step per day, even if the schedule is due every minute.
        """
        start, end = _utc(after), _utc(until)
        count = 0
        first: datetime | None = None
        last: datetime | None = None
        for midnight, seconds in self._fires(start.date(), end.date()):
            begin, stop = _up_to(start, midnight, seconds), _up_to(end, midnight, seconds)
            if begin < stop:
                count += stop - begin
                first = first or midnight + timedelta(seconds=seconds[begin])
                last = midnight + timedelta(seconds=seconds[stop - 1])
        return count, first, last

    def seconds(self, after: datetime, until: datetime) -> list[int]:
        """Return the occurrences after *after*, up to and including *until*, in seconds since 1970, oldest first."""
        start, end = _utc(after), _utc(until)
        found: list[int] = []
        for midnight, seconds in self._fires(start.date(), end.date()):
            first = (midnight - _EPOCH).days * _DAY_S
            due = seconds[_up_to(start, midnight, seconds) : _up_to(end, midnight, seconds)]
            found += [first + second for second in due]
        return found

    def _fires(self, first: date, last: date) -> Iterator[tuple[datetime, tuple[int, ...]]]:
        """Yield each UTC day from *first* to *last* on which the schedule is due: its midnight, and the due seconds."""
        for day in _utc_days(self.expression, first, last):
            seconds = _fires_on(self.expression, self.timezone, day)
            if seconds:
                yield _midnight(day), seconds


@dataclass(frozen=True, slots=True)
class EveryTiming:
    """The multiples of *interval* since 1970-01-01T00:00Z. Raises CronError if *interval* is not a whole number of
    seconds.
    """

    interval: timedelta

    def __post_init__(self) -> None:
        if self.interval < timedelta(seconds=1) or self.interval % timedelta(seconds=1):
            raise CronError('"every" must be a whole number of seconds; write it as 90s or 10m')

    def after(self, instant: datetime) -> Iterator[datetime]:
        """Yield the occurrences after *instant*, in UTC, oldest first."""
        return self._after((_utc(instant) - _EPOCH) // self.interval + 1)

    def _after(self, multiple: int) -> Iterator[datetime]:
        while True:
            try:
                fire = _EPOCH + multiple * self.interval
            # The next multiple is beyond the year 9999.
            except OverflowError:
                return
            yield fire
            multiple += 1

    def span(self, after: datetime, until: datetime) -> Span:
        """Return the number of occurrences later than *after*, up to and including *until*, the first and the last."""
        begin = (_utc(after) - _EPOCH) // self.interval + 1
        end = (_utc(until) - _EPOCH) // self.interval
        if end < begin:
            return 0, None, None
        return end - begin + 1, _EPOCH + begin * self.interval, _EPOCH + end * self.interval

    def seconds(self, after: datetime, until: datetime) -> list[int]:
        """Return the occurrences after *after*, up to and including *until*, in seconds since 1970, oldest first."""
        step = int(self.interval.total_seconds())
        begin = (_utc(after) - _EPOCH) // self.interval + 1
        return list(range(begin * step, (_utc(until) - _EPOCH) // self.interval * step + 1, step))


Timing = CronTiming | EveryTiming


def next_after(timing: Timing, instant: datetime) -> datetime | None:
    """Return the first occurrence after *instant*, or None if no occurrence follows before the year 9999 ends."""
    return next(timing.after(instant), None)


def newest_between(timing: Timing, after: datetime, until: datetime, n: int) -> list[datetime]:
    """Search backwards from *until*, and return the newest *n* occurrences later than *after*, oldest first."""
    newest: list[datetime] = []
    oldest, end, window = _utc(after), _utc(until), _DAY
    while len(newest) < n and oldest < end:
        start = end - window if end - oldest > window else oldest
        found = list(takewhile(end.__ge__, timing.after(start)))
        newest = found[-(n - len(newest)) :] + newest
        end, window = start, window * 2
    return newest


# --- describing clock changes -----------------------------------------------------------------------------------------


def remarks(timing: Timing, fire: datetime) -> str | None:
    """Describe in one line how a clock change affected the occurrence *fire*, or return None if none did."""
    if isinstance(timing, EveryTiming):
        return None
    day = _utc(fire).date()
    shift = _shift_near(timing.timezone, day)
    if shift is None:
        return None
    second = int((_utc(fire) - _midnight(day)).total_seconds())
    fixed_time = timing.expression.fixed_time
    if second == shift.at and fixed_time and (remark := _gap_remark(timing, day, shift)):
        return remark
    wall = second + (shift.before if second < shift.at else shift.after)
    if wall not in shift.doubled:
        return None
    which = "the first" if second < shift.at else "the second"
    runs = "the schedule runs the first time only" if fixed_time else f"this is {which} of its two runs"
    return f"{_twice(timing, day, [wall])}: {runs}"


def clock_changes(timing: Timing, after: datetime, until: datetime) -> Iterator[tuple[datetime, str]]:
    """Yield the clock changes later than *after*, up to *until*, that affect a schedule: the instant, and the effect in
    words.

    This includes times that a clock change skips and for which nothing runs: they have no occurrence that ``remarks``
    could describe.
    """
    if isinstance(timing, EveryTiming):
        return
    first, last = max(_utc(after).date(), _FIRST_DAY), min(_utc(until).date(), _LAST_DAY)
    for ordinal in range(first.toordinal(), last.toordinal() + 1):
        day = date.fromordinal(ordinal)
        shift = _shift(timing.timezone, day)
        if shift is None or not after < (instant := _midnight(day) + timedelta(seconds=shift.at)) <= until:
            continue
        if remark := _gap_remark(timing, day, shift) or _doubled_remark(timing, day, shift):
            yield instant, remark


def _gap_remark(timing: CronTiming, day: date, shift: _Shift) -> str | None:
    """Describe the schedule's times that *shift* skips. Return None if *shift* skips none."""
    walls = _walls_around(timing.expression, day)
    skipped = [wall for wall in walls if wall in shift.gap]
    if not skipped:
        return None
    one = len(skipped) == 1
    then = _clock(day, shift.gap.stop, beside=skipped[0])
    if not timing.expression.fixed_time:
        runs = "no run, because a schedule with * in the minute or hour follows real time"
    elif shift.gap.stop in walls:
        runs = f"the regular run at {then} stands for {'it' if one else 'them'} too"
    else:
        runs = f"the schedule runs at {then} instead" if one else f"one run at {then} stands for them"
    return f"{_listed(day, skipped)} {'does' if one else 'do'} not exist in {timing.timezone}: {runs}"


def _doubled_remark(timing: CronTiming, day: date, shift: _Shift) -> str | None:
    """Describe the schedule's times that *shift* repeats. Return None if *shift* repeats none."""
    doubled = [wall for wall in _walls_around(timing.expression, day) if wall in shift.doubled]
    if not doubled:
        return None
    runs = "the schedule runs the first time only" if timing.expression.fixed_time else "the schedule runs both times"
    return f"{_twice(timing, day, doubled)}: {runs}"


def _twice(timing: CronTiming, day: date, walls: list[int]) -> str:
    return f"{_listed(day, walls)} {'comes' if len(walls) == 1 else 'come'} twice in {timing.timezone}"


def _listed(day: date, walls: list[int]) -> str:
    """Return wall-clock times as a list: "2026-03-29 02:00, 02:15, … 02:45"."""
    shown = [_clock(day, wall, beside=walls[0]) for wall in walls]
    shown[0] = _clock(day, walls[0])
    return ", ".join(shown) if len(shown) <= 4 else f"{shown[0]}, {shown[1]}, … {shown[-1]}"


def _clock(day: date, wall: int, beside: int | None = None) -> str:
    """Return a wall-clock time as text, without the date if another wall-clock time, *beside*, is on the same date."""
    moment = _midnight(day) + timedelta(seconds=wall)
    known = beside is not None and wall // _DAY_S == beside // _DAY_S
    text = f"{moment:%H:%M:%S}".removesuffix(":00")
    return text if known else f"{moment.date()} {text}"


# --- the instants of one UTC day --------------------------------------------------------------------------------------
# In this section, seconds count from midnight UTC of the day, and may be outside the day. A "wall" is the time that a
# clock in the zone shows, as if that time were UTC: the instant plus the zone's offset.


def _fires_on(cron: CronExpression, timezone: str, day: date) -> tuple[int, ...]:
    """Return the seconds of the UTC day *day* at which *cron* is due, ascending."""
    shift = _shift_near(timezone, day)
    if shift is None:
        return _fires_on_plain_day(cron, _offset(timezone, day), _due_around(cron, day))
    fires: set[int] = set()
    for wall in _walls_around(cron, day):
        # At *before*, a clock with the old offset shows *wall*. At *after*, a clock with the new offset shows *wall*.
        before, after = wall - shift.before, wall - shift.after
        in_first_pass, in_second_pass = before < shift.at, after >= shift.at
        if in_first_pass:
            fires.add(before)
        if in_second_pass and not (in_first_pass and cron.fixed_time):
            fires.add(after)
        if not in_first_pass and not in_second_pass and cron.fixed_time:
            # *wall* is in the gap. All times in the gap, and a regular run at the instant of the change, become one
            # run.
            fires.add(shift.at)
    return tuple(sorted(second for second in fires if 0 <= second < _DAY_S))


@lru_cache(maxsize=1024)
def _fires_on_plain_day(cron: CronExpression, offset: int, due: tuple[bool, ...]) -> tuple[int, ...]:
    """Like ``_fires_on``, for days without a clock change.

    Cached, because a zone has only a few kinds of such days.
    """
    return tuple(second for wall in _walls(cron, due) if 0 <= (second := wall - offset) < _DAY_S)


def _walls_around(cron: CronExpression, day: date) -> list[int]:
    return _walls(cron, _due_around(cron, day))


def _walls(cron: CronExpression, due: tuple[bool, ...]) -> list[int]:
    """Return the wall-clock times at which *cron* matches.

    *due* says which of three days match: the day before, the day itself, and the day after.
    """
    times = [3600 * hour + 60 * minute for hour in sorted(cron.hours) for minute in sorted(cron.minutes)]
    return [days * _DAY_S + time_s for days, is_due in zip((-1, 0, 1), due, strict=True) if is_due for time_s in times]


# --- calendar days, by croniter ---------------------------------------------------------------------------------------


def _utc_days(cron: CronExpression, first: date, last: date) -> Iterator[date]:
    """Yield the UTC days from *first* to *last* on which *cron* can be due.

    No zone is more than a day away from UTC.
    """
    unseen, last = max(first, _FIRST_DAY), min(last, _LAST_DAY)
    for due in _wall_days(cron, unseen - _DAY, last + _DAY):
        for day in (due - _DAY, due, due + _DAY):
            if unseen <= day <= last:
                yield day
                unseen = day + _DAY


def _wall_days(cron: CronExpression, first: date, last: date) -> Iterator[date]:
    """Yield the calendar days from *first* to *last* that match the day, month and weekday fields."""
    months = sorted(cron.months)
    for year in range(first.year, last.year + 1):
        for month in months:
            if (first.year, first.month) <= (year, month) <= (last.year, last.month):
                for day in _due_days(cron.day_fields, _like(year), month):
                    if first <= (due := date(year, month, day)) <= last:
                        yield due


def _due_around(cron: CronExpression, day: date) -> tuple[bool, ...]:
    """Return three values: whether the day before *day*, *day* itself, and the day after it match."""
    around = (day - _DAY, day, day + _DAY)
    return tuple(
        it.month in cron.months and it.day in _due_days(cron.day_fields, _like(it.year), it.month) for it in around
    )


def _like(year: int) -> int:
    """Return a year from 2000 to 2399 with the same calendar as *year*, because croniter fails near the ends of
    datetime's range.
    """
    return 2000 + year % 400


@lru_cache(maxsize=8192)
def _due_days(day_fields: str, year: int, month: int) -> tuple[int, ...]:
    """Return the days of one month that match. croniter finds them by walking through naive midnights."""
    # Imported only here, because the import takes 55 ms, and an idle tick does not need it.
    from croniter import croniter  # type: ignore[import-untyped]

    walk = croniter(
        f"0 0 {day_fields}",
        datetime(year, month, 1) - timedelta(minutes=1),  # noqa: DTZ001  naive, because croniter only has to find days
        ret_type=datetime,
        # Use Debian's rule: both day fields must match if one of them starts with "*".
        implement_cron_bug=True,
        # Some dates are rare: around the year 2100, 40 years pass from one Monday 29 February to the next.
        max_years_between_matches=50,
    )
    month_of = takewhile(lambda midnight: (midnight.year, midnight.month) == (year, month), walk)
    return tuple(midnight.day for midnight in month_of)


# --- zones ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shift:
    """A change of a zone's offset. At the second ``at``, the offset changes from ``before`` to ``after``. All values
    are in seconds.
    """

    at: int
    before: int
    after: int

    @property
    def gap(self) -> range:
        """The wall-clock times that no clock shows, because the change skips them."""
        return range(self.at + self.before, self.at + self.after)

    @property
    def doubled(self) -> range:
        """The wall-clock times that clocks show twice."""
        return range(self.at + self.after, self.at + self.before)


def _shift_near(timezone: str, day: date) -> _Shift | None:
    """Return the clock change on *day* or the day before, or None.

    No earlier change can affect *day*, because no clock change has ever repeated more than 23 hours (Kwajalein).
    """
    if shift := _shift(timezone, day):
        return shift
    if shift := _shift(timezone, day - _DAY):
        return _Shift(shift.at - _DAY_S, shift.before, shift.after)
    return None


def _shift(timezone: str, day: date) -> _Shift | None:
    """Return the clock change on the UTC day *day*, or None. At most one is possible: no zone has two changes within
    six days (tzdata 2026).
    """
    before, after = _offset(timezone, day), _offset(timezone, day + _DAY)
    return None if before == after else _shift_between(timezone, day, before, after)


@lru_cache(maxsize=1024)
def _shift_between(timezone: str, day: date, before: int, after: int) -> _Shift:
    zone, midnight = zone_named(timezone), _midnight(day)
    at = bisect_left(
        range(_DAY_S), True, key=lambda second: _offset_at(zone, midnight + timedelta(seconds=second)) == after
    )
    return _Shift(at, before, after)


@lru_cache(maxsize=16384)
def _offset(timezone: str, day: date) -> int:
    """Return the zone's offset at midnight UTC, in seconds."""
    return _offset_at(zone_named(timezone), _midnight(day))


def _offset_at(zone: ZoneInfo, instant: datetime) -> int:
    # Ask zoneinfo for the offset at an instant, and not at a wall-clock time, which may not exist or may exist twice.
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


@lru_cache(maxsize=256)
def zone_named(timezone: object) -> ZoneInfo:
    """Return the zone *timezone*. Raises CronError if the zone is unknown. The error suggests the zone that was
    probably meant.
    """
    if not isinstance(timezone, str):  # nothing checks the types of a user's call
        raise CronError(f"{timezone!r} is not the name of a time zone: write a name like Europe/Berlin or UTC")
    if zone_exists(timezone):
        return ZoneInfo(timezone)
    shown = timezone[:64].encode("unicode_escape").decode()
    if timezone.startswith(HOST_ZONES):
        raise CronError(f'time zone "{shown}" is not the same on every host: write a name like Europe/Berlin or UTC')
    meant = zone_meant(timezone[:64])
    hint = f"did you mean {meant}?" if meant else "write a name like Europe/Berlin or UTC"
    raise CronError(f'time zone "{shown}" is not known: {hint}')


def _utc(instant: datetime) -> datetime:
    if instant.utcoffset() is None:
        raise UsageError(f"{instant!r} has no time zone: pass an aware datetime, such as datetime.now(UTC)")
    return instant.astimezone(UTC)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _up_to(instant: datetime, midnight: datetime, seconds: tuple[int, ...]) -> int:
    """Return how many of the *seconds* after *midnight* are not later than *instant*."""
    return bisect_right(seconds, (instant - midnight).total_seconds())
