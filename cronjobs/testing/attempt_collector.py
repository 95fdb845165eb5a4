"""Finds the attempts that ran, in the events of a tick or of ``drain``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from cronjobs.errors import CronjobsError
from cronjobs.events import Event

ENDS: Final = {
    "job.succeeded": "succeeded",
    "job.retried": "failed",
    "job.dead": "dead",
    "job.cancelled": "cancelled",
    "job.snoozed": "snoozed",
    "job.interrupted": "interrupted",
    "job.lost": "lost",
    "job.still_running": "still running",
    "job.lease_lost": "lease lost",
}


class JobFailed(CronjobsError):
    """A job failed in ``drain(raise_errors=True)``, but its handler raised no exception."""

    def __init__(self, ran: Ran) -> None:
        super().__init__(f"job {ran.job_id} ({ran.job_type}) {ran.became}: {ran.error}")


@dataclass(frozen=True)
class Ran:
    """One attempt. ``became`` is "succeeded", "failed" (retried after ``delay``), "dead", "cancelled", "snoozed" …"""

    job_id: int
    job_type: str
    attempt: int
    became: str
    error: str | None = None
    delay: timedelta | None = None


class EventCollector:
    """Attempts in the order in which they ended."""

    ran: tuple[Ran, ...]

    @property
    def succeeded(self) -> list[Ran]:
        return self.that("succeeded")

    @property
    def failed(self) -> list[Ran]:
        """The attempts that will be retried."""
        return self.that("failed")

    @property
    def dead(self) -> list[Ran]:
        return self.that("dead")

    def that(self, became: str) -> list[Ran]:
        return [ran for ran in self.ran if ran.became == became]


def ran_by(events: Iterable[Event]) -> tuple[Ran, ...]:
    return tuple(_ran(event) for event in events if event.name in ENDS)


def _ran(event: Event) -> Ran:
    facts, delay_ms = event.facts, event.facts.get("next_delay_ms")
    return Ran(
        job_id=facts["job_id"],
        job_type=facts["job_type"],
        attempt=facts["attempt"],
        became=ENDS[event.name],
        error=facts.get("error"),
        delay=None if delay_ms is None else timedelta(milliseconds=delay_ms),
    )
