"""Decide when to give up on a job whose payload does not fit. Until then the job waits, without using up tries. Pure.

The usual reason is an unfinished deploy: the new version enqueues a job, and a host with the old version claims that
job. So such a job dies only when every version of the code that runs ticks has refused its payload. After a day the job
dies without another attempt (``engine/tick/give_up_misfits.py``). Otherwise it might wait forever, for example because
its handler is gone, its queue is paused, or its limit is reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cronjobs.engine.probe.idle_conditions import MISFIT as MISFIT
from cronjobs.model import Failed, Outcome

WAIT: Final = timedelta(minutes=5)  # a job waits this long after each misfit
# Give up on no job earlier than this after its first misfit.
LEAST: Final = timedelta(minutes=15)
# A version of the code that has ticked within this time may still accept the job.
LATELY: Final = timedelta(minutes=15)
MOST: Final = timedelta(hours=24)
OUTLIVED: Final = f"given up: no code has accepted it for {MOST // timedelta(hours=1)} hours"
# What happens if somebody retries a job that died as a misfit.
FAILS_AGAIN: Final = "fails again unless its handler or its payload is changed first"
# Stands for the code version of a tick that ended before it had loaded its handlers.
UNKNOWN_CODE: Final = "?"


@dataclass(frozen=True)
class Refusals:
    """The refusals of one job's payload, as read from the database. ``since`` is when the payload first did not fit.

    ``refused`` contains the code versions that have refused the job since then, including the version of the current
    attempt. ``ticked`` contains the code versions that have ticked within LATELY and know the job's type.
    """

    since: datetime
    refused: frozenset[str] = frozenset()
    ticked: frozenset[str] = frozenset()

    def end(self, now: datetime) -> str | None:
        """Return why the job must die now, or None if it should continue to wait."""
        if now - self.since >= MOST:
            return OUTLIVED
        if now - self.since >= LEAST and self.ticked <= self.refused:
            lately = f"{LATELY // timedelta(minutes=1)} minutes"
            return (
                f"given up: its payload has not fitted for {lately}, and every version of the code that ran ticks in "
                "that time has refused it"
            )
        return None


def is_misfit(outcome: Outcome) -> bool:
    """Return whether the payload did not fit the handler, and another version of the code may still accept it."""
    return isinstance(outcome, Failed) and outcome.error_type == MISFIT and not outcome.permanent
