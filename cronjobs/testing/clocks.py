"""Clocks that a test can set and move."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cronjobs.clock import SYSTEM
from cronjobs.model import duration


class FakeClock:
    """A clock that stands still until it is moved. The clock works on SQLite and on PostgreSQL.

    Pass the clock to ``Database(address, clock=…)``. It starts at *start* (timezone-aware; default: now). Column
    defaults in the tables do not use this clock.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._now = SYSTEM.now() if start is None else _utc(start)
        self._advanced_s = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        """Return real seconds plus the seconds advanced, so that a wait for a lock still times out."""
        return SYSTEM.monotonic() + self._advanced_s

    @property
    def stands_at(self) -> datetime | None:
        """The time at which the clock stands still, or None if it shows the real time."""
        return self._now

    def advance(self, by: timedelta | str | float) -> datetime:
        """Advance the clock by *by* ("10m", seconds or a timedelta), and return the new time.

        A negative timedelta sets back only the wall clock, and not ``monotonic``.
        """
        return self.set(self.now() + (by if isinstance(by, timedelta) else duration(by)))

    def set(self, instant: datetime) -> datetime:
        """Set the clock to *instant* (timezone-aware), and return it in UTC. ``monotonic`` never goes back."""
        instant = _utc(instant)
        self._advanced_s += max(0.0, (instant - self.now()).total_seconds())
        self._now = instant
        return instant


class TravelClock(FakeClock):
    """A clock that shows the real time until it is moved. After that it stands still."""

    def __init__(self) -> None:
        super().__init__()
        self._moved = False

    def now(self) -> datetime:
        return self._now if self._moved else SYSTEM.now()

    @property
    def stands_at(self) -> datetime | None:
        return self._now if self._moved else None

    def set(self, instant: datetime) -> datetime:
        super().set(instant)
        self._moved = True
        return self._now


class StillClock(FakeClock):
    """A clock whose monotonic seconds also stand still, so that the time left stays as the test has set it."""

    def monotonic(self) -> float:
        return self._advanced_s


def _utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone: pass an aware datetime, e.g. datetime(2026, 1, 1, tzinfo=UTC)")
    return instant.astimezone(UTC)
