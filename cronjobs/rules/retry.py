"""What becomes of a job after an attempt, and how long a retry waits. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cronjobs.model import (
    CancelledByRequest,
    Failed,
    Interrupted,
    Job,
    Lost,
    Outcome,
    Released,
    RetryPolicy,
    Snoozed,
    Status,
    Succeeded,
    TimedOut,
    Transition,
    duration,
)

FREE_INTERRUPTIONS: Final = 3  # in a row; the next is charged, or a job longer than the time between deploys never ends
SOONEST_RETRY: Final = timedelta(seconds=1)  # no retry is instant, even if the next occurrence is now


def backoff(policy: RetryPolicy, failures: int, jitter: float) -> timedelta:
    """The delay after the *failures*-th charged failure (from 1); *jitter* is a random number in [-1, 1].

    min(base * factor**(failures-1), cap), or the list of delays, whose last entry repeats; then ± policy.jitter.
    Clamped before the power is taken: 2.0**1100 and timedelta(2**60) both raise.
    """
    if policy.delays is not None:
        delay = duration(policy.delays[min(failures, len(policy.delays)) - 1])
    else:
        base, cap = duration(policy.base), duration(policy.cap)
        steps = failures - 1
        steps_to_cap = math.log(cap / base, policy.factor) if policy.factor > 1 else math.inf
        delay = cap if steps >= steps_to_cap else min(base * policy.factor**steps, cap)
    return delay * (1 + policy.jitter * max(-1.0, min(1.0, jitter)))


def permanent(policy: RetryPolicy, outcome: Outcome) -> bool:
    """Whether *outcome* ends the job even if tries are left, by its own flag or by the policy's lists.

    A name matches a kind that it equals or that ends with it after a dot. ``give_up_on`` wins over ``retry_on``. The
    lists do not apply to outcomes without kinds (GiveUp, RetryLater, a signature mismatch, a command that could not be
    started).
    """
    match outcome:
        case Failed(permanent=True):
            return True
        case TimedOut():
            return _named(("TimedOut",), policy.give_up_on)
        case Failed(kinds=kinds) if kinds:
            return _named(kinds, policy.give_up_on) or not (policy.retry_on is None or _named(kinds, policy.retry_on))
    return False


def _named(kinds: Sequence[str], names: Iterable[object]) -> bool:
    return any(kind == name or kind.endswith(f".{name}") for name in names for kind in kinds)


def decide(
    job: Job,
    outcome: Outcome,
    policy: RetryPolicy,
    now: datetime,
    jitter: float,
    *,
    max_losses: int = 10,
    every: timedelta = timedelta(minutes=1),
) -> Transition:
    """The next state of *job* after an attempt ended with *outcome*.

    *now* is the database's clock; *jitter* a random number in [-1, 1]; *every* the time between ticks. Only failures
    and time-outs are charged (and interruptions after the third in a row); losses and snoozes prove nothing.
    """
    failures, losses = job.failures, job.losses
    match outcome:
        case Succeeded():
            return Transition(Status.SUCCEEDED, failures, losses, interruptions=0)
        case CancelledByRequest():
            return Transition(Status.CANCELLED, failures, losses, interruptions=0)
        case Released(error=None) | Interrupted(by_hand=True):  # proves nothing: it is due when it was
            return Transition(Status.QUEUED, failures, losses, job.interruptions)
        case Released(after=after):
            return Transition(Status.QUEUED, failures, losses, job.interruptions, run_at=now + after, delay=after)
        case Snoozed(until=until):
            wait = max(until - now, SOONEST_RETRY)
            return Transition(Status.QUEUED, failures, losses, interruptions=0, run_at=now + wait, delay=wait)
        case Lost():
            losses += 1
            status = Status.DEAD if losses >= max_losses else Status.FAILED
            run_at = None if status is Status.DEAD else now
            return Transition(status, failures, losses, interruptions=0, run_at=run_at, delay=timedelta(0))
        case Interrupted() if job.interruptions < FREE_INTERRUPTIONS:
            return Transition(Status.QUEUED, failures, losses, job.interruptions + 1, run_at=now)
        case Failed() | TimedOut() if permanent(policy, outcome):
            return Transition(Status.DEAD, failures + 1, losses, interruptions=0, permanent=True)
        case Failed() | TimedOut() | Interrupted():
            failures += 1
            if failures >= (job.max_attempts or policy.max_attempts):
                return Transition(Status.DEAD, failures, losses, interruptions=0)
            delay = _retry_delay(job, outcome, policy, failures, now, jitter)
            if job.gives_up_at is not None and next_tick(now + delay, every) >= job.gives_up_at:
                return Transition(Status.DEAD, failures, losses, interruptions=0)
            return Transition(Status.FAILED, failures, losses, interruptions=0, run_at=now + delay, delay=delay)


def _retry_delay(
    job: Job, outcome: Outcome, policy: RetryPolicy, failures: int, now: datetime, jitter: float
) -> timedelta:
    if isinstance(outcome, Failed) and outcome.retry_after is not None:
        return max(outcome.retry_after, SOONEST_RETRY)
    delay = backoff(policy, failures, jitter)
    if isinstance(outcome, Failed) and outcome.at_least is not None:
        return max(delay, outcome.at_least)
    if job.next_occurrence is not None and job.gives_up_at is None:
        # A nightly schedule whose provider is back must not sleep through its next run (design: overlap).
        delay = min(delay, job.next_occurrence - now)
    return max(delay, SOONEST_RETRY)


def next_tick(instant: datetime, every: timedelta) -> datetime:
    """When the tick starts that runs what is due at *instant*: cron starts ticks at the multiples of *every*."""
    return instant + (-(instant - _EPOCH) % every)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def fits(timeout: timedelta, remaining: timedelta) -> bool:
    """Whether a job may start now: its time-out ends before the tick does, so that the tick never interrupts it."""
    return timeout <= remaining
