"""Decide when a loop ends, and how long it may wait until there is something to do. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cronjobs.engine.execution.attempt import Attempt, Phase
from cronjobs.engine.tick.result import NOTHING_DUE, NOTHING_ELSE_DUE
from cronjobs.engine.tick.trouble import FAULT

# While jobs run and workers are free, the loop looks for new work at this interval.
POLL_S: Final = 1.0
# If another runner was just checking limits, the loop waits this long before its next claim.
MORE_DUE_S: Final = 0.02
# If a job that was claimed ahead waits this long, no worker will be free soon, so the loop releases such jobs.
UNBEGUN_S: Final = 1.0
# A handler that is asked to stop at its timeout has this much time to end while the loop still runs.
LAST_CHANCE_S: Final = 0.25
# If another transaction has locked a row, the loop waits this long before it tries the row again.
LOCKED_PAUSE_S: Final = 0.1
SHORTEST_WAIT_S: Final = 0.001

TIME_IS_UP: Final = "time is up"
NO_WRITES: Final = "the database is read-only"
LIMIT_REACHED: Final = "the tick's --limit is reached"
NO_SLOT: Final = "no worker will be free in time"


@dataclass
class Pace:
    """When to look for work next, on the monotonic clock.

    ``nothing_due`` is True if the last claim found fewer jobs than there was room for. While ``closed`` is True, the
    loop claims nothing. It also claims nothing before ``not_before``, even if ``next_claim`` is earlier.
    """

    next_claim: float = 0.0
    not_before: float = 0.0
    next_long_claim: float = 0.0
    nothing_due: bool = False
    closed: bool = False

    def look_again(self) -> None:
        self.nothing_due, self.next_claim = False, 0.0

    def pause(self, now: float) -> None:
        self.not_before = now + POLL_S

    def no_more_long_jobs(self) -> None:
        self.next_long_claim = math.inf

    def looked(self, sent: float, *, room: int, found: int, more_due: bool) -> None:
        """Note the result of the claim that was sent at *sent*. It found *found* jobs and had room for *room* jobs.

        If *more_due* is True, another runner was checking limits at the same time.
        """
        self.nothing_due = found < room and not more_due
        self.next_claim = sent + (POLL_S if self.nothing_due else MORE_DUE_S if more_due else 0.0)

    def looked_for_long_jobs(self, sent: float, *, more_due: bool) -> None:
        if self.next_long_claim < math.inf:
            self.next_long_claim = sent + (MORE_DUE_S if more_due else POLL_S)


@dataclass(frozen=True)
class LoopState:
    """The state of a loop. Instants are seconds of the monotonic clock, and infinity means never.

    ``busy`` contains the claimed attempts that have not ended. ``running_on`` contains attempts that recorded their own
    success and are still within their timeouts. ``without_lease`` counts the attempts that occupy a worker without a
    lease, including ``running_on``. ``left`` is how many more jobs the caller allows. ``outage_pause_s`` is how long to
    wait after a database error, or None if there was none. ``outage_stays`` is True if waiting cannot fix that error.
    """

    now: float
    deadline: float
    workers: int
    busy: Sequence[Attempt] = ()
    running_on: Sequence[Attempt] = ()
    without_lease: int = 0
    handing_over: bool = False
    holds_leases: bool = False
    unwritten: bool = False
    unrecorded: bool = False
    nothing_due: bool = False
    left: int = 1
    stopping: str | None = None
    stop_by: float = math.inf
    hurry: bool = False
    fault: bool = False
    outage_pause_s: float | None = None
    outage_stays: bool = False
    next_renewal: float = math.inf
    next_claim: float = 0.0

    @property
    def last_chance_until(self) -> float:
        """Return the instant until which an attempt that has just reached its timeout may still end on its own."""
        return max((a.recorded_at + LAST_CHANCE_S for a in self.busy if a.phase is Phase.OVERDUE), default=0.0)


def why_ended(state: LoopState) -> str | None:
    """Return why the loop should end now, or None if it should continue."""
    working = [attempt for attempt in state.busy if attempt.phase is Phase.HELD] + [*state.running_on]
    if state.hurry:
        return f"{state.stopping}, twice"
    if state.now >= state.deadline:
        return TIME_IS_UP
    if state.outage_stays and not state.holds_leases:
        return NO_WRITES
    at_work = bool(state.busy or state.handing_over or state.running_on or state.unwritten)
    if state.stopping is not None and (not at_work or state.now >= state.stop_by):
        return state.stopping
    if state.unwritten or state.handing_over or state.outage_pause_s is not None or state.now < state.last_chance_until:
        return None
    if state.fault:
        return None if working else FAULT
    if state.left <= 0 and not working:
        return LIMIT_REACHED
    if len(state.busy) - len(working) + state.without_lease >= state.workers:
        return NO_SLOT
    if not state.busy and not state.running_on and state.nothing_due:
        return NOTHING_DUE
    if not working and state.nothing_due:
        return NOTHING_ELSE_DUE
    return None


def wait_s(state: LoopState) -> float:
    """Return in how many seconds the loop has something to do. An attempt that ends wakes the loop earlier."""
    now = state.now
    if state.outage_pause_s is not None:
        return max(SHORTEST_WAIT_S, min(state.outage_pause_s, state.deadline - now, state.stop_by - now))
    moments = [state.deadline, state.stop_by, state.next_renewal]
    if now < state.last_chance_until:
        moments.append(state.last_chance_until)
    # Another transaction has locked the rows of these attempts.
    if state.unwritten or state.unrecorded:
        moments.append(now + LOCKED_PAUSE_S)
    if state.stopping is None and len(state.busy) + state.without_lease < state.workers:
        moments.append(state.next_claim)
    moments += [attempt.overdue_at for attempt in state.running_on]
    for attempt in state.busy:
        if attempt.waits_on_a_cluster:
            continue
        if attempt.started is None:
            moments.append(attempt.taken + UNBEGUN_S + 0.01)
        elif attempt.phase is Phase.HELD:
            moments.append(attempt.overdue_at)
    return max(SHORTEST_WAIT_S, min(moments) - now)
