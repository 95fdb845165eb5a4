"""``02:30`` means the last time at which the clock showed 02:30, also around a change of the clocks."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest

from cronjobs.desk.cli.parse_values import of_day
from cronjobs.desk.insight.instants import asked_on_the_clock

CHANGES = {
    "Europe/Berlin": ("2026-03-29T01:00", "2026-10-25T01:00"),
    "America/New_York": ("2026-03-08T07:00", "2026-11-01T06:00"),
    "Australia/Lord_Howe": ("2026-04-04T15:00", "2026-10-03T15:30"),
    "UTC": ("2026-03-29T01:00",),
}


@pytest.mark.parametrize(
    ("now", "asked", "first_pass"),
    [
        ("2026-10-25T01:10", "02:30", "2026-10-25T00:30"),  # 02:10 for the second time
        ("2026-10-25T01:40", "02:30", "2026-10-25T00:30"),  # 02:40 for the second time
        ("2026-10-25T00:10", "02:30", "2026-10-24T00:30"),  # 02:10 for the first time
        ("2026-10-25T01:10", "03:30", "2026-10-24T01:30"),
        ("2026-03-29T01:10", "02:30", "2026-03-29T01:00"),  # no such time: the end of the gap
        ("2026-03-29T00:50", "02:30", "2026-03-28T01:30"),
    ],
)
def test_a_time_of_the_night_of_the_change(now: str, asked: str, first_pass: str) -> None:
    wall = of_day(asked, datetime.fromisoformat(now).replace(tzinfo=UTC), "Europe/Berlin")
    assert wall is not None
    assert asked_on_the_clock(wall, "Europe/Berlin").at == datetime.fromisoformat(first_pass).replace(tzinfo=UTC)


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize("seed", range(20))
def test_nothing_later_that_has_passed_is_overlooked(zone: str, seed: int) -> None:
    random = Random(f"{zone} {seed}")
    for change in CHANGES[zone]:
        for _ in range(50):
            now = datetime.fromisoformat(change).replace(tzinfo=UTC) + timedelta(minutes=random.randint(-1600, 1600))
            hour, minute = random.randint(0, 23), random.randint(0, 59)
            wall = of_day(f"{hour:02}:{minute:02}", now, zone)
            assert wall is not None
            answer = asked_on_the_clock(wall, zone).at
            days = [now.astimezone(ZoneInfo(zone)).date() + timedelta(days=day) for day in (-1, 0, 1)]
            passes = [asked_on_the_clock(datetime.combine(d, time(hour, minute)), zone).at for d in days]
            assert answer == max(each for each in passes if each <= now)
