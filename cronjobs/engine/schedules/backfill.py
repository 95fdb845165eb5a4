"""Run a schedule on a person's request. ``trigger`` runs the schedule now. ``backfill`` runs a range of its past
occurrences.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final

from sqlalchemy import Connection

from cronjobs.engine.config.settings import ScheduleSettings
from cronjobs.engine.crontime.timing import Timing, next_after, timing
from cronjobs.engine.rules.occurrences import BACKFILLED, BEFORE, CRON_RAN, overlap
from cronjobs.engine.schedules.decide import job_for
from cronjobs.engine.schedules.definition import schedule_from_definition
from cronjobs.engine.schedules.pauses import owed_by
from cronjobs.engine.schedules.planning import MICROSECOND, occurrences
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store.enqueue import NewJob, insert_jobs
from cronjobs.engine.store.job_types import present_types
from cronjobs.engine.store.overlap import unfinished_jobs
from cronjobs.engine.store.schedules import LedgerRow, StoredSchedule
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import record
from cronjobs.errors import CronjobsError, UsageError
from cronjobs.model import duration_text

# One backfill can have at most this many occurrences.
MOST: Final = 10_000
# A job with this ``meta`` does not wait for other jobs of its schedule. The claim reads this entry.
FORCED: Final = {"cronjobs.overlap": "allow"}


class UnknownSchedule(CronjobsError):
    """The database has no active schedule with this name. Perhaps no tick has applied it yet."""

    def __init__(self, name: str, near: Sequence[str]) -> None:
        hint = f"; do you mean {' or '.join(near)}?" if near else ': see "cronjobs schedules list"'
        super().__init__(f'there is no active schedule "{name}"{hint}')


class NotYetInForce(CronjobsError):
    """The schedule is in the file, but no sync has applied it to the database yet."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f'"{name}" is in the file but has not been applied yet: run "cronjobs sync", or wait for a tick'
        )


class ScheduleBusy(CronjobsError):
    """The schedule has an unfinished job, and its ``overlap`` does not allow a second one."""

    def __init__(self, name: str, job_id: int) -> None:
        super().__init__(f'job {job_id} of "{name}" is not finished: use --force to run a second job alongside it')


def find(connection: Connection, name: str) -> StoredSchedule:
    """Return the active schedule *name*. Raises UnknownSchedule."""
    active = {schedule.name: schedule for schedule in store.all_schedules(connection) if schedule.status == "active"}
    if name not in active:
        raise UnknownSchedule(name, difflib.get_close_matches(name, active, 2))
    return active[name]


def definition_in_force(connection: Connection, name: str) -> ScheduleSettings:
    """Return the stored definition of the active schedule *name*. Raises UnknownSchedule."""
    return schedule_from_definition(name, find(connection, name).definition)


def trigger(connection: Connection, name: str, *, force: bool, actor: str, host: str, why: str | None = None) -> int:
    """Create one job of the schedule now, and return its id. The ledger and the watermark do not change.

    The job's ``scheduled_for`` is now. Raises ScheduleBusy if ``overlap`` forbids the job, unless *force* is True.
    """
    # Wait for a tick that is settling this schedule now. That tick's jobs become visible only when it commits.
    store.wait_for_schedule(connection, name)
    schedule = definition_in_force(connection, name)
    unfinished = unfinished_jobs(connection, name, present_types(connection))
    placed = overlap(schedule.overlap, unfinished)
    if placed.outcome != "enqueued" and not force:
        raise ScheduleBusy(name, placed.job_id or 0)
    now = database_now(connection)
    job = _job(schedule, now, now, f"trigger {actor}", FORCED if force else {})
    [job_id] = insert_jobs(connection, [job])
    detail = {"job_id": job_id, "force": force}
    record(connection, action="trigger", subject=name, actor=actor, host=host, why=why, detail=detail, at=now)
    return job_id


def _job(
    schedule: ScheduleSettings, scheduled_for: datetime, run_at: datetime, by: str, meta: dict[str, str]
) -> NewJob:
    job = job_for(schedule, scheduled_for)
    return replace(job, run_at=run_at, enqueued_by=by, meta=job.meta | meta)


# --- backfill ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Filling:
    """The plan of a backfill.

    ``run`` lists the occurrences to run, oldest first. ``done`` is the number of occurrences that get no job, because
    they already have one, because the job of another occurrence stands for them, or because cron itself ran them.

    ``gone`` lists the ledger rows that the backfill deletes, because it runs some of their occurrences. ``left`` lists
    new rows for their other occurrences. ``was`` maps each occurrence in ``run`` to the row that covered it, if there
    was one. If ``settled_until`` is set, the range was cut at that instant, and ticks will run the later occurrences.
    """

    run: tuple[datetime, ...]
    done: int
    gone: tuple[LedgerRow, ...]
    left: tuple[LedgerRow, ...]
    was: Mapping[datetime, LedgerRow]
    settled_until: datetime | None = None

    @property
    def not_in_force(self) -> int:
        """How many occurrences in ``run`` have no ledger row, because no definition was in force when they were due."""
        return len(self.run) - len(self.was)


