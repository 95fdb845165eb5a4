"""How often ticks begin, as their rows show it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cronjobs.desk.insight.pace import pace_of

BEGIN = datetime(2026, 3, 2, 8, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("minutes", "every"),
    [
        ([0, 1, 2, 3], 1),
        ([0, 10, 20, 330, 340, 343, 350], 10),  # an outage, and a tick by hand
        ([0, 0.2, 0.5, 15, 15.1, 30, 30, 45, 45], 15),  # several hosts
        ([0, 10, 20], None),
        ([], None),
    ],
)
def test_the_median_time_between_minutes_with_ticks(minutes: list[float], every: int | None) -> None:
    found = pace_of(BEGIN + timedelta(minutes=each) for each in reversed(minutes))
    assert found == (None if every is None else timedelta(minutes=every))
