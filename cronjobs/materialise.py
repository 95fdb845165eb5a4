"""From a schedule's watermark to ledger rows and jobs: what was due, and what becomes of each occurrence."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.clock import sleep
from cronjobs.database import Database
from cronjobs.definitions import schedule_from_definition
from cronjobs.errors import CronjobsError
from cronjobs.policy import ON_TIME_WITHIN, CatchUpPlan, Placed, Range, ledger_reason, overlap
from cronjobs.pressure import admit
from cronjobs.settings import ScheduleSettings
from cronjobs.store import schedules as store
from cronjobs.store.enqueue import NewJob, insert_jobs
from cronjobs.store.queues import locked_room
from cronjobs.store.schedules import LedgerRow, StoredSchedule
from cronjobs.store.sql import database_now

FUTURE_WATERMARK: Final = timedelta(minutes=5)
MICROSECOND: Final = timedelta(microseconds=1)
LAST_INSTANT: Final = datetime(9999, 12, 31, tzinfo=UTC)
CROWDED_OUT: Final = Placed("skipped", "full: as many jobs wait in its queue as may (max_waiting)")
PAUSES_S: Final = (0.01, 0.02, 0.04, 0.08, 0.16)  # for an enqueuer who has the lock of a capped queue


@dataclass
class Materialised:
    """What one pass did: occurrences by outcome; ``busy`` names schedules that another transaction was at."""

    counts: dict[str, int] = field(default_factory=dict)
    busy: list[str] = field(default_factory=list)

    def count(self, outcome: str, by: int) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + by


@dataclass(frozen=True)
class Due:
    """A schedule's plan, made outside any transaction from the watermark it was read with."""

    stored: StoredSchedule
    schedule: ScheduleSettings | None
    plan: CatchUpPlan
    seen_until: datetime
    next_at: datetime | None
    event: events.Event | None = None


def materialise(
    database: Database,
    emit: Callable[[events.Event], None],
    *,
    but: Collection[str] = (),
    everything: bool = False,
    before_writing: Callable[[Connection], None] = lambda _: None,
) -> Materialised:
    """Settle every occurrence that is due: ledger, jobs and new watermark in one short transaction.

    *but* names schedules to leave alone (their entry in the file is broken). *everything* takes also those whose
    wake-up hint has not come, as a sync wants before definitions change.
    """
    done = Materialised()
    while True:
        with database.read() as connection:
            now = database_now(connection)
            stored = (
                [s for s in store.all_schedules(connection) if s.status == "active" and s.name not in but]
                if everything
                else store.due_schedules(connection, but)
            )
        due = [found for schedule in stored if (found := plan_for(schedule, now)) is not None]
        for found in due:
            if found.event is not None:
                emit(found.event)
        if not due:
            return done
        told: list[events.Event] = []
        busy: list[str] = []
        with database.write() as connection:
            before_writing(connection)
            locked = store.lock_schedules(connection, [(found.stored.id, found.stored.seen_until) for found in due])
            for found in due:
                written = _write(connection, found, now, done) if found.stored.id in locked else None
                if written is None:
                    busy.append(found.stored.name)
                else:
                    told += written
        for event in told:
            emit(event)
        done.busy += busy
        # A schedule whose pause ran out meanwhile is settled in two steps: up to there, and from there on.
        if not any(found.seen_until < now and found.stored.name not in busy and found.event is None for found in due):
            return done


def plan_for(stored: StoredSchedule, now: datetime) -> Due | None:
    """Decide about a schedule's occurrences up to *now*; None when there is nothing to write."""
    from cronjobs.occurrences import next_after, timing

    try:
        schedule = schedule_from_definition(stored.name, stored.definition)
        when = timing(schedule.cron, schedule.every, schedule.timezone)
    except (CronjobsError, ValueError, TypeError, KeyError) as error:
        # A newer version wrote it, or someone by hand: its watermark stays, so nothing is lost when it can be read.
        event = events.schedule_broken(stored.name, f"its stored definition cannot be read: {error}")
        return Due(stored, None, CatchUpPlan(), stored.seen_until, stored.next_at, event)
    if stored.seen_until > now:
        if stored.seen_until - now <= FUTURE_WATERMARK:
            return None
        event = events.watermark_reset(stored.name, stored.seen_until)
        return Due(stored, schedule, CatchUpPlan(), now, next_after(when, now), event)
    if stored.paused is None and stored.pause_ended_at is not None:
        ended = stored.pause_ended_at
        plan = catch_up(schedule, stored.seen_until, ended)
        return Due(replace(stored, paused="paused"), schedule, plan, ended, next_after(when, ended))
    return Due(stored, schedule, catch_up(schedule, stored.seen_until, now), now, next_after(when, now))


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


