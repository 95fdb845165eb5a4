"""The only module that reads the time. All other code uses a ``Clock``."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Protocol

# process_age() uses a kernel clock that nobody can set, so it needs no Clock.
from cronjobs.engine.probe.kernel_facts import process_age as process_age


class Clock(Protocol):
    """A source of time. Tests pass a clock that they can move."""

    def now(self) -> datetime:
        """The host's wall clock, timezone-aware, in UTC. On PostgreSQL, decisions use the database's clock instead."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start. The value never decreases."""

    @property
    def stands_at(self) -> datetime | None:
        """The time that the database must use, in a test that moves time. None means that it uses its own clock."""


class SystemClock:
    """The real clock. Its functions are bound as default arguments, so that patching ``time`` does not affect them.

    A handler may leave a frozen clock (freezegun, a mock) in ``time`` and in every module that imported from it. With a
    frozen clock, a tick would never reach its deadline.
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
    """Wait. Use this only between tries of an operation, never to do something at a certain time."""
    # Look up time.sleep at each call. If gevent has patched it, only gevent's version does not block the thread.
    time.sleep(seconds)
