"""Apply the file's schedules and queue caps to the database: make a plan, and apply it in chunks.

A chunk is a group of schedules that one transaction writes. For each schedule, one transaction settles the occurrences
that are due under the old definition, and replaces that definition. So even an interrupted sync loses no occurrence,
and runs none twice. The file counts as applied when the last chunk is committed. Until then, any host with this file
continues the sync.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.clock import sleep
from cronjobs.engine.config.settings import ScheduleSettings, Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.schedules.changes import SyncPlan, compare
from cronjobs.engine.schedules.chunks import PAUSES_S, ChunkWriter, chunks
from cronjobs.engine.schedules.decide import Due, plan_for
from cronjobs.engine.schedules.definition import definition, fingerprint
from cronjobs.engine.schedules.materialise import SettledChunk, emit_settled, weight, write
from cronjobs.engine.store import queues, ticks
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store.acks import rename_schedules
from cronjobs.engine.store.job_types import remembered
from cronjobs.engine.store.schedules import Definition, StoredSchedule
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import AuditAct


@dataclass(frozen=True)
class Synced:
    """The result of a sync.

    If ``applied`` is False, either the plan was refused, or the schedules and queues in ``left`` are not done yet.
    """

    applied: bool
    plan: SyncPlan
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class Edit:
    """A change to one schedule. ``was`` is the schedule's current row, perhaps under an old name.

    If ``wanted`` is None, the schedule is retired. ``due`` is the plan for its due occurrences, which must be settled
    first. ``due`` is None if nothing is due, or if the definition in force cannot be read.
    """

    name: str
    wanted: ScheduleSettings | None
    was: StoredSchedule | None
    due: Due | None


def sync(
    database: Database,
    settings: Settings,
    emit: Callable[[events.Event], None],
    *,
    host: str,
    actor: str,
    allow_removals: bool = False,
    before_writing: Callable[[Connection], int | None] = lambda _: None,
    go_on: Callable[[], bool] = lambda: True,
) -> Synced:
    """Apply the file's schedules and caps. First settle the occurrences that are due under the old definitions.

    When *go_on* returns False, the remaining changes are left to the next sync of this file. Rows that other
    transactions have locked are also left to that sync.
    """
    applying = Applying(database, settings, emit, host, actor, before_writing, go_on)
    first = SyncPlan()
    for pause in (*PAUSES_S, None):
        with database.read() as connection:
            # Read ``last_sync`` first. If another host applies a file between these reads, its audit entry is newer
            # than ``last_sync``, so we notice and plan again.
            applying.last_sync = ticks.last_sync(connection)
            now = database_now(connection)
            stored = store.all_schedules(connection)
            caps = queues.caps_in_force(connection)
            begun = ticks.unfinished_sync(connection)
            in_force = ticks.file_in_force(connection)
        todo = compare(settings, stored, caps)
        if applying.rounds == 0:
            # If a person allowed removals when the sync began, they stay allowed until the file is applied.
            if begun is not None and begun.subject == applying.mark and (begun.detail or {}).get("removals"):
                allow_removals = True
            if todo.refused and not allow_removals:
                return Synced(False, todo)
            first = todo
        elif todo.empty and begun is None and in_force == applying.mark:
            # Another tick has applied and logged the same file.
            return Synced(True, replace(first, refused=None))
        if applying.apply(todo, stored, now, removals=allow_removals) or applying.stopped:
            break
        if pause is None or not go_on() or applying.refused.issuperset(applying.left):
            break
        sleep(pause)
    if applying.applied and not first.empty:
        emit(events.schedules_applied(applying.mark, first.detail))
    elif applying.left:
        emit(events.sync_unfinished(applying.mark, applying.left))
        if applying.in_parts.trouble is not None:
            raise applying.in_parts.trouble
    return Synced(applying.applied, replace(first, refused=None), tuple(applying.left))


@dataclass
class Applying:
    """Applies one file. ``left`` lists the schedules and queues that are not done yet.

    If ``stopped`` is True, time is up, or another sync has taken over. ``refused`` lists schedules that the database
    refuses.
    """

    database: Database
    settings: Settings
    emit: Callable[[events.Event], None]
    host: str
    actor: str
    before_writing: Callable[[Connection], int | None]
    go_on: Callable[[], bool]

    def __post_init__(self) -> None:
        self.mark = fingerprint(self.settings)
        self.in_parts = ChunkWriter(is_sqlite=self.database.is_sqlite)
        # The id of the newest audit entry about a sync that we have read. Once this sync has begun, the entry is our
        # own.
        self.last_sync = 0
        self.begun = False
        self.rounds = 0
        self.applied = self.stopped = False
        self.left: dict[str, None] = {}
        self.refused: set[str] = set()

    def apply(self, todo: SyncPlan, stored: Sequence[StoredSchedule], now: datetime, *, removals: bool) -> bool:
        """Apply *todo*, which was planned at *now*. Return whether all its changes are done."""
        self.todo, self.now, self.removals = todo, now, removals
        self.rounds += 1
        edits = [edit for edit in _edits(todo, stored, self.settings.schedules, now) if edit.name not in self.refused]
        self.left = dict.fromkeys(
            [
                *(edit.name for edit in edits),
                *self.refused,
                *map(_queue, [*(cap.queue for cap in todo.cap), *todo.uncap]),
            ]
        )
        # A plan without edits is also written, for its caps and its audit entry.
        for chunk in list(chunks(edits, lambda edit: weight(edit.due) if edit.due else (0, 0))) or [[]]:
            if self.stopped:
                break
            self.in_parts.write(chunk, self._write, self._refuse)
        return self.applied

    def _refuse(self, edit: Edit, why: str) -> None:
        self.refused.add(edit.name)
        self.emit(events.schedule_broken(edit.name, f"the database refuses it: {why}"))

    def _write(self, chunk: Sequence[Edit]) -> None:
        if self.stopped or not self.go_on():
            self.stopped = True
            return
        with self.database.write() as connection:
            tick = self.before_writing(connection)
            if not store.lock_definitions(connection) or not self._is_ours(connection):
                return
            done, written = self._settle(connection, chunk, tick)
            capped = queues.put_caps(connection, self.todo.cap, self.todo.uncap)
            acts = [*self._cap_acts(capped), *self._define(connection, done)]
            over = {*(edit.name for edit in done), *map(_queue, capped)}
            left = [name for name in self.left if name not in over]
            if not left:
                acts.append(AuditAct("sync", self.mark, self.actor, self.todo.detail))
            ticks.record_all(connection, acts, host=self.host, at=self.now)
            begun = None
            if left and not self.begun:
                begun = ticks.begin_sync(
                    connection, self.mark, actor=self.actor, host=self.host, at=self.now, removals=self.removals
                )
        # Change the state in memory only after the commit.
        if begun is not None:
            self.begun, self.last_sync = True, begun
        self.left, self.applied = dict.fromkeys(left), not left
        self.todo = replace(
            self.todo,
            cap=tuple(cap for cap in self.todo.cap if cap.queue not in capped),
            uncap=tuple(name for name in self.todo.uncap if name not in capped),
        )
        emit_settled(written, self.emit)
        for edit in done:
            for event in edit.due.to_emit if edit.due is not None else ():
                self.emit(event)

    def _is_ours(self, connection: Connection) -> bool:
        """Return whether no other host has applied a file, or begun to apply one, since the present plan was made."""
        if ticks.last_sync(connection) == self.last_sync:
            return True
        # Another host has applied a file, or has begun to apply one. If that is the same file as ours, and we have not
        # begun, we make a new plan for the remaining changes.
        begun = ticks.unfinished_sync(connection)
        newest = begun.subject if begun is not None else ticks.file_in_force(connection)
        self.stopped = self.begun or newest != self.mark
        return False

    def _settle(
        self, connection: Connection, chunk: Sequence[Edit], tick: int | None
    ) -> tuple[list[Edit], SettledChunk]:
        """Settle the occurrences that are due under the old definitions. Return the edits that can be made now.

        The other edits have to wait: a tick is settling their schedule, or has settled it since we read it, or an
        enqueuer has locked the schedule's queue.
        """
        locked = store.lock_schedules(connection, [edit.was for edit in chunk if edit.was is not None])
        free = [edit for edit in chunk if edit.was is None or edit.was.id in locked]
        due = [edit.due for edit in free if edit.due is not None]
        within = remembered(self.settings.run.every)
        written = write(connection, due, self.now, within, tick=tick) if due else SettledChunk((), (), ())
        waiting = {found.stored.id for found in written.held}
        # A schedule whose watermark was in the future must be planned again, so its edit has to wait, too.
        waiting |= {found.stored.id for found in due if found.ahead or found.stored.name in written.busy}
        return [edit for edit in free if edit.was is None or edit.was.id not in waiting], written

    def _define(self, connection: Connection, edits: Sequence[Edit]) -> list[AuditAct]:
        renamed = {edit.was.name: edit.name for edit in edits if edit.was is not None and edit.was.name != edit.name}
        changed = {*self.todo.add, *self.todo.change}
        define = [_definition(edit, self.mark, self.now) for edit in edits if edit.wanted and edit.name in changed]
        retire = [edit.name for edit in edits if edit.wanted is None]
        store.rename(connection, renamed, [old for old, new in renamed.items() if self._has_command(new)])
        if renamed:
            rename_schedules(connection, renamed)
        store.put_definitions(connection, define)
        store.retire(connection, retire)
        return [
            *(AuditAct("rename", new, self.actor, {"from": old}) for old, new in renamed.items()),
            *(AuditAct("define", each.name, "file", each.definition) for each in define),
            *(AuditAct("retire", name, self.actor) for name in retire),
        ]

    def _has_command(self, schedule: str) -> bool:
        return f"schedules.{schedule}.command" in self.settings.positions

    def _cap_acts(self, capped: Collection[str]) -> list[AuditAct]:
        return [
            *(
                AuditAct("cap", cap.queue, self.actor, {"max_waiting": cap.max_waiting, "on_full": cap.on_full})
                for cap in self.todo.cap
                if cap.queue in capped
            ),
            *(AuditAct("uncap", name, self.actor) for name in self.todo.uncap if name in capped),
        ]


def _edits(
    todo: SyncPlan, stored: Sequence[StoredSchedule], wanted: Mapping[str, ScheduleSettings], now: datetime
) -> list[Edit]:
    rows = {schedule.name: schedule for schedule in stored if schedule.status == "active"}
    was = {new: old for old, new in todo.rename}
    edits = []
    for name in dict.fromkeys((*was, *todo.add, *todo.change, *todo.remove)):
        row = rows.get(was.get(name, name))
        # Occurrences that a pause holds back become a piece when their definition ends, so a pause never blocks a
        # deploy.
        ends = name in todo.retimed or name in todo.remove
        due = None if row is None else plan_for(row, now, leaving=ends)
        settled = None if due is None or due.unreadable else due
        edits.append(Edit(name, None if name in todo.remove else wanted[name], row, settled))
    return edits


def _definition(edit: Edit, mark: str, now: datetime) -> Definition:
    from cronjobs.engine.crontime.timing import next_after, timing

    assert edit.wanted is not None
    # A new or returning schedule never fires for times before this sync. If the definition in force was unreadable, the
    # new definition applies from the old watermark on, so no occurrence is lost.
    seen_until = now if edit.was is None else edit.was.seen_until if edit.due is None else edit.due.seen_until
    when = timing(edit.wanted.cron, edit.wanted.every, edit.wanted.timezone)
    return Definition(edit.name, definition(edit.wanted), mark, seen_until, next_after(when, seen_until))


def _queue(name: str) -> str:
    """Return a queue's name in ``left``, which also lists schedules."""
    return f"queue {name}"
