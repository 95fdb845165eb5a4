"""Which states of a job and of a ledger row count as a run, which as a run to wait for, and which as neither."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cronjobs.desk.rules.occurrence_results import (
    DEFAULT_GRACE,
    OVERRUN,
    ByHand,
    JobNow,
    OccurrenceResult,
    covered_by,
    standing,
    why_not_run,
)
from cronjobs.engine.rules.occurrences import RAN_EARLY, UP_TO_ATTEMPT

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
JOB = JobNow(7, "queued", "t", "default", NOW - 3 * HOUR, scheduled_for=NOW - 3 * HOUR)
FAILED = replace(JOB, status="failed", run_at=NOW + HOUR, last_failed_at=NOW - 2 * HOUR)
HELD = {"status": "running", "started_at": NOW - 3 * HOUR, "locked_until": NOW + MINUTE}


def job(**fields: Any) -> JobNow:
    return replace(JOB, **fields)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (job(status="succeeded"), None),
        (job(status="cancelled"), None),
        (job(status="dead"), "dead"),
        (job(status="dead", dismissed=True), None),
        (job(), "waits"),
        (job(run_at=NOW + HOUR), "put off"),
        (FAILED, None),
        (replace(FAILED, last_failed_at=NOW - 3 * HOUR - MINUTE), "put off"),  # the wait began before the occurrence
        (replace(FAILED, last_failed_at=NOW + HOUR), "put off"),  # a wrong clock
        (replace(FAILED, last_failed_at=None), "put off"),
        (replace(FAILED, run_at=NOW - HOUR + MINUTE), None),
        (replace(FAILED, run_at=NOW - HOUR), "overdue"),
        (job(**HELD), None),
        (job(**HELD, limit=3 * HOUR), None),
        (job(**HELD, limit=3 * HOUR - OVERRUN), "overruns"),
        (job(**HELD | {"started_at": None}, limit=HOUR), None),
        (job(**HELD | {"locked_until": NOW + MINUTE}), None),
        (job(**HELD | {"locked_until": NOW}), "lease ran out"),
    ],
)
def test_what_a_job_is_to_a_schedule_that_was_due(state: JobNow, why: str | None) -> None:
    assert why_not_run(state, NOW - 3 * HOUR, NOW, HOUR) == why


def row(hours: float, outcome: str, of: JobNow | None = None, reason: str | None = None) -> OccurrenceResult:
    at = NOW - hours * HOUR
    return OccurrenceResult(1, at, at, outcome, reason, at, None if of is None else of.id, of)


PUT_OFF = job(run_at=NOW + HOUR)
DONE = job(id=3, status="succeeded")


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], None),
        ([row(3, "enqueued", DONE)], None),
        ([row(3, "missed")], "missed"),
        ([row(2, "enqueued", DONE), row(3, "missed")], None),
        ([row(2, "skipped", DONE), row(3, "missed")], "missed"),
        ([row(0.5, "missed")], None),
        ([row(3, "skipped", None, "full: as many jobs wait in its queue as may (max_waiting)")], "full"),
        ([row(3, "skipped", None, "paused by ada")], None),
        ([row(0.5, "skipped", PUT_OFF), row(3, "enqueued", PUT_OFF)], "put off"),
        ([row(2, "skipped", PUT_OFF)], "put off"),
        ([row(2, "coalesced", PUT_OFF)], "put off"),
        ([row(2, "skipped", job(**HELD))], None),
        ([row(2.5, "skipped", FAILED), row(3, "enqueued", FAILED)], None),
        ([row(1.5, "skipped", FAILED), row(3, "enqueued", FAILED)], "put off"),
        ([row(0.5, "skipped", FAILED), row(3, "enqueued", FAILED)], None),
        ([row(2, "enqueued", PUT_OFF), row(3, "missed")], "put off"),
        ([replace(row(3, "enqueued"), job_id=5)], None),
    ],
)
def test_what_the_rows_of_a_schedule_show(rows: list[OccurrenceResult], why: str | None) -> None:
    found = standing(rows, None, NOW, DEFAULT_GRACE).not_run
    assert (found[0].why if found else None) == why


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (job(status="succeeded", attempts=1), "missed"),
        (job(status="succeeded", attempts=2, started_at=NOW - HOUR), None),  # it failed early, and was retried in time
        (job(status="succeeded", attempts=2, started_at=NOW - 3 * HOUR), "missed"),  # somebody retried it too early
        (None, "missed"),  # pruned
        (job(status="cancelled", attempts=1), None),
        (job(status="dead", attempts=1), "dead"),
        (job(status="dead", attempts=1, dismissed=True), None),
        (job(**HELD, attempts=1), None),
    ],
)
def test_a_run_by_a_wrong_clock_is_none(of: JobNow | None, why: str | None) -> None:
    early = replace(
        row(2, "enqueued", of, f"{RAN_EARLY} 03:00 or before, because of a wrong clock{UP_TO_ATTEMPT} 1"), job_id=7
    )
    found = standing([early, row(3, "enqueued", DONE)], None, NOW, HOUR).not_run
    assert (found[0].why if found else None) == why
    assert early.went_well == (of is not None and of.status == "succeeded" and why is None)


def test_a_job_that_waits_its_turn_is_judged_by_the_one_before_it() -> None:
    rows = [row(2, "enqueued", JOB)]
    running = job(id=6, **HELD)
    assert standing(rows, running, NOW, HOUR).not_run == ()
    [found] = standing(rows, replace(running, locked_until=NOW - HOUR), NOW, HOUR).not_run
    assert (found.why, found.job) == ("lease ran out", replace(running, locked_until=NOW - HOUR))


def test_it_begins_with_the_first_that_did_not_run() -> None:
    [found] = standing([row(1, "skipped", PUT_OFF), row(2, "skipped", PUT_OFF)], None, NOW, HOUR).not_run
    assert found.since == PUT_OFF.scheduled_for


def test_each_reason_is_returned_the_newest_first() -> None:
    full = "full: as many jobs wait in its queue as may (max_waiting)"
    rows = [row(2, "skipped", JOB), row(3, "enqueued", JOB), row(4, "skipped", None, full), row(5, "skipped", JOB)]
    judged = standing(rows, None, NOW, HOUR)
    assert [(each.why, each.since) for each in judged.not_run] == [("waits", NOW - 5 * HOUR), ("full", NOW - 4 * HOUR)]
    assert judged.certain
    assert not standing(rows[:2], None, NOW, HOUR).certain, "the finding pause may say why this job waits"


def test_a_run_by_hand_stands_for_what_was_due_before_it() -> None:
    rows = [row(2, "enqueued", PUT_OFF)]
    assert standing(rows, None, NOW, HOUR, NOW - HOUR).not_run == ()
    assert standing(rows, None, NOW, HOUR, NOW - 4 * HOUR).not_run


@pytest.mark.parametrize(
    ("state", "stands"),
    [
        (None, True),  # pruned
        (job(status="succeeded"), True),
        (job(**HELD), True),
        (job(**HELD | {"locked_until": NOW}), False),
        (replace(FAILED, last_failed_at=NOW - HOUR), True),
        (replace(FAILED, last_failed_at=NOW + HOUR), False),  # a wrong clock
        (replace(FAILED, run_at=NOW - HOUR), False),
        (job(), False),
        (PUT_OFF, False),
        (job(status="dead"), False),
        (job(status="dead", dismissed=True), False),
        (job(status="cancelled"), False),
    ],
)
def test_a_run_by_hand_counts_by_what_became_of_its_job(state: JobNow | None, stands: bool) -> None:
    at, earlier = NOW - HOUR, NOW - 5 * HOUR
    assert covered_by([ByHand(at, "ada", 1, state)], NOW, HOUR) == (at if stands else None)
    found = covered_by([ByHand(at, "ada", 1, state), ByHand(earlier, "ada", 2, DONE)], NOW, HOUR)
    assert found == (at if stands else earlier), "an earlier one may stand where the last does not"
