"""``cronjobs dev``: real loops in the foreground, stopped by the signals of a terminal."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update
from support.commands import until
from support.project import Project

from cronjobs.desk.cli.dev import _Watch
from cronjobs.engine.database import tables

pytestmark = pytest.mark.either

HANDLERS = """
import time
from cronjobs import job

@job("greet")
def greet(word="hello"):
    return word

@job("patient", timeout="20s")
def patient(ctx):
    open("started", "w").close()
    while True:
        time.sleep(0.01)
        ctx.check()

@job("deaf", timeout="20s")
def deaf():
    open("started", "w").close()
    time.sleep(60)
"""


class Dev:
    """A running ``cronjobs dev``; its ticks lie far apart, so what happens soon was not their doing."""

    def __init__(self, project: Project, *options: str, ready: bool = True, **env: str) -> None:
        self.project = project
        self.file = project.folder / "dev.out"
        already = len(project.rows("ticks"))
        with self.file.open("w") as out:
            arguments = ["dev", *([] if "--every" in options else ["--every", "1h"]), *options]
            self.process: subprocess.Popen[str] = project.start(
                *arguments, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        if ready:
            until(lambda: len(project.rows("ticks")) > already, 20)

    @property
    def said(self) -> str:
        return self.file.read_text()

    def waits_for(self, text: str) -> None:
        until(lambda: text in self.said, 20)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


@pytest.fixture
def project(database_url: str, tmp_path: Path) -> Project:
    project = Project(tmp_path, database_url)
    project.write(handlers=HANDLERS)
    return project


@pytest.fixture
def dev(project: Project) -> Iterator[Any]:
    """Start a loop; none outlives its test."""
    started: list[Dev] = []

    def start(*options: str, **more: Any) -> Dev:
        started.append(Dev(project, *options, **more))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def enqueue(project: Project, job_type: str, **columns: Any) -> None:
    project.execute(insert(tables.jobs).values(job_type=job_type, **columns))


def statuses(project: Project) -> list[str]:
    return [str(row["status"]) for row in project.jobs()]


# --- what it runs -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_runs_as_soon_as_it_is_due_with_the_code_of_that_moment(project: Project, dev: Any) -> None:
    loop = dev()
    enqueue(project, "greet")
    loop.waits_for("job.succeeded job_id=1 job_type=greet")
    project.write(handlers=HANDLERS.replace('word="hello"', 'word="moin"'))
    enqueue(project, "greet")
    loop.waits_for("job.succeeded job_id=2 job_type=greet")
    assert [row["result"] for row in project.jobs()] == ["hello", "moin"]
    assert loop.stop() == 0


def test_only_what_was_not_there_before_the_tick_calls_for_another(project: Project) -> None:
    enqueue(project, "nobody.knows")
    with closing(_Watch(project.folder / "cronjobs.yaml", {}, schedules=False)) as watch:
        assert not watch.came()
        enqueue(project, "greet")
        assert watch.came()
        assert not watch.came()
        enqueue(project, "greet", run_at=datetime(2999, 1, 1, tzinfo=UTC))
        assert not watch.came()
        project.execute(update(tables.jobs).where(tables.jobs.c.id == 2).values(attempts=1, status="failed"))
        assert watch.came()  # the job was run, and its retry is due


def test_a_database_that_cannot_be_looked_at_calls_for_no_tick(project: Project) -> None:
    (project.folder / "cronjobs.yaml").write_text(f"database: sqlite:///{project.folder}/no/such/folder.db\n")
    with closing(_Watch(project.folder / "cronjobs.yaml", {}, schedules=False)) as watch:
        assert not watch.came()


@pytest.mark.slow
def test_what_every_tick_says_is_shown_once(project: Project, dev: Any) -> None:
    enqueue(project, "nobody.knows")
    loop = dev("--every", "100ms")
    until(lambda: len(project.rows("ticks")) >= 3, 20)
    (project.folder / "cronjobs.yaml").write_text("schedules: [")
    loop.waits_for("YAML")
    project.write(handlers=HANDLERS)
    enqueue(project, "greet")
    loop.waits_for("job.succeeded")
    assert loop.stop() == 0
    assert loop.said.count("jobs.unresolved") <= 2  # once more after the file was mended
    assert loop.said.count("YAML") == 1
    assert "no job ran" not in loop.said


# --- schedules --------------------------------------------------------------------------------------------------------

YAML = "schedules: {every-minute: {every: 1m, job: greet}}\n"


@pytest.mark.slow
def test_schedules_do_not_fire_unless_asked(project: Project, dev: Any) -> None:
    project.write(YAML, handlers=HANDLERS)
    assert project.run("sync").code == 0
    project.write(YAML.replace("1m", "7m"), handlers=HANDLERS)
    long_ago = datetime(2026, 1, 1, tzinfo=UTC)
    project.execute(update(tables.schedules).values(seen_until=long_ago, next_at=long_ago))

    before = project.rows("schedules")
    loop = dev()
    enqueue(project, "greet")
    loop.waits_for("job.succeeded job_id=1")
    assert loop.stop() == 0
    assert project.rows("schedules") == before
    assert project.rows("occurrences") == []
    assert "schedules do not fire" in loop.said

    loop = dev("--schedules")
    loop.waits_for("job.succeeded job_id=2")
    assert loop.stop() == 0
    assert "schedules.applied" in loop.said
    assert {row["outcome"] for row in project.rows("occurrences")} == {"enqueued", "coalesced", "missed"}


def test_a_tick_with_schedules_off_runs_jobs_and_leaves_schedules_alone(project: Project) -> None:
    project.write(YAML, handlers=HANDLERS)
    enqueue(project, "greet")
    assert project.run("run-due", env={"CRONJOBS_SCHEDULES": "off"}).code == 0
    assert statuses(project) == ["succeeded"]
    assert project.rows("schedules") == []
    for on in ({}, {"CRONJOBS_SCHEDULES": "on"}, {"CRONJOBS_SCHEDULES": ""}):
        assert project.run("run-due", env=on).code == 0
        assert [row["name"] for row in project.rows("schedules")] == ["every-minute"]


def test_a_spelling_of_off_that_is_not_known_fires_nothing(project: Project) -> None:
    project.write(YAML, handlers=HANDLERS)
    answer = project.run("run-due", env={"CRONJOBS_SCHEDULES": "false"})
    assert answer.code == 2
    assert "CRONJOBS_SCHEDULES" in answer.err
    assert project.rows("schedules") == []


# --- how it ends ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + 15), (signal.SIGHUP, 128 + 1)])
def test_one_signal_lets_a_job_stop_by_itself(project: Project, dev: Any, number: signal.Signals, code: int) -> None:
    enqueue(project, "patient")
    loop = dev()
    until((project.folder / "started").exists, 20)
    assert loop.stop(number) == code
    assert "job.interrupted job_id=1" in loop.said
    assert statuses(project) == ["queued"]


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_second_signal_ends_it_at_once(project: Project, dev: Any) -> None:
    enqueue(project, "deaf")
    loop = dev()
    until((project.folder / "started").exists, 20)
    loop.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):  # the grace is 10 s, so it does not end yet
        loop.process.wait(0.5)
    assert loop.stop() == 0
    assert "twice" in loop.said
    [run] = project.rows("job_runs")
    assert run["outcome"] == "interrupted"


# --- where it runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_it_does_not_run_in_production_by_accident(project: Project, dev: Any) -> None:
    enqueue(project, "greet")
    project.write("environment: Production\n", handlers=HANDLERS)
    answer = project.run("dev")
    assert (answer.code, answer.out) == (2, "")
    assert "add --yes" in answer.err
    assert statuses(project) == ["queued"]
    loop = dev("--yes")
    loop.waits_for("job.succeeded")
    assert loop.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_it_says_which_database_it_works_on_and_takes_another_one(project: Project, dev: Any) -> None:
    (project.folder / "cronjobs.yaml").write_text("imports: [handlers]\n")
    assert "there is no database" in project.run("dev").err
    loop = dev("--database-url", project.url)
    enqueue(project, "greet")
    loop.waits_for("job.succeeded")
    assert loop.stop() == 0
    assert project.url in loop.said


@pytest.mark.parametrize("every", ["0s", "soon"])
def test_a_pause_that_is_none_is_refused(tmp_path: Path, every: str) -> None:
    assert Project(tmp_path, "").call("dev", "--every", every).code == 2
