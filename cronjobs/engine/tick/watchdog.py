"""End a tick on time whatever Python is doing, with a kernel timer and SIGALRM's default action.

Signal handlers in Python, watchdog threads and ``os._exit`` all need the GIL, which a C call may hold for seconds. The
kernel does not need the GIL. faulthandler's C handler dumps the stacks first, so that cron's mail shows where the tick
hung.

A handler may disarm SIGALRM. So before the first handler is imported, a second timer is set to fire shortly after
SIGALRM. User code cannot remove this timer: ``HardLimit``.
"""

from __future__ import annotations

import faulthandler
import math
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TextIO

from cronjobs.clock import Clock
from cronjobs.engine.probe import timer

PAST_DEADLINE_S: Final = timer.PAST_DEADLINE_S  # how long after its deadline a tick is ended
CLOCK_MONOTONIC: Final = 1  # linux/time.h
TIMER_ABSTIME: Final = 1  # linux/time.h
SIGEV_SIGNAL: Final = 0  # asm-generic/siginfo.h
HARD_AFTER_S: Final = 0.4  # later than both SIGALRMs, and earlier than the end of leases that the loop cut to 2 s


class Watchdog:
    """Ends the process with SIGALRM (a shell sees exit code 142) at an instant of the monotonic clock.

    Only the owner of the tick's deadline and leases may move the instant. A process that is frozen past that instant
    dies when it wakes, since the timer runs on. Once hardened, the process dies even while it is frozen.
    """

    _hard: HardLimit | None = None
    _hard_after_s = HARD_AFTER_S
    hardened = False
    instant: float = math.inf  # when SIGALRM ends the process

    def __init__(self, clock: Clock, *, stacks_to: TextIO | None = None) -> None:
        self._clock = clock
        faulthandler.unregister(signal.SIGALRM)  # else register() would keep probe.timer's registration
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        target = stacks_to or sys.__stderr__
        if target is not None:
            try:
                # chain: after the dump run the default action, which ends the process
                faulthandler.register(signal.SIGALRM, file=target, all_threads=True, chain=True)
            # stderr is closed or unusual, so SIGALRM will end the process without a dump of the stacks
            except (ValueError, OSError, AttributeError):
                faulthandler.unregister(signal.SIGALRM)

    def stand_at(self, instant: float) -> None:
        """Set the timer to end the process at *instant* (monotonic seconds).

        An instant in the past ends the process now.
        """
        left_s = max(0.001, instant - self._clock.monotonic())
        # this call releases the GIL, so skip it when nothing has changed
        if self._hard is not None and instant != self.instant:
            self._hard.stand_at(instant + self._hard_after_s)
        # Set the timer even if *instant* is unchanged, because a handler's signal.alarm() may have stopped this timer.
        signal.setitimer(signal.ITIMER_REAL, left_s, timer.STRIKE_AGAIN_S)
        self.instant = instant

    def harden(self, lease: timedelta) -> None:
        """Let SIGKILL (exit code 137) follow SIGALRM, which user code may disarm. Call this before user code runs.

        SIGKILL follows at most a tenth of a *lease* later, which is also SIGALRM's own margin, so that the process is
        gone when the lease ends.
        """
        if not self.hardened and self.instant < math.inf:
            self.hardened = True
            self._hard_after_s = min(HARD_AFTER_S, lease.total_seconds() / 10)
            with suppress(OSError):  # not Linux, or no timers left for this user: SIGALRM has to suffice
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
    descriptor, so SIGALRM alone is no guarantee. This timer has no descriptor and is independent of alarm(2), and
    SIGKILL cannot be caught, blocked or ignored; it also kills a stopped process. The kernel removes the timer with the
    process, and a fork does not inherit it: timer_create(2). So no watching process is needed; a handler could reap one
    in ``os.wait()``, or one could be left behind. Raises OSError if the system has no such timer.
    """

    def __init__(self) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError("this limit needs a timer that sends SIGKILL, and only Linux is known to have one")
        import ctypes

        class TimerEvent(ctypes.Structure):  # struct sigevent: sigevent(3type)
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
            libc = ctypes.CDLL("librt.so.1", use_errno=True)  # glibc before 2.34
            create = libc.timer_create
        self._libc = libc
        self._timer = ctypes.c_void_p()
        event = TimerEvent(None, signal.SIGKILL, SIGEV_SIGNAL)
        self._check(create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)))

    def stand_at(self, instant: float) -> None:
        """Send SIGKILL at *instant* of the monotonic clock, or now if that is in the past.

        The kernel reads the clock itself, so the limit stands even if user code has replaced Python's clock.
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
