"""A job whose payload does not fit its handler waits, without using up tries, for code that accepts it. Pure.

The usual reason is a half-finished deploy: the new version enqueues, and a host with the old version claims. So such a
job dies only when every version of the code that ticks has refused it. After a day it dies without another attempt,
because it may never get one: its handler may be gone, its queue paused, its limit full
(``engine/tick/give_up_misfits.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cronjobs.engine.probe.idle_conditions import MISFIT as MISFIT
from cronjobs.model import Failed, Outcome

WAIT: Final = timedelta(minutes=5)  # after each misfit
LEAST: Final = timedelta(minutes=15)  # after the first misfit; no job is given up on earlier
LATELY: Final = timedelta(minutes=15)  # versions that ticked within this time may still accept the job
MOST: Final = timedelta(hours=24)
OUTLIVED: Final = f"given up: no code has accepted it for {MOST // timedelta(hours=1)} hours"
UNKNOWN_CODE: Final = "?"  # the version of a tick that ended before it had loaded its handlers


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
        """Return why the job is dead, or None if it keeps waiting."""
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
    """Whether the payload did not fit the handler, so that another version of the code may accept it."""
    return isinstance(outcome, Failed) and outcome.error_type == MISFIT and not outcome.permanent
