"""What an operator does to jobs: retry and cancel, by the command line, on both databases."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from commands import until
from ticking import Project as Ticking
from ticking import events

HANDLERS = '''
@job("o.stubborn", timeout="20s")
def stubborn(ctx):
    """Works until it is told to stop, and fails on its way out."""
    say("start", ctx)
    while not ctx.cancelled:
        time.sleep(0.02)
    raise RuntimeError("rolled back")
'''


@pytest.fixture
def project(project: Ticking) -> Ticking:
    return project.configure("run: {workers: 2, lease: 2s}\n", HANDLERS)


def cli(project: Ticking, *words: str, code: int = 0) -> str:
    argv = [sys.executable, "-m", "cronjobs", *words, "--config", str(project.folder / "cronjobs.yaml")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done
    return done.stdout + done.stderr


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


def test_a_running_job_is_told_at_the_next_heartbeat_and_is_not_tried_again(project: Ticking) -> None:
    job_id = project.add("o.stubborn")
    tick = project.start()
    until(lambda: project.effects("start"))
    assert "asked to stop" in cli(project, "jobs", "cancel", str(job_id), "--why", "wrong customer")
    assert tick.wait(15) == 0
    assert project.job(job_id)["status"] == "cancelled"
    assert project.outcomes(job_id) == ["cancelled"]
    assert events(project.log(), "job.cancelled")


def test_what_has_ended_or_is_not_there_is_left_alone_and_said(project: Ticking) -> None:
    job_id = project.add("t.quick")
    assert project.tick().wait() == 0
    before = project.job(job_id)
    assert f"job {job_id} is succeeded: nothing to cancel" in cli(project, "jobs", "cancel", str(job_id), code=1)
    assert f"job {job_id} is succeeded: nothing to retry" in cli(project, "jobs", "retry", str(job_id), code=1)
    assert "job 999 is not there" in cli(project, "jobs", "cancel", "999", code=1)
    assert project.job(job_id) == before
    assert audit(project) == []
