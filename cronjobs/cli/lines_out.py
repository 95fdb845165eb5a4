"""Lines on standard output as they come, without ever waiting for whoever reads them.

A pipe that nobody reads (``run-due -v | less``, left alone) and a terminal after Ctrl-S take no more at some point; a
tick's loop has leases to renew meanwhile.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Final

from cronjobs import masking
from cronjobs.clock import SYSTEM

MOST_WAITING: Final = 256 * 1024  # bytes
AT_ONCE: Final = 512  # POSIX: a pipe that is ready takes so many without blocking, PIPE_BUF
PATIENCE_S: Final = 0.5  # at the end


class Outlet:
    """Prints what fits, keeps the rest for the next time, and counts what it had to leave out."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
        self._waiting = bytearray()
        self._left_out = 0
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)

    def say(self, text: str) -> None:
        if len(self._waiting) < MOST_WAITING:
            self._waiting += (masking.hide(text) + "\n").encode(self._encoding, "backslashreplace")
        else:
            self._left_out += 1
        self._write(0)

    def end(self) -> None:
        """Give the reader a last chance."""
        if self._left_out:
            self._waiting += f"({self._left_out} more lines were left out: nobody read them)\n".encode()
            self._left_out = 0
        self._write(PATIENCE_S)

    def _write(self, patience_s: float) -> None:
        give_up_at = SYSTEM.monotonic() + patience_s
        try:
            while self._waiting and self._poll.poll(max(0.0, give_up_at - SYSTEM.monotonic()) * 1000):
                del self._waiting[: os.write(self._descriptor, self._waiting[:AT_ONCE])]
        except OSError:  # the reader has left, or the disk is full: nobody is waiting for this
            self._waiting.clear()
