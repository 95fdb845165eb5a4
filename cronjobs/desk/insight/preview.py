"""Predict what a tick would do about schedules, by the tick's own rules. Locks and writes nothing."""

from __future__ import annotations

from sqlalchemy import Connection

from cronjobs.engine.config.settings import Settings
from cronjobs.engine.schedules.applying import judge_file
from cronjobs.engine.schedules.changes import SyncPlan, compare
from cronjobs.engine.schedules.decide import Due, Settled, decide_all, plan_for, wants_room
from cronjobs.engine.schedules.materialise import known_about
from cronjobs.engine.store import queues, schedules
from cronjobs.engine.store.job_types import remembered
from cronjobs.engine.store.ticks import Overview


def preview(
    connection: Connection, seen: Overview, settings: Settings, *, host: str
) -> tuple[SyncPlan | None, list[tuple[Due, Settled]]]:
    """Return the sync that a tick of *host* would do, if any, and how the tick would settle the due occurrences."""
    stored = schedules.all_schedules(connection)
    todo = None
    if judge_file(connection, seen, settings, host=host) == "apply":
        todo = compare(settings, stored, queues.caps_in_force(connection))
    chosen = schedules.due_schedules(connection, settings.disabled_schedules)
    # A sync first settles each schedule that it changes, even if the schedule's next_at is later.
    if todo is not None:
        ends = {*todo.change, *todo.remove, *(old for old, _ in todo.rename)}.difference(each.name for each in chosen)
        chosen += [schedule for schedule in stored if schedule.status == "active" and schedule.name in ends]
    planned = [due for schedule in chosen if (due := plan_for(schedule, seen.now)) is not None]
    readable = [due for due in planned if not due.ahead and not due.unreadable]
    known = known_about(connection, readable, remembered(settings.run.every))
    asked = set().union(*(wants_room(due, known[due.stored.id]) for due in readable))
    caps, lifted = ((), ()) if todo is None else (todo.cap, todo.uncap)
    room = queues.room_now(connection, asked, caps, lifted)
    made = {due.stored.id: settled for due, settled in decide_all(readable, known, room.caps, room.waiting)}
    return todo, [(due, made.get(due.stored.id, Settled())) for due in planned if due.to_emit or due.parts]
