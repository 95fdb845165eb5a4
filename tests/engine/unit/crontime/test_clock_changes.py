"""What clock changes do to schedules: a table of cases, and ten years of transitions compared with Debian's loop."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from itertools import pairwise, takewhile
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from cronjobs.engine.crontime.grammar import parse
from cronjobs.engine.crontime.timing import (
    CronTiming,
    EveryTiming,
    clock_changes,
    fire_times,
    next_after,
    remarks,
    timing,
)

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)


def at(text: str) -> datetime:
    """An instant written as "2026-03-29 01:00", in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def between(cron: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    return list(takewhile(until.__ge__, fire_times(cron, zone, after)))


# --- told, one by one ------------------------------------------------------------------------------------------------


def told() -> list[list[str]]:
    lines = Path(__file__).with_name("clock_changes.txt").read_text("utf-8").splitlines()
    return [[cell.strip() for cell in line.split("|")] for line in lines if not line.startswith("#")]


@pytest.mark.parametrize(("zone", "cron", "after", "until", "expected", "source"), told())
def test_a_clock_change_does_what_debian_says(
    zone: str, cron: str, after: str, until: str, expected: str, source: str
) -> None:
    fires = between(cron, zone, at(after), at(until))
    assert [f"{fire:%dT%H:%M:%S}".removesuffix(":00") for fire in fires] == expected.split(), source


# --- Debian's loop ---------------------------------------------------------------------------------------------------


class DebianCron:
    """Debian's cron with one crontab line, in simulated time: what its loop would start, minute by minute.

    After cron.c of 3.0pl1: ``virtualTime`` follows the wall clock and never steps back. Each minute, wildcard jobs run
    if they match the wall clock; fixed-time jobs run for each minute by which ``virtualTime`` rises. It knows nothing
    of transitions, only what a clock shows. Two differences, both by contract: jumps of more than 3 hours are no
    exception, and what falls into one gap is one run.
    """

    def __init__(self, text: str) -> None:
        fields = text.split()
        bounds = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
        self.minutes, self.hours, self.days, self.months, self.weekdays = (
            _values(field, low, high) for field, (low, high) in zip(fields, bounds, strict=True)
        )
        self.wild = fields[0].startswith("*") or fields[1].startswith("*")
        self.days_and = fields[2].startswith("*") or fields[4].startswith("*")

    def matches(self, wall: datetime) -> bool:
        if wall.minute not in self.minutes or wall.hour not in self.hours or wall.month not in self.months:
            return False
        day = wall.day in self.days
        weekday = wall.isoweekday() in self.weekdays or wall.isoweekday() % 7 in self.weekdays
        return (day and weekday) if self.days_and else (day or weekday)

    def runs(self, clock: list[tuple[datetime, datetime]]) -> Iterator[datetime]:
        """Yield the instants at which the line runs, given each minute with what the wall clock shows then."""
        virtual = clock[0][1] - MINUTE
        for instant, wall in clock:
            if self.wild:
                if self.matches(wall):
                    yield instant
                continue
            due = False
            while virtual < wall:
                virtual += MINUTE
                due = due or self.matches(virtual)
            if due:
                yield instant


def wall_clock(zone: ZoneInfo, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """Every minute from *start* to *end*, and the naive time that a clock in *zone* shows then."""
    minutes = int((end - start) / MINUTE)
    instants = [start + count * MINUTE for count in range(minutes + 1)]
    return [(instant, instant.astimezone(zone).replace(tzinfo=None, fold=0)) for instant in instants]


def transitions(zone: ZoneInfo, first_year: int, last_year: int) -> Iterator[datetime]:
    """Yield the hours (UTC) within which the zone's offset changes."""
    instant, end = datetime(first_year, 1, 1, tzinfo=UTC), datetime(last_year + 1, 1, 1, tzinfo=UTC)
    while instant < end:
        tomorrow = instant + timedelta(days=1)
        if instant.astimezone(zone).utcoffset() != tomorrow.astimezone(zone).utcoffset():
            hours = [instant + timedelta(hours=hour) for hour in range(25)]
            for before, after in pairwise(hours):
                if before.astimezone(zone).utcoffset() != after.astimezone(zone).utcoffset():
                    yield before
        instant = tomorrow


def _values(field: str, low: int, high: int) -> set[int]:
    values: set[int] = set()
    for item in field.split(","):
        span, _, step = item.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        values.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return values


# --- clock changes, all of ten years ---------------------------------------------------------------------------------

ZONES = """
    Africa/Cairo Africa/Casablanca Africa/El_Aaiun Africa/Juba Africa/Windhoek America/Asuncion America/Chihuahua
    America/Dawson America/Havana America/Miquelon America/New_York America/Nuuk America/Port-au-Prince America/Santiago
    America/Sao_Paulo America/Scoresbysund America/St_Johns Antarctica/Casey Antarctica/Macquarie Antarctica/Troll
    Asia/Almaty Asia/Amman Asia/Beirut Asia/Damascus Asia/Gaza Asia/Jerusalem Asia/Pyongyang Asia/Tehran Atlantic/Azores
    Australia/Lord_Howe Australia/Sydney Europe/Berlin Europe/Chisinau Europe/Dublin Europe/Istanbul Europe/London
    Europe/Volgograd Pacific/Apia Pacific/Chatham Pacific/Easter Pacific/Fiji Pacific/Norfolk Pacific/Tongatapu
""".split()  # noqa: SIM905  as a list it would fill a page

EVERYWHERE = (
    "* * * * *", "*/7 * * * *", "0 * * * *", "30 */2 * * *", "*/20 0-3,22-23 * * *", "30 2 * * *", "0,30 0-4 * * *",
    "15 0,23 * * *", "0 0 * * *", "59 23 * * *", "0-59/7 0-23 * * *", "5,35 1,3 * * 0", "10 0 1,31 * 5",
)  # fmt: skip


@pytest.mark.parametrize("zone", ZONES)
def test_every_transition_of_ten_years_is_handled_as_debians_loop_does(zone: str) -> None:
    for transition in transitions(ZoneInfo(zone), 2016, 2026):
        compare_with_debian(zone, transition - timedelta(hours=8), transition + timedelta(hours=8))


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Pacific/Apia", "2011-12-30"),  # skipped a day
        ("Pacific/Kwajalein", "1993-08-21"),  # skipped a day
        ("Pacific/Kwajalein", "1969-10-01"),  # lived 23 hours twice
        ("Pacific/Kiritimati", "1994-12-31"),  # skipped a day
        ("Antarctica/Vostok", "1994-11-01"),
        ("Antarctica/Casey", "2012-02-21"),
        ("America/St_Johns", "2010-11-07"),  # back at 0:01
        ("America/Caracas", "2007-12-09"),
        ("Asia/Colombo", "1996-10-26"),
    ],
)
def test_the_odd_transitions_are_handled_as_debians_loop_does(zone: str, day: str) -> None:
    compare_with_debian(zone, at(day) - 2 * DAY, at(day) + 3 * DAY)


