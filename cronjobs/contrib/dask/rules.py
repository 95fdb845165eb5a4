"""Attempts on a cluster: whether a worker may run one, and its outcome if no worker ran it. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, NamedTuple

from cronjobs.model import Failed, Outcome, Released, rough
from cronjobs.text import ERROR_LIMIT, one_line

DIFFERS_FOR: Final = timedelta(minutes=10)  # how long different code on workers counts as a deploy in progress
# after this long without a difference, the next one belongs to another deploy
DIFFERS_AFRESH: Final = timedelta(hours=1)
DIFFERS_AGAIN: Final = timedelta(seconds=20)  # until the next try, during a deploy
AWAY_AGAIN: Final = timedelta(seconds=10)  # until the next try if a scheduler or worker could not begin the attempt


class Versions(NamedTuple):
    """The versions that the claiming host and the worker must have in common."""

    cronjobs: str
    python: str  # including the minor version: "3.12"


def difference(claimed: Versions, here: Versions) -> str | None:
    """Return how the worker's versions differ from the claiming host's, or None if they agree."""
    pairs = zip(("cronjobs", "Python"), claimed, here, strict=True)
    found = [f"{what} {there} (the claiming host has {wanted})" for what, wanted, there in pairs if there != wanted]
    return f"the worker has {' and '.join(found)}" if found else None


def differing_since(now_s: float, seen: tuple[float, float] | None) -> float:
    """Return when workers began to refuse a type, in seconds like *now_s*.

    *seen* is when they first and last refused it, or None if they never did.
    """
    if seen is None or now_s - seen[1] > DIFFERS_AFRESH.total_seconds():
        return now_s
    return seen[0]


def of_difference(why: str, since_s: float) -> Outcome:
    """The outcome of an attempt that a worker refused because its code differs; the first refusal was *since_s* ago.

    During a deploy such a refusal costs no try. After ten minutes it counts as a failure, so that somebody notices.
    """
    if since_s < DIFFERS_FOR.total_seconds():
        return Released(_short(why), after=DIFFERS_AGAIN)
    return Failed(_short(f"{why}, for more than ten minutes"), "WorkerDiffers")


def of_waiting(executor: str, waited: timedelta) -> Released:
    """Return the outcome of an attempt that no worker took in time."""
    return Released(
        f"for {rough(waited)} no worker of executor {executor} was free for the job, or had the resources it needs"
    )


def not_begun(why: str) -> Released:
    return Released(_short(why), after=AWAY_AGAIN)


def _short(why: str) -> str:
    return one_line(why, ERROR_LIMIT // 4)
