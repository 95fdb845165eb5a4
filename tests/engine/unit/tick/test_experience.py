"""Which types may be claimed late in a tick because their jobs were fast, although their timeout does not fit."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cronjobs.engine.config.settings import RunSettings, Settings
from cronjobs.engine.execution.attempt import InFlight
from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.engine.tick.claim_planner import LEAST_ENDS, ClaimPlanner, Experience
from cronjobs.engine.tick.result import TickFilter
from cronjobs.model import RetryPolicy

DEFAULT = timedelta(seconds=18)


def planner(overran: Collection[str] | None = (), **options: Any) -> ClaimPlanner:
    job_type = JobType("t", DEFAULT, RetryPolicy(), **({"timeout_declared": False} | options))
    settings = Settings(Path("cronjobs.yaml"), Path(), run=RunSettings())
    return ClaimPlanner(settings, JobTypes({"t": job_type}), TickFilter(), 4, experience=Experience(lambda: overran))


def admitted(plan: ClaimPlanner, left_s: float) -> tuple[Collection[str], Collection[str]]:
    admission = plan.admission(timedelta(seconds=left_s), InFlight())
    return admission.fitting, admission.expected


def ended(plan: ClaimPlanner, *seconds: float) -> ClaimPlanner:
    for each in seconds:
        plan.note("t", timedelta(seconds=each))
    return plan


SHORT = [0.2] * LEAST_ENDS


def test_jobs_that_take_a_moment_are_claimed_until_twice_the_longest_and_half_a_second_before_the_end() -> None:
    plan = ended(planner(), *SHORT[1:], 0.3)
    assert admitted(plan, 18) == (["t"], [])  # the timeout itself fits
    assert admitted(plan, 17) == (["t"], ["t"])
    assert admitted(plan, 1.1) == (["t"], ["t"])
    assert admitted(plan, 1.0) == ([], [])


def test_one_long_job_counts_until_a_hundred_others_have_ended() -> None:
    plan = ended(planner(), 8, *SHORT)
    assert admitted(plan, 16) == ([], [])
    assert admitted(ended(plan, *SHORT * 5), 16) == (["t"], ["t"])


@pytest.mark.parametrize(
    "plan",
    [
        ended(planner(), *SHORT[1:]),
        ended(planner(timeout_declared=True), *SHORT),
        ended(planner(on_lost="dead"), *SHORT),
        ended(planner(overran={"t"}), *SHORT),
        ended(planner(overran=None), *SHORT),
    ],
    ids=["too few ended", "a timeout is declared", "must not be lost", "was wrong lately", "the history is unknown"],
)
def test_otherwise_the_timeout_decides(plan: ClaimPlanner) -> None:
    assert admitted(plan, 17) == ([], [])


def test_only_an_interruption_of_the_last_day_makes_a_type_distrusted() -> None:
    types = {"t": JobType("t", DEFAULT, RetryPolicy(), timeout_declared=False)}
    assert ended(planner(overran={"t"}), *SHORT).experience.is_distrusted(types["t"])
    for plan in (planner(overran={"t"}), ended(planner(), *SHORT), ended(planner(overran=None), *SHORT)):
        assert not plan.experience.is_distrusted(types["t"])


def test_a_process_needs_its_grace_besides() -> None:
    plan = ended(planner(isolation="process"), *SHORT)
    assert admitted(plan, 2.9) == (["t"], ["t"])
    assert admitted(plan, 2.8) == ([], [])


def test_the_history_is_asked_once_and_only_when_it_matters() -> None:
    asked: list[int] = []
    plan = planner()
    plan.experience.overran = lambda: asked.append(1) or ()  # type: ignore[func-returns-value]
    ended(plan, *SHORT)
    admitted(plan, 20)
    assert asked == []
    admitted(plan, 10)
    admitted(plan, 9)
    assert asked == [1]
