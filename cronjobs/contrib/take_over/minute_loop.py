"""Compute when cron starts each line: simulate cron's main loop minute by minute. Pure.

The simulation follows main() and find_jobs() in cron.c of Debian's cron 3.0pl1-162 and of cronie 1.7. It shares no code
with ``crontime``, because ``crontab compare`` checks the results of the two modules against each other.

Cron keeps a virtual time: the local time as minutes since 1970, as if local time were UTC. Each minute, cron compares
the clock with its virtual time. The clock may be

- one minute ahead, the normal case: every matching line runs;
- up to 5 minutes ahead: cron runs each minute in between, as if it had woken up late;
- up to 3 hours ahead (summer time begins): lines with a "*" run by the new time. The other lines run for each skipped
  minute, so a line that matches two skipped minutes runs twice. Cron waits for 10 s after each skipped minute; the
  simulation does not wait;
- up to 3 hours behind (summer time ends): only lines with a "*" run until the clock has caught up;
- further ahead or behind: cron adopts the new time, and runs no lines for skipped minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from cronjobs.contrib.take_over.fields_of_old_cron import CronFields
from cronjobs.desk.crontab.lines import Cron

_HOURS_3 = 180  # in minutes; cron.c calls this 3 * MINUTE_COUNT
_DAY = 1440
_EPOCH_DAY = date(1970, 1, 1).toordinal()
# The simulation starts this many minutes before the requested range, to include a clock change just before it.
_LEAD = 2 * _DAY


@dataclass(frozen=True)
class TimedLine:
    """The fields of a line, and its CRON_TZ, which only cronie supports.

    ``timezone`` is None if CRON_TZ is not set, and "" if CRON_TZ is set but empty.
    """

    fields: CronFields
    timezone: str | None = None


def started_seconds(
    lines: Sequence[TimedLine], timezone: str, after: datetime, until: datetime, cron: Cron
) -> list[list[int]]:
    """For each line, return when cron starts it from *after* (exclusive) to *until*, in seconds since 1970.

    A minute in which cron starts the line twice is in the list twice.
    """
    first = _minute(after) + 1
    last = _minute(until)
    found: list[list[int]] = [[] for _ in lines]
    for minute, hit in _starts(lines, _Offsets(timezone), first - _LEAD, last, cron):
        if minute >= first:
            for number in _bits(hit):
                found[number].append(minute * 60)
    return found


def _minute(instant: datetime) -> int:
    return int(instant.timestamp() // 60)


def _bits(hit: int) -> Iterator[int]:
    """Yield the numbers of the lines whose bits are set in *hit*."""
    while hit:
        low = hit & -hit
        yield low.bit_length() - 1
        hit ^= low


def _starts(lines: Sequence[TimedLine], zone: _Offsets, first: int, last: int, cron: Cron) -> Iterator[tuple[int, int]]:
    """Yield real minutes and the lines that main() in cron.c starts in them. A minute may come more than once."""
    find = _Matching(lines).found
    offset = zone.at(first - 1)
    counted_by = offset  # the offset of the virtual time, which is oldGMToff in cronie
    virtual = first - 1 + offset
    summer = zone.is_summer(first - 1)
    for now in range(first, last + 1):
        # cronie's set_time() reads the offset again only if tm_isdst has changed.
        if cron == "debian" or summer != (summer := zone.is_summer(now)):
            offset = zone.at(now)
        running = now + offset
        ahead = running - virtual
        if ahead == 1:
            virtual, counted_by = running, offset
            if hit := find(running, True, True, offset, offset):
                yield now, hit
        elif 1 < ahead <= _HOURS_3:
            late = ahead <= 5
            if not late:
                yield now, find(running, True, False, offset, offset)
            while virtual < running:
                virtual += 1
                if virtual == running:
                    counted_by = offset
                yield now, find(virtual, late, True, counted_by, offset)
        elif -_HOURS_3 < ahead <= 0 or (ahead == -_HOURS_3 and cron == "cronie"):
            if hit := find(running, True, False, offset, offset):
                yield now, hit
        else:
            virtual, counted_by = running, offset
            yield now, find(running, True, True, offset, offset)


class _Matching:
    """Matches a minute against all lines at once. Each line is one bit of an integer, so this takes few operations."""

    def __init__(self, lines: Sequence[TimedLine]) -> None:
        here = [(number, line) for number, line in enumerate(lines) if not line.timezone]
        elsewhere = [(number, line) for number, line in enumerate(lines) if line.timezone]
        self.here = _Table(here)
        zones = dict.fromkeys(line.timezone or "" for _, line in elsewhere)
        self.elsewhere = [
            (_Offsets(zone), _Table([each for each in elsewhere if each[1].timezone == zone])) for zone in zones
        ]
        # Cronie ignores the host's clock changes for lines that have a CRON_TZ, even if CRON_TZ is empty.
        self.waiting = sum(1 << number for number, line in enumerate(lines) if line.timezone is not None)
        self.wild = sum(1 << number for number, line in enumerate(lines) if line.fields.wild)

    def found(self, at: int, wild: bool, fixed: bool, counted_by: int, offset: int) -> int:
        """Return the lines that match the local minute *at*, like find_jobs() in cron.c.

        *wild* selects lines with a "*", and *fixed* selects the other lines. *counted_by* is the UTC offset by which
        *at* was computed. *offset* is the current UTC offset.
        """
        hit = self.here.matching(at)
        for zone, table in self.elsewhere:
            real = at - counted_by
            hit |= table.matching(real + zone.at(real))
        if hit and counted_by != offset:
            hit &= ~self.waiting
        if not fixed:
            hit &= self.wild
        if not wild:
            hit &= ~self.wild
        return hit


class _Table:
    def __init__(self, lines: Sequence[tuple[int, TimedLine]]) -> None:
        self.lines = lines
        self.minutes = [sum(1 << bit for bit, line in lines if minute in line.fields.minutes) for minute in range(60)]
        self.hours = [sum(1 << bit for bit, line in lines if hour in line.fields.hours) for hour in range(24)]
        self._day, self._on_day = -1, 0

    def matching(self, at: int) -> int:
        """Return the lines that match the local minute *at*."""
        hit = self.minutes[at % 60] & self.hours[at // 60 % 24]
        return hit & self._of_day(at // _DAY) if hit else 0

    def _of_day(self, number: int) -> int:
        if number != self._day:
            day = date.fromordinal(_EPOCH_DAY + number)
            weekday = day.isoweekday() % 7
            self._on_day = sum(
                1 << line for line, each in self.lines if each.fields.on_day(day.day, day.month, weekday)
            )
            self._day = number
        return self._on_day


class _Offsets:
    """A zone's offset from UTC in whole minutes, and whether tm_isdst is set, at each minute since 1970."""

    def __init__(self, timezone: str) -> None:
        self.zone = ZoneInfo(timezone)
        self._days: dict[int, tuple[int, bool] | None] = {}

    def at(self, minute: int) -> int:
        return self._of(minute)[0]

    def is_summer(self, minute: int) -> bool:
        return self._of(minute)[1]

    def _of(self, minute: int) -> tuple[int, bool]:
        """Return the offset and the flag of a minute. Query the zone once a day, except on days with a clock change."""
        day = minute // _DAY
        if day not in self._days:
            first, last = self._look(day * _DAY), self._look(day * _DAY + _DAY)
            self._days[day] = first if first == last else None
        return self._days[day] or self._look(minute)

    def _look(self, minute: int) -> tuple[int, bool]:
        local = datetime.fromtimestamp(minute * 60, UTC).astimezone(self.zone)
        offset, summer = local.utcoffset(), local.dst()
        assert offset is not None
        return offset // timedelta(minutes=1), bool(summer)
