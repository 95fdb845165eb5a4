"""A tick's work for the web pages: once the outcomes of a past hour can no longer change, store them."""

from __future__ import annotations

from typing import Final

from cronjobs.engine.store.quarters import close_hour, next_open_hour
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.tick.context import TickContext
from cronjobs.errors import DatabaseBusy

# Closing hours may use this share of the time that is left in the tick.
SHARE: Final = 0.25


def close_hours(tick: TickContext) -> None:
    """Close one hour at a time, oldest first. If time runs out, the next tick continues."""
    until = tick.clock.monotonic() + SHARE * (tick.deadline - tick.clock.monotonic())
    with tick.database.read() as connection:
        more = next_open_hour(connection, database_now(connection)) is not None
    try:
        while more and tick.go_on() and tick.clock.monotonic() < until:
            with tick.database.write(patience=1.0) as connection:
                more = close_hour(connection, database_now(connection))
    except DatabaseBusy:
        # Another writer is waiting, and any other writer is more urgent.
        return
