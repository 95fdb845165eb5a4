"""Decide what happens to an occurrence according to its overlap policy, and which reason the ledger gives. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

OccurrenceOutcome = Literal["enqueued", "skipped", "missed", "coalesced"]
# If an occurrence is older than this, it was missed, so catch_up applies.
ON_TIME_WITHIN: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Range:
    """A number (``count``) of occurrences, from ``first`` to ``last``."""

    first: datetime
    last: datetime
    count: int


# If a run was early because of a wrong clock, the ledger's reason begins with this.
RAN_EARLY: Final = "ran early at"
# In that reason, the number of the job's attempts so far follows this. Any later attempt was on time.
UP_TO_ATTEMPT: Final = ", up to attempt"
# The reason that ``not_made_up_reason`` gives begins with this.
NOT_MADE_UP: Final = "catch_up: latest leaves it to the run for"
# If a pause held occurrences back for too long, the reason begins with this.
HELD_BACK: Final = "held back by a pause"
# If a person ran an occurrence later, the reason begins with this.
BACKFILLED: Final = "backfill by"
# In such a reason, the outcome of the occurrence before the backfill follows this.
BEFORE: Final = "; before: "


def ran_early(reason: str | None, attempts: int | None) -> bool:
    """Return whether a wrong clock ran the occurrence before it was due, and nothing has run it since.

    *attempts* is the number of its job's attempts, or None if the job is pruned.
    """
    if reason is None or not reason.startswith(RAN_EARLY):
        return False
    early = reason.rpartition(UP_TO_ATTEMPT)[2].strip()
    return attempts is None or not early.isdecimal() or attempts <= int(early)


def only_ran_early(reason: str | None, status: str | None, attempts: int | None) -> bool:
    """Return whether the only success of the occurrence was a run before it was due (see ``ran_early``).

    *status* is the status of its job, or None if the job was pruned, because it ended long ago.
    """
    return status in ("succeeded", None) and ran_early(reason, attempts)


def early_words(reason: str) -> str:
    """Return the *reason* of an early run in a form for people, without the number of the attempt."""
    return reason.rpartition(UP_TO_ATTEMPT)[0] or reason


def early_by(reason: str | None) -> datetime | None:
    """Return the latest time, by a correct clock, at which the early run can have been. None if *reason* has none."""
    if reason is None or not reason.startswith(RAN_EARLY):
        return None
    try:
        found = datetime.fromisoformat(reason.removeprefix(RAN_EARLY).split()[0])
    except (ValueError, IndexError):
        return None
    return found if found.tzinfo is not None else None


def ledger_reason(policy: str, *, paused: bool = False) -> str:
    """Return why occurrences are missed with the catch-up *policy*. *paused* is True if a pause held them back."""
    if policy == "none":
        return f"{HELD_BACK if paused else 'no tick fired it in time'} (catch_up: none)"
    return f"{HELD_BACK}, for longer than catch_up_within" if paused else "no tick came within catch_up_within"


def not_made_up_reason(into: datetime, settled: str | None) -> str:
    """Return the reason for occurrences that ``catch_up: latest`` leaves to *into*, if *into* does not run either.

    *into* was already settled, with the reason *settled*, because a tick whose clock was ahead ran it early, or because
    somebody wrote to the ledger.
    """
    why = settled if (settled or "").startswith(RAN_EARLY) else "was settled before"
    return f"{NOT_MADE_UP} {into.isoformat()}, which {why}"


def dropped_reason(*, paused: bool = False) -> str:
    """Return why ``catch_up: all`` does not run an occurrence, although the occurrence is within
    ``catch_up_within``.
    """
    why = "more were due than catch_up_limit allows"
    return f"{HELD_BACK}, and {why}" if paused else why


@dataclass(frozen=True, slots=True)
class Busy:
    """An unfinished job of the schedule. If ``waiting``, it is not running yet."""

    job_id: int
    waiting: bool


@dataclass(frozen=True, slots=True)
class OccurrenceDecision:
    """The decision about one occurrence.

    It gets its own job, or only a ledger row with the job to which it gave way.
    """

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