def compare_with_debian(zone: str, start: datetime, end: datetime) -> None:
    clock = wall_clock(ZoneInfo(zone), start, end)
    for cron in EVERYWHERE:
        expected = list(DebianCron(cron).runs(clock))
        assert between(cron, zone, start - timedelta(microseconds=1), end) == expected, (zone, cron, start)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "Antarctica/Troll", "America/St_Johns"])
@pytest.mark.parametrize("cron", ["*/10 * * * *", "5,35 0-4,23 * * *"])
def test_starting_anywhere_gives_the_rest_of_the_same_fires(zone: str, cron: str) -> None:
    for transition in transitions(ZoneInfo(zone), 2010, 2010):
        start, end = transition - DAY / 4, transition + DAY / 4
        fires = between(cron, zone, start, end)
        for minutes in range(0, 720, 5):
            after = start + timedelta(minutes=minutes)
            assert between(cron, zone, after, end) == [fire for fire in fires if fire > after]


def test_no_zone_changes_twice_within_two_days() -> None:
    """What ``occurrences._shift`` relies on, for all zones and all times of the tzdata in use."""
    tzdata = files("tzdata")
    names = (tzdata / "zones").read_text().split()
    assert len(names) > 400
    for name in names:
        changes = _changes((tzdata / "zoneinfo" / name).read_bytes())
        assert all(later - earlier > 2 * 86_400 for earlier, later in pairwise(changes)), name


