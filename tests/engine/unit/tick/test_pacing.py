"""Tables of when a loop ends and how long it waits: every exit, and every instant that shortens a wait."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from cronjobs.engine.execution.attempt import Attempt, Phase
from cronjobs.engine.rules.ending import as_stopped
from cronjobs.engine.tick.pacing import (
    LAST_CHANCE_S,
    LIMIT_REACHED,
    LOCKED_PAUSE_S,
    NO_SLOT,
    NO_WRITES,
    SHORTEST_WAIT_S,
    TIME_IS_UP,
    UNBEGUN_S,
    LoopState,
    wait_s,
    why_ended,
)
from cronjobs.engine.tick.result import NOTHING_DUE, NOTHING_ELSE_DUE
from cronjobs.engine.tick.trouble import FAULT
from cronjobs.model import CancelledByRequest, Failed, Interrupted, Outcome, Succeeded, TimedOut

NOW, DEADLINE = 100.0, 150.0


@dataclass
class Running:
    """The part of an attempt that pacing reads."""

    started: float | None = 99.0
    overdue_at: float = 130.0
    taken: float = 99.0
    phase: Phase = Phase.HELD
    recorded_at: float = 0.0
    waits_on_a_cluster: bool = False


def attempts(*given: Running) -> list[Attempt]:
    return cast("list[Attempt]", [*given])


AT_WORK = attempts(Running())
TIMED_OUT = attempts(Running(phase=Phase.OVERDUE, recorded_at=99.0))
JUST_TIMED_OUT = attempts(Running(phase=Phase.OVERDUE, recorded_at=NOW))
STATE = LoopState(now=NOW, deadline=DEADLINE, workers=2)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        # nothing to do
        ({"nothing_due": True}, NOTHING_DUE),
        ({"nothing_due": False}, None),  # not asked yet, or as many were claimed as there was room for
        ({"nothing_due": True, "busy": AT_WORK}, None),  # the busy job may enqueue more
        ({"nothing_due": True, "running_on": AT_WORK, "without_lease": 1}, None),
        ({"nothing_due": True, "busy": TIMED_OUT}, NOTHING_ELSE_DUE),
        ({"nothing_due": True, "busy": JUST_TIMED_OUT}, None),  # the job was told to stop just now
        # results that are on their way come first
        ({"nothing_due": True, "unwritten": True}, None),
        ({"nothing_due": True, "handing_over": True}, None),
        ({"nothing_due": True, "outage_pause_s": 0.1}, None),
        # no slot
        ({"busy": TIMED_OUT * 2}, NO_SLOT),
        ({"busy": TIMED_OUT, "without_lease": 1}, NO_SLOT),
        ({"busy": TIMED_OUT}, None),
        ({"without_lease": 2}, NO_SLOT),
        ({"without_lease": 2, "running_on": AT_WORK * 2}, None),  # those come free
        # the caller's limit
        ({"left": 0}, LIMIT_REACHED),
        ({"left": 0, "busy": AT_WORK}, None),
        ({"left": 0, "busy": TIMED_OUT}, LIMIT_REACHED),
        # time
        ({"now": DEADLINE}, TIME_IS_UP),
        ({"now": DEADLINE, "busy": AT_WORK, "unwritten": True}, TIME_IS_UP),
        # signals
        ({"stopping": "SIGTERM"}, "SIGTERM"),
        ({"stopping": "SIGTERM", "busy": AT_WORK, "stop_by": 110.0}, None),
        ({"stopping": "SIGTERM", "busy": AT_WORK, "stop_by": NOW}, "SIGTERM"),
        ({"stopping": "SIGTERM", "handing_over": True, "stop_by": 110.0}, None),
        ({"stopping": "SIGTERM", "running_on": AT_WORK, "without_lease": 1, "stop_by": 110.0}, None),
        ({"stopping": "SIGTERM", "busy": AT_WORK, "stop_by": 110.0, "hurry": True}, "SIGTERM, twice"),
        # the database
        ({"outage_pause_s": 0.1, "outage_stays": True}, NO_WRITES),
        ({"outage_pause_s": 0.1, "outage_stays": True, "holds_leases": True}, None),
        ({"outage_pause_s": 0.1}, None),
        # a fault of ours
        ({"fault": True}, FAULT),
        ({"fault": True, "busy": AT_WORK}, None),
        ({"fault": True, "busy": TIMED_OUT}, FAULT),
    ],
)
def test_a_loop_ends_when_nothing_is_left_that_it_could_do(changes: dict[str, Any], why: str | None) -> None:
    assert why_ended(replace(STATE, **changes)) == why


@pytest.mark.parametrize(
    ("changes", "until"),
    [
        ({"next_claim": math.inf}, DEADLINE),
        ({"next_claim": 101.0}, 101.0),
        ({"next_claim": 101.0, "busy": AT_WORK * 2}, 130.0),  # no slot is free: an end is what counts
        ({"next_claim": 101.0, "without_lease": 2}, DEADLINE),
        ({"next_claim": 101.0, "stopping": "SIGTERM", "stop_by": 104.0}, 104.0),
        ({"next_claim": math.inf, "next_renewal": 107.5}, 107.5),
        ({"next_claim": math.inf, "busy": AT_WORK}, 130.0),
        ({"next_claim": math.inf, "running_on": AT_WORK, "without_lease": 1}, 130.0),
        ({"next_claim": math.inf, "busy": TIMED_OUT}, DEADLINE),  # nothing more comes of it by the clock
        ({"next_claim": math.inf, "busy": JUST_TIMED_OUT}, NOW + LAST_CHANCE_S),
        ({"next_claim": math.inf, "busy": attempts(Running(started=None))}, 99.0 + UNBEGUN_S + 0.01),
        ({"next_claim": math.inf, "busy": attempts(Running(started=None, waits_on_a_cluster=True))}, DEADLINE),
        ({"next_claim": math.inf, "unwritten": True}, NOW + LOCKED_PAUSE_S),
        ({"next_claim": math.inf, "unrecorded": True}, NOW + LOCKED_PAUSE_S),
        ({"next_claim": NOW - 1}, NOW + SHORTEST_WAIT_S),
        ({"outage_pause_s": 0.4, "next_renewal": 100.1}, 100.4),
        ({"outage_pause_s": 5.0, "deadline": 100.2}, 100.2),
        ({"outage_pause_s": 5.0, "stopping": "SIGINT", "stop_by": 100.3}, 100.3),
    ],
)
def test_a_loop_waits_until_the_next_thing_to_do(changes: dict[str, Any], until: float) -> None:
    state = replace(STATE, **changes)
    assert state.now + wait_s(state) == pytest.approx(until)


LATE = TimedOut("still running after its timeout of 5s")
FAILED, TERMINATED = Failed("no", "KeyError"), Failed("ended by SIGTERM", "SIGTERM")


@pytest.mark.parametrize(
    ("outcome", "reason", "process", "late", "counts_as"),
    [
        (FAILED, None, False, None, FAILED),
        (FAILED, "cancelled", False, None, CancelledByRequest()),
        (LATE, "cancelled", False, LATE, CancelledByRequest()),
        (Interrupted(), "cancelled", True, None, CancelledByRequest()),
        (Succeeded(7), "cancelled", False, None, Succeeded(7)),
        (TERMINATED, "shutdown", True, None, Interrupted()),
        (TERMINATED, "shutdown", False, None, TERMINATED),
        (TERMINATED, None, True, None, TERMINATED),
        (FAILED, "shutdown", True, None, FAILED),
        (FAILED, "timeout", False, LATE, LATE),
        (Interrupted(), "timeout", False, LATE, LATE),
        (Succeeded(7), "timeout", False, LATE, Succeeded(7)),
    ],
)
def test_what_an_end_counts_as_when_the_attempt_had_been_told_to_stop(
    outcome: Outcome, reason: str | None, process: bool, late: TimedOut | None, counts_as: Outcome
) -> None:
    assert as_stopped(outcome, reason, process=process, late=late) == counts_as
