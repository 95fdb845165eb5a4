"""Job types that take their runners down: once two runners have died with one, its jobs run in child processes. Pure.

A crash in a thread is the death of everything beside it, and a job that a dead runner merely held looks like the one
that killed it. So a type is only suspected at first, and cleared by its clean ends, in threads or in processes: ticks
that somebody kills among a healthy backlog cost it nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from cronjobs.host.identity import Identity
from cronjobs.model import Failed, Finished, Outcome, Snoozed, Succeeded

CLEAN_ENDS: Final = 20  # in a row, and the type runs in threads again
FOR_AT_MOST: Final = timedelta(hours=1)
_CRASHES: Final = ("SIG", "signal ", "exit-", "LauncherDied")  # how the error types of a process's end begin


@dataclass(frozen=True)
class Crashing:
    """What is known of a job type: one runner died with it (``suspected``), or two did; since when, and what followed.

    A suspicion is over with the first job that ends cleanly, the rest with CLEAN_ENDS in a row.
    """

    job_type: str
    found_at: datetime
    runner: str | None = None  # the last that died
    suspected: bool = False
    clean_ends: int = 0

    def holds(self, now: datetime) -> bool:
        return abs(now - self.found_at) < FOR_AT_MOST


def after_death(known: Crashing | None, job_type: str, runner: str, now: datetime) -> Crashing | None:
    """What becomes of a type that *runner* died with; None: it is as it was.

    Two of the same boot: a machine that was switched off took its runners along, whatever they held.
    """
    if _boot(runner) is None:
        return None
    suspected = Crashing(job_type, now, runner, suspected=True)
    if known is None or not known.holds(now):
        return suspected
    if not known.suspected or known.runner == runner:
        return None
    if _boot(known.runner) != _boot(runner):
        return suspected
    return replace(suspected, suspected=False)


def _boot(runner: str | None) -> str | None:
    identity = Identity.parse(runner or "")
    return None if identity is None else identity.boot_id


@dataclass(frozen=True)
class EndCounts:
    """How jobs of a type ended: ``clean`` in a row, since the last crash if one ``crashed``."""

    clean: int = 0
    crashed: bool = False


def count_ends(finished: Iterable[Finished]) -> Mapping[str, EndCounts]:
    """By job type; an end that says nothing (cancelled, interrupted, not begun) is not counted."""
    found: dict[str, EndCounts] = {}
    for end in finished:
        so_far = found.get(end.job.job_type, EndCounts())
        match is_crash(end.outcome):
            case True:
                found[end.job.job_type] = EndCounts(0, crashed=True)
            case False:
                found[end.job.job_type] = replace(so_far, clean=so_far.clean + 1)
    return found


def ends_needed(suspected: bool) -> int:
    """How many clean ends in a row clear a type.

    One, if it is only suspected: jobs of it do come to their end between two deaths, so it does not stop everything,
    and ticks that somebody kills put no type into processes whose jobs are healthy.
    """
    return 1 if suspected else CLEAN_ENDS


def is_crash(outcome: Outcome) -> bool | None:
    """Whether an attempt in a child process would have taken a tick down; None: it does not say.

    A timeout does not: code that holds the interpreter for ever ends a tick, code that merely sleeps does not.
    """
    match outcome:
        case Failed(error_type=error_type):
            return error_type.startswith(_CRASHES)
        case Succeeded() | Snoozed():
            return False
        case _:
            return None
