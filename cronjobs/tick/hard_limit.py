"""The limit that user code cannot take away: a POSIX timer of this process that sends SIGKILL.

``signal.alarm(0)``, ``setitimer``, ``signal.signal`` and ``pthread_sigmask`` are within a handler's reach, and so is
every descriptor, so SIGALRM alone is no promise. This timer has no descriptor, shares nothing with alarm(2), and its
signal can be neither caught, blocked nor ignored; a process that is stopped dies of it, too. The kernel drops it with
the process, and a fork does not inherit it: timer_create(2). So there is no watching process that a handler could meet
in ``os.wait()``, or that could be left behind.
"""

from __future__ import annotations

import signal
import sys
from typing import Any, Final

CLOCK_MONOTONIC: Final = 1  # linux/time.h
SIGEV_SIGNAL: Final = 0  # asm-generic/siginfo.h


class HardLimit:
    """One such timer. Raises OSError where the system has none."""

    def __init__(self) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError("only Linux is known to send SIGKILL from a timer")
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
            # Not a PyDLL: whoever holds the GIL meanwhile does not delay the timer by a call that waits for nothing.
            libc: Any = ctypes.CDLL(None, use_errno=True)
            create = libc.timer_create
        except AttributeError:
            libc = ctypes.CDLL("librt.so.1", use_errno=True)  # glibc before 2.34
            create = libc.timer_create
        self._libc = libc
        self._timer = ctypes.c_void_p()
        event = TimerEvent(None, signal.SIGKILL, SIGEV_SIGNAL)
        self._check(create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)))

    def stand_in(self, seconds: float) -> None:
        """Move the end to so many seconds from now."""
        whole = int(seconds)
        span = self._span(0, 0, whole, max(1, int((seconds - whole) * 1e9)))
        self._check(self._libc.timer_settime(self._timer, 0, self._ctypes.byref(span), None))

    def dismiss(self) -> None:
        self._libc.timer_delete(self._timer)

    def _check(self, result: int) -> None:
        if result:
            number = self._ctypes.get_errno()
            raise OSError(number, "the kernel refused a timer")
