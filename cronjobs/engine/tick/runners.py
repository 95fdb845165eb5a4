"""Decide which of this host's runners with leases are dead, and which are alive and keep even an expired lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cronjobs.engine.host.identity import Identity, age_at_work, is_gone
from cronjobs.engine.store.ticks import CLOCK_SLACK

# A configuration may not set a longer lease.
LONGEST_LEASE: Final = timedelta(days=1)


@dataclass(frozen=True)
class Runners:
    """Runners by ``locked_by``. Dead runners lose their leases at once. Working runners keep even expired leases."""

    dead: tuple[str, ...] = ()
    working: tuple[str, ...] = ()


def sort_runners(holders: Mapping[str, float | None], here: Identity) -> Runners:
    """Sort the lease holders of this host into dead and working runners.

    *holders* maps each ``locked_by`` to how old the runner's process can get, or to None if that is unknown.

    When a clock steps forward or a machine resumes, leases of live processes expire. So a runner keeps its leases if it
    is certainly alive, is not stopped, and is not older than its own limit, because such a runner will renew them soon.
    A runner older than its limit is stuck or frozen. The fence protects the job's next owner from such a runner.
    """
    dead, working = [], []
    for locked_by, limit_s in holders.items():
        if is_gone(locked_by, here):
            dead.append(locked_by)
        elif (age_s := age_at_work(locked_by, here)) is not None and limit_s is not None and age_s < limit_s:
            working.append(locked_by)
    return Runners(tuple(dead), tuple(working))


def lease_is_wrong(locked_until: datetime, now: datetime, lease_s: float | None) -> bool:
    """Return whether a lease ends later than any lease that a runner with a correct clock can have written.

    *lease_s* is the length of that runner's leases, or None if unknown.
    """
    longest = LONGEST_LEASE if lease_s is None else timedelta(seconds=min(lease_s, LONGEST_LEASE.total_seconds()))
    return locked_until > now + longest + CLOCK_SLACK


def before_a_reboot(locked_by: str, here: Identity) -> bool:
    """Return whether a runner of this host name ran before the last boot, or on another machine with the same name."""
    holder = Identity.parse(locked_by)
    return holder is not None and holder.host == here.host and holder.boot_id != here.boot_id
