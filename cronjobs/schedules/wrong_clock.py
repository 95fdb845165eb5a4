"""A clock that ran ahead made a schedule's watermark lie in the future: take back what it did before its time.

A job that was made for an instant still to come, and has not begun, is cancelled, and made again when its time comes.
One that has begun stays the occurrence's only job: its ledger row says so, and so does the tick, once. What the clock
only recorded is forgotten, and what of it is past by now is decided anew.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.events import Event
from cronjobs.rules.retry import RAN_EARLY
from cronjobs.schedules.planning import MICROSECOND, Timed
from cronjobs.store import operating
from cronjobs.store import schedules as store
from cronjobs.store.schedules import LedgerRow

if TYPE_CHECKING:
    from cronjobs.crontime.timing import Timing

FUTURE_WATERMARK: Final = timedelta(minutes=5)


@dataclass(frozen=True)
class Undo:
    """``gone`` rows are forgotten, of which ``left`` stays; ``early`` are rows of jobs that have begun, with a reason.

    ``seen_until``: the watermark, from where occurrences are decided anew.
    """

    gone: tuple[LedgerRow, ...]
    left: tuple[LedgerRow, ...]
    early: tuple[LedgerRow, ...]
    seen_until: datetime


def decide(
    rows: Sequence[LedgerRow], taken_back: Collection[int], begun: Collection[int], when: Timing, now: datetime
) -> Undo:
    """What becomes of ledger *rows* that a clock wrote which was ahead.

    *taken_back* and *begun* are jobs that were made for instants still to come. One that is neither (someone cancelled
    it, or holds its row) is as it should be: it is due in its time.
    """
    from cronjobs.crontime.timing import count_between

    gone, left, early = [], [], []
    seen_until = now
    for row in rows:
        stays = row.job_id is not None and row.job_id not in taken_back
        if row.outcome == "enqueued" and stays:
            if row.job_id in begun:
                early.append(replace(row, reason=_ran_early(row, now)))
            continue
        gone.append(row)
        past = count_between(when, row.first_for - MICROSECOND, min(row.last_for, now))
        count, first, last = past
        if first is None or last is None:
            continue
        if row.outcome == "coalesced" and stays:
            left.append(replace(row, first_for=first, last_for=last, count=count))
        else:
            seen_until = min(seen_until, first - MICROSECOND)
    return Undo(tuple(gone), tuple(left), tuple(early), seen_until)


def _ran_early(row: LedgerRow, now: datetime) -> str:
    """When exactly nobody knows: before this, by a clock that is right, and at that, by one that was wrong."""
    shown = "" if row.decided_at is None else f", when it showed {row.decided_at.isoformat(timespec='seconds')}"
    return f"{RAN_EARLY} {now.isoformat(timespec='seconds')} or before, wrong clock{shown}"


@dataclass(frozen=True)
class Ahead:
    """A schedule whose watermark a clock moved into the future."""

    schedule_id: int
    timed: Timed


def undo(connection: Connection, ahead: Sequence[Ahead], now: datetime) -> tuple[dict[int, datetime], list[Event]]:
    """Take back what was done ahead of its time, in a few statements; return the new watermarks, and what to tell."""
    # Beyond catch_up_within nothing would be made up for, whoever decides.
    limits = {each.schedule_id: now - each.timed.schedule.catch_up_within for each in ahead}
    rows = {
        schedule_id: [row for row in rows if row.last_for > now or _decided_ahead(row, now)]
        for schedule_id, rows in store.ledger_above(connection, limits).items()
    }
    to_come = {
        row.job_id
        for several in rows.values()
        for row in several
        if row.outcome == "enqueued" and row.job_id is not None and row.last_for > now
    }
    why = "a clock that was ahead made it before its time; it is made again when that comes"
    taken_back = operating.take_back(
        connection, to_come, operating.OperatorAction("cancel", "tick", "", why, {"clock": "ahead"})
    )
    begun = operating.begun(connection, to_come - taken_back) if to_come - taken_back else frozenset()
    found = {
        each.schedule_id: decide(rows.get(each.schedule_id, ()), taken_back, begun, each.timed.when, now)
        for each in ahead
    }
    store.forget_occurrences(connection, [row for undo in found.values() for row in (*undo.gone, *undo.early)])
    store.record_occurrences(connection, [row for undo in found.values() for row in (*undo.left, *undo.early)], now)
    names = {each.schedule_id: each.timed.schedule.name for each in ahead}
    told = [events.jobs_taken_back(len(taken_back))] if taken_back else []
    told += [
        events.ran_early(
            names[schedule_id],
            [row.last_for for row in undo.early],
            [row.job_id for row in undo.early if row.job_id is not None],
        )
        for schedule_id, undo in found.items()
        if undo.early
    ]
    return {schedule_id: undo.seen_until for schedule_id, undo in found.items()}, told


def _decided_ahead(row: LedgerRow, now: datetime) -> bool:
    return row.decided_at is not None and row.decided_at - now > FUTURE_WATERMARK
