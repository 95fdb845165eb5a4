"""Give up on jobs whose payload no code has accepted for a day, including jobs that no tick claims any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cronjobs import events
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.misfits import MISFIT
from cronjobs.engine.store.misfits import give_up_outlived, outlived
from cronjobs.engine.tick.context import TickContext
from cronjobs.model import Failed, Finished, Status, Transition

BATCH: Final = 200


def give_up(tick: TickContext, types: Callable[[], JobTypes]) -> None:
    """Record misfits that waited too long as dead, and report them, in short transactions, while the tick has time."""
    while tick.go_on():
        with tick.database.read() as connection:
            found = outlived(connection, BATCH)
        if not found:
            return
        with tick.writing() as connection:
            given_up = give_up_outlived(connection, found)
        for job, error in given_up:
            end = Finished(job, Failed(error, MISFIT))
            dead = Transition(Status.DEAD, job.failures, job.losses, interruptions=0)
            policy = types().policy(job.job_type, tick.settings.retry)
            tick.result.counts.dead += 1
            tick.emit(events.job_ended(end, dead, policy, tick.settings.folder))
        if len(given_up) < len(found):
            # Another transaction has locked the remaining jobs. The next tick will try again to give up on them.
            return
