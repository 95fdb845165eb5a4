"""When a tick looks for old rows. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

EVERY: Final = timedelta(hours=1)  # between two looks for old rows; how many go is limited by time alone
OVERDUE: Final = timedelta(hours=2)  # ticks that are always full give a little of their time, then
WRONG_CLOCK: Final = timedelta(days=1)


def is_due(pruned_at: datetime | None, now: datetime) -> bool:
    """Whether to look for old rows; a last look that lies far in the future (a clock was wrong) counts for nothing."""
    return pruned_at is None or abs(now - pruned_at) >= EVERY


def is_overdue(pruned_at: datetime | None, now: datetime) -> bool:
    return pruned_at is not None and abs(now - pruned_at) > OVERDUE


def clock_jumped(last_tick_at: datetime | None, now: datetime) -> bool:
    """Whether nothing is old for certain: since the last tick, by its id, the clock made more than a day."""
    return last_tick_at is not None and abs(now - last_tick_at) > WRONG_CLOCK
