"""The guard that ends a tick on time whatever Python is doing: a kernel timer with SIGALRM's default action.

Signal handlers in Python, watchdog threads and ``os._exit`` all wait for the GIL, which a C call may hold for seconds.
The kernel asks nobody. faulthandler's C handler dumps the stacks first, so that the night's mail says where it hung.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from typing import Final, TextIO

from cronjobs.clock import Clock

# Writing the stacks to a pipe that is full and that nobody reads would wait for ever. faulthandler does not dump twice,
# so the second strike ends the process.
STRIKE_AGAIN_S: Final = 0.2


class Watchdog:
    """Ends the process by SIGALRM (exit 142 as a shell counts) at an instant of the monotonic clock.

    The instant may only be brought forward or put back by whoever holds the tick's deadline and leases. A frozen
    process that is woken after it dies as it wakes: the timer ran on.
    """

    def __init__(self, clock: Clock, *, stacks_to: TextIO | None = None) -> None:
        self._clock = clock
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        target = stacks_to or sys.__stderr__
        if target is not None:
            try:
                # chain: after the dump the default action, which ends the process
                faulthandler.register(signal.SIGALRM, file=target, all_threads=True, chain=True)
            except (ValueError, OSError, AttributeError):  # a closed or unusual stderr: end without stacks
                faulthandler.unregister(signal.SIGALRM)

    def stand_at(self, instant: float) -> None:
        """Move the end to *instant* (monotonic seconds); one in the past ends the process now."""
        # Set anew also where it stands already: a handler's signal.alarm() shares this timer, and may have stopped it.
        signal.setitimer(signal.ITIMER_REAL, max(0.001, instant - self._clock.monotonic()), STRIKE_AGAIN_S)

    def dismiss(self) -> None:
        """Take the guard away: for tests, and for commands that are no ticks."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.unregister(signal.SIGALRM)


def deadline(*, started_wall: float, started: float, budget_s: float, every_s: float) -> float:
    """When a tick must be done, on the clock of *started* (monotonic seconds).

    Start + budget; for a start within 10 s after a multiple of *every_s*, as cron's are, also no later than 2 s before
    the next one. Begun by hand in mid-minute it has its full budget: overlapping a tick is harmless.
    *started_wall* is the same start in seconds since 1970.
    """
    into = started_wall % every_s
    if into <= 10:
        budget_s = min(budget_s, every_s - into - 2)
    return started + budget_s
