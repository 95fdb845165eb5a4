"""Settle due occurrences: write ledger rows and jobs for all occurrences that are due after each schedule's watermark.

Pure functions decide about each schedule separately. The results for many schedules are written in one short
transaction with a few statements. So a slow connection to the database delays each chunk, not each schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.clock import sleep
from cronjobs.engine.database.connection import Database
from cronjobs.engine.schedules.chunks import CHUNK, PAUSES_S, ChunkWriter, chunks
from cronjobs.engine.schedules.decide import (
    Due,
    ScheduleState,
    decide_all,
    plan_for,
    plan_skipping_runs_of_cron,
    wants_room,
)
from cronjobs.engine.schedules.planning import joined, read, stored_pieces
from cronjobs.engine.schedules.wrong_clock import undo
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store.enqueue import insert_jobs
from cronjobs.engine.store.job_types import REMEMBERED, present_types
from cronjobs.engine.store.overlap import busy_schedules
from cronjobs.engine.store.queues import Room, locked_room
from cronjobs.engine.store.schedules import LedgerRow, StoredSchedule, Watermark
from cronjobs.engine.store.sql import database_now


@dataclass
class Materialised:
    """The result of one call. ``counts`` contains the number of occurrences by outcome.

    ``busy`` lists schedules that another transaction was settling. If ``left`` is True, time ran out while occurrences
    were still due.
    """

    counts: Counter[str] = field(default_factory=Counter)
    busy: list[str] = field(default_factory=list)
    left: bool = False


# --- many schedules ---------------------------------------------------------------------------------------------------


def materialise(
    database: Database,
    emit: Callable[[events.Event], None],
    *,
    but: Collection[str] = (),
    put_aside: str | None = None,
    within: timedelta = REMEMBERED,
    before_writing: Callable[[Connection], int | None] = lambda _: None,
    go_on: Callable[[], bool] = lambda: True,
) -> Materialised:
    """Settle all due occurrences, with many schedules in each transaction. Schedules that have been due longest come
    first.

    One transaction writes a schedule's ledger rows, jobs and new watermark. Schedules in *but* are not settled, because
    their entry in the file is broken. When *go_on* returns False, the remaining schedules are left to the next call. If
    the database refuses one schedule, an event reports that, and the other schedules are still settled. ``overlap``
    counts an unfinished job only if some tick has known the job's type during the last *within*. *before_writing* is
    called first in each transaction, and returns the id of the tick that settles the occurrences. Just before
    somebody changes a pause that skips, pass *put_aside*: the name of the paused schedule, or "" if everything is
    paused. The call then records the occurrences that the pause has skipped so far, and those that another pause holds
    back become a piece.
    """
    settling = Settling(database, emit, before_writing, go_on, within)
    done = settling.done
    for _ in range(2):
        _look(settling, but, put_aside)
        # If this pass corrected a watermark that was in the future, look again for what is really due.
        if not settling.set_right:
            break
    settling.settle_held()
    if done.left:
        emit(events.schedules_left())
    if settling.in_parts.trouble is not None:
        raise settling.in_parts.trouble
    return done


def skip_runs_of_cron(
    database: Database,
    emit: Callable[[events.Event], None],
    names: Collection[str],
    *,
    before_writing: Callable[[Connection], int | None] = lambda _: None,
    go_on: Callable[[], bool] = lambda: True,
) -> bool:
    """Make the schedules *names* begin now. Skip their earlier occurrences, because cron itself ran these.

    Return False if other transactions have locked some of the schedules, or if time ran out. The call is safe to
    repeat.
    """
    for _ in range(3):
        settling = Settling(database, emit, before_writing, go_on, REMEMBERED)
        with database.read() as connection:
            stored = [each for each in store.all_schedules(connection) if each.name in names]
            now = database_now(connection)
        active = [each for each in stored if each.status == "active"]
        planned = [found for schedule in active if (found := plan_skipping_runs_of_cron(schedule, now)) is not None]
        settling.settle([found for found in planned if not found.unreadable], now)
        settling.settle_held()
        if settling.in_parts.trouble is not None:
            raise settling.in_parts.trouble
        if not (settling.set_right or settling.done.busy or settling.done.left):
            return True
    return False


def _look(settling: Settling, but: Collection[str], put_aside: str | None) -> None:
    """Settle the occurrences that are due now, in one pass over all schedules."""
    last: StoredSchedule | None = None
    while True:
        with settling.database.read() as connection:
            if put_aside is None:
                stored = store.due_schedules(connection, but, after=last, limit=CHUNK)
            else:
                stored = [each for each in store.all_schedules(connection) if put_aside in ("", each.name)]
        if not stored:
            break
        last, now = stored[-1], stored[0].read_at
        assert now is not None
        leaving = put_aside is not None
        planned = [found for schedule in stored if (found := plan_for(schedule, now, leaving=leaving)) is not None]
        if planned and not settling.go_on():
            settling.done.left = True
            break
        for event in [event for found in planned for event in found.to_emit]:
            settling.emit(event)
        settling.settle([found for found in planned if not found.unreadable], now)
        if put_aside is not None:
            break


def weight(due: Due) -> tuple[int, int]:
    """Return the largest number of jobs that the plan *due* can create, and roughly their payloads' size in bytes."""
    jobs = [(len(part.run), len(repr(part.schedule.payload))) for part in due.parts]
    return sum(count for count, _ in jobs), sum(count * size for count, size in jobs)


