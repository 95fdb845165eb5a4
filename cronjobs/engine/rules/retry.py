"""Decide whether a failed job is tried again, and how long it waits before that. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from cronjobs.model import Failed, Job, Outcome, RetryPolicy, TimedOut, duration

# A retry never comes sooner than this, even if the policy's delay is 0 or the next occurrence is due now. Otherwise a
# job that fails at once would use up all its tries in a moment.
SOONEST_RETRY: Final = timedelta(seconds=1)


def backoff(policy: RetryPolicy, failures: int, jitter: float) -> timedelta:
    """Return the delay before a retry. *failures* is how many failures have counted as tries so far, at least 1.

    The delay is min(base * factor**(failures-1), cap) or, if the policy has a list of delays, comes from the list,
    whose last entry repeats. *jitter*, a random number in [-1, 1], then changes the delay by up to ± policy.jitter.
    """
    if policy.delays is not None:
        delay = duration(policy.delays[min(failures, len(policy.delays)) - 1])
    else:
        base, cap = duration(policy.base), duration(policy.cap)
        steps = failures - 1
        # Check the cap before computing the power, because 2.0**1100 and timedelta(2**60) both raise an error.
        steps_to_cap = math.log(cap / base, policy.factor) if policy.factor > 1 else math.inf
        delay = cap if steps >= steps_to_cap else min(base * policy.factor**steps, cap)
    return delay * (1 + policy.jitter * max(-1.0, min(1.0, jitter)))


def permanent(policy: RetryPolicy, outcome: Outcome) -> bool:
    """Return whether *outcome* ends the job even if tries are left, because of its kind or because of *policy*'s lists.

    A name in the lists ``give_up_on`` and ``retry_on`` matches a kind of error that equals the name, or that ends with
    a dot and the name. ``give_up_on`` takes precedence over ``retry_on``. The lists do not apply to outcomes without
    kinds (GiveUp, RetryLater, a signature mismatch, a command that could not be started).
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


def retry_delay(
    job: Job, outcome: Outcome, policy: RetryPolicy, failures: int, now: datetime, jitter: float
) -> timedelta:
    """Return how long *job* waits after this many *failures*: the delay that the handler asked for, or the backoff."""
    if isinstance(outcome, Failed) and outcome.retry_after is not None:
        return max(outcome.retry_after, SOONEST_RETRY)
    delay = backoff(policy, failures, jitter)
    if isinstance(outcome, Failed) and outcome.at_least is not None:
        return max(delay, outcome.at_least)
    if job.next_occurrence is not None and job.gives_up_at is None:
        # Do not wait beyond the next occurrence. By the next night, a service that a nightly job calls may work again.
        delay = min(delay, job.next_occurrence - now)
    return max(delay, SOONEST_RETRY)
