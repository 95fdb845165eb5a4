"""Decide what becomes of an occurrence by its overlap policy, and which reason the ledger gives. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

OccurrenceOutcome = Literal["enqueued", "skipped", "missed", "coalesced"]
ON_TIME_WITHIN: Final = timedelta(minutes=2)  # an occurrence older than this was missed, so catch_up applies


@dataclass(frozen=True, slots=True)
class Range:
    """*count* occurrences, of which *first* is the first and *last* the last."""

    first: datetime
    last: datetime
    count: int


RAN_EARLY: Final = "ran early at"  # prefix of the ledger's reason for a run that was early because of a wrong clock
# followed by the number of the job's attempts so far; any later attempt is on time
UP_TO_ATTEMPT: Final = ", up to attempt"
# prefix of the reason that ``not_made_up_reason`` gives
NOT_MADE_UP: Final = "catch_up: latest leaves it to the run for"
HELD_BACK: Final = "held back by a pause"  # prefix of the reason for occurrences that a pause held back until too late
BACKFILLED: Final = "backfill by"  # prefix of the reason for an occurrence that a person ran afterwards
# in BACKFILLED's reason, followed by what had become of the occurrence before the backfill
BEFORE: Final = "; before: "


def ran_early(reason: str | None, attempts: int | None) -> bool:
    """Whether a wrong clock ran the occurrence before it was due, and nothing has run it since.

    *attempts* is the number of its job's attempts, or None if the job is pruned.
    """
    if reason is None or not reason.startswith(RAN_EARLY):
        return False
    early = reason.rpartition(UP_TO_ATTEMPT)[2].strip()
    return attempts is None or not early.isdecimal() or attempts <= int(early)


def only_ran_early(reason: str | None, status: str | None, attempts: int | None) -> bool:
    """Whether the occurrence's one success was early, as in ``ran_early``.

    *status* is its job's status, or None if the job ended so long ago that it was pruned.
    """
    return status in ("succeeded", None) and ran_early(reason, attempts)


def early_words(reason: str) -> str:
    """Return the *reason* of an early run for people, without the attempt up to which the reason holds."""
    return reason.rpartition(UP_TO_ATTEMPT)[0] or reason


def early_by(reason: str | None) -> datetime | None:
    """Return the instant, by a correct clock, at or before which the early run was made; None if *reason* has none."""
    if reason is None or not reason.startswith(RAN_EARLY):
        return None
    try:
        found = datetime.fromisoformat(reason.removeprefix(RAN_EARLY).split()[0])
    except (ValueError, IndexError):
        return None
    return found if found.tzinfo is not None else None


def ledger_reason(policy: str, *, paused: bool = False) -> str:
    """Return why occurrences are missed under the catch-up *policy*. *paused* says that a pause held them back."""
    if policy == "none":
        return f"{HELD_BACK if paused else 'no tick fired it in time'} (catch_up: none)"
    return f"{HELD_BACK}, for longer than catch_up_within" if paused else "no tick came within catch_up_within"


def not_made_up_reason(into: datetime, settled: str | None) -> str:
    """Return the reason for occurrences that ``catch_up: latest`` leaves to *into*, when *into* gets no run either.

    *into* was already settled, with the reason *settled*: a tick whose clock was ahead ran it early, or somebody wrote
    to the ledger.
    """
    why = settled if (settled or "").startswith(RAN_EARLY) else "was settled before"
    return f"{NOT_MADE_UP} {into.isoformat()}, which {why}"


def dropped_reason(*, paused: bool = False) -> str:
    """Return why ``catch_up: all`` does not make up for an occurrence, although it is within ``catch_up_within``."""
    why = "more were due than catch_up_limit allows"
    return f"{HELD_BACK}, and {why}" if paused else why


@dataclass(frozen=True, slots=True)
class Busy:
    """An unfinished job of the schedule. ``waiting`` says that it is not running yet."""

    job_id: int
    waiting: bool


@dataclass(frozen=True, slots=True)
class OccurrenceDecision:
    """The decision about one occurrence: a job of its own, or a ledger row with the job to which it gave way."""

    outcome: OccurrenceOutcome
    reason: str | None = None
    job_id: int | None = None

    @property
    def made(self) -> bool:
        return self.outcome == "enqueued"


def overlap(policy: str, busy: Sequence[Busy]) -> OccurrenceDecision:
    """Decide what happens to an occurrence that comes due while *busy* jobs of its schedule are unfinished."""
    if not busy or policy == "allow":
        return OccurrenceDecision("enqueued")
    if policy == "skip":
        holder = busy[0]
        return OccurrenceDecision("skipped", f"overlap: job {holder.job_id} was still unfinished", holder.job_id)
    waiting = next((job for job in busy if job.waiting), None)
    if waiting is None:
        return OccurrenceDecision("enqueued")
    return OccurrenceDecision("coalesced", f"overlap: job {waiting.job_id} is already waiting", waiting.job_id)
