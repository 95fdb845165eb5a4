"""Decide, by the overlap policy, what happens to an occurrence, and which reason the ledger gives. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

OccurrenceOutcome = Literal["enqueued", "skipped", "missed", "coalesced"]
# An occurrence that is older than this has been missed, so catch_up decides about it.
ON_TIME_WITHIN: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Range:
    """``count`` occurrences of a schedule: the first is due at ``first``, the last at ``last``."""

    first: datetime
    last: datetime
    count: int


# The ledger's reason begins with this if a wrong clock made the occurrence run early.
RAN_EARLY: Final = "ran early at"
# After this text, a RAN_EARLY reason gives the job's number of attempts at that time. Later attempts ran by a correct
# clock.
UP_TO_ATTEMPT: Final = ", up to attempt"
# A reason of ``not_made_up_reason`` begins with this.
NOT_MADE_UP: Final = "catch_up: latest leaves it to the run for"
# The reason begins with this if a pause held the occurrences back for too long.
HELD_BACK: Final = "held back by a pause"
# The reason of skipped occurrences that cron itself ran, because their line was back in the crontab. They need no other
# run.
CRON_RAN: Final = "cron itself ran this line, and not a tick"
# The reason begins with this if a person ran the occurrence later, in a backfill.
BACKFILLED: Final = "backfill by"
# After this text, a BACKFILLED reason gives the occurrence's outcome before the backfill.
BEFORE: Final = "; before: "


def ran_early(reason: str | None, due: datetime, attempts: int | None, began_at: datetime | None) -> bool:
    """Return whether a wrong clock ran the occurrence before it was due, and no attempt has begun since *due*.

    *attempts* is the number of attempts of the occurrence's job, or None if the job has been pruned. *began_at* is when
    the last attempt began.
    """
    if reason is None or not reason.startswith(RAN_EARLY):
        return False
    early = reason.rpartition(UP_TO_ATTEMPT)[2].strip()
    if attempts is None or not early.isdecimal() or attempts <= int(early):
        return True  # the wrong clock also set *began_at*
    return began_at is not None and began_at < due


def only_ran_early(
    reason: str | None, due: datetime, status: str | None, attempts: int | None, began_at: datetime | None
) -> bool:
    """Return whether the only success of the occurrence was a run before it was due (see ``ran_early``).

    *status* is the status of the occurrence's job, or None if the job ended so long ago that it has been pruned.
    """
    return status in ("succeeded", None) and ran_early(reason, due, attempts, began_at)


def early_words(reason: str) -> str:
    """Return the *reason* of an early run in a form for people, without the number of attempts."""
    return reason.rpartition(UP_TO_ATTEMPT)[0] or reason


def early_by(reason: str | None) -> datetime | None:
    """Return the correct time at or before which the early run took place, or None if *reason* does not give it."""
    if reason is None or not reason.startswith(RAN_EARLY):
        return None
    try:
        found = datetime.fromisoformat(reason.removeprefix(RAN_EARLY).split()[0])
    except (ValueError, IndexError):
        return None
    return found if found.tzinfo is not None else None


def ledger_reason(policy: str, *, paused: bool) -> str:
    """Return why occurrences are missed with the catch-up *policy*. *paused* is True if a pause held them back."""
    if policy == "none":
        return f"{HELD_BACK if paused else 'no tick fired it in time'} (catch_up: none)"
    if paused:
        return f"{HELD_BACK}, for longer than catch_up_within"
    return "the next tick came later than catch_up_within allows"


def not_made_up_reason(into: datetime, settled: str | None) -> str:
    """Return the reason for occurrences that ``catch_up: latest`` leaves to the run for *into*.

    That run will not happen: *into* was already settled, with the reason *settled*, because a tick whose clock was
    ahead ran it early, or because somebody wrote to the ledger.
    """
    why = settled if (settled or "").startswith(RAN_EARLY) else "was settled before"
    return f"{NOT_MADE_UP} {into.isoformat()}, which {why}"


def dropped_reason(*, paused: bool) -> str:
    """Return why ``catch_up: all`` does not run an occurrence, although ``catch_up_within`` allows it."""
    why = "more were due than catch_up_limit allows"
    return f"{HELD_BACK}, and {why}" if paused else why


@dataclass(frozen=True, slots=True)
class Busy:
    """An unfinished job of the schedule. If ``waiting`` is True, the job is not running yet."""

    job_id: int
    waiting: bool


@dataclass(frozen=True, slots=True)
class OccurrenceDecision:
    """The decision about one occurrence.

    If ``made`` is True, the occurrence gets its own job. Otherwise it gets only a ledger row. ``job_id`` is the job
    that took precedence, if there is one.
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