@dataclass
class Settling:
    """Writes one chunk after another.

    ``held`` lists plans whose rows another transaction has locked, each with the *now* for which the plan was made.
    """

    database: Database
    emit: Callable[[events.Event], None]
    before_writing: Callable[[Connection], int | None]
    go_on: Callable[[], bool]
    within: timedelta

    def __post_init__(self) -> None:
        self.done = Materialised()
        self.in_parts = ChunkWriter(is_sqlite=self.database.is_sqlite)
        self.held: list[tuple[Due, datetime]] = []
        self.set_right = False

    def settle(self, planned: Sequence[Due], now: datetime) -> None:
        for chunk in chunks(planned, weight):
            self.in_parts.write(chunk, lambda part: self._write(part, now), self._refused)

    def _write(self, part: Sequence[Due], now: datetime) -> None:
        if not self.go_on():
            self.done.left = True
            return
        with self.database.write() as connection:
            tick = self.before_writing(connection)
            written = write(connection, part, now, self.within, tick=tick)
        self.done.busy += written.busy
        self.held += [(due, now) for due in written.held]
        self.set_right = self.set_right or written.set_right
        for _, row in written.rows:
            self.done.counts[row.outcome] += row.count
        emit_settled(written, self.emit)

    def _refused(self, due: Due, why: str) -> None:
        self.emit(events.schedule_broken(due.stored.name, f"the database refuses its job: {why}"))

    def settle_held(self) -> None:
        """Retry the schedules that another transaction has locked, usually only for a moment.

        If a lock lasts longer, the schedule is left to the next tick.
        """
        for pause in PAUSES_S:
            if not self.held or not self.go_on():
                break
            sleep(pause)
            again, self.held = self.held, []
            for now in sorted({now for _, now in again}):
                self.settle([due for due, then in again if then == now], now)
        self.done.busy += [due.stored.name for due, _ in self.held]


def emit_settled(written: SettledChunk, emit: Callable[[events.Event], None]) -> None:
    for name, row in written.rows:
        emit(
            events.occurrence_recorded(name, row.outcome, row.count, row.last_for, reason=row.reason, job_id=row.job_id)
        )
    for event in written.to_emit:
        emit(event)


# --- many schedules: write --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SettledChunk:
    """The result of writing one chunk: the ledger rows, each with its schedule's name, and the events to emit.

    ``busy`` lists schedules that another tick has settled since we read them. ``held`` lists plans whose schedule or
    queue another transaction has locked, usually only for a moment. Neither kind was written.
    """

    rows: tuple[tuple[str, LedgerRow], ...]
    busy: tuple[str, ...]
    held: tuple[Due, ...]
    to_emit: tuple[events.Event, ...] = ()
    # True if watermarks in the future were corrected, so that the caller must look again for what is due.
    set_right: bool = False


