"""When a schedule is due: day rules, ranges, the calendar's ends, zones. Clock changes: test_clock_changes.py."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rounds import rounds

from cronjobs.engine.crontime.timing import (
    CronTiming,
    EveryTiming,
    fire_times,
    newest_between,
    next_after,
    timing,
)
from cronjobs.errors import CronError, UsageError
from cronjobs.testing import assert_fires

DAY = timedelta(days=1)


def at(text: str) -> datetime:
    """An instant written as "2026-03-29 01:00", in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# --- days -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "days"),
    [
        ("0 0 13 * 5", "01-02 01-09 01-13 01-16 01-23"),  # either: crontab(5), "30 4 1,15 * 5"
        ("0 0 */2 * 1", "01-05 01-19 02-09 02-23 03-09"),  # both, as one starts with "*"
        ("0 0 1-31 * 1", "01-01 01-02 01-03 01-04 01-05"),  # either, though the days are all
        ("0 0 31 * *", "01-31 03-31 05-31 07-31 08-31"),
        ("0 0 31 4 1", "04-06 04-13 04-20 04-27 04-05"),  # the 31st never comes, Mondays do; 2027-04-05
    ],
)
def test_day_and_weekday_combine_as_in_cron(cron: str, days: str) -> None:
    fires = islice(fire_times(cron, "UTC", at("2025-12-31")), 5)
    assert [f"{fire:%m-%d}" for fire in fires] == days.split()


def test_leap_days_come_every_four_years_and_not_in_2100() -> None:
    years = [fire.year for fire in islice(fire_times("0 0 29 2 *", "Europe/Berlin", at("2088-01-01")), 5)]
    assert years == [2088, 2092, 2096, 2104, 2108]


def test_a_leap_day_on_one_weekday_may_be_forty_years_away() -> None:
    """croniter gives up after as many years as it is told; across 2100, which has no leap day, 28 become 40."""
    mondays = (fire for fire in fire_times("0 0 29 2 *", "UTC", at("2072-03-01")) if fire.weekday() == 0)
    assert next(mondays).year == 2112
    sundays = fire_times("0 0 29 2 */7", "UTC", at("2080-01-01"))
    assert [fire.year for fire in islice(sundays, 2)] == [2088, 2128]


def random_field(chance: random.Random, low: int, high: int) -> str:
    shape = chance.random()
    if shape < 0.35:
        return "*"
    if shape < 0.5:
        return f"*/{chance.randint(1, high - low)}"
    items = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        first = chance.randint(low, high)
        last = chance.randint(first, high)
        item = f"{first}-{last}" if last > first and chance.random() < 0.5 else f"{first}"
        # not "45-45/5", which cronsim 2.8 reads as 45-59/5
        items.append(f"{item}/{chance.randint(1, 7)}" if "-" in item and chance.random() < 0.4 else item)
    return ",".join(items)


@pytest.mark.slow
def test_random_expressions_agree_with_cronsim() -> None:
    chance = random.Random(20_260_329)
    compared = 0
    while compared < rounds(1_500, 4_000):
        cron = " ".join(random_field(chance, *bounds) for bounds in ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7)))
        start = at("2026-01-01") + timedelta(minutes=chance.randrange(8 * 366 * 1440))
        try:
            fires = list(islice(fire_times(cron, "UTC", start), 3))
        except CronError as refusal:
            assert "never comes" in str(refusal)  # noqa: PT017
            continue
        assert fires == list(islice(CronSim(cron, start), 3)), (cron, start)
        compared += 1


# --- ranges -----------------------------------------------------------------------------------------------------------

TIMINGS = [
    timing("*/10 * * * *", None, "Europe/Berlin"),
    timing("30 1,2 * * *", None, "America/New_York"),
    timing("0 0 13 * 5", None, "Pacific/Apia"),
    timing("0 0 29 2 *", None, "Asia/Tokyo"),
    timing(None, timedelta(minutes=90), "UTC"),
    timing(None, timedelta(days=10), "UTC"),
]


