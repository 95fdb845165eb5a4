"""The tick's time limit, which counts from the start of the process, and the watchdog that enforces it."""

from __future__ import annotations

import math
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta

from cronjobs.clock import SYSTEM
from cronjobs.engine.probe.inputs import Start
from cronjobs.engine.probe.timer import (
    DEFAULT_BUDGET_S,
    DEFAULT_EVERY_S,
    LEAST_LEFT_S,
    began,
    deadline,
    given_deadline,
    open_standard_streams,
)
from cronjobs.engine.tick.watchdog import PAST_DEADLINE_S, Watchdog


@dataclass
class Guard:
    """When and how this process was started, and the watchdog that ends it.

    ``start`` has the arguments and the environment that the process was started with. Handlers may change the
    environment later. ``began`` is when the tick began (``timer.began``). ``whole_s`` is how long the tick may take if
    no lingering tick has given it an earlier deadline.
    """

    watchdog: Watchdog
    start: Start
    began: float = 0.0
    whole_s: float = math.inf

    def limit(self, budget: timedelta, every: timedelta) -> float:
        """Set the tick's deadline. The watchdog ends the process just after the deadline. Return the deadline, on the
        monotonic clock.
        """
        every_s = every.total_seconds()
        self.began = began(every_s)
        age = SYSTEM.monotonic() - self.began
        own = deadline(
            started_wall=SYSTEM.now().timestamp() - age,
            started=self.began,
            budget_s=budget.total_seconds(),
            every_s=every_s,
        )
        # A tick that needed its whole budget to get here ends by itself, without a signal.
        own = max(own, SYSTEM.monotonic() + LEAST_LEFT_S)
        self.whole_s = own - self.began
        until = given_deadline(own)
        self.watchdog.stand_at(until + PAST_DEADLINE_S)
        return until


_armed: Guard | None = None


def arm() -> Guard:
    """Start the kernel's timer with the default budget, once per process. Later calls return the same guard."""
    global _armed
    if _armed is None:
        open_standard_streams()
        # Until the tick installs its own signal handler, Ctrl-C should print no traceback, so use the default action.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _armed = Guard(Watchdog(SYSTEM), Start(sys.argv[1:]))
        _armed.limit(timedelta(seconds=DEFAULT_BUDGET_S), timedelta(seconds=DEFAULT_EVERY_S))
    return _armed


def left_s() -> float:
    """Return the seconds until the timer ends this process, or infinity if the timer was never started."""
    return math.inf if _armed is None else _armed.watchdog.instant - SYSTEM.monotonic()


def user_code_ran() -> bool:
    return _armed is not None and _armed.watchdog.hardened
