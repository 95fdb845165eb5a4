"""Who holds leases on this host: which runners are dead, and which live and keep what the clock says has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cronjobs.host.identity import Identity, age_at_work, is_gone
from cronjobs.rules.attempt_policy import RUNNER_SLACK
from cronjobs.store.leases import LONG
from cronjobs.store.ticks import CLOCK_SLACK

LONGEST_LEASE: Final = timedelta(days=1)  # that a configuration may ask for


@dataclass(frozen=True)
class Runners:
    """By ``locked_by``. Nobody waits for the leases of the ``dead``; those of the ``working`` are not taken at all."""

    dead: tuple[str, ...] = ()
    working: tuple[str, ...] = ()


def sort_runners(holders: Mapping[str, float | None], here: Identity, budget: timedelta) -> Runners:
    """Look at the holders of leases on this host; with each comes how old its process gets at most, as it wrote itself.

    A clock that steps forward, or a machine that resumes, ends the leases of processes that run on. One that is proven
    alive, is not stopped, and is within its own limit keeps them: it is about to renew them. Beyond its limit it is
    stuck or frozen, and the fence stands between it and the next owner.
    """
    dead, working = [], []
    for locked_by, limit_s in holders.items():
        if is_gone(locked_by, here):
            dead.append(locked_by)
        elif (age_s := age_at_work(locked_by, here)) is not None and age_s < _limit_s(locked_by, limit_s, budget):
            working.append(locked_by)
    return Runners(tuple(dead), tuple(working))


def _limit_s(locked_by: str, said: float | None, budget: timedelta) -> float:
    """How old a runner gets: a tick its budget; of an older version's long job only that process knows."""
    holder = Identity.parse(locked_by)
    if said is not None:
        return said
    return 0.0 if holder is None or holder.tick.startswith(LONG) else (budget + RUNNER_SLACK).total_seconds()


def lease_is_wrong(locked_until: datetime, now: datetime, lease_s: float | None) -> bool:
    """Whether a lease ends later than any runner could have written whose clock was right.

    *lease_s*: how long its runner's leases are; None: not known.
    """
    longest = LONGEST_LEASE if lease_s is None else timedelta(seconds=min(lease_s, LONGEST_LEASE.total_seconds()))
    return locked_until > now + longest + CLOCK_SLACK


def before_a_reboot(locked_by: str, here: Identity) -> bool:
    """Whether a runner of this host's name ran before the last boot, or on another machine of the same name."""
    holder = Identity.parse(locked_by)
    return holder is not None and holder.host == here.host and holder.boot_id != here.boot_id
