"""An attempt has one phase at a time, and the loop's attempts in flight always agree with the phases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronjobs.engine.execution.attempt import Attempt, Ended, InFlight, Phase
from cronjobs.engine.jobs.job_types import JobType
from cronjobs.model import Finished, Job, RetryPolicy, Succeeded

# Which phases may follow each phase.
FOLLOW = {
    Phase.HELD: {Phase.HANDING_OVER, Phase.OVERDUE, Phase.ENDED, Phase.RUNS_ON, Phase.LOST, Phase.GONE},
    Phase.HANDING_OVER: {Phase.ENDED, Phase.GONE},
    Phase.OVERDUE: {Phase.ENDED, Phase.RUNS_ON, Phase.LOST},
    Phase.ENDED: {Phase.RETURNED, Phase.GONE},
    Phase.RUNS_ON: {Phase.RETURNED},
    Phase.RETURNED: {Phase.GONE},
    Phase.LOST: {Phase.GONE},
    Phase.GONE: set[Phase](),
}
LEASED = {Phase.HELD, Phase.HANDING_OVER, Phase.OVERDUE, Phase.ENDED}


def attempt(job_id: int) -> Attempt:
    job_type = JobType("t", timedelta(seconds=10), RetryPolicy(), durable="each")
    return Attempt(Job(job_id, "t", {}, attempt=1, locked_by="me"), job_type, job_type.timeout)


def ended(one: Attempt) -> Ended:
    return Ended(one, Finished(one.job, Succeeded(None)), 0.0)


@pytest.mark.parametrize("after", Phase)
@pytest.mark.parametrize("before", Phase)
def test_a_phase_follows_only_where_it_may_and_a_refusal_changes_nothing(before: Phase, after: Phase) -> None:
    flight, one = InFlight(), attempt(1)
    flight.take(one)
    one.phase = before
    if after in FOLLOW[before]:
        flight.move(one, after)
        assert one.phase is after
    else:
        with pytest.raises(RuntimeError, match=f"job 1: an attempt that is {before.value} cannot be {after.value}"):
            flight.move(one, after)
        assert (one.phase, flight.held) == (before, {1: one})


def start(_: InFlight, one: Attempt) -> None:
    one.started = 1.0


STEPS: list[Callable[[InFlight, Attempt], None]] = [
    start,
    lambda flight, one: flight.move(one, Phase.HANDING_OVER),
    lambda flight, one: flight.note_overdue(one, "timed_out", 1.0),
    lambda flight, one: flight.end(ended(one)),
    lambda flight, one: flight.end_itself(one),
    lambda flight, one: flight.lose(one),
    lambda flight, one: flight.drop(one),
    lambda flight, one: flight.move(one, Phase.GONE),
    lambda flight, one: flight.recorded({one.job.id}),
]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(STEPS)), max_size=30))
def test_what_is_in_flight_agrees_with_the_phases(
    steps: list[tuple[int, Callable[[InFlight, Attempt], None]]],
) -> None:
    flight, all_of_them = InFlight(), [attempt(n) for n in range(4)]
    for one in all_of_them:
        flight.take(one)
    for n, step in steps:
        one = all_of_them[n]
        before = (one.phase, flight.held.copy(), flight.without_lease)
        try:
            step(flight, one)
        except RuntimeError:
            assert (one.phase, flight.held, flight.without_lease) == before
        assert flight.held == {each.job.id: each for each in all_of_them if each.phase in LEASED}
        assert set(flight.without_lease) == {each for each in all_of_them if each.phase in (Phase.RUNS_ON, Phase.LOST)}
        assert flight.unwritten.keys() == {each for each in all_of_them if each.has_ended}
        assert {each.job.id for each in flight.unrecorded()} <= flight.held.keys()
        for each in all_of_them:
            assert each.let_go is not None
            assert each.let_go.is_set() is (each.phase not in LEASED)  # its worker may take the next job


@pytest.mark.parametrize(
    ("options", "losses", "free"),
    [
        ({}, 0, False),  # a thread needs no time
        ({}, 2, True),
        ({"isolation": "process", "for_crashes": True}, 0, True),
        ({"isolation": "process"}, 2, False),  # who declares a process counts its start in
        ({"command": ("true",)}, 2, False),
    ],
)
def test_the_start_of_a_process_counts_in_only_where_the_process_was_asked_for(
    options: dict[str, Any], losses: int, free: bool
) -> None:
    job_type = JobType("t", timedelta(seconds=10), RetryPolicy(), **options)
    one = Attempt(Job(1, "t", {}, attempt=3, locked_by="me", losses=losses), job_type, job_type.timeout)
    assert (one.to_start > timedelta(0)) == free
