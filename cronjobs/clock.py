"""The only reader of time. All other code gets a ``Clock``."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """The system's source of time. Tests pass one that they move themselves."""

    def now(self) -> datetime:
        """The host's wall clock, aware, UTC. On PostgreSQL it decides nothing; the database's clock does."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never steps back."""

    @property
    def shift(self) -> timedelta:
        """What is added to the database's clock: zero outside tests."""


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    @property
    def shift(self) -> timedelta:
        return timedelta(0)


SYSTEM: Clock = SystemClock()


def sleep(seconds: float) -> None:
    """Wait without doing anything; only for polls between tries, never for timing."""
    time.sleep(seconds)


def process_age() -> float:
    """Seconds since the kernel started this process; 0.0 if /proc does not show it."""
    return age_of(process_started(os.getpid()) or "")


def age_of(started: str) -> float:
    """Seconds since *started*, a token of ``process_started``, by a clock that no one sets; 0.0 if it is no token."""
    try:
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK"))
    except (AttributeError, OSError, ValueError):
        return 0.0


def process_started(pid: int) -> str | None:
    """The kernel's start time of *pid* as an opaque token; None when it is gone (a zombie counts as gone).

    With the boot id it identifies a process for ever, while a bare pid is reused.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
