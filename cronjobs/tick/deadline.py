"""The tick's time limit from the first moment of the process: when it started, and the watchdog that ends it."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from cronjobs.clock import SYSTEM, process_age
from cronjobs.tick.watchdog import PAST_DEADLINE_S, Watchdog

DEFAULT_BUDGET_S: Final = 55.0
DEFAULT_EVERY_S: Final = 60.0
# If the process is older than this, it exec'ed us after doing something else (``sleep 30; exec cronjobs run-due``, a
# container's entrypoint), and the kernel's start time is not the tick's.
LONGEST_START_S: Final = 10.0


@dataclass
class Guard:
    """``began`` (monotonic) and ``began_wall`` (since 1970) are when the kernel started the process."""

    began: float
    began_wall: float
    watchdog: Watchdog

    def limit(self, budget: timedelta, every: timedelta) -> float:
        """Set the tick's deadline and the watchdog just after it; return the deadline on the monotonic clock."""
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
        open_standard_streams()
        # Until the tick installs its own handler, and after it removed it, Ctrl-C ends the process without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        age = process_age()
        if age > LONGEST_START_S:
            age = 0.0
        _armed = Guard(SYSTEM.monotonic() - age, SYSTEM.now().timestamp() - age, Watchdog(SYSTEM))
        _armed.limit(timedelta(seconds=DEFAULT_BUDGET_S), timedelta(seconds=DEFAULT_EVERY_S))
    return _armed


def left_s() -> float:
    """Seconds until the timer ends this process; infinity if it was never started."""
    return math.inf if _armed is None else _armed.watchdog.instant - SYSTEM.monotonic()


def user_code_ran() -> bool:
    return _armed is not None and _armed.watchdog.hardened


def open_standard_streams() -> None:
    """Open /dev/null on descriptors 0 to 2 where the caller closed them (``>&-``).

    Otherwise the next file opened, the database or the log, would get such a number, and prints would go
    into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def deadline(*, started_wall: float, started: float, budget_s: float, every_s: float) -> float:
    """When a tick must be done, on the clock of *started* (monotonic seconds).

    Start + budget; if it started within 10 s after a multiple of *every_s*, as cron's ticks do, at the latest 2 s
    before the next multiple. One started by hand in mid-minute has its full budget: overlapping a tick is harmless.
    *started_wall* is the same start in seconds since 1970.
    """
    into = started_wall % every_s
    if into <= 10:
        budget_s = min(budget_s, every_s - into - 2)
    return started + budget_s
