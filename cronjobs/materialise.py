"""From a schedule's watermark to ledger rows and jobs: what was due, and what becomes of each occurrence.

Each schedule is decided about by itself, in pure functions; what was decided about many is written together, in one
short transaction with a handful of statements. How far the database is away then costs time by the chunk, and not by
the schedule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.chunks import CHUNK, PAUSES_S, InParts, chunks, refusal
from cronjobs.clock import sleep
from cronjobs.database import Database
from cronjobs.definitions import schedule_from_definition
from cronjobs.errors import BadValue, CronjobsError
from cronjobs.policy import ON_TIME_WITHIN, Busy, CatchUpPlan, Placed, Range, ledger_reason, overlap
from cronjobs.pressure import Cap, admit
from cronjobs.settings import ScheduleSettings
from cronjobs.store import schedules as store
from cronjobs.store.enqueue import NewJob, insert_jobs
from cronjobs.store.jobtypes import REMEMBERED, runnable_types
from cronjobs.store.overlap import busy_schedules
from cronjobs.store.queues import Room, locked_room
from cronjobs.store.schedules import LedgerRow, StoredSchedule, Watermark

FUTURE_WATERMARK: Final = timedelta(minutes=5)
MICROSECOND: Final = timedelta(microseconds=1)
CROWDED_OUT: Final = Placed("skipped", "full: as many jobs wait in its queue as may (max_waiting)")


@dataclass
class Materialised:
    """What one pass did: occurrences by outcome; ``busy`` names schedules that another transaction was at.

    ``left``: time was up, and more are due.
    """

    counts: dict[str, int] = field(default_factory=dict)
    busy: list[str] = field(default_factory=list)
    left: bool = False

    def count(self, outcome: str, by: int) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + by


@dataclass(frozen=True)
class Piece:
    """What is owed under one definition. ``paused`` says why none of it runs, or is None."""

    schedule: ScheduleSettings
    plan: CatchUpPlan
    paused: str | None = None


@dataclass(frozen=True)
class Due:
    """A schedule's plan, made outside any transaction from the watermark it was read with: its pieces, oldest first.

    ``event`` is to be told. ``unreadable``: nothing can be planned, and nothing is written. ``ahead``: the watermark
    lay in the future, so that what the ledger says of occurrences still to come is wrong.
    """

    stored: StoredSchedule
    pieces: tuple[Piece, ...]
    seen_until: datetime
    next_at: datetime | None
    event: events.Event | None = None
    unreadable: bool = False
    ahead: bool = False


# --- many schedules ---------------------------------------------------------------------------------------------------


def materialise(
    database: Database,
    emit: Callable[[events.Event], None],
    *,
    but: Collection[str] = (),
    within: timedelta = REMEMBERED,
    before_writing: Callable[[Connection], None] = lambda _: None,
    go_on: Callable[[], bool] = lambda: True,
) -> Materialised:
    """Settle every occurrence that is due, the longest due first: of each schedule its ledger rows, its jobs and its
    new watermark in one transaction, and many schedules in each.

    *but* names schedules to leave alone (their entry in the file is broken). When *go_on* says no, the rest is left
    to the next call. What the database refuses of one schedule is told as an event and costs the others nothing.
    *within*: how far back it counts which job types the ticks knew, as overlap asks for it.
    """
    settling = Settling(database, emit, before_writing, go_on, within)
    done = settling.done
    last: StoredSchedule | None = None
    while True:
        with database.read() as connection:
            stored = store.due_schedules(connection, but, after=last, limit=CHUNK)
        if not stored:
            break
        last, now = stored[-1], stored[0].read_at
        assert now is not None
        planned = [found for schedule in stored if (found := plan_for(schedule, now)) is not None]
        if planned and not go_on():
            done.left = True
            break
        for found in planned:
            if found.event is not None:
                emit(found.event)
        settling.settle([found for found in planned if not found.unreadable], now)
    settling.settle_held()
    if done.left:
        emit(events.schedules_left())
    if settling.in_parts.trouble is not None:
        raise settling.in_parts.trouble
    return done


def weight(due: Due) -> tuple[int, int]:
    """How many jobs *due* makes at most, and how many bytes their payloads have, about."""
    jobs = [(len(piece.plan.run), len(repr(piece.schedule.payload))) for piece in due.pieces]
    return sum(count for count, _ in jobs), sum(count * size for count, size in jobs)


class Settling:
    """Writes chunk after chunk; ``held`` are those whose rows or queues others held, with the now of their plan."""

    def __init__(
        self,
        database: Database,
        emit: Callable[[events.Event], None],
        before_writing: Callable[[Connection], None],
        go_on: Callable[[], bool],
        within: timedelta = REMEMBERED,
    ) -> None:
        self.database, self.emit, self.before_writing, self.go_on = database, emit, before_writing, go_on
        self.within = within
        self.done = Materialised()
        self.in_parts = InParts(is_sqlite=database.is_sqlite)
        self.held: list[tuple[Due, datetime]] = []

    def settle(self, planned: Sequence[Due], now: datetime) -> None:
        for chunk in chunks(planned, weight):
            self.in_parts.write(chunk, lambda part: self._write(part, now), self._refused)

    def _write(self, part: Sequence[Due], now: datetime) -> None:
        if not self.go_on():
            self.done.left = True
            return
        with self.database.write() as connection:
            self.before_writing(connection)
            written = write(connection, part, now, self.within)
        self.done.busy += written.busy
        self.held += [(due, now) for due in written.held]
        tell(written, self.emit, self.done)

    def _refused(self, due: Due, error: BadValue) -> None:
        self.emit(events.schedule_broken(due.stored.name, f"the database refuses what it makes: {refusal(error)}"))

    def settle_held(self) -> None:
        """Come back for the schedules that others held: mostly for a moment, and nobody waits for longer."""
        for pause in PAUSES_S:
            if not self.held or not self.go_on():
                break
            sleep(pause)
            again, self.held = self.held, []
            for now in sorted({now for _, now in again}):
                self.settle([due for due, then in again if then == now], now)
        self.done.busy += [due.stored.name for due, _ in self.held]


def tell(written: Written, emit: Callable[[events.Event], None], done: Materialised) -> None:
    for name, row in written.rows:
        done.count(row.outcome, row.count)
        emit(
            events.occurrence_recorded(name, row.outcome, row.count, row.last_for, reason=row.reason, job_id=row.job_id)
        )


# --- one schedule: decide ---------------------------------------------------------------------------------------------


def plan_for(stored: StoredSchedule, now: datetime) -> Due | None:
    """Decide about a schedule's occurrences up to *now*; None when there is nothing to write."""
    from cronjobs.occurrences import next_after, timing

    try:
        schedule = schedule_from_definition(stored.name, stored.definition)
        when = timing(schedule.cron, schedule.every, schedule.timezone)
    except (CronjobsError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        # A newer version wrote it, or someone by hand: its watermark stays, so nothing is lost when it can be read.
        event = events.schedule_broken(stored.name, f"its stored definition cannot be read: {error}")
        return Due(stored, (), stored.seen_until, stored.next_at, event, unreadable=True)
    if stored.seen_until > now:
        if stored.seen_until - now <= FUTURE_WATERMARK:
            return None
        event = events.watermark_reset(stored.name, stored.seen_until)
        return Due(stored, (Piece(schedule, CatchUpPlan()),), now, next_after(when, now), event, ahead=True)
    pieces, since = [], stored.seen_until
    if stored.paused is None and stored.pause_ended_at is not None:
        since = stored.pause_ended_at
        pieces.append(Piece(schedule, catch_up(schedule, stored.seen_until, since), "paused"))
    pieces.append(Piece(schedule, catch_up(schedule, since, now), stored.paused))
    return Due(stored, tuple(pieces), now, next_after(when, now))


def catch_up(schedule: ScheduleSettings, seen_until: datetime, now: datetime) -> CatchUpPlan:
    """What is owed for the occurrences in (*seen_until*, *now*].

    One that is at most two minutes old is on time. Of older ones ``latest`` runs the newest within ``catch_up_within``
    and coalesces the others within it into that run; ``all`` runs the newest ``catch_up_limit`` of them, oldest first;
    ``none`` runs none. What is beyond is missed.
    """
    from cronjobs.occurrences import count_between, newest_between, timing

    when = timing(schedule.cron, schedule.every, schedule.timezone)
    reach = ON_TIME_WITHIN if schedule.catch_up == "none" else max(schedule.catch_up_within, ON_TIME_WITHIN)
    reach_from = max(seen_until, now - reach)
    most = schedule.catch_up_limit if schedule.catch_up == "all" else 1
    run = tuple(newest_between(when, reach_from, now, most))
    before_run = run[0] - MICROSECOND if run else now
    if schedule.catch_up == "all":
        return CatchUpPlan(_range(count_between(when, seen_until, before_run)), None, run)
    missed = _range(count_between(when, seen_until, reach_from))
    return CatchUpPlan(missed, _range(count_between(when, reach_from, before_run)) if run else None, run)


def _range(span: tuple[int, datetime | None, datetime | None]) -> Range | None:
    count, first, last = span
    return None if first is None or last is None else Range(first, last, count)


@dataclass(frozen=True)
class Known:
    """What the database knows about a schedule: its ``ledger`` above the watermark, its ``busy`` jobs."""

    ledger: Sequence[LedgerRow] = ()
    busy: Sequence[Busy] = ()


@dataclass(frozen=True)
class Settled:
    """What is written about one schedule. A row that names a place in ``jobs`` gets the id that is made for it."""

    rows: tuple[tuple[LedgerRow, int | None], ...] = ()
    jobs: tuple[NewJob, ...] = ()
    forget: tuple[LedgerRow, ...] = ()


def to_run(piece: Piece, known: Known) -> list[datetime]:
    """The occurrences of *piece* that want a job: those that the ledger knows have had their turn."""
    if piece.paused is not None:
        return []
    return [at for at in piece.plan.run if not any(row.first_for <= at <= row.last_for for row in known.ledger)]


def wants_room(due: Due, known: Known) -> set[str]:
    """The queues in which jobs will be made, should there be room."""
    return {
        piece.schedule.queue
        for piece in due.pieces
        if to_run(piece, known) and overlap(piece.schedule.overlap, known.busy).made
    }


def decide(due: Due, known: Known, caps: Mapping[str, Cap], waiting: Mapping[str, int], now: datetime) -> Settled:
    """Say what becomes of each occurrence that is due; *caps* and how many are *waiting* are those of its queues."""
    if due.ahead:
        return _forget_the_future(due, known.ledger, now)
    rows: list[tuple[LedgerRow, int | None]] = []
    jobs: list[NewJob] = []
    for piece in due.pieces:
        schedule, plan = piece.schedule, piece.plan

        def settle(
            outcome: str,
            span: Range,
            reason: str | None,
            job_id: int | None = None,
            made: int | None = None,
            schedule: ScheduleSettings = schedule,
        ) -> None:
            for part in _unknown(schedule, span, known.ledger):
                row = LedgerRow(due.stored.id, part.first, part.last, part.count, outcome, reason, job_id)
                rows.append((row, made))

        if piece.paused is not None:
            for span in (plan.missed, plan.coalesced, *(Range(instant, instant, 1) for instant in plan.run)):
                if span is not None:
                    settle("skipped", span, piece.paused)
            continue
        if plan.missed:
            settle("missed", plan.missed, ledger_reason(schedule.catch_up))
        run = to_run(piece, known)
        puts = _place(schedule, run, known.busy, caps, waiting) if run else []
        places: list[int | None] = []
        for instant, put in zip(run, puts, strict=True):
            places.append(len(jobs) if put.made else None)
            if put.made:
                jobs.append(job_for(schedule, instant))
        if plan.coalesced and run:
            reason = puts[0].reason or f"the occurrence of {run[0].isoformat()} stands for it"
            outcome = "coalesced" if puts[0].made else puts[0].outcome
            settle(outcome, plan.coalesced, reason, puts[0].job_id, places[0])
        elif plan.coalesced:
            settle("missed", plan.coalesced, ledger_reason(schedule.catch_up))
        for instant, put, place in zip(run, puts, places, strict=True):
            settle(put.outcome, Range(instant, instant, 1), put.reason, put.job_id, place)
    return Settled(tuple(rows), tuple(jobs))


def _place(
    schedule: ScheduleSettings,
    run: Sequence[datetime],
    busy: Sequence[Busy],
    caps: Mapping[str, Cap],
    waiting: Mapping[str, int],
) -> list[Placed]:
    """Where each occurrence of *run* goes, the oldest first."""
    placed = overlap(schedule.overlap, busy)
    if not placed.made:
        return [placed] * len(run)
    dropping = {name: replace(cap, on_full="drop") for name, cap in caps.items() if name == schedule.queue}
    let_in = admit([(instant, schedule.queue) for instant in run], dropping, waiting).let_in
    return [placed if instant in let_in else CROWDED_OUT for instant in run]


def _forget_the_future(due: Due, ledger: Sequence[LedgerRow], now: datetime) -> Settled:
    """Take back what a clock that ran ahead recorded of occurrences that are still to come.

    Those that it ran stay, so that they do not run again; but ten years "missed" must not stand for the next ten years.
    """
    from cronjobs.occurrences import count_between, timing

    schedule = due.pieces[-1].schedule
    wrong = tuple(row for row in ledger if row.outcome != "enqueued")
    when = timing(schedule.cron, schedule.every, schedule.timezone)
    kept = []
    for row in wrong:
        past = _range(count_between(when, row.first_for - MICROSECOND, now))
        if past is not None:
            kept.append((replace(row, first_for=past.first, last_for=past.last, count=past.count), None))
    return Settled(tuple(kept), (), wrong)


def _unknown(schedule: ScheduleSettings, span: Range, ledger: Sequence[LedgerRow]) -> list[Range]:
    """The parts of *span* that lie in no row of *ledger* (which is in order).

    Nothing stands above a watermark, unless that was set back (a clock, a restored table, a person): then what the
    ledger knows is neither run nor told again.
    """
    if not any(row.first_for <= span.last and row.last_for >= span.first for row in ledger):
        return [span]
    from cronjobs.occurrences import count_between, timing

    when = timing(schedule.cron, schedule.every, schedule.timezone)
    parts, after = [], span.first - MICROSECOND
    known = [(row.first_for, row.last_for) for row in ledger]
    for first, last in [*known, (span.last + MICROSECOND, span.last)]:
        part = _range(count_between(when, after, min(first - MICROSECOND, span.last))) if first > after else None
        if part is not None:
            parts.append(part)
        after = max(after, last)
    return parts


def job_for(schedule: ScheduleSettings, scheduled_for: datetime) -> NewJob:
    """The job of one occurrence; what the schedule says about limits goes into the row, where it comes first."""
    return NewJob(
        job_type=schedule.job,
        payload=schedule.payload,
        run_at=scheduled_for + spread_offset(schedule),
        queue=schedule.queue,
        priority=schedule.priority,
        max_attempts=schedule.max_attempts,
        timeout_s=None if schedule.timeout is None else schedule.timeout.total_seconds(),
        schedule=schedule.name,
        scheduled_for=scheduled_for,
        enqueued_by=f"schedule {schedule.name}",
    )


def spread_offset(schedule: ScheduleSettings) -> timedelta:
    """The schedule's own part of its ``spread``: the same each time and on each host, and even over many names."""
    if schedule.spread is None:
        return timedelta(0)
    share = int.from_bytes(hashlib.sha256(schedule.name.encode()).digest()[:8]) / 2**64
    return timedelta(seconds=int(schedule.spread.total_seconds() * share))


# --- many schedules: write --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """The ledger rows of a chunk, with their schedules' names; of ``busy`` and ``held`` nothing was written.

    ``busy``: another tick has settled them since they were read. ``held``: somebody has their row, or their queue (an
    enqueuer's open transaction), mostly for a moment.
    """

    rows: tuple[tuple[str, LedgerRow], ...]
    busy: tuple[str, ...]
    held: tuple[Due, ...]


def write(connection: Connection, chunk: Sequence[Due], now: datetime, within: timedelta = REMEMBERED) -> Written:
    """Settle all of *chunk* that nobody else is at, in as many statements as one schedule would take."""
    # The comparison makes what was computed outside the transaction safe to write in it.
    locked = store.lock_rows(connection, [due.stored.id for due in chunk])
    mine = [due for due in chunk if locked.get(due.stored.id) == due.stored.seen_until]
    busy = tuple(
        due.stored.name for due in chunk if locked.get(due.stored.id, due.stored.seen_until) != due.stored.seen_until
    )
    taken = tuple(due for due in chunk if due.stored.id not in locked)
    if not mine:
        return Written((), busy, taken)
    known = _known(connection, mine, now, within)
    wanted = {due.stored.id: wants_room(due, known[due.stored.id]) for due in mine}
    queues = set().union(*wanted.values())
    with locked_room(connection, queues) if queues else nullcontext(Room({}, {})) as room:
        if room.held and (free := queues.difference(room.held)):
            # The lock is all or nothing: what is left of the queues is asked for without those.
            with locked_room(connection, free) as rest:
                room = Room(rest.caps, rest.waiting, (*room.held, *rest.held))
        held = tuple(due for due in mine if wanted[due.stored.id].intersection(room.held))
        rows = _write(connection, [due for due in mine if due not in held], known, room, now)
    return Written(rows, busy, (*taken, *held))


def _known(connection: Connection, mine: Sequence[Due], now: datetime, within: timedelta) -> dict[int, Known]:
    limits = {due.stored.id: now if due.ahead else due.stored.seen_until for due in mine}
    ledger = store.ledger_above(connection, limits)
    names = {due.stored.name for due in mine if any(to_run(piece, Known()) for piece in due.pieces)}
    busy = busy_schedules(connection, names, runnable_types(connection, within)) if names else {}
    return {due.stored.id: Known(ledger.get(due.stored.id, ()), busy.get(due.stored.name, ())) for due in mine}


def _write(
    connection: Connection, mine: Sequence[Due], known: Mapping[int, Known], room: Room, now: datetime
) -> tuple[tuple[str, LedgerRow], ...]:
    waiting = dict(room.waiting)
    settled = []
    for due in mine:
        decided = decide(due, known[due.stored.id], room.caps, waiting, now)
        for job in decided.jobs:
            waiting[job.queue] = waiting.get(job.queue, 0) + 1
        settled.append((due, decided))
    ids = insert_jobs(connection, [job for _, decided in settled for job in decided.jobs])
    rows: list[tuple[str, LedgerRow]] = []
    told: list[tuple[str, LedgerRow]] = []
    first = 0
    for due, decided in settled:
        written = [
            (due.stored.name, row if place is None else replace(row, job_id=ids[first + place]))
            for row, place in decided.rows
        ]
        rows += written
        told += [] if due.ahead else written
        first += len(decided.jobs)
    store.forget_occurrences(connection, [row for _, decided in settled for row in decided.forget])
    store.record_occurrences(connection, [row for _, row in rows], now)
    moved = [Watermark(due.stored.id, due.seen_until, due.next_at) for due in mine]
    store.move_watermarks(connection, moved)
    return tuple(told)
