"""An operator's commands for jobs: retry and cancel, on both databases."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from support.commands import LINUX_ONLY, until
from support.ticking import Project as Ticking
from support.ticking import Tick, cli, events

from cronjobs.engine.host.caller import os_user
from cronjobs.engine.probe.kernel_facts import process_started

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

HANDLERS = '''
@job("o.checks", timeout="20s")
def checks(ctx):
    """Asks before each step whether it is still wanted."""
    say("start", ctx)
    while True:
        ctx.check()
        time.sleep(0.02)


@job("o.fails", timeout="20s")
def fails(ctx):
    """Fails by itself when the test opens the gate, having heard of nothing."""
    say("start", ctx)
    wait_for("gate")
    raise RuntimeError("503 from provider")


@job("o.stubborn", timeout="20s")
def stubborn(ctx):
    """Works until it is told to stop, and fails on its way out."""
    say("start", ctx)
    while not ctx.cancelled:
        time.sleep(0.02)
    raise RuntimeError("rolled back")
'''


COMMAND = """
job_types:
  o.command:
    command: [sh, -c, "sleep 1000 & echo $! >> pids; setsid sleep 1001 & echo $! >> pids; echo $$ >> pids; wait"]
    timeout: 30s
    retry: {max_attempts: 5}
"""


@pytest.fixture
def project(project: Ticking) -> Ticking:
    return project.configure(f"run: {{workers: 2, lease: 4s}}\n{COMMAND}", HANDLERS)


def audit(project: Ticking) -> list[tuple[Any, ...]]:
    return project.sql(
        "SELECT action, subject, why FROM cronjobs_audit WHERE action IN ('retry', 'cancel') ORDER BY id"
    )


def test_a_dead_job_is_put_back_with_all_its_tries_and_runs(project: Ticking) -> None:
    job_id = project.add("t.quick", payload="[1]")
    assert project.tick().wait() == 1
    project.sql(f"UPDATE cronjobs_jobs SET payload = '{{}}' WHERE id = {job_id}")
    assert cli(project, "jobs", "retry", str(job_id), "--why", "mended") == f"job {job_id} is queued again, due now\n"
    assert audit(project) == [("retry", f"job {job_id}", "mended")]
    before = project.job(job_id)
    assert (before["status"], before["failures"], before["attempts"]) == ("queued", 0, 1)
    assert project.tick().wait() == 0
    assert project.outcomes(job_id) == ["failed", "succeeded"]


def test_what_waits_is_cancelled_at_once_and_can_be_put_back(project: Ticking) -> None:
    job_id = project.add("t.quick")
    assert cli(project, "jobs", "cancel", str(job_id)) == f"job {job_id} is cancelled\n"
    assert project.tick().wait() == 0
    assert project.effects() == []
    assert project.job(job_id)["last_error"].startswith("cancelled by ")
    cli(project, "jobs", "retry", str(job_id))
    assert project.tick().wait() == 0
    assert project.times_ran() == {job_id: 1}


def cancelled_while_it_runs(project: Ticking, job_id: int, tick: Tick) -> None:
    assert "will ask it to stop" in cli(project, "jobs", "cancel", str(job_id), "--why", "wrong customer")
    assert tick.wait(60) == 0
    job = project.job(job_id)
    assert (job["status"], job["failures"]) == ("cancelled", 0)
    assert job["last_error"] == f"cancelled by {os_user()}: wrong customer"
    assert project.outcomes(job_id) == ["cancelled"]
    assert project.value(f"SELECT error FROM cronjobs_job_runs WHERE job_id = {job_id}") == job["last_error"]
    assert audit(project) == [("cancel", f"job {job_id}", "wrong customer")]
    assert "wrong customer" in events(project.log(), "job.cancelled")[0]


@pytest.mark.parametrize("job_type", ["o.checks", "o.stubborn"])
def test_a_running_handler_is_told_at_the_next_heartbeat_and_is_not_tried_again(
    project: Ticking, job_type: str
) -> None:
    job_id = project.add(job_type)
    tick = project.start()
    until(lambda: project.effects("start"))
    cancelled_while_it_runs(project, job_id, tick)


@LINUX_ONLY
def test_a_running_command_is_stopped_with_everything_that_it_started(project: Ticking) -> None:
    job_id = project.add("o.command")
    tick = project.start()
    file = project.folder / "pids"
    until(lambda: file.exists() and len(file.read_text().split()) == 3)
    pids = [int(pid) for pid in file.read_text().split()]
    assert all(process_started(pid) for pid in pids)
    cancelled_while_it_runs(project, job_id, tick)
    assert not any(process_started(pid) for pid in pids)


def test_a_cancel_that_meets_an_attempt_that_fails_before_it_hears_of_it_holds(project: Ticking) -> None:
    """The next heartbeat is a quarter of a minute away; the attempt is recorded as it went, and there is no other."""
    project.configure("run: {workers: 2}\n", HANDLERS)
    job_id = project.add("o.fails")
    tick = project.start()
    until(lambda: project.effects("start"))
    cli(project, "jobs", "cancel", str(job_id), "--why", "wrong customer")
    project.open()
    assert tick.wait(60) == 0
    job = project.job(job_id)
    assert (job["status"], job["last_error"]) == ("cancelled", f"cancelled by {os_user()}: wrong customer")
    assert project.outcomes(job_id) == ["failed"]
    assert project.value(f"SELECT error FROM cronjobs_job_runs WHERE job_id = {job_id}") == "503 from provider"
    assert events(project.log(), "job.cancelled")
    assert not events(project.log(), "job.retried")


def test_a_result_that_came_before_the_stop_counts(project: Ticking) -> None:
    project.configure("run: {workers: 2}\n", HANDLERS)
    job_id = project.add("t.gated")
    tick = project.start()
    until(lambda: project.effects("start"))
    cli(project, "jobs", "cancel", str(job_id))
    project.open()
    assert tick.wait(60) == 0
    job = project.job(job_id)
    assert (job["status"], job["last_error"]) == ("succeeded", None)


def test_a_job_whose_runner_died_is_not_run_again_when_it_was_cancelled(project: Ticking) -> None:
    job_id = project.add("t.gated")
    tick = project.start()
    until(lambda: project.effects("start"))
    cli(project, "jobs", "cancel", str(job_id), "--why", "wrong customer")
    tick.send(signal.SIGKILL)
    tick.wait()
    project.let_leases_end()
    project.tick()
    job = project.job(job_id)
    assert (job["status"], job["last_error"]) == ("cancelled", f"cancelled by {os_user()}: wrong customer")
    assert len(project.effects("start")) == 1


def test_what_has_ended_or_is_not_there_is_left_alone_and_said(project: Ticking) -> None:
    job_id = project.add("t.quick")
    assert project.tick().wait() == 0
    before = project.job(job_id)
    assert f"job {job_id} is succeeded: nothing to cancel" in cli(project, "jobs", "cancel", str(job_id), code=1)
    assert f"job {job_id} is succeeded: nothing to retry" in cli(project, "jobs", "retry", str(job_id), code=1)
    assert "job 999 does not exist" in cli(project, "jobs", "cancel", "999", code=1)
    assert project.job(job_id) == before
    assert audit(project) == []
