"""Give up on jobs whose payload does not fit. Until then they wait for code that accepts it, and use up no tries. Pure.

The usual reason is a deploy that is not finished: the new version enqueues a job, and a host with the old version
claims it. So such a job dies only when every version of the code that ticks has refused it. After a day it dies without
another attempt, because it may never get one: perhaps its handler is gone, its queue is paused, or its limit is reached
(``engine/tick/give_up_misfits.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cronjobs.engine.probe.idle_conditions import MISFIT as MISFIT
from cronjobs.model import Failed, Outcome

WAIT: Final = timedelta(minutes=5)  # the wait after each misfit
# No job is given up earlier than this after its first misfit.
LEAST: Final = timedelta(minutes=15)
# A version that has ticked within this time may still accept the job.
LATELY: Final = timedelta(minutes=15)
MOST: Final = timedelta(hours=24)
OUTLIVED: Final = f"given up: no code has accepted it for {MOST // timedelta(hours=1)} hours"
# The version of a tick that ended before it had loaded its handlers.
UNKNOWN_CODE: Final = "?"


@dataclass(frozen=True)
class Refusals:
    """The refusals of a job's payload, read from the rows. ``since`` is when the payload first did not fit.

    ``refused`` has the versions that have refused this job since then, including the version of the current attempt.
    ``ticked`` has the versions that ticked within LATELY and know the job's type.
    """

    since: datetime
    refused: frozenset[str] = frozenset()
    ticked: frozenset[str] = frozenset()

    def end(self, now: datetime) -> str | None:
        """Return why the job is dead, or None if it continues to wait."""
        if now - self.since >= MOST:
            return OUTLIVED
        if now - self.since >= LEAST and self.ticked <= self.refused:
            lately = f"{LATELY // timedelta(minutes=1)} minutes"
            return (
                f"given up: its payload has not fitted for {lately}, and all code that ticked in that "
                "time has refused it"
            )
        return None


def is_misfit(outcome: Outcome) -> bool:
    """Return whether the payload did not fit the handler, so that another version of the code may accept it."""
    return isinstance(outcome, Failed) and outcome.error_type == MISFIT and not outcome.permanent
