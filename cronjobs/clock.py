"""The only reader of time. All other code gets a ``Clock``."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Protocol

from cronjobs.engine.probe.here import process_age as process_age  # by the kernel, whose clock nobody sets


class Clock(Protocol):
    """The system's source of time. Tests pass one that they move themselves."""

    def now(self) -> datetime:
        """The host's wall clock, aware, UTC. On PostgreSQL nothing depends on it: the database's clock decides."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never steps back."""

    @property
    def stands_at(self) -> datetime | None:
        """The database's now in tests that move time. None: its own clock."""


class SystemClock:
    """Its functions are bound as defaults, where no patch reaches them.

    A handler may leave a frozen clock (freezegun, a mock) in ``time`` and in every module that imported from it. The
    tick would then never reach its deadline.
    """

    def now(self, _now: Callable[[tzinfo], datetime] = datetime.now) -> datetime:
        return _now(UTC)

    def monotonic(self, _monotonic: Callable[[], float] = time.monotonic) -> float:
        return _monotonic()

    @property
    def stands_at(self) -> None:
        return None


SYSTEM: Clock = SystemClock()


def sleep(seconds: float) -> None:
    """Wait without doing anything. Only for polls between tries, never for timing."""
    time.sleep(seconds)  # gevent's, if it has patched time: the only thread must not block
