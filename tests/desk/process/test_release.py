"""``jobs release``: only if the runner is certainly gone, with the fence, and without using a try."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.commands import LINUX_ONLY, until
from support.ticking import Project, Tick, cli

from cronjobs import enqueue
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.caller import os_user
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.probe.kernel_facts import process_started
from cronjobs.engine.store import operating
from cronjobs.engine.store.claims import ClaimFilter, claim
from cronjobs.model import Job, Status
from cronjobs.testing import FakeClock

pytestmark = LINUX_ONLY

COMMAND = 'job_types: {r.command: {command: [sh, -c, "echo $$ > pid; exec sleep 1000"], timeout: 40s}}\n'


@pytest.fixture
def project(project: Project) -> Project:
    return project.configure("run: {workers: 2}\n" + COMMAND)


def running(project: Project, count: int = 1) -> tuple[list[int], Tick]:
    ids = [project.add("t.gated") for _ in range(count)]
    tick = project.start()
    until(lambda: len(project.effects("start")) == count)
    return ids, tick


def kill(tick: Tick) -> None:
    tick.send(signal.SIGKILL)
    tick.wait()


def audit(project: Project) -> list[Any]:
    return project.sql("SELECT subject, why FROM cronjobs_audit WHERE action = 'release' ORDER BY id")


def test_a_job_whose_runner_is_gone_is_queued_again_and_nothing_is_charged(project: Project) -> None:
    [job_id], tick = running(project)
    kill(tick)
    said = cli(project, "jobs", "release", str(job_id), "--why", "the box was rebooted")
    assert said == f"job {job_id} is queued again, due now: its runner is gone\n"
    job = project.job(job_id)
    assert (job["status"], job["failures"], job["losses"], job["attempts"]) == ("queued", 0, 1, 1)
    assert project.outcomes(job_id) == ["lost"]
    error = project.value(f"SELECT error FROM cronjobs_job_runs WHERE job_id = {job_id}")
    assert error == job["last_error"] == f"released by {os_user()}: the box was rebooted"
    assert audit(project) == [(f"job {job_id}", "the box was rebooted")]
    project.open()
    assert project.tick().wait() == 0
    assert project.outcomes(job_id) == ["lost", "succeeded"]


def test_explain_and_status_say_if_its_process_is_gone(project: Project) -> None:
    [job_id], tick = running(project)
    assert f"Job {job_id} is running now: attempt 1" in cli(project, "explain", str(job_id))
    assert "the runner's process is gone" not in cli(project, "status")
    kill(tick)
    said = " ".join(cli(project, "explain", str(job_id)).split())
    assert f"Job {job_id} was running: attempt 1" in said
    assert said.endswith("the process is gone, so the next tick on that host should record the outcome.")
    for shown in (cli(project, "status"), cli(project, "jobs", "list", "--status", "running")):
        assert "the runner's process is gone" in shown
    project.open()
    project.tick()  # it takes the dead tick's job
    assert "its process is gone" in cli(project, "status")


def test_a_cancel_says_if_there_is_no_runner_that_could_hear_of_it(project: Project) -> None:
    project.configure("run: {workers: 3}\n")
    [first, second, third], tick = running(project, 3)
    asked = f"job {first} is running: its runner will ask it to stop at the next heartbeat, within 15s\n"
    assert cli(project, "jobs", "cancel", str(first)) == asked
    kill(tick)
    said = "has lost its runner: the next tick on this host will cancel the job, unless its final try has failed"
    assert cli(project, "jobs", "cancel", str(second)) == f"job {second} {said}\n"
    other = "'web9' || substr(locked_by, length('" + Identity.here().host + "') + 1)"
    project.sql(f"UPDATE cronjobs_jobs SET locked_by = {other} WHERE id = {third}")
    # the job may still run, as far as this host can see
    assert "next heartbeat" in cli(project, "jobs", "cancel", str(third))
    project.let_leases_end()
    said = f"job {third} has an expired lease: the next tick will cancel the job, unless its runner does so first\n"
    assert cli(project, "jobs", "cancel", str(third)) == said
    project.tick().wait()
    assert [project.job(each)["status"] for each in (first, second, third)] == ["cancelled"] * 3


def test_a_job_whose_runner_lives_is_left_alone_and_it_is_said_who_holds_it(project: Project) -> None:
    [job_id], tick = running(project)
    before = project.everything()
    said = cli(project, "jobs", "release", str(job_id), code=1)
    assert f"job {job_id} is held by process {tick.pid} on {Identity.here().host}, and that process or a " in said
    assert "the lease runs until " in said
    assert f"cronjobs jobs cancel {job_id}" in said
    tick.send(signal.SIGSTOP)  # frozen is not gone
    try:
        assert "a child of it is still running" in cli(project, "jobs", "release", str(job_id), code=1)
    finally:
        tick.send(signal.SIGCONT)
    assert project.everything() == before
    project.open()
    assert tick.wait() == 0
    assert f"job {job_id} is succeeded: nothing to release" in cli(project, "jobs", "release", str(job_id), code=1)
    assert audit(project) == []


def test_a_job_whose_command_still_runs_is_not_released(project: Project) -> None:
    """The job's launcher is stopped, so the command outlives the runner for a while."""
    job_id = project.add("r.command")
    tick = project.start()
    file = project.folder / "pid"
    until(lambda: file.exists() and file.read_text().strip())
    command = int(file.read_text())
    launcher = int(Path(f"/proc/{command}/stat").read_text().rpartition(")")[2].split()[1])  # the parent of the command
    os.kill(launcher, signal.SIGSTOP)
    try:
        kill(tick)
        assert "a child of it is still running" in cli(project, "jobs", "release", str(job_id), code=1)
        assert project.job(job_id)["status"] == "running"
    finally:
        os.kill(launcher, signal.SIGCONT)
    until(lambda: process_started(command) is None and process_started(launcher) is None)
    assert "is queued again" in cli(project, "jobs", "release", str(job_id))


