"""The only reader of time. All other code gets a ``Clock``."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from cronjobs.probe.here import process_age as process_age  # by the kernel, which no one sets


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
