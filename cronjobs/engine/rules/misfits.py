"""What becomes of a job whose payload does not fit its handler: it waits for code that takes it, uncharged. Pure.

Half a deploy is the usual reason: the new version enqueues, and a host with the old one claims. So such a job dies only
when each version of the code that ticks has refused it. After a day it dies without another attempt, which it may
never get: its handler may be gone, its queue paused, its limit full (``engine/tick/give_up_misfits.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cronjobs.engine.probe.idle_conditions import MISFIT as MISFIT
from cronjobs.model import Failed, Outcome

WAIT: Final = timedelta(minutes=5)  # after each misfit
LEAST: Final = timedelta(minutes=15)  # from the first misfit on
LATELY: Final = timedelta(minutes=15)  # versions that ticked within this time may still take it
MOST: Final = timedelta(hours=24)
OUTLIVED: Final = f"given up: no code has accepted it for {MOST // timedelta(hours=1)} hours"
UNKNOWN_CODE: Final = "?"  # of a tick that ended before it had loaded its handlers


@dataclass(frozen=True)
class Refusals:
    """What the rows say about such a job. ``since``: its first misfit.

    ``refused``: the versions that have refused this job since then, the present attempt's included. ``ticked``: those
    that ticked within LATELY and could take it: they know its type.
    """

    since: datetime
    refused: frozenset[str] = frozenset()
    ticked: frozenset[str] = frozenset()

    def end(self, now: datetime) -> str | None:
        """Why the job is dead; None: it waits on."""
        if now - self.since >= MOST:
            return OUTLIVED
        if now - self.since >= LEAST and self.ticked <= self.refused:
            lately = f"{LATELY // timedelta(minutes=1)} minutes"
            return f"given up: it has not fitted for {lately}, and all code that ticked within {lately} has refused it"
        return None


def is_misfit(outcome: Outcome) -> bool:
    """Whether the payload did not fit the handler, and another version of the code may take it."""
    return isinstance(outcome, Failed) and outcome.error_type == MISFIT and not outcome.permanent
