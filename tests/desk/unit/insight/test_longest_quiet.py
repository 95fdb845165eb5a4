"""The longest time without ticks before an attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cronjobs.desk.insight.job_evidence import longest_quiet


def at(minute: float) -> datetime:
    return datetime(2026, 3, 2, 8, tzinfo=UTC) + timedelta(minutes=minute)


@pytest.mark.parametrize(
    ("spans", "first", "found"),
    [
        ([], 0, (0, 60)),
        ([(0, 1), (20, 21), (59, 60)], 0, (21, 59)),
        ([(20, 21), (59, 60)], None, (21, 59)),
        ([(55, 56)], None, None),
        ([(1, 58), (2, 3), (59, 60)], 0, None),  # a long tick was there all the time
        ([(minute, minute) for minute in range(60)], 0, None),
    ],
)
def test_a_time_without_ticks(spans: list[tuple[int, int]], first: int | None, found: tuple[int, int] | None) -> None:
    told = longest_quiet(
        [(at(begun), at(ended)) for begun, ended in reversed(spans)],
        None if first is None else at(first),
        at(60),
        timedelta(minutes=5),
    )
    assert told == (None if found is None else (at(found[0]), at(found[1])))