@pytest.mark.parametrize("elsewhere", [{"host": "web9"}, {"boot_id": "another-boot"}, {"pid_namespace": "4026530000"}])
def test_a_job_that_is_held_where_we_cannot_look_is_left_alone(project: Project, elsewhere: dict[str, str]) -> None:
    [job_id], tick = running(project)
    kill(tick)
    holder = Identity.parse(project.job(job_id)["locked_by"])
    assert holder is not None
    there = replace(holder, **elsewhere)  # type: ignore[arg-type]
    project.sql(f"UPDATE cronjobs_jobs SET locked_by = '{there}' WHERE id = {job_id}")
    said = cli(project, "jobs", "release", str(job_id), code=1)
    assert f"is held by process {holder.pid} on {there.host}, which cannot be checked from" in said
    assert "the lease runs until" in said
    assert project.job(job_id)["status"] == "running"
    project.let_leases_end()
    assert "the next tick should record" in cli(project, "jobs", "release", str(job_id), code=1)


def test_in_bulk_only_jobs_whose_runner_is_gone_are_chosen(project: Project) -> None:
    dead, tick = running(project, 2)
    kill(tick)
    alive = project.add("t.quick")
    project.sql(
        f"UPDATE cronjobs_jobs SET status = 'running', locked_by = '{Identity.here()}', attempts = 1, "
        f"locked_until = (SELECT max(locked_until) FROM cronjobs_jobs) WHERE id = {alive}"
    )
    said, _ = json.JSONDecoder().raw_decode(cli(project, "jobs", "release", "--all", "--yes", "--json"))
    assert (said["chosen"], said["changed"], said["unchanged"]) == (2, 2, [])
    assert [project.job(job_id)["status"] for job_id in (*dead, alive)] == ["queued", "queued", "running"]
    assert audit(project) == [("jobs", None)]


def test_a_cancel_that_was_asked_before_the_runner_died_holds(project: Project) -> None:
    [job_id], tick = running(project)
    cli(project, "jobs", "cancel", str(job_id))
    kill(tick)
    assert "is cancelled, as someone requested" in cli(project, "jobs", "release", str(job_id))
    assert project.job(job_id)["status"] == "cancelled"


def test_a_release_that_comes_late_does_not_touch_the_next_attempt(database: Database, clock: FakeClock) -> None:
    """The job was taken over between looking and writing."""
    with database.write() as connection:
        job = claimed(connection, "first")
        held = operating.held(connection, [job.id])
        assert held[job.id].locked_by == "first"
    clock.advance(held[job.id].locked_until - clock.now())
    with database.write() as connection:
        operating.release(connection, list(held.values()), operating.OperatorAction("release", "ada", "web1", None))
        assert claimed(connection, "second").attempt == 2
    with database.write() as connection:
        written = operating.release(
            connection, list(held.values()), operating.OperatorAction("release", "ada", "web1", None)
        )
    assert not written.written
    assert written.lost == {job.id}
    with database.read() as connection:
        assert operating.states(connection, [job.id])[job.id].status is Status.RUNNING


def claimed(connection: Any, locked_by: str) -> Job:
    if locked_by == "first":
        enqueue(connection, "t", {}, run_at=datetime(2026, 1, 1, tzinfo=UTC))  # due, however long a statement takes
    admission = ClaimFilter(known=["t"], fitting=["t"], remaining_s=60, longest_s=60)
    [job] = claim(connection, limit=1, locked_by=locked_by, lease=timedelta(seconds=60), admission=admission).jobs
    return job
