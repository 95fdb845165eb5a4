"""Convert database rows to the pauses and schedule states of ``planning``, and find the occurrences that pauses hold
back now.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection

from cronjobs.engine.rules.occurrences import Range
from cronjobs.engine.schedules.planning import Owed, Pause, held_back, pieces_from
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store.schedules import StoredSchedule
from cronjobs.engine.store.sql import database_now


def pauses_of(stored: StoredSchedule) -> list[Pause]:
    """Return all pauses that apply to a schedule, including past ones."""
    return [Pause(row.paused_at, row.until, bool(row.skip), row.said) for row in stored.pauses]


def owed_by(stored: StoredSchedule) -> Owed:
    """Return the state of a schedule for ``planning``. Raises ValueError if its stored pieces cannot be read."""
    # JSON null is an unreadable definition, so it becomes {}: None would mean that the schedule is retired.
    definition = None if stored.status != "active" else {} if stored.definition is None else stored.definition
    return Owed(stored.name, definition, stored.seen_until, pieces_from(stored.owed))


def held_back_now(connection: Connection) -> dict[str, Range]:
    """Return the occurrences that pauses hold back now, by schedule name."""
    now = database_now(connection)
    found = {}
    for stored in store.all_schedules(connection):
        if stored.paused is None or (stored.owed is None and (stored.next_at is None or stored.next_at > now)):
            continue
        try:
            owed = owed_by(stored)
        except ValueError:
            owed = owed_by(replace(stored, owed=None))
        held = held_back(owed, pauses_of(stored), now)
        if held is not None:
            found[stored.name] = held
    return found
