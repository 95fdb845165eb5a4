"""When cron starts a line, minute by minute. Our schedules are due at the same instants, or the difference is shown."""

from __future__ import annotations

import pwd
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cronjobs.contrib.take_over.comparing import OTHER_INSTANTS, Pair, differences
from cronjobs.contrib.take_over.convert_lines import Importer
from cronjobs.contrib.take_over.fields_of_old_cron import read_fields
from cronjobs.contrib.take_over.minute_loop import TimedLine, started_seconds
from cronjobs.desk.crontab.lines import Cron
from cronjobs.engine.config.settings import ScheduleSettings

OWNER = pwd.struct_passwd(("ada", "x", 1000, 1000, "", "/home/ada", "/bin/sh"))


def local_starts(when: str, zone: str, day: str, cron: Cron = "debian", timezone: str | None = None) -> list[str]:
    """The starts in the 24 hours from noon of the day before *day*, in UTC."""
    noon = datetime.fromisoformat(f"{day}T12:00+00:00") - timedelta(days=1)
    line = TimedLine(read_fields(when, cron), timezone)
    [found] = started_seconds([line], zone, noon, noon + timedelta(days=1), cron)
    return [f"{datetime.fromtimestamp(second, UTC):%H:%M}" for second in found]


# Summer time begins in Berlin on 2027-03-28 at 01:00 UTC (02:00 becomes 03:00) and ends on 2027-10-31 at 01:00 UTC
# (03:00 becomes 02:00). Lord Howe Island changes by half an hour, Troll by two hours, Casey by three (2010).
@pytest.mark.parametrize(
    ("when", "zone", "day", "debian"),
    [
        ("30 2 * * *", "Europe/Berlin", "2027-03-28", ["01:00"]),
        ("0,30 2,3 * * *", "Europe/Berlin", "2027-03-28", ["01:00", "01:00", "01:00", "01:30"]),
        ("*/30 2 * * *", "Europe/Berlin", "2027-03-28", []),
        ("30 * * * *", "Europe/Berlin", "2027-03-28", [f"{hour % 24:02}:30" for hour in range(12, 36)]),
        ("15 1-3 * * *", "Europe/Berlin", "2027-03-28", ["00:15", "01:00", "01:15"]),
        ("30 2 * * *", "Europe/Berlin", "2027-10-31", ["00:30"]),
        ("0 3 * * *", "Europe/Berlin", "2027-10-31", ["02:00"]),
        ("*/30 2 * * *", "Europe/Berlin", "2027-10-31", ["00:00", "00:30", "01:00", "01:30"]),
        ("10 2 * * *", "Australia/Lord_Howe", "2027-10-03", ["15:30"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2027-04-04", ["14:45"]),
        ("30 1,2 * * *", "Antarctica/Troll", "2027-03-28", ["01:00", "01:00"]),
        ("30 23 * * *", "Antarctica/Casey", "2010-03-04", ["12:30"]),
    ],
)
def test_what_debians_cron_does_when_the_clock_changes(when: str, zone: str, day: str, debian: list[str]) -> None:
    assert local_starts(when, zone, day) == debian


# How often Debian's daemon (3.0pl1-162) and cronie's (of December 2025), their clocks moved by libfaketime, ran a line
# in the two minutes from 01:00 UTC on, when summer time began in Berlin and when it ended.
@pytest.mark.parametrize(
    ("when", "begins", "ends"),
    [
        ("30 2 * * *", 1, 0),
        ("0,30 2 * * *", 2, 0),
        ("*/30 2 * * *", 0, 1),
        ("30 * * * *", 0, 0),
        ("0 3 * * *", 1, 0),
        ("0 * * * *", 1, 1),
        ("@hourly", 1, 1),
        ("0,20 2,3 * * *", 3, 0),
        ("1 2 * * *", 1, 0),
        ("0 2 * * *", 1, 0),
        ("1 3 * * *", 1, 0),
    ],
)
def test_the_loop_starts_a_line_as_often_as_the_daemon_was_seen_to(when: str, begins: int, ends: int) -> None:
    assert counted(TimedLine(read_fields(when, "debian")), "debian") == (begins, ends)
    assert counted(TimedLine(read_fields(when, "cronie")), "cronie") == (begins, ends)


@pytest.mark.parametrize(
    ("when", "timezone", "begins", "ends"),
    [
        ("0 1 * * *", "UTC", 1, 0),
        ("1 1 * * *", "UTC", 1, 0),
        ("*/1 1 * * *", "UTC", 2, 2),
        ("0 * * * *", "UTC", 1, 1),
        ("0 10 * * *", "Asia/Tokyo", 1, 0),
        ("1 10 * * *", "Asia/Tokyo", 1, 0),
        ("* 10 * * *", "Asia/Tokyo", 2, 2),
    ],
)
def test_a_line_of_another_zone_starts_as_often_as_cronies_daemon_was_seen_to(
    when: str, timezone: str, begins: int, ends: int
) -> None:
    assert counted(TimedLine(read_fields(when, "cronie"), timezone), "cronie") == (begins, ends)


def counted(line: TimedLine, cron: Cron) -> tuple[int, int]:
    """How often the line starts within the first two minutes after each of the two changes."""
    begins, ends = (
        started_seconds([line], "Europe/Berlin", before, before + timedelta(minutes=2), cron)[0]
        for before in (datetime(2027, 3, 28, 0, 59, 30, tzinfo=UTC), datetime(2027, 10, 31, 0, 59, 30, tzinfo=UTC))
    )
    return len(begins), len(ends)


def test_a_change_of_more_than_three_hours_is_taken_as_it_is() -> None:
    # Apia left out the whole 30 December 2011.
    assert local_starts("0 5 30 12 *", "Pacific/Apia", "2011-12-31") == []
    assert local_starts("0 5 31 12 *", "Pacific/Apia", "2011-12-31") == ["15:00"]


def test_only_cronie_knows_the_time_zone_of_a_line() -> None:
    line, day = "0 9 * * *", "2027-01-15"
    assert local_starts(line, "Europe/Berlin", day, "cronie", "America/New_York") == ["14:00"]
    assert local_starts(line, "Europe/Berlin", day, "cronie", "") == ["08:00"]


def test_cronie_leaves_lines_of_other_zones_alone_while_its_own_clock_goes_through_an_hour_twice() -> None:
    host, day = "Europe/Berlin", "2027-10-31"
    assert local_starts("30 1 * * *", host, day, "cronie", "UTC") == []
    assert local_starts("30 0 * * *", host, day, "cronie", "UTC") == ["00:30"]
    assert local_starts("*/30 1 * * *", host, day, "cronie", "UTC") == ["01:00", "01:30"]


def test_cronie_does_not_see_a_new_offset_that_is_no_summer_time() -> None:
    # Novokuznetsk went from +06 to +07 for good on 2011-03-27, at 20:00 UTC the day before.
    assert local_starts("0 6 * * *", "Asia/Novokuznetsk", "2011-03-27", "debian") == ["23:00"]
    assert local_starts("0 6 * * *", "Asia/Novokuznetsk", "2011-03-27", "cronie") == ["00:00"]


def test_crons_side_shares_no_code_with_ours() -> None:
    program = (
        "import sys, cronjobs.contrib.take_over.minute_loop; "
        "print([name for name in sys.modules if name.startswith(('cronjobs.engine.crontime', 'croniter'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- beside ours ------------------------------------------------------------------------------------------------------


def fields(low: int, high: int, names: str = "") -> st.SearchStrategy[str]:
    value = st.integers(low, high).map(str)
    item = st.one_of(
        value,
        st.tuples(st.integers(low, high), st.integers(low, high)).map(lambda ends: f"{min(ends)}-{max(ends)}"),
        st.tuples(st.integers(low, high), st.integers(1, high)).map(lambda ends: f"{ends[0]}-{high}/{ends[1]}"),
        st.sampled_from(names.split()) if names else value,
    )
    several = st.lists(item, min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), st.integers(1, high + 5).map(lambda step: f"*/{step}"), several)


TIMES = st.one_of(
    st.sampled_from(["@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"]),
    st.tuples(
        fields(0, 59),
        st.one_of(fields(0, 23), fields(0, 4)),
        st.one_of(st.just("*"), fields(1, 31)),
        st.one_of(st.just("*"), fields(1, 12, "jan Feb MAR apr oct dec")),
        st.one_of(st.just("*"), fields(0, 7, "sun Mon FRI sat")),
    ).map("\t ".join),
)
# Instants to test in each zone: its clock changes. The first two zones have none, so any instant will do.
CHANGES = {
    "UTC": ["2027-03-28T01:00"],
    "Asia/Kathmandu": ["2027-03-28T01:00"],
    "Europe/Berlin": ["2027-03-28T01:00", "2027-10-31T01:00"],
    "America/New_York": ["2027-03-14T07:00", "2027-11-07T06:00"],
    "America/Santiago": ["2027-09-05T04:00", "2027-04-04T03:00"],
    "Australia/Lord_Howe": ["2027-10-02T15:30", "2027-04-03T15:00"],
    "Antarctica/Troll": ["2027-03-28T01:00", "2027-10-31T01:00"],
    "Atlantic/Azores": ["2027-03-28T01:00", "2027-10-31T01:00"],
}


@settings(deadline=None, max_examples=30)
@given(
    st.lists(TIMES, min_size=1, max_size=6),
    st.sampled_from([(zone, change) for zone, changes in CHANGES.items() for change in changes]),
    st.sampled_from(["debian", "cronie"]),
)
def test_imported_lines_are_due_when_cron_starts_them_but_for_what_it_does_twice_in_the_skipped_hour(
    whens: list[str], zone_and_change: tuple[str, str], cron: Cron
) -> None:
    zone, change = zone_and_change[0], datetime.fromisoformat(zone_and_change[1]).replace(tzinfo=UTC)
    taken = Importer(OWNER, zone, cron).convert("".join(f"{when} true\n" for when in whens)).taken
    pairs = [
        Pair(each, ScheduleSettings(each.name, each.name, cron=each.cron, timezone=each.timezone), same_command=True)
        for each in taken
    ]
    found = differences(pairs, zone, change - timedelta(days=2), change + timedelta(days=2), cron)
    for each in found:
        assert each.why == OTHER_INSTANTS
        [(at, by_cron, by_us)] = each.instants
        assert (at, by_us) == (change, 1)
        assert by_cron > 1
        assert not each.taken.fields.wild