def _write(connection: Connection, due: Due, now: datetime, done: Materialised) -> list[events.Event] | None:
    """Settle what is due; None, and nothing is written: an enqueuer's transaction holds the schedule's queue."""
    stored, schedule, plan = due.stored, due.schedule, due.plan
    if schedule is None:
        return []
    if stored.seen_until > now:
        _forget_the_future(connection, stored.id, schedule, now)
    rows: list[LedgerRow] = []
    # Nothing stands above a watermark, unless that was set back (a clock, a restored table, a person): then what the
    # ledger knows is neither run nor told again.
    known = store.recorded(connection, stored.id, stored.seen_until)

    def settle(outcome: str, span: Range, reason: str | None = None, job_id: int | None = None) -> None:
        parts = _unknown(schedule, span, known)
        rows.extend(LedgerRow(stored.id, part.first, part.last, part.count, outcome, reason, job_id) for part in parts)

    run = [instant for instant in plan.run if not any(first <= instant <= last for first, last in known)]
    if stored.paused:
        for span in (plan.missed, plan.coalesced, *(Range(instant, instant, 1) for instant in run)):
            if span is not None:
                settle("skipped", span, stored.paused)
    else:
        if plan.missed:
            settle("missed", plan.missed, ledger_reason(schedule.catch_up))
        puts = _place(connection, schedule, run) if run else ()
        if puts is None:
            return None
        made = [job_for(schedule, instant) for instant, put in zip(run, puts, strict=True) if put.made]
        ids = iter(insert_jobs(connection, made, created_at=now))
        puts = [replace(put, job_id=next(ids)) if put.made else put for put in puts]
        if plan.coalesced and run:
            reason = puts[0].reason or f"the occurrence of {run[0].isoformat()} stands for it"
            settle("coalesced" if puts[0].made else puts[0].outcome, plan.coalesced, reason, puts[0].job_id)
        elif plan.coalesced:
            settle("missed", plan.coalesced, ledger_reason(schedule.catch_up))
        for instant, put in zip(run, puts, strict=True):
            settle(put.outcome, Range(instant, instant, 1), put.reason, put.job_id)
    store.record_occurrences(connection, rows, now)
    store.move_watermark(connection, stored.id, due.seen_until, due.next_at)
    told = []
    for row in rows:
        done.count(row.outcome, row.count)
        more = {"reason": row.reason, "job_id": row.job_id}
        told.append(events.occurrence_recorded(stored.name, row.outcome, row.count, row.last_for, **more))
    return told


def _place(connection: Connection, schedule: ScheduleSettings, run: Sequence[datetime]) -> Sequence[Placed] | None:
    """Where each occurrence of *run* goes, the oldest first; None: an enqueuer's transaction holds the queue."""
    placed = overlap(schedule.overlap, store.unfinished_jobs(connection, schedule.name))
    if not placed.made:
        return [placed] * len(run)
    for pause in (*PAUSES_S, None):
        with locked_room(connection, [schedule.queue]) as room:
            if not room.held:
                asking = [(instant, schedule.queue) for instant in run]
                caps = {name: replace(cap, on_full="drop") for name, cap in room.caps.items()}
                let_in = admit(asking, caps, room.waiting).let_in
                return [placed if instant in let_in else CROWDED_OUT for instant in run]
        if pause is not None:
            sleep(pause)
    return None


def _forget_the_future(connection: Connection, schedule_id: int, schedule: ScheduleSettings, now: datetime) -> None:
    """Take back what a clock that ran ahead recorded of occurrences that are still to come.

    Those that it ran stay, so that they do not run again; but ten years "missed" must not stand for the next ten years.
    """
    from cronjobs.occurrences import count_between, timing

    ahead = [row for row in store.ledger_between(connection, schedule_id, now, LAST_INSTANT) if row.last_for > now]
    wrong = [row for row in ahead if row.outcome != "enqueued"]
    store.forget_occurrences(connection, wrong)
    when = timing(schedule.cron, schedule.every, schedule.timezone)
    for row in wrong:
        past = _range(count_between(when, row.first_for - MICROSECOND, now))
        if past is not None:
            kept = replace(row, first_for=past.first, last_for=past.last, count=past.count)
            store.record_occurrences(connection, [kept], now)


def _unknown(schedule: ScheduleSettings, span: Range, known: Sequence[tuple[datetime, datetime]]) -> list[Range]:
    """The parts of *span* that lie in none of the *known* ranges (which are in order)."""
    if not any(first <= span.last and last >= span.first for first, last in known):
        return [span]
    from cronjobs.occurrences import count_between, timing

    when = timing(schedule.cron, schedule.every, schedule.timezone)
    parts, after = [], span.first - MICROSECOND
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
