"""Bring the file's schedules and caps of queues into the database: plan it as data, apply it in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.database import Database
from cronjobs.definitions import definition, fingerprint
from cronjobs.materialise import materialise
from cronjobs.pressure import Cap
from cronjobs.settings import ScheduleSettings, Settings
from cronjobs.store import queues
from cronjobs.store import schedules as store
from cronjobs.store.schedules import StoredSchedule
from cronjobs.store.sql import database_now
from cronjobs.store.ticks import record

TIMING: Final = ("cron", "every_s", "timezone")  # what moves occurrences; other edits leave the watermark alone


@dataclass(frozen=True)
class Plan:
    """What applying a file would change, by name. ``refused`` says why it must not happen unasked, or None.

    ``cap`` are new or changed caps of queues, ``uncap`` the queues that lose theirs.
    """

    add: tuple[str, ...] = ()
    change: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()  # from, to
    refused: str | None = None
    retimed: frozenset[str] = field(default_factory=frozenset)
    cap: tuple[Cap, ...] = ()
    uncap: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.add or self.change or self.remove or self.rename or self.cap or self.uncap)


def plan(stored: Sequence[StoredSchedule], wanted: Mapping[str, ScheduleSettings], disabled: Collection[str]) -> Plan:
    """Compare the definitions in force with those of a file; entries that are broken (*disabled*) stay as they are.

    Retiring more than half of the active schedules (and at least three) is refused: a file that was cut short or
    mounted empty must not silence the night.
    """
    active = {schedule.name: schedule for schedule in stored if schedule.status == "active"}
    known = {schedule.name for schedule in stored}
    rename = tuple(
        (schedule.renamed_from, name)
        for name, schedule in wanted.items()
        if schedule.renamed_from in active and schedule.renamed_from not in wanted and name not in known
    )
    for old, new in rename:
        active[new] = active.pop(old)
    add, change, retimed = [], [], set()
    for name, schedule in wanted.items():
        there = active.get(name)
        written = definition(schedule)
        if there is None:
            add.append(name)
        elif there.definition != written:
            change.append(name)
            if any(there.definition.get(key) != written.get(key) for key in TIMING):
                retimed.add(name)
    remove = tuple(name for name in active if name not in wanted and name not in disabled)
    refused = None
    if (len(remove) >= 3 and len(remove) * 2 > len(active)) or (remove and not wanted):
        refused = (
            f"the file would retire {len(remove)} of {len(active)} schedules ({', '.join(remove[:5])}"
            f'{", …" if len(remove) > 5 else ""}): if that is meant, run "cronjobs sync --allow-removals"'
        )
    return Plan(tuple(add), tuple(change), remove, rename, refused, frozenset(retimed))


def with_caps(todo: Plan, in_force: Mapping[str, Cap], settings: Settings) -> Plan:
    """*todo*, and what the file changes about queues; of entries that are bad what is in force stays."""
    if settings.queues is None:
        return todo
    cap = tuple(cap for name, cap in settings.queues.items() if in_force.get(name) != cap)
    kept = settings.queues.keys() | settings.disabled_queues
    return replace(todo, cap=cap, uncap=tuple(name for name in in_force if name not in kept))


@dataclass(frozen=True)
class Synced:
    """``applied`` False: someone else was at it, or the plan was refused; all is as it was."""

    applied: bool
    plan: Plan


def sync(
    database: Database,
    settings: Settings,
    emit: Callable[[events.Event], None],
    *,
    host: str,
    actor: str,
    allow_removals: bool = False,
    before_writing: Callable[[Connection], None] = lambda _: None,
) -> Synced:
    """Apply the file's schedules and caps; first the old definitions are materialised up to now, so nothing is lost."""
    from cronjobs.occurrences import next_after, timing

    materialise(database, emit, everything=True, before_writing=before_writing)
    mark = fingerprint(settings)
    with database.write() as connection:
        before_writing(connection)
        if not store.lock_definitions(connection):
            return Synced(False, Plan())
        now = database_now(connection)
        stored = {schedule.name: schedule for schedule in store.all_schedules(connection)}
        todo = plan(list(stored.values()), settings.schedules, settings.disabled_schedules)
        todo = with_caps(todo, queues.caps_in_force(connection), settings)
        if todo.refused and not allow_removals:
            return Synced(False, todo)
        was = {new: old for old, new in todo.rename}
        if any(_behind(stored[was.get(name, name)], now) for name in (*todo.retimed, *todo.remove)):
            return Synced(False, todo)  # another tick is settling its occurrences: next time
        if not queues.put_caps(connection, todo.cap, todo.uncap):
            return Synced(False, todo)  # somebody enqueues there: next time
        for cap in todo.cap:
            limits = {"max_waiting": cap.max_waiting, "on_full": cap.on_full}
            record(connection, action="cap", subject=cap.queue, actor=actor, host=host, detail=limits, at=now)
        for name in todo.uncap:
            record(connection, action="uncap", subject=name, actor=actor, host=host, at=now)
        for old, new in todo.rename:
            store.rename(connection, old, new)
            stored[new] = stored.pop(old)
            record(connection, action="rename", subject=new, actor=actor, host=host, detail={"from": old}, at=now)
        for name in (*todo.add, *todo.change):
            schedule = settings.schedules[name]
            when = timing(schedule.cron, schedule.every, schedule.timezone)
            # A new schedule, or one that comes back, never fires for the past.
            seen_until = now if name in todo.add else None
            next_at = next_after(when, now if seen_until else stored[name].seen_until)
            _define(connection, schedule, mark, seen_until, next_at, now, host)
        if todo.remove:
            store.retire(connection, todo.remove)
            for name in todo.remove:
                record(connection, action="retire", subject=name, actor=actor, host=host, at=now)
        detail = {
            "add": list(todo.add),
            "change": list(todo.change),
            "remove": list(todo.remove),
            "rename": [f"{old} → {new}" for old, new in todo.rename],
        }
        if changed := [*map(str, todo.cap), *(f"{name}: no cap" for name in todo.uncap)]:
            detail["queues"] = changed
        record(connection, action="sync", subject=mark, actor=actor, host=host, detail=detail, at=now)
    if not todo.empty:
        emit(events.schedules_applied(mark, detail))
    return Synced(True, todo)


def _behind(stored: StoredSchedule, now: datetime) -> bool:
    """Whether occurrences of the definition in force are still unsettled."""
    return stored.next_at is not None and stored.next_at <= now


def _define(
    connection: Connection,
    schedule: ScheduleSettings,
    mark: str,
    seen_until: datetime | None,
    next_at: datetime | None,
    now: datetime,
    host: str,
) -> None:
    written: dict[str, Any] = definition(schedule)
    store.put_definition(
        connection,
        name=schedule.name,
        definition=written,
        fingerprint=mark,
        seen_until=seen_until,
        next_at=next_at,
    )
    record(connection, action="define", subject=schedule.name, actor="file", host=host, detail=written, at=now)
