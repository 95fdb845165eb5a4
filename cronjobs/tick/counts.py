"""How many jobs a tick claimed, and how they ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cronjobs.model import Interrupted, Released, Status, TimedOut

if TYPE_CHECKING:
    from cronjobs.rules.ending import Decided


@dataclass
class Counts:
    """What a tick did, for its row and its summary."""

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0  # and will be retried
    dead: int = 0
    cancelled: int = 0
    interrupted: int = 0
    snoozed: int = 0
    timed_out: int = 0  # among failed and dead, or still running
    handed_over: int = 0  # long jobs: their own processes record how they end
    released: int = 0
    lost: int = 0
    lease_lost: int = 0

    def count(self, decided: Decided, recorded: str | None = None) -> None:
        """Count a recorded end; *recorded* is what was recorded, and counted, while the attempt was still running."""
        outcome = decided.finished.outcome
        if recorded == "timed_out":
            self.timed_out -= 1  # the final result, recorded later, is counted instead
        elif recorded == "interrupted":
            self.interrupted -= 1
        if isinstance(outcome, Released):
            self.released += 1
            return
        if isinstance(outcome, TimedOut):
            self.timed_out += 1
        match decided.transition.status:
            case Status.QUEUED if isinstance(outcome, Interrupted):
                self.interrupted += 1
            case Status.QUEUED:
                self.snoozed += 1
            case status:
                name = str(status)
                setattr(self, name, getattr(self, name) + 1)
