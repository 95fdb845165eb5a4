"""A tick's work for the web pages: once the outcomes of a past hour can no longer change, store them."""

from __future__ import annotations

from typing import Final

from cronjobs.engine.store.quarters import close_hour, next_open_hour
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.tick.context import TickContext
from cronjobs.errors import DatabaseBusy

SHARE: Final = 0.25  # of the time left in the tick is used for closing hours


def close_hours(tick: TickContext) -> None:
    """Close one hour at a time, oldest first. The next tick continues where this one runs out of time."""
    until = tick.clock.monotonic() + SHARE * (tick.deadline - tick.clock.monotonic())
    with tick.database.read() as connection:
        more = next_open_hour(connection, database_now(connection)) is not None
    try:
        while more and tick.go_on() and tick.clock.monotonic() < until:
            with tick.database.write(patience=1.0) as connection:
                more = close_hour(connection, database_now(connection))
    except DatabaseBusy:
        return  # any other writer is more urgent
