"""Three failures of one job type in a row are a finding, unless a job of it succeeded in between."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select
from support.postgres import OWNER
from support.yard import MINUTE, START

from cronjobs.desk.insight.finding import Finding
from cronjobs.desk.insight.findings import troubles
from cronjobs.desk.insight.gathering import look
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.connects_as(OWNER)  # who may fill the tables


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


class World:
    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.now = database, database.clock.now()
        self.settings = Settings(file=folder / "cronjobs.yaml", folder=folder)

    def job(self, outcomes: str, first: int, *, every: int = 1, job_type: str = "t.mail", **values: Any) -> None:
        """A job whose attempts ended so, one each *every* minutes from *first* minutes ago on."""
        words = {"f": "failed", "t": "timed_out", "l": "lost", "s": "succeeded", "z": "snoozed"}
        ends = [self.now - (first - every * number) * MINUTE for number in range(len(outcomes))]
        failures = sum(each in "ft" for each in outcomes)
        row = {"job_type": job_type, "attempts": len(outcomes), "failures": failures, "losses": outcomes.count("l")}
        row |= {"status": "failed", "last_failed_at": ends[-1], "run_at": self.now + timedelta(hours=1)}
        if outcomes.endswith("s"):
            row |= {"status": "succeeded", "finished_at": ends[-1]}
        with self.database.write() as connection:
            made = insert(tables.jobs).values(row | values).returning(tables.jobs.c.id)
            job_id = connection.execute(made).scalar_one()
            for number, (outcome, at) in enumerate(zip(outcomes, ends, strict=True), 1):
                run = {"job_id": job_id, "attempt": number, "outcome": words[outcome], "runner": "r"}
                connection.execute(insert(tables.job_runs).values(run | {"started_at": at, "finished_at": at}))

    def found(self) -> dict[str, Finding]:
        with self.database.read() as connection:
            every = troubles(look(connection, self.settings, JobTypes()), self.settings)
        return {each.key: each for each in every if each.kind == "failing_type"}


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    return World(database, tmp_path)


@pytest.mark.parametrize("outcomes", ["fff", "ftf", "fzfzf", "fflf", "ffffff"])
def test_three_failures_in_a_row_are_a_finding(world: World, outcomes: str) -> None:
    world.job(outcomes, 20)
    [said] = world.found().values()
    assert said.key == "failing_type:t.mail"
    assert said.text.startswith(
        "the last 3 runs of t.mail failed, with no success in between; 1 job of this type waits"
    )
    assert said.command == "cronjobs jobs list --status failed --type t.mail"


@pytest.mark.parametrize("since", ["", "f", "ff", "z", "l"])
def test_a_retry_by_a_person_ends_it_no_more_than_a_further_failure(world: World, since: str) -> None:
    """A retry resets the counters of the row: only the history shows what the job has done."""
    counters: dict[str, Any] = {"failures": since.count("f"), "losses": since.count("l")}
    world.job("ttff" + since, 20, status="failed" if since.endswith(("f", "l")) else "queued", **counters)
    [said] = world.found().values()
    waits = "failed" if since.endswith(("f", "l")) else "queued"
    assert said.command == f"cronjobs jobs list --status {waits} --type t.mail"


def test_it_lasts_since_the_first_failure_behind_the_last_success(world: World) -> None:
    world.job("s", 30)
    world.job("ffffff", 25)
    [said] = world.found().values()
    assert said.since == world.now - 25 * MINUTE
    world.job("s", 23)
    [said] = world.found().values()
    assert said.since == world.now - 22 * MINUTE


def test_its_beginning_stays_while_more_jobs_fail_although_an_older_job_failed_before_the_last_success(
    world: World,
) -> None:
    """Otherwise an ack would not hold, because it covers only what began before it."""
    world.job("f", 40)
    world.job("s", 30)
    for first in range(25, 5, -2):
        world.job("f", first)
        [*said] = world.found().values()
        assert [each.since for each in said] == [world.now - 25 * MINUTE] * (first <= 21)


@pytest.mark.parametrize("outcomes", ["f", "ff", "zzz", "llll", "ffl", "llff"])
def test_fewer_are_none(world: World, outcomes: str) -> None:
    world.job(outcomes, 20)
    assert world.found() == {}


def test_failures_of_several_jobs_count_together(world: World) -> None:
    for first in (20, 15, 10):
        world.job("f", first)
    [said] = world.found().values()
    assert said.since == world.now - 20 * MINUTE
    assert said.text.endswith("3 jobs of this type wait for another try")


def test_it_counts_the_jobs_that_its_command_lists(world: World) -> None:
    for first in (20, 15, 10):
        world.job("f", first)
    for first in (19, 18):
        world.job("fl", first, status="queued")  # released by a runner, or retried by a person
    [said] = world.found().values()
    assert said.command == "cronjobs jobs list --status failed --type t.mail"
    with world.database.read() as connection:
        listed = connection.execute(select(tables.jobs.c.id).where(tables.jobs.c.status == "failed")).all()
    assert said.text.endswith(f"{len(listed)} jobs of this type wait for another try")


@pytest.mark.parametrize(("succeeded", "expected"), [(25, 1), (19, 0), (12, 0), (1, 0)])
def test_a_success_since_the_first_of_them_breaks_the_row(world: World, succeeded: int, expected: int) -> None:
    world.job("fff", 20, every=5)
    world.job("s", succeeded)
    assert len(world.found()) == expected


def test_a_success_of_another_type_breaks_no_row(world: World) -> None:
    world.job("fff", 20, every=5)
    world.job("s", 12, job_type="t.other")
    assert list(world.found()) == ["failing_type:t.mail"]


def test_a_job_that_died_has_a_finding_of_its_own(world: World) -> None:
    world.job("fff", 20, status="dead", finished_at=world.now)
    assert world.found() == {}


@pytest.mark.parametrize("status", ["active", "retired", None])
def test_the_jobs_of_a_schedule_that_the_file_no_longer_has_are_judged_like_any_others(
    world: World, status: str | None
) -> None:
    """Nothing else would say that they fail, until they are dead."""
    if status is not None:
        row = {"name": "nightly", "definition": {"job": "t.mail", "every_s": 60}, "fingerprint": "f", "status": status}
        with world.database.write() as connection:
            connection.execute(insert(tables.schedules).values(row | {"seen_until": world.now}))
    world.job("fff", 20, schedule="nightly")
    assert list(world.found()) == ([] if status == "active" else ["failing_type:t.mail"])
