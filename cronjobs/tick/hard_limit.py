"""The limit that user code cannot remove: a POSIX timer of this process that sends SIGKILL.

A handler can call ``signal.alarm(0)``, ``setitimer``, ``signal.signal`` and ``pthread_sigmask``, and close any
descriptor, so SIGALRM alone is no guarantee. This timer has no descriptor and is independent of alarm(2), and SIGKILL
cannot be caught, blocked or ignored; it also kills a stopped process. The kernel removes the timer with the process,
and a fork does not inherit it: timer_create(2). So no watching process is needed, which a handler could reap in
``os.wait()`` or which could be left behind.
"""

from __future__ import annotations

import signal
import sys
from typing import Any, Final

CLOCK_MONOTONIC: Final = 1  # linux/time.h
SIGEV_SIGNAL: Final = 0  # asm-generic/siginfo.h


class HardLimit:
    """One such timer. Raises OSError if the system has none."""

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
        """Move the kill to *seconds* from now."""
        whole = int(seconds)
        span = self._span(0, 0, whole, max(1, int((seconds - whole) * 1e9)))
        self._check(self._libc.timer_settime(self._timer, 0, self._ctypes.byref(span), None))

    def dismiss(self) -> None:
        self._libc.timer_delete(self._timer)

    def _check(self, result: int) -> None:
        if result:
            number = self._ctypes.get_errno()
            raise OSError(number, "the kernel refused a timer")
