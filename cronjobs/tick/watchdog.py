"""The guard that ends a tick on time whatever Python is doing: a kernel timer with SIGALRM's default action.

Signal handlers in Python, watchdog threads and ``os._exit`` all wait for the GIL, which a C call may hold for seconds.
The kernel asks nobody. faulthandler's C handler dumps the stacks first, so that the night's mail says where it hung.

A handler may take SIGALRM away, so before the first of them is imported a second timer is put behind it that nothing in
this process takes away again: ``hardlimit``.
"""

from __future__ import annotations

import faulthandler
import math
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TextIO

from cronjobs.clock import Clock

if TYPE_CHECKING:
    from cronjobs.tick.hard_limit import HardLimit

# Writing the stacks to a pipe that is full and that nobody reads would wait for ever. faulthandler does not dump twice,
# so the second strike ends the process.
STRIKE_AGAIN_S: Final = 0.2
HARD_AFTER_S: Final = 0.4  # behind both strikes, and before leases that were cut to 2 s end (loop.LAST_BREATH_S)


class Watchdog:
    """Ends the process by SIGALRM (exit 142 as a shell counts) at an instant of the monotonic clock.

    The instant may only be brought forward or put back by whoever holds the tick's deadline and leases. A frozen
    process that is woken after it dies as it wakes: the timer ran on. Hardened, it dies although it is frozen.
    """

    _hard: HardLimit | None = None
    _hard_after_s = HARD_AFTER_S
    hardened = False
    instant: float = math.inf  # where it stands

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
        left_s = max(0.001, instant - self._clock.monotonic())
        if self._hard is not None:
            self._hard.stand_in(left_s + self._hard_after_s)
        signal.setitimer(signal.ITIMER_REAL, left_s, STRIKE_AGAIN_S)
        self.instant = instant

    def harden(self, lease: timedelta) -> None:
        """From here on user code runs: put SIGKILL (exit 137) behind SIGALRM, which that code may have disarmed.

        As with SIGALRM's own distance, a tenth of a *lease*: the process is gone when it ends.
        """
        if not self.hardened and self.instant < math.inf:
            self.hardened = True
            from cronjobs.tick.hard_limit import HardLimit

            self._hard_after_s = min(HARD_AFTER_S, lease.total_seconds() / 10)
            with suppress(OSError):  # not Linux, or no timer left for this user: then SIGALRM is what there is
                self._hard = HardLimit()
            self.stand_at(self.instant)

    def dismiss(self) -> None:
        """Take the guard away: for tests, and for commands that are no ticks."""
        if self._hard is not None:
            self._hard.dismiss()
        self._hard, self.instant = None, math.inf
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