@settings(max_examples=150, deadline=None)
@pytest.mark.slow
@given(
    st.sampled_from(TIMINGS),
    st.datetimes(datetime(2007, 1, 1), datetime(2014, 1, 1)),  # noqa: DTZ001
    st.timedeltas(-DAY, 400 * DAY),
    st.integers(0, 50),
)
def test_counting_and_searching_a_range_agree_with_walking_it(
    rule: CronTiming | EveryTiming, start: datetime, length: timedelta, n: int
) -> None:
    after = start.replace(tzinfo=UTC)
    until = after + length
    walked = list(takewhile(until.__ge__, rule.after(after)))
    assert walked == sorted(set(walked))
    assert all(after < fire <= until and fire.tzinfo is UTC for fire in walked)
    assert rule.span(after, until) == (
        len(walked),
        walked[0] if walked else None,
        walked[-1] if walked else None,
    )
    assert newest_between(rule, after, until, n) == (walked[-n:] if n else [])


def test_a_range_includes_its_end_and_not_its_begin() -> None:
    hourly = timing("0 * * * *", None, "UTC")
    assert hourly.span(at("2026-01-01 00:00"), at("2026-01-01 02:00"))[0] == 2
    assert newest_between(hourly, at("2026-01-01 00:00"), at("2026-01-01 01:00"), 5) == [at("2026-01-01 01:00")]


def test_a_year_of_minutes_is_counted_without_walking_them() -> None:
    minutely = timing("* * * * *", None, "Europe/Berlin")
    begun = time.process_time()
    count, first, last = minutely.span(at("2026-01-01"), at("2027-01-01"))
    newest = newest_between(minutely, at("1970-01-01"), at("2027-01-01"), 2)
    assert time.process_time() - begun < 0.25  # 0.01 s where it was written
    assert (count, first, last) == (525_600, at("2026-01-01 00:01"), at("2027-01-01"))
    assert newest == [at("2026-12-31 23:59"), at("2027-01-01")]


@pytest.mark.slow
@pytest.mark.parametrize("cron", ["* * * * *", "30 2 * * *", "*/7 3,5 * * 1", "0 0 1,15 * 5"])
def test_ten_thousand_fires_take_less_than_a_second(cron: str) -> None:
    def walk() -> int:
        return len(list(islice(fire_times(cron, "America/New_York", at("2026-01-01")), 10_000)))

    walk()
    begun = time.process_time()
    assert walk() == 10_000
    assert time.process_time() - begun < 1


# --- the calendar's ends, zones, arguments ----------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"])
def test_the_last_year_ends_without_an_error(zone: str) -> None:
    assert len(list(fire_times("0 12 1 * *", zone, at("9998-12-15")))) == 12
    assert list(fire_times("* * * * *", zone, at("9999-12-31 23:00"))) == []
    assert next_after(timing("@hourly", None, zone), at("9999-12-31 23:00")) is None
    assert next_after(timing(None, DAY, zone), at("9999-12-31 23:00")) is None


def test_the_first_year_begins_without_an_error() -> None:
    assert next_after(timing("@yearly", None, "UTC"), datetime.min.replace(tzinfo=UTC)) == at("0002-01-01")