def plan_filling(schedule: ScheduleSettings, ledger: Sequence[LedgerRow], first: datetime, last: datetime) -> Filling:
    """Decide which occurrences from *first* to *last* still have to run. *ledger* has the ledger rows of that range.

    An enqueued occurrence has a job of its own, even if that job waits or is dead. For a coalesced one, another
    occurrence's job ran. Cron itself ran those with the reason CRON_RAN. All other occurrences still have to run: the
    missed and the skipped ones, and those without a row, which are older than the schedule. Raises UsageError if there
    are too many occurrences, or if a row cannot be split because it belongs to a definition with different times.
    """
    when = timing(schedule.cron, schedule.every, schedule.timezone)
    count, _, _ = when.span(first - MICROSECOND, last)
    if count > MOST:
        raise UsageError(f"this range has {count:,} occurrences, but the limit is {MOST:,}: backfill it in parts")
    instants = list(takewhile(last.__ge__, when.after(first - MICROSECOND)))
    spent = [row for row in ledger if row.outcome in ("enqueued", "coalesced") or row.reason == CRON_RAN]
    run = tuple(instant for instant in instants if not any(row.first_for <= instant <= row.last_for for row in spent))
    gone, left, was = [], [], dict[datetime, LedgerRow]()
    for row in ledger:
        taken = [instant for instant in run if row.first_for <= instant <= row.last_for]
        if row.outcome in ("missed", "skipped") and taken:
            gone.append(row)
            was |= dict.fromkeys(taken, row)
            left += _remains(when, row, taken)
    return Filling(run, len(instants) - len(run), tuple(gone), tuple(left), was)


def _remains(when: Timing, row: LedgerRow, taken: list[datetime]) -> list[LedgerRow]:
    if when.span(row.first_for - MICROSECOND, row.last_for) != (row.count, row.first_for, row.last_for):
        raise UsageError(
            f"the {row.count} occurrences from {row.first_for.isoformat()} to {row.last_for.isoformat()} were due "
            "under another definition of the schedule: choose a range that ends before them or begins after them"
        )
    before = occurrences(when, row.first_for - MICROSECOND, taken[0] - MICROSECOND)
    after = occurrences(when, taken[-1], row.last_for)
    return [replace(row, first_for=it.first, last_for=it.last, count=it.count) for it in (before, after) if it]


def _reason(actor: str, was: LedgerRow | None) -> str:
    if was is None:
        return f"{BACKFILLED} {actor}"
    return f"{BACKFILLED} {actor}{BEFORE}{was.outcome}" + (f" ({was.reason})" if was.reason else "")


def backfill(
    connection: Connection,
    name: str,
    first: datetime,
    last: datetime,
    *,
    retention: timedelta,
    actor: str,
    host: str,
    dry_run: bool,
) -> Filling:
    """Run the occurrences from *first* to *last* that have no job. Record them in the ledger, so that none runs twice.

    The jobs are due now, oldest first. They run one at a time unless the schedule allows overlap. The range ends at the
    watermark at the latest. Raises UsageError if the range begins after the watermark, or before *retention*, because
    the ledger no longer shows what ran then.
    """
    stored = find(connection, name)
    now = database_now(connection)
    if first > last:
        raise UsageError("--from must be before --to")
    if first < now - retention:
        raise UsageError(
            f"the ledger only reaches back {duration_text(retention)} (retention.occurrences): what ran before "
            f"{(now - retention).isoformat(timespec='minutes')} is no longer known"
        )
    if first > stored.seen_until:
        raise UsageError(
            f"ticks have settled {name} up to {stored.seen_until.isoformat(timespec='seconds')}: "
            "ticks will run all later occurrences, so they need no backfill"
        )
    asked, last = last, min(last, stored.seen_until)
    if any(piece.start < last and first <= piece.end for piece in owed_by(stored).pieces):
        raise UsageError('a pause is holding back part of that range: run "cronjobs resume", and ticks will run it')
    if not dry_run and stored.id not in store.lock_schedules(connection, [stored]):
        raise CronjobsError(f'a tick is settling "{name}" right now: try again')
    schedule = schedule_from_definition(name, stored.definition)
    filling = plan_filling(schedule, store.ledger_between(connection, stored.id, first, last), first, last)
    later = next_after(timing(schedule.cron, schedule.every, schedule.timezone), last)
    if later is not None and later <= asked:
        filling = replace(filling, settled_until=last)
    if dry_run or not filling.run:
        return filling
    jobs = [_job(schedule, instant, now, f"backfill {actor}", {}) for instant in filling.run]
    ids = insert_jobs(connection, jobs)
    store.forget_occurrences(connection, filling.gone)
    rows = [
        LedgerRow(stored.id, instant, instant, 1, "enqueued", _reason(actor, filling.was.get(instant)), job_id)
        for instant, job_id in zip(filling.run, ids, strict=True)
    ]
    store.record_occurrences(connection, [*filling.left, *rows], now)
    detail = {"from": first.isoformat(), "to": last.isoformat(), "jobs": len(ids), "ids": ids}
    record(connection, action="backfill", subject=name, actor=actor, host=host, detail=detail, at=now)
    return filling
