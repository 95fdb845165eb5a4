"""What a tick would make of the due occurrences, by the tick's own rules; nothing is locked or written."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from sqlalchemy import Connection

from cronjobs.rules.capacity import Cap
from cronjobs.schedules.decide import Due, Settled, decide_all, wants_room
from cronjobs.schedules.materialise import known_about
from cronjobs.store.queues import room_now


def preview(
    connection: Connection,
    planned: Sequence[Due],
    *,
    within: timedelta,
    changed: Collection[Cap] = (),
    lifted: Collection[str] = (),
) -> list[tuple[Due, Settled]]:
    """What would be written about each of *planned*.

    *within*: how far back ticks count as knowing a job type. *changed* and *lifted*: the caps that applying the file
    would change and remove first.
    """
    readable = [due for due in planned if not due.ahead and not due.unreadable]
    known = known_about(connection, readable, within)
    queues = set().union(*(wants_room(due, known[due.stored.id]) for due in readable))
    room = room_now(connection, queues, changed, lifted)
    return decide_all(readable, known, room.caps, room.waiting)