def _changes(data: bytes) -> list[int]:
    """The instants at which the offset changes, read from the 64-bit part of a TZif file (RFC 9636)."""
    utc, std, leap, times, types, chars = struct.unpack(">6l", data[20:44])
    header = 44 + times * 5 + types * 6 + chars + leap * 8 + std + utc
    utc, std, leap, times, types, chars = struct.unpack(">6l", data[header + 20 : header + 44])
    body = header + 44
    instants = struct.unpack(f">{times}q", data[body : body + 8 * times])
    kinds = data[body + 8 * times : body + 9 * times]
    table = body + 9 * times
    offsets = [struct.unpack(">l", data[table + 6 * kind : table + 6 * kind + 4])[0] for kind in kinds]
    return [
        instant for instant, before, after in zip(instants[1:], offsets, offsets[1:], strict=False) if before != after
    ]


# --- remarks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "zone", "fire", "remark"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-29 01:00",
         "2026-03-29 02:30 does not exist in Europe/Berlin: the schedule runs at 03:00 instead"),
        ("0,30 2 * * *", "Europe/Berlin", "2026-03-29 01:00",
         "2026-03-29 02:00, 02:30 do not exist in Europe/Berlin: one run at 03:00 stands for them"),
        ("0 2,3 * * *", "Europe/Berlin", "2026-03-29 01:00",
         "2026-03-29 02:00 does not exist in Europe/Berlin: the regular run at 03:00 stands for it too"),
        ("0-59/5 2 * * *", "Europe/Berlin", "2026-03-29 01:00",
         "2026-03-29 02:00, 02:05, … 02:55 do not exist in Europe/Berlin: one run at 03:00 stands for them"),
        ("0 12 * * *", "Pacific/Apia", "2011-12-30 10:00",
         "2011-12-30 12:00 does not exist in Pacific/Apia: the schedule runs at 2011-12-31 00:00 instead"),
        ("0 3 * * *", "Europe/Berlin", "2026-03-29 01:00", None),
        ("0 * * * *", "Europe/Berlin", "2026-03-29 01:00", None),
        ("30 2 * * *", "Europe/Berlin", "2026-03-30 00:30", None),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25 00:30",
         "2026-10-25 02:30 comes twice in Europe/Berlin: the schedule runs the first time only"),
        ("30 * * * *", "Europe/Berlin", "2026-10-25 00:30",
         "2026-10-25 02:30 comes twice in Europe/Berlin: this is the first of its two runs"),
        ("30 * * * *", "Europe/Berlin", "2026-10-25 01:30",
         "2026-10-25 02:30 comes twice in Europe/Berlin: this is the second of its two runs"),
        ("0 3 * * *", "Europe/Berlin", "2026-10-25 02:00", None),
    ],
)  # fmt: skip
def test_a_remark_says_what_a_clock_change_did(cron: str, zone: str, fire: str, remark: str | None) -> None:
    rule = CronTiming(parse(cron), zone)
    assert next_after(rule, at(fire) - timedelta(seconds=1)) == at(fire)
    assert remarks(rule, at(fire)) == remark


def test_an_interval_needs_no_remarks() -> None:
    assert remarks(EveryTiming(DAY), at("2026-03-29")) is None
    assert list(clock_changes(EveryTiming(DAY), at("2026-01-01"), at("2027-01-01"))) == []


def test_the_clock_changes_of_a_year_are_named_also_where_nothing_runs() -> None:
    rule = timing("*/30 2 * * *", None, "Europe/Berlin")
    assert list(clock_changes(rule, at("2026-01-01"), at("2027-01-01"))) == [
        (
            at("2026-03-29 01:00"),
            (
                "2026-03-29 02:00, 02:30 do not exist in Europe/Berlin: no run, because a schedule with * in the "
                "minute or hour follows real time"
            ),
        ),
        (at("2026-10-25 01:00"), "2026-10-25 02:00, 02:30 come twice in Europe/Berlin: the schedule runs both times"),
    ]
    assert list(clock_changes(timing("0 12 * * *", None, "Europe/Berlin"), at("2026-01-01"), at("2027-01-01"))) == []
