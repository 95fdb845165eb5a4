"""End a tick on time, whatever Python is doing, with a kernel timer and the default action of SIGALRM.

Signal handlers in Python, watchdog threads and ``os._exit`` all need the GIL, which a C call may hold for seconds. The
kernel does not need the GIL. faulthandler's C handler dumps the stacks first, so that cron's mail shows where the tick
hung.

A handler may disarm SIGALRM. So before the first handler is imported, the tick sets a second timer, which fires shortly
after SIGALRM and which user code cannot remove (``HardLimit``).
"""

from __future__ import annotations

import faulthandler
import math
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from cronjobs.clock import Clock
from cronjobs.engine.probe import timer

# If a tick is still running this long after its deadline, SIGALRM ends it.
PAST_DEADLINE_S: Final = timer.PAST_DEADLINE_S
CLOCK_MONOTONIC: Final = 1  # linux/time.h
TIMER_ABSTIME: Final = 1  # linux/time.h
SIGEV_SIGNAL: Final = 0  # asm-generic/siginfo.h
# With this delay SIGKILL comes later than both SIGALRMs, and before the end of the leases that the loop cut to 2 s.
HARD_AFTER_S: Final = 0.4


class Watchdog:
    """Ends the process with SIGALRM (a shell sees exit code 142) at an instant of the monotonic clock.

    Only the owner of the tick's deadline and leases may move the instant. The timer also runs while the process is
    frozen, so the process dies when it wakes. After ``harden`` was called, it dies even while it is frozen.
    """

    _hard: HardLimit | None = None
    _hard_after_s = HARD_AFTER_S
    hardened = False
    # SIGALRM ends the process at this instant.
    instant: float = math.inf

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Without this call, register() would keep the registration of probe.timer.
        faulthandler.unregister(signal.SIGALRM)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        if sys.__stderr__ is not None:
            try:
                # ``chain`` means that the default action follows the dump, and ends the process.
                faulthandler.register(signal.SIGALRM, file=sys.__stderr__, all_threads=True, chain=True)
            # stderr is closed or not a real file, so SIGALRM will end the process without a dump of the stacks.
            except (ValueError, OSError, AttributeError):
                faulthandler.unregister(signal.SIGALRM)

    def stand_at(self, instant: float) -> None:
        """Set the timer to end the process at *instant* of the monotonic clock, or at once if that is in the past."""
        left_s = max(0.001, instant - self._clock.monotonic())
        # This call releases the GIL, so skip it if nothing has changed.
        if self._hard is not None and instant != self.instant:
            self._hard.stand_at(instant + self._hard_after_s)
        # Set the timer even if *instant* is unchanged, because a handler's signal.alarm() may have stopped this timer.
        signal.setitimer(signal.ITIMER_REAL, left_s, timer.STRIKE_AGAIN_S)
        self.instant = instant

    def harden(self, lease: timedelta) -> None:
        """Let SIGKILL (exit code 137) follow SIGALRM, because user code may disarm SIGALRM.

        Call this before user code runs. SIGKILL follows at most a tenth of a *lease* later. SIGALRM comes at least a
        tenth of a lease before the lease ends, so the process is gone when the lease ends.
        """
        if not self.hardened and self.instant < math.inf:
            self.hardened = True
            self._hard_after_s = min(HARD_AFTER_S, lease.total_seconds() / 10)
            # This call fails on systems other than Linux, or if the user has no timers left. In that case there is only
            # SIGALRM.
            with suppress(OSError):
                self._hard = HardLimit()
                self._hard.stand_at(self.instant + self._hard_after_s)

    def dismiss(self) -> None:
        """Remove the timers. Tests and commands other than ticks call this."""
        if self._hard is not None:
            self._hard.dismiss()
        self._hard, self.instant = None, math.inf
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.unregister(signal.SIGALRM)


class Unarmed(Watchdog):
    """A watchdog without a kernel timer, for tests and for interactive processes."""

    def __init__(self) -> None:
        pass

    def stand_at(self, instant: float) -> None:
        pass


class HardLimit:
    """A limit that user code cannot remove: a POSIX timer that sends this process SIGKILL.

    A handler can call ``signal.alarm(0)``, ``setitimer``, ``signal.signal`` and ``pthread_sigmask``, and close any
    descriptor, so SIGALRM alone is no guarantee. This timer has no descriptor and is independent of alarm(2). SIGKILL
    cannot be caught, blocked or ignored, and it also kills a stopped process. The kernel removes the timer with the
    process, and a fork does not inherit it: timer_create(2). So we do not need a second process to watch this one. A
    handler could reap such a process in ``os.wait()``, and it could be left behind. Raises OSError if the system has no
    such timer.
    """

    def __init__(self) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError("this limit needs a timer that sends SIGKILL, and only Linux is known to have one")
        import ctypes

        class TimerEvent(ctypes.Structure):  # struct sigevent, see sigevent(3type)
            _fields_ = (
                ("value", ctypes.c_void_p),
                ("signal", ctypes.c_int),
                ("notify", ctypes.c_int),
                ("rest", ctypes.c_char * 48),
            )

        class Span(ctypes.Structure):  # struct itimerspec
            _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "in_s", "in_ns"))

        self._ctypes, self._span = ctypes, Span
        try:
            libc: Any = ctypes.CDLL(None, use_errno=True)
            create = libc.timer_create
        except AttributeError:
            # Before glibc 2.34, these functions are in librt.
            libc = ctypes.CDLL("librt.so.1", use_errno=True)
            create = libc.timer_create
        self._libc = libc
        self._timer = ctypes.c_void_p()
        event = TimerEvent(None, signal.SIGKILL, SIGEV_SIGNAL)
        self._check(create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)))

    def stand_at(self, instant: float) -> None:
        """Send SIGKILL at *instant* of the monotonic clock, or now if that is in the past.

        The kernel reads the clock itself, so the limit holds even if user code has replaced Python's clock.
        """
        whole = max(0, int(instant))
        span = self._span(0, 0, whole, max(1, int((instant - whole) * 1e9)))
        self._check(self._libc.timer_settime(self._timer, TIMER_ABSTIME, self._ctypes.byref(span), None))

    def dismiss(self) -> None:
        self._libc.timer_delete(self._timer)

    def _check(self, result: int) -> None:
        if result:
            number = self._ctypes.get_errno()
            raise OSError(number, "the kernel refused to set a timer")
