"""The judge of a campaign must be able to fail it: a good story, and changes that make it a bad one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.chaos.judge import EffectRow, Evidence, JobRow, RunRow, judge
from engine.chaos.ledger import Line
from engine.chaos.plan import PlannedJob

UNKEYED, AGAIN, SKIP = 1, 2, 3  # the jobs' ids
KILLED, FROZEN, THIRD = 101, 102, 103  # the ticks' pids


def line(what: str, job: int = 0, attempt: int = 0, pid: int = KILLED, key: str = "") -> Line:
    return Line(0.0, what, job, attempt, pid, key)


# One tick is killed between an unkeyed effect and its end, one is frozen inside a keyed effect; others take over.
STORY = [
    line("guarded", pid=KILLED),
    line("start", UNKEYED, 1, KILLED),
    line("unkeyed", UNKEYED, 1, KILLED),
    line("kill", pid=KILLED),
    line("gone", pid=KILLED),
    line("unguarded", pid=FROZEN),
    line("start", AGAIN, 1, FROZEN),
    line("enter", AGAIN, 1, FROZEN, "chaos-2"),
    line("body", AGAIN, 1, FROZEN, "chaos-2"),
    line("freeze", pid=FROZEN),
    line("guarded", pid=THIRD),
    line("start", UNKEYED, 2, THIRD),
    line("unkeyed", UNKEYED, 2, THIRD),
    line("end", UNKEYED, 2, THIRD),
    line("start", AGAIN, 2, THIRD),
    line("enter", AGAIN, 2, THIRD, "chaos-2"),
    line("body", AGAIN, 2, THIRD, "chaos-2"),
    line("recorded", AGAIN, 2, THIRD, "chaos-2"),
    line("end", AGAIN, 2, THIRD),
    line("thaw", pid=FROZEN),
    line("failed", AGAIN, 1, FROZEN),
    line("start", SKIP, 1, THIRD),
    line("enter", SKIP, 1, THIRD, "chaos-3"),
    line("body", SKIP, 1, THIRD, "chaos-3"),
    line("recorded", SKIP, 1, THIRD, "chaos-3"),
    line("end", SKIP, 1, THIRD),
]

GOOD = Evidence(
    planned=[
        PlannedJob(1, "chaos.unkeyed", {}),
        PlannedJob(2, "chaos.again", {}),
        PlannedJob(3, "chaos.skip", {}),
    ],
    lines=STORY,
    jobs=[
        JobRow(UNKEYED, "chaos-1", "succeeded", attempts=2, failures=0, losses=1),
        JobRow(AGAIN, "chaos-2", "succeeded", attempts=2, failures=0, losses=1),
        JobRow(SKIP, "chaos-3", "succeeded", attempts=1, failures=0, losses=0),
    ],
    runs=[
        RunRow(UNKEYED, 1, "lost"),
        RunRow(UNKEYED, 2, "succeeded"),
        RunRow(AGAIN, 1, "lost"),
        RunRow(AGAIN, 2, "succeeded"),
        RunRow(SKIP, 1, "succeeded"),
    ],
    effects=[EffectRow("chaos-2", "recorded", 2, 9.0), EffectRow("chaos-3", "recorded", 1, 9.0)],
    events=[{"event": "job.succeeded", "job_id": job} for job in (UNKEYED, AGAIN, SKIP)],
)


def with_job(job: int, **changes: Any) -> Evidence:
    return replace(GOOD, jobs=[replace(row, **changes) if row.id == job else row for row in GOOD.jobs])


def with_lines(*more: Line, without: Callable[[Line], bool] = lambda line: False) -> Evidence:
    return replace(GOOD, lines=[line for line in STORY if not without(line)] + list(more))


def with_booked(*booked: int) -> Evidence:
    return replace(GOOD, planned=[*GOOD.planned[:2], PlannedJob(3, "chaos.booked", {})], booked=booked)


def doing_it_again(job: int, attempt: int, pid: int) -> list[Line]:
    key = f"chaos-{job}"
    return [line("enter", job, attempt, pid, key), line("body", job, attempt, pid, key)]


def test_a_campaign_in_which_all_is_well_is_acquitted() -> None:
    figures, violations = judge(GOOD)
    assert violations == []
    assert figures["unkeyed effects doubled"] == 1
    assert (figures["keyed effects left unknown"], figures["keyed effects repeated"]) == (1, 1)
    assert figures["freezes in which a job was taken over"] == 1
    assert figures["went on after a freeze, beside their successor"] == 1


@pytest.mark.parametrize(
    ("evidence", "charge"),
    [
        (replace(GOOD, jobs=GOOD.jobs[1:]), "lost: chaos-1 has 0 rows"),
        (replace(GOOD, jobs=[*GOOD.jobs, replace(GOOD.jobs[0], id=9)]), "lost: chaos-1 has 2 rows"),
        (with_job(SKIP, key="chaos-9"), "lost: job 3 was never planned"),
        (with_job(UNKEYED, status="dead"), "lost: job 1 (chaos.unkeyed) is dead"),
        (
            with_lines(without=lambda line: line.what == "end" and line.job == SKIP),
            "lost: job 3 is succeeded, but attempt 1 did not come to its end",
        ),
        (with_job(UNKEYED, status="running"), "left running: job 1"),
        (with_booked(), "not booked exactly once: the work of job 3 is there 0 times"),
        (with_booked(3, 3), "not booked exactly once: the work of job 3 is there 2 times"),
        (
            replace(GOOD, runs=[RunRow(UNKEYED, 1, "succeeded"), *GOOD.runs[1:]]),
            "finished twice: job 1: 2 attempts succeeded",
        ),
        (
            replace(GOOD, events=[*GOOD.events, {"event": "job.succeeded", "job_id": SKIP}]),
            "finished twice: job 3: its end was logged 2 times",
        ),
        (replace(GOOD, runs=GOOD.runs[1:]), "history wrong: job 1: attempt 1 began and has no history"),
        (with_job(AGAIN, losses=2), "history wrong: job 2: 2 losses, 1 in its history"),
        (with_job(AGAIN, attempts=3), "history wrong: job 2: 3 attempts, the last in its history is 2"),
        (
            with_lines(line("end", UNKEYED, 1, KILLED)),
            "ran beside its successor: job 1: attempt 1 went on after a later one had begun",
        ),
        (
            with_lines(*doing_it_again(AGAIN, 3, THIRD)),
            "recorded effects repeated: chaos-2: attempt 3 did it although it was recorded",
        ),
        (
            # The effect was recorded, but the tick died before it could write the line that says so.
            replace(GOOD, lines=[replace(line, at=9.5) if line.attempt == 2 else line for line in STORY]),
            "recorded effects repeated: chaos-2: attempt 2 did it although it was recorded",
        ),
        (
            with_lines(*doing_it_again(SKIP, 1, THIRD)),
            "recorded effects repeated: chaos-3 (chaos.skip): done 2 times",
        ),
        (
            replace(GOOD, effects=[EffectRow("chaos-2", "begun", 2, None), GOOD.effects[1]]),
            "effects in a wrong state: chaos-2 (chaos.again) is begun",
        ),
        (
            with_lines(without=lambda line: line.what == "body" and line.job == SKIP),
            "effects in a wrong state: chaos-3 (chaos.skip) is recorded, and nobody did it",
        ),
        (
            with_lines(without=lambda line: line.what == "unkeyed" and line.attempt == 2),
            "no unkeyed effect was doubled: the campaign does not bite",
        ),
        (
            with_lines(without=lambda line: line.job == AGAIN and line.attempt == 2),
            "no frozen tick lost a job to another: the freezes do not bite",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_judge_says_what_is_wrong(evidence: Evidence, charge: str) -> None:
    _, violations = judge(evidence)
    assert any(violation.startswith(charge) for violation in violations), violations


def test_a_tick_frozen_between_begun_and_done_is_excused_and_counted() -> None:
    late = [
        line("start", AGAIN, 1, FROZEN),
        line("enter", AGAIN, 1, FROZEN, "chaos-2"),
        line("freeze", pid=FROZEN),
        *[line for line in STORY if line.pid != FROZEN],
        line("thaw", pid=FROZEN),
        line("body", AGAIN, 1, FROZEN, "chaos-2"),
    ]
    figures, violations = judge(replace(GOOD, lines=late))
    assert figures["done by who was frozen just before"] == 1
    assert violations == []
    awake = [line for line in late if line.what not in ("freeze", "thaw")]
    assert any("recorded effects repeated" in violation for violation in judge(replace(GOOD, lines=awake))[1])


def test_what_begins_between_the_word_of_a_freeze_and_the_freeze_is_excused_too() -> None:
    late = [
        line("guarded", pid=FROZEN),
        line("freeze", pid=FROZEN),
        line("start", AGAIN, 1, FROZEN),
        line("enter", AGAIN, 1, FROZEN, "chaos-2"),
        line("body", AGAIN, 1, FROZEN, "chaos-2"),
        *[line for line in STORY if line.pid != FROZEN],
        line("thaw", pid=FROZEN),
        line("failed", AGAIN, 1, FROZEN),
    ]
    awake = [line for line in late if line.what not in ("freeze", "thaw")]
    for lines, guilty in ((late, False), (awake, True)):
        _, violations = judge(replace(GOOD, lines=lines))
        assert any("ran beside its successor" in violation for violation in violations) == guilty
