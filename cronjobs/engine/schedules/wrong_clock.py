"""Undo what a tick did too early because its clock was ahead and moved a schedule's watermark into the future.

The next tick cancels jobs that were created for a future instant and have not started; they are created again when
they are due. A job that has started stays the only job of its occurrence. Its ledger row says that the job ran early,
and the tick reports that once. The tick deletes ledger rows without a job, and decides again about occurrences that are
in the past by the correct clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.engine.rules.occurrences import RAN_EARLY, UP_TO_ATTEMPT
from cronjobs.engine.schedules.planning import MICROSECOND, TimedDefinition, occurrences
from cronjobs.engine.store import operating
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store.schedules import LedgerRow

if TYPE_CHECKING:
    from cronjobs.engine.crontime.timing import Timing

FUTURE_WATERMARK: Final = timedelta(minutes=5)


@dataclass(frozen=True)
class Undo:
    """The corrections to one schedule's ledger.

    ``gone`` lists the rows to delete. ``left`` lists new rows for those of their occurrences that must stay in the
    ledger. ``early`` lists the rows of jobs that have started, with a new reason. Occurrences after the watermark
    ``seen_until`` are decided again.
    """

    gone: tuple[LedgerRow, ...]
    left: tuple[LedgerRow, ...]
    early: tuple[LedgerRow, ...]
    seen_until: datetime


def decide(
    rows: Sequence[LedgerRow],
    taken_back: Collection[int],
    begun: Mapping[int, int | None],
    when: Timing,
    now: datetime,
) -> Undo:
    """Return how to correct the ledger *rows* that a tick wrote while its clock was ahead.

    *taken_back* and *begun* are ids of jobs that were created for future instants. The jobs in *taken_back* have just
    been cancelled. The jobs in *begun* have started, and *begun* gives the number of each job's last attempt. If a job
    is in neither collection, someone else has cancelled it or locked its row. The ledger row of such a job can stay: if
    the job is still waiting, it will run when it is due.
    """
    gone, left, early = [], [], []
    seen_until = now
    for row in rows:
        stays = row.job_id is not None and row.job_id not in taken_back
        if row.outcome == "enqueued" and stays:
            if row.job_id is not None and row.job_id in begun:
                early.append(replace(row, reason=_ran_early(row, begun[row.job_id], now)))
            continue
        gone.append(row)
        past = occurrences(when, row.first_for - MICROSECOND, min(row.last_for, now))
        if past is not None and row.outcome == "coalesced" and stays:
            left.append(replace(row, first_for=past.first, last_for=past.last, count=past.count))
        elif past is not None:
            seen_until = min(seen_until, past.first - MICROSECOND)
    return Undo(tuple(gone), tuple(left), tuple(early), seen_until)


def _ran_early(row: LedgerRow, attempt: int | None, now: datetime) -> str:
    """Return the reason for the ledger row of a job that ran too early.

    The reason contains *now*, the latest time at which the job can have run, and the time that the wrong clock showed.
    """
    shown = "" if row.decided_at is None else f" that showed {row.decided_at.isoformat(timespec='seconds')}"
    which = "" if attempt is None else f"{UP_TO_ATTEMPT} {attempt}"
    return f"{RAN_EARLY} {now.isoformat(timespec='seconds')} or before, because of a wrong clock{shown}{which}"


def undo(
    connection: Connection, ahead: Mapping[int, TimedDefinition], now: datetime
) -> tuple[dict[int, datetime], list[events.Event]]:
    """Undo what ticks did too early for the schedules *ahead*, by schedule id. Return the new watermarks, and events to
    emit.
    """
    # Ignore rows older than catch_up_within, because catch_up would not run their occurrences anyway.
    limits = {id_: now - timed.schedule.catch_up_within for id_, timed in ahead.items()}
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
    why = "a clock that was ahead created this job too early; it will be created again when it is due"
    taken_back = operating.take_back(
        connection, to_come, operating.OperatorAction("cancel", "tick", "", why, {"clock": "ahead"})
    )
    begun = operating.begun(connection, to_come - taken_back) if to_come - taken_back else {}
    found = {id_: decide(rows.get(id_, ()), taken_back, begun, timed.when, now) for id_, timed in ahead.items()}
    left = [row for undo in found.values() for row in (*undo.left, *undo.early)]
    store.forget_occurrences(connection, [row for undo in found.values() for row in (*undo.gone, *undo.early)])
    store.record_occurrences(connection, left, now)
    to_emit = [events.jobs_taken_back(len(taken_back))] if taken_back else []
    to_emit += [
        events.ran_early(
            ahead[schedule_id].schedule.name,
            [row.last_for for row in undo.early],
            [row.job_id for row in undo.early if row.job_id is not None],
        )
        for schedule_id, undo in found.items()
        if undo.early
    ]
    return {schedule_id: undo.seen_until for schedule_id, undo in found.items()}, to_emit


def _decided_ahead(row: LedgerRow, now: datetime) -> bool:
    return row.decided_at is not None and row.decided_at - now > FUTURE_WATERMARK
