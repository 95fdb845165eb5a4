"""When a tick removes old rows. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from cronjobs.probe.question import PRUNE_EVERY_S, WRONG_CLOCK_S

EVERY: Final = timedelta(
    seconds=PRUNE_EVERY_S
)  # between two rounds of pruning; only time limits how many rows one removes
OVERDUE: Final = timedelta(hours=2)  # after this even a tick with work spends a little of its time on pruning
WRONG_CLOCK: Final = timedelta(seconds=WRONG_CLOCK_S)


def is_due(pruned_at: datetime | None, now: datetime) -> bool:
    """Whether to prune now, also if the last time lies far in the future because a clock was wrong."""
    return pruned_at is None or abs(now - pruned_at) >= EVERY


def is_overdue(pruned_at: datetime | None, now: datetime) -> bool:
    return pruned_at is not None and abs(now - pruned_at) > OVERDUE


def clock_jumped(last_tick_at: datetime | None, now: datetime) -> bool:
    """Whether the clock moved by more than a day since the last tick (by its id): then no age is certain."""
    return last_tick_at is not None and abs(now - last_tick_at) > WRONG_CLOCK
