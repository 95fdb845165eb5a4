"""Decide what happens to the due occurrences of one schedule, and compute the rows to write. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256

from cronjobs import events
from cronjobs.engine.config.settings import ScheduleSettings
from cronjobs.engine.rules.capacity import Cap, admit
from cronjobs.engine.rules.occurrences import CRON_RAN, Busy, OccurrenceDecision, Range, not_made_up_reason, overlap
from cronjobs.engine.schedules.pauses import owed_by, pauses_of
from cronjobs.engine.schedules.planning import (
    MICROSECOND,
    HeldOccurrences,
    Part,
    Pause,
    Piece,
    cut,
    occurrences,
    read,
    settle,
)
from cronjobs.engine.schedules.wrong_clock import FUTURE_WATERMARK
from cronjobs.engine.store.enqueue import NewJob
from cronjobs.engine.store.schedules import LedgerRow, StoredSchedule
from cronjobs.masking import as_meta


@dataclass(frozen=True)
class Due:
    """The plan for one schedule, made from the schedule's row outside any transaction. Its ``parts`` are oldest first.

    ``to_emit`` lists events to emit. If ``unreadable`` is True, nothing can be planned, so nothing is written. If
    ``ahead`` is True, the watermark is in the future, so the ledger rows for future occurrences are wrong. ``pieces``
    are the time ranges under earlier definitions that still have to be settled after this plan. ``held`` lists the
    occurrences that a pause held back, if that pause is now over. All planned occurrences are later than ``since``.
    """

    stored: StoredSchedule
    parts: tuple[Part, ...]
    seen_until: datetime
    next_at: datetime | None
    since: datetime
    to_emit: tuple[events.Event, ...] = ()
    unreadable: bool = False
    ahead: bool = False
    # None means that the pieces in the database do not change.
    pieces: tuple[Piece, ...] | None = None
    held: tuple[HeldOccurrences, ...] = ()


def plan_for(stored: StoredSchedule, now: datetime, *, leaving: bool = False, also: Sequence[Pause] = ()) -> Due | None:
    """Plan a schedule's occurrences up to *now*. Return None if there is nothing to write.

    *leaving* is True if the schedule's definition is about to end. Then the occurrences that a pause holds back become
    a piece, which is settled after the pause. *also* lists further pauses, which are not in the database.
    """
    if stored.seen_until - now > FUTURE_WATERMARK:
        return _ahead(stored, now)
    if stored.seen_until > now and not stored.owed:
        # A clock was set back by a little. Nothing is due before the clock reaches the watermark again.
        return None
    unread = None
    try:
        owed = owed_by(stored)
    except ValueError as error:
        owed, unread = owed_by(replace(stored, owed=None)), str(error)
    plan = settle(owed, [*pauses_of(stored), *also], now, leaving=leaving)
    if plan is None:
        return None
    # An unreadable definition was written by a newer version or by a person. Keep it, so that its occurrences are not
    # lost: another version may be able to read it.
    faults = [*plan.faults, *([unread] if unread else [])]
    return Due(
        stored,
        plan.parts,
        plan.seen_until,
        stored.next_at if plan.seen_until == stored.seen_until else plan.next_at,
        min([stored.seen_until, *(piece.start for piece in owed.pieces)]),
        to_emit=tuple(_unreadable(stored.name, fault) for fault in faults),
        unreadable=bool(faults) and not plan.parts and plan.seen_until == stored.seen_until,
        pieces=None if unread else plan.pieces,
        held=plan.held,
    )


def plan_skipping_runs_of_cron(stored: StoredSchedule, now: datetime) -> Due | None:
    """Plan a schedule that begins at *now*.

    Skip all earlier occurrences, because until now cron itself ran the crontab line. The pieces of earlier definitions
    stay as they are.
    """
    cron_ran = Pause(stored.seen_until, None, skip=True, said=CRON_RAN)
    return plan_for(stored, now, leaving=True, also=[cron_ran])


def _ahead(stored: StoredSchedule, now: datetime) -> Due:
    """Return the plan for a schedule whose watermark is in the future because a clock was wrong."""
    try:
        read(stored.name, stored.definition)
        pieces = cut(owed_by(stored).pieces, now)
    except ValueError as error:
        broken = _unreadable(stored.name, str(error))
        return Due(stored, (), stored.seen_until, stored.next_at, now, to_emit=(broken,), unreadable=True)
    reset = events.watermark_reset(stored.name, stored.seen_until)
    return Due(stored, (), now, stored.next_at, now, to_emit=(reset,), ahead=True, pieces=pieces)


def _unreadable(name: str, fault: str) -> events.Event:
    return events.schedule_broken(name, f"the schedule's stored definition cannot be read: {fault}")


@dataclass(frozen=True)
class ScheduleState:
    """The facts in the database about a schedule. ``ledger`` contains its ledger rows above the watermark, and ``busy``
    its unfinished jobs.
    """

    ledger: Sequence[LedgerRow] = ()
    busy: Sequence[Busy] = ()


@dataclass(frozen=True)
class Settled:
    """The rows to write for one schedule. If a ledger row is paired with an index into ``jobs``, the row gets the id of
    that job.
    """

    rows: tuple[tuple[LedgerRow, int | None], ...] = ()
    jobs: tuple[NewJob, ...] = ()


def to_run(part: Part, known: ScheduleState) -> list[datetime]:
    """Return the occurrences of *part* that still need a job, because no ledger row covers them."""
    return [at for at in part.run if not any(row.first_for <= at <= row.last_for for row in known.ledger)]


def wants_room(due: Due, known: ScheduleState) -> set[str]:
    """Return the names of the queues in which *due* would create jobs if they have room."""
    return {
        part.schedule.queue
        for part in due.parts
        if to_run(part, known) and overlap(part.schedule.overlap, known.busy).made
    }


@dataclass(frozen=True)
class _Put:
    """The decision about one occurrence.

    ``made`` is the index of the occurrence's new job, or None if it gets no job.
    """

    placed: OccurrenceDecision
    made: int | None


def decide_all(
    mine: Sequence[Due], known: Mapping[int, ScheduleState], caps: Mapping[str, Cap], waiting: Mapping[str, int]
) -> list[tuple[Due, Settled]]:
    """Decide about all of *mine*.

    *caps* and *waiting* contain the cap and the number of waiting jobs of each queue. The jobs of one schedule leave
    less room in the queues for the next schedule. The keys of *known* are schedule ids.
    """
    waiting = dict(waiting)
    return [(due, _decide(due, known[due.stored.id], caps, waiting)) for due in mine]


def _decide(due: Due, known: ScheduleState, caps: Mapping[str, Cap], waiting: dict[str, int]) -> Settled:
    """Decide about each due occurrence, and count its new jobs in *waiting*."""
    jobs: list[NewJob] = []
    puts: dict[datetime, _Put] = {}
    for part in due.parts:
        run = to_run(part, known)
        for instant, placed in zip(run, _place(part.schedule, run, known.busy, caps, waiting), strict=True):
            puts[instant] = _Put(placed, len(jobs) if placed.made else None)
            if placed.made:
                jobs.append(job_for(part.schedule, instant))
                waiting[part.schedule.queue] = waiting.get(part.schedule.queue, 0) + 1
    rows: list[tuple[LedgerRow, int | None]] = []
    for part in due.parts:
        for outcome, span, reason, put in _outcomes(part, puts, known.ledger):
            for new in _unknown(part.schedule, span, known.ledger):
                row = LedgerRow(due.stored.id, new.first, new.last, new.count, outcome, reason, put.placed.job_id)
                rows.append((row, put.made))
    return Settled(tuple(rows), tuple(jobs))


def _outcomes(
    part: Part, puts: Mapping[datetime, _Put], ledger: Sequence[LedgerRow]
) -> Iterator[tuple[str, Range, str | None, _Put]]:
    """Yield each span of *part* with its outcome, the reason, and the decision from which the outcome follows."""
    nothing = _Put(OccurrenceDecision("missed"), None)
    if part.skipped:
        yield "skipped", part.skipped, part.why, nothing
    if part.missed:
        yield "missed", part.missed, part.why, nothing
    if part.dropped:
        yield "missed", part.dropped, part.why_dropped, nothing
    if part.coalesced and part.into is not None and part.into in puts:
        put = puts[part.into]
        reason = put.placed.reason or f"the occurrence of {part.into.isoformat()} stands for it"
        yield ("coalesced" if put.placed.made else put.placed.outcome), part.coalesced, reason, put
    elif part.coalesced and part.into is not None:
        settled = next((row.reason for row in ledger if row.first_for <= part.into <= row.last_for), None)
        yield "missed", part.coalesced, not_made_up_reason(part.into, settled), nothing
    for instant in part.run:
        if instant in puts:
            yield puts[instant].placed.outcome, Range(instant, instant, 1), puts[instant].placed.reason, puts[instant]


def _place(
    schedule: ScheduleSettings,
    run: Sequence[datetime],
    busy: Sequence[Busy],
    caps: Mapping[str, Cap],
    waiting: Mapping[str, int],
) -> list[OccurrenceDecision]:
    """Decide what happens to each occurrence of *run*, oldest first."""
    if not run:
        return []
    placed = overlap(schedule.overlap, busy)
    if not placed.made:
        return [placed] * len(run)
    dropping = {name: replace(cap, on_full="drop") for name, cap in caps.items() if name == schedule.queue}
    let_in, _ = admit([(instant, schedule.queue) for instant in run], dropping, waiting)
    return [placed if instant in let_in else _crowded_out(caps[schedule.queue]) for instant in run]


def _crowded_out(cap: Cap) -> OccurrenceDecision:
    limit = f"its limit of waiting jobs, {cap.max_waiting:,} (max_waiting)"
    return OccurrenceDecision("skipped", f"full: queue {cap.queue} was at {limit}")


def _unknown(schedule: ScheduleSettings, span: Range, ledger: Sequence[LedgerRow]) -> list[Range]:
    """Return the parts of *span* that no row of *ledger* covers. *ledger* is sorted.

    The ledger has rows above the watermark only if the watermark was set back: by a clock, by a restored table, or by a
    person. Occurrences that the ledger already has are neither run nor recorded again.
    """
    if not any(row.first_for <= span.last and row.last_for >= span.first for row in ledger):
        return [span]
    from cronjobs.engine.crontime.timing import timing

    when = timing(schedule.cron, schedule.every, schedule.timezone)
    parts, after = [], span.first - MICROSECOND
    known = [(row.first_for, row.last_for) for row in ledger]
    for first, last in [*known, (span.last + MICROSECOND, span.last)]:
        if first > after:
            new = occurrences(when, after, min(first - MICROSECOND, span.last))
            parts += [new] if new else []
        after = max(after, last)
    return parts


def job_for(schedule: ScheduleSettings, scheduled_for: datetime) -> NewJob:
    """Return the job for one occurrence. The options of the schedule go into the job's row, where they take precedence
    over the job type's options.
    """
    return NewJob(
        job_type=schedule.job,
        payload=schedule.payload,
        meta=as_meta(schedule.secret_keys or ()),
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
    """Return how long the schedule's ``spread`` delays its jobs.

    Every host computes the same delay from the schedule's name. Over many names, the delays are evenly distributed.
    """
    if schedule.spread is None:
        return timedelta(0)
    share = int.from_bytes(sha256(schedule.name.encode()).digest()[:8]) / 2**64
    return timedelta(seconds=int(schedule.spread.total_seconds() * share))
