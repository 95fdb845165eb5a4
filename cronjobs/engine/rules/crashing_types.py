"""Find job types that crash their runners. After two deaths of runners, a type's jobs run in child processes.

Pure. A crash in a thread kills the whole process. Afterwards, nobody can distinguish the job that crashed from the
other jobs that the dead runner held. So a type is only suspected at first. A job that ends cleanly, in a thread or in a
process, counts in favour of its type. So if someone repeatedly kills ticks that work through a healthy backlog, the
types in the backlog are not isolated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from cronjobs.engine.host.identity import Identity
from cronjobs.model import Failed, Finished, Outcome, Snoozed, Succeeded

# After this many clean ends in a row, the jobs of a crashing type run in threads again.
CLEAN_ENDS: Final = 20
FOR_AT_MOST: Final = timedelta(hours=1)
# The error type of a job whose process crashed begins with one of these.
_CRASHES: Final = ("SIG", "signal ", "exit-", "LauncherDied")


@dataclass(frozen=True)
class Crashing:
    """A job type that may crash its runners, because they held its jobs when they died.

    The type is ``suspected`` after one death of a runner, and counts as crashing after two. The first clean end clears
    a suspected type, and CLEAN_ENDS clean ends in a row clear a crashing type.
    """

    job_type: str
    found_at: datetime
    runner: str | None = None  # the runner that died last
    suspected: bool = False
    clean_ends: int = 0

    def holds(self, now: datetime) -> bool:
        return abs(now - self.found_at) < FOR_AT_MOST


def after_death(known: Crashing | None, job_type: str, runner: str, now: datetime) -> Crashing | None:
    """Return the new record of a job type, or None if the record *known* stays as it is.

    *runner* has just died while it held a job of the type. A type counts as crashing only if the machine was not
    rebooted between the two deaths. A machine that is switched off kills its runners, whatever they run.
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
    """How the latest jobs of a type ended.

    ``crashed`` is True if one of these jobs crashed. ``clean`` is the number of clean ends in a row, since the last
    crash if there was one.
    """

    clean: int = 0
    crashed: bool = False


def count_ends(finished: Iterable[Finished]) -> Mapping[str, EndCounts]:
    """Count ends by job type, without jobs that were cancelled, interrupted or not started: these show nothing."""
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
    """Return how many jobs of a type must end without a crash, one after the other, before the type is cleared.

    One such end is enough for a type that is only suspected. A clean end between two deaths shows that the type does
    not crash every runner. Besides, if somebody only kills ticks, healthy types must not move into processes.
    """
    return 1 if suspected else CLEAN_ENDS


def is_crash(outcome: Outcome) -> bool | None:
    """Return whether a job with this *outcome* in a child process would have crashed a tick, or None if unknown.

    After a timeout this is unknown: code that holds the GIL forever would end a tick, but code that merely sleeps would
    not.
    """
    match outcome:
        case Failed(error_type=error_type):
            return error_type.startswith(_CRASHES)
        case Succeeded() | Snoozed():
            return False
        case _:
            return None