def write(
    connection: Connection,
    chunk: Sequence[Due],
    now: datetime,
    within: timedelta,
    *,
    tick: int | None,
) -> SettledChunk:
    """Settle the schedules of *chunk* that no other transaction has locked.

    The number of statements hardly depends on how many schedules there are.
    """
    # The plans were computed outside this transaction. Write a plan only if the schedule's ``settled`` has not changed
    # since then.
    locked = store.lock_rows(connection, [due.stored.id for due in chunk])
    mine = [due for due in chunk if locked.get(due.stored.id) == due.stored.settled]
    busy = tuple(
        due.stored.name for due in chunk if locked.get(due.stored.id, due.stored.settled) != due.stored.settled
    )
    taken = tuple(due for due in chunk if due.stored.id not in locked)
    if not mine:
        return SettledChunk((), busy, taken)
    known = known_about(connection, mine, within)
    wanted = {due.stored.id: wants_room(due, known[due.stored.id]) for due in mine}
    queues = set().union(*wanted.values())
    with locked_room(connection, queues) if queues else nullcontext(Room({}, {})) as room:
        if room.held and (free := queues.difference(room.held)):
            # ``locked_room`` locks either all the queues or none of them. So try again without the queues that are
            # locked elsewhere.
            with locked_room(connection, free) as rest:
                room = Room(rest.caps, rest.waiting, (*room.held, *rest.held))
        held = tuple(due for due in mine if wanted[due.stored.id].intersection(room.held))
        settled = [due for due in mine if due not in held]
        rows = _write(connection, [due for due in settled if not due.ahead], known, room, now, tick)
        to_emit = [_held_back(due) for due in settled if due.held]
        ahead = [due for due in settled if due.ahead]
        to_emit += _set_right(connection, ahead, now) if ahead else []
    return SettledChunk(rows, busy, (*taken, *held), tuple(to_emit), set_right=bool(ahead))


def known_about(connection: Connection, mine: Sequence[Due], within: timedelta) -> dict[int, ScheduleState]:
    """Return the facts in the database about each schedule of *mine*, by schedule id."""
    ledger = store.ledger_above(connection, {due.stored.id: due.since for due in mine if not due.ahead})
    names = {due.stored.name for due in mine if any(part.run for part in due.parts)}
    busy = busy_schedules(connection, names, present_types(connection, within)) if names else {}
    return {due.stored.id: ScheduleState(ledger.get(due.stored.id, ()), busy.get(due.stored.name, ())) for due in mine}


def _write(
    connection: Connection,
    mine: Sequence[Due],
    known: Mapping[int, ScheduleState],
    room: Room,
    now: datetime,
    tick: int | None,
) -> tuple[tuple[str, LedgerRow], ...]:
    settled = decide_all(mine, known, room.caps, room.waiting)
    ids = insert_jobs(connection, [job for _, decided in settled for job in decided.jobs])
    rows: list[tuple[str, LedgerRow]] = []
    first = 0
    for due, decided in settled:
        rows += [
            (due.stored.name, row if place is None else replace(row, job_id=ids[first + place]))
            for row, place in decided.rows
        ]
        first += len(decided.jobs)
    store.record_occurrences(connection, [row for _, row in rows], now, tick)
    _note_dropped(connection, mine, rows, now)
    store.move_watermarks(connection, [Watermark(due.stored.id, due.seen_until, due.next_at) for due in mine])
    _put_pieces(connection, mine)
    return tuple(rows)


def _note_dropped(
    connection: Connection, mine: Sequence[Due], rows: Sequence[tuple[str, LedgerRow]], now: datetime
) -> None:
    """Record the occurrences that ``catch_up: all`` drops. They will never run, so a finding must show them to a
    person.
    """
    reasons = {part.why_dropped for due in mine for part in due.parts if part.dropped}
    found: dict[str, dict[str, Any]] = {}
    for name, row in rows if reasons else ():
        if row.outcome == "missed" and row.reason in reasons:
            its = found.setdefault(name, {"count": 0, "from": row.first_for.isoformat()})
            its["count"] += row.count
            its["to"] = row.last_for.isoformat()
    if found:
        from cronjobs.engine.store.given_up import DROPPED, give_up

        give_up(connection, DROPPED, found, now)


def _put_pieces(connection: Connection, settled: Sequence[Due]) -> None:
    for due in settled:
        if due.pieces is not None and (owed := stored_pieces(due.pieces)) != due.stored.owed:
            store.put_owed(connection, due.stored.id, owed)


def _held_back(due: Due) -> events.Event:
    what = joined([each.what for each in due.held])
    assert what is not None
    by = "; ".join(dict.fromkeys(each.by for each in due.held))
    return events.held_back(due.stored.name, what.count, what.first, what.last, by)


def _set_right(connection: Connection, ahead: Sequence[Due], now: datetime) -> list[events.Event]:
    """Undo what a tick did too early because its clock was ahead, so that the next look finds what is really due."""
    from cronjobs.engine.crontime.timing import next_after

    timed = {due.stored.id: read(due.stored.name, due.stored.definition) for due in ahead}
    seen_until, to_emit = undo(connection, timed, now)
    moved = [
        Watermark(
            due.stored.id, seen_until[due.stored.id], next_after(timed[due.stored.id].when, seen_until[due.stored.id])
        )
        if due.stored.status == "active"
        else Watermark(due.stored.id, now, None)
        for due in ahead
    ]
    store.move_watermarks(connection, moved)
    _put_pieces(connection, ahead)
    return to_emit
