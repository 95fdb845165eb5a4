"""What a handler is told about its own run, and how it is asked to stop."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from cronjobs.clock import SYSTEM, Clock
from cronjobs.errors import Cancelled
from cronjobs.model import Job


class StopSignal:
    """One attempt's request to stop: "cancelled", "shutdown", "timeout" or "lease lost"; the first reason stays.

    Written by the loop, read by the handler's thread: one attribute, so no lock.
    """

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason: str | None = None

    def set(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason


class Context:
    """Handed to a handler whose first parameter is named ``ctx``. Instants are aware; ``scheduled_for`` is in the
    schedule's zone, so that ``ctx.scheduled_for.date()`` is the day the schedule means."""

    def __init__(self, job: Job, *, timeout: timedelta, stop: StopSignal | None = None, clock: Clock = SYSTEM) -> None:
        self.job_id = job.id
        self.job_type = job.job_type
        self.attempt = job.attempt
        self.tries = job.failures + 1
        self.meta = dict(job.meta)
        self.enqueued_at = job.created_at
        self.started_at = job.started_at
        self.stands_for = job.stands_for
        self.idempotency_key = job.idempotency_key or f"cronjobs-job-{job.id}"  # the same in every attempt
        self.scheduled_for: datetime | None = None
        if job.scheduled_for is not None:
            self.scheduled_for = job.scheduled_for.astimezone(ZoneInfo(job.timezone))
        self.log = logging.getLogger(f"cronjobs.job.{job.job_type}")
        self._due_at = job.scheduled_for or job.run_at
        self._stop = stop or StopSignal()
        self._clock = clock
        self._ends_at = clock.monotonic() + timeout.total_seconds()

    @property
    def late_by(self) -> timedelta:
        """How long after its due time this attempt started; never negative."""
        if self.started_at is None or self._due_at is None:
            return timedelta(0)
        return max(timedelta(0), self.started_at - self._due_at)

    @property
    def remaining_s(self) -> float:
        """Seconds until the time-out; 0.0 when it has passed. Pass it on as the time-out of calls to others."""
        return max(0.0, self._ends_at - self._clock.monotonic())

    @property
    def deadline(self) -> datetime:
        """When the time-out comes, by the host's clock."""
        return self._clock.now() + timedelta(seconds=self.remaining_s)

    @property
    def cancelled(self) -> bool:
        """Whether the job should stop: cancelled by someone, shutdown, lease lost."""
        return self._stop.reason is not None

    def check(self) -> None:
        """Raise ``Cancelled`` when the job should stop or is out of time; call it before and during expensive work."""
        if self._stop.reason is not None:
            raise Cancelled(self._stop.reason)
        if self.remaining_s <= 0:
            raise Cancelled("timeout")
