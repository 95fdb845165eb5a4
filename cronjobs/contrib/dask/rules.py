"""Decide whether a cluster's worker may run an attempt, and the outcome of an attempt that no worker ran. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, NamedTuple

from cronjobs.model import Failed, Outcome, Released, rough
from cronjobs.text import ERROR_LIMIT, one_line

DIFFERS_FOR: Final = timedelta(minutes=10)  # a deploy may make a worker's code differ for this long
# after this long without a difference, the next difference belongs to another deploy
DIFFERS_AFRESH: Final = timedelta(hours=1)
DIFFERS_AGAIN: Final = timedelta(seconds=20)  # time until the next try during a deploy
AWAY_AGAIN: Final = timedelta(seconds=10)  # time until the next try if the cluster could not begin the attempt


class Versions(NamedTuple):
    """The versions that must be the same on the claiming host and on the worker."""

    cronjobs: str
    python: str  # major and minor version, such as "3.12"


def difference(claimed: Versions, here: Versions) -> str | None:
    """Return how the worker's versions (*here*) differ from the claiming host's (*claimed*), or None if equal."""
    pairs = zip(("cronjobs", "Python"), claimed, here, strict=True)
    found = [f"{what} {there} (the claiming host has {wanted})" for what, wanted, there in pairs if there != wanted]
    return f"the worker has {' and '.join(found)}" if found else None


def differing_since(now_s: float, seen: tuple[float, float] | None) -> float:
    """Return when workers began to refuse a job type, on the clock of *now_s*.

    *seen* is when they first and last refused it, or None if they never did.
    """
    if seen is None or now_s - seen[1] > DIFFERS_AFRESH.total_seconds():
        return now_s
    return seen[0]


def of_difference(why: str, since_s: float) -> Outcome:
    """Return the outcome of an attempt that a worker refused because the worker's code differs.

    *since_s* is how many seconds ago workers began to refuse the job type. At first a deploy may be the reason, so a
    refusal costs no try. After ten minutes a refusal counts as a failure, so that somebody notices.
    """
    if since_s < DIFFERS_FOR.total_seconds():
        return Released(_short(why), after=DIFFERS_AGAIN)
    return Failed(_short(f"{why}, for more than ten minutes"), "WorkerDiffers")


def of_waiting(executor: str, waited: timedelta) -> Released:
    """Return the outcome of an attempt that no worker took in time."""
    return Released(
        f"for {rough(waited)}, every worker of executor {executor} was busy or lacked the resources that the job needs"
    )


def not_begun(why: str) -> Released:
    return Released(_short(why), after=AWAY_AGAIN)


def _short(why: str) -> str:
    return one_line(why, ERROR_LIMIT // 4)
