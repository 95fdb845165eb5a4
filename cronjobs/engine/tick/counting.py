"""What a tick does for metrics and charts: it counts on what has ended."""

from __future__ import annotations

from typing import Final

from cronjobs.engine.store.totals import count_on
from cronjobs.engine.tick.context import TickContext
from cronjobs.errors import DatabaseBusy

SHARE: Final = 0.25  # of what is left of the tick


def count(tick: TickContext) -> None:
    """Count what has ended, in short transactions; the next tick goes on where this one's time ends."""
    until = tick.clock.monotonic() + SHARE * (tick.deadline - tick.clock.monotonic())
    more = True
    try:
        while more and tick.go_on() and tick.clock.monotonic() < until:
            with tick.database.write(patience=1.0) as connection:
                more = count_on(connection)
    except DatabaseBusy:
        return  # someone else counts, or prunes, just now
