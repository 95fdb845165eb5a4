"""The tick's time limit from the first moment of the process: when it began, and the watchdog that ends it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from cronjobs.clock import SYSTEM, process_age
from cronjobs.watchdog import Watchdog, deadline

DEFAULT_BUDGET_S = 55.0
DEFAULT_EVERY_S = 60.0
PAST_DEADLINE_S = 1.0


@dataclass
class Guard:
    """``began`` (monotonic) and ``began_wall`` (since 1970) are when the kernel started the process."""

    began: float
    began_wall: float
    watchdog: Watchdog

    def limit(self, budget: timedelta, every: timedelta) -> float:
        """Set the tick's deadline, and the watchdog just behind it; returns it on the monotonic clock."""
        until = deadline(
            started_wall=self.began_wall,
            started=self.began,
            budget_s=budget.total_seconds(),
            every_s=every.total_seconds(),
        )
        self.watchdog.stand_at(until + PAST_DEADLINE_S)
        return until


_armed: Guard | None = None


def arm() -> Guard:
    """Start the kernel's timer with the default budget, once per process; later calls return the same guard."""
    global _armed
    if _armed is None:
        age = process_age()
        _armed = Guard(SYSTEM.monotonic() - age, SYSTEM.now().timestamp() - age, Watchdog(SYSTEM))
        _armed.limit(timedelta(seconds=DEFAULT_BUDGET_S), timedelta(seconds=DEFAULT_EVERY_S))
    return _armed