@pytest.mark.parametrize(
    ("zone", "sentence"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin"),
        ("berlin", "did you mean Europe/Berlin"),
        ("New York", "did you mean America/New_York"),
        ("", "write a name like"),
        ("../../etc/passwd", "is not known"),
        ("Europe", "is not known"),
        ("a\x00\n", r"a\x00\n"),
        ("localtime", "not the same on every host"),
        ("right/UTC", "not the same on every host"),  # counts leap seconds
        (None, "None is not the name of a time zone"),
        (ZoneInfo("UTC"), "zoneinfo.ZoneInfo(key='UTC') is not the name of a time zone"),
    ],
)
def test_an_unknown_zone_is_refused_with_near_names(zone: Any, sentence: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: timing("0 0 * * *", None, zone),
        lambda: fire_times("0 0 * * *", zone, at("2026-01-01")),
    ]
    if zone is not None:  # None is the default there
        fires = partial(assert_fires, between=("2026-01-01", "2026-01-02"), timezone=zone)
        calls += [partial(fires, "0 0 * * *"), partial(fires, "every 10m")]
    for call in calls:
        with pytest.raises(CronError) as refusal:
            call()
        assert sentence in str(refusal.value)


def test_a_naive_instant_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="has no time zone"):
        fire_times("0 0 * * *", "UTC", datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(UsageError, match="has no time zone"):
        timing(None, DAY, "UTC").after(datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_bad_expression_is_refused_at_once() -> None:
    with pytest.raises(CronError, match="minute 61"):
        fire_times("61 * * * *", "UTC", at("2026-01-01"))


def test_the_start_may_be_in_any_zone_and_within_a_minute() -> None:
    after = datetime(2026, 1, 1, 9, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=9)))
    assert next(fire_times("* * * * *", "UTC", after)) == at("2026-01-01 01:00")
    assert next(fire_times("* * * * *", "UTC", at("2026-01-01 01:00"))) == at("2026-01-01 01:01")


def test_the_hosts_own_zone_never_matters() -> None:
    program = (
        "from datetime import UTC, datetime; from itertools import islice;"
        "from cronjobs.engine.crontime.timing import fire_times;"
        "start = datetime(2026, 3, 28, tzinfo=UTC);"
        "print([str(fire) for fire in islice(fire_times('30 2 1,29 * 1', 'Europe/Berlin', start), 9)])"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "TZ": zone, "PYTHONPATH": str(Path(__file__).parents[4])},
            capture_output=True,
            check=True,
        ).stdout
        for zone in ("UTC", "America/New_York", "Pacific/Kiritimati")
    }
    assert len(answers) == 1


def test_croniter_is_not_imported_before_it_is_needed() -> None:
    """Importing it takes 55 ms, which an idle tick should not spend."""
    program = (
        "import sys; from datetime import UTC, datetime, timedelta;"
        "from cronjobs.engine.crontime import timing as occurrences;"
        "occurrences.timing('0 0 * * *', None, 'UTC');"
        "next(occurrences.timing(None, timedelta(hours=1), 'UTC').after(datetime.now(UTC)));"
        "assert 'croniter' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[4], check=True)


# --- every: -----------------------------------------------------------------------------------------------------------


def test_an_interval_counts_from_1970_in_utc() -> None:
    fires = islice(EveryTiming(timedelta(minutes=90)).after(at("2026-01-01 00:00")), 3)
    # 2026-01-01 is 20,454 days after the epoch: a multiple of 90 minutes, as a day is 16 of them
    assert list(fires) == [at("2026-01-01 01:30"), at("2026-01-01 03:00"), at("2026-01-01 04:30")]
    assert next_after(EveryTiming(7 * DAY), at("2025-12-31")) == at("2026-01-01")  # a Thursday, as 1970-01-01 was


@pytest.mark.parametrize(
    "interval", [timedelta(0), timedelta(days=-1), timedelta(seconds=0.5), timedelta(seconds=60.5)]
)
def test_an_interval_within_a_second_is_refused(interval: timedelta) -> None:
    with pytest.raises(CronError, match=r"write .*m"):
        EveryTiming(interval)


@pytest.mark.parametrize(("cron", "every"), [(None, None), ("* * * * *", DAY)])
def test_a_timing_is_either_cron_or_every(cron: str | None, every: timedelta | None) -> None:
    with pytest.raises(CronError, match='either "cron" or "every":'):
        timing(cron, every, "UTC")
