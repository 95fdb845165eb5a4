"""What ``explain`` and ``status`` say about a long job whose process was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from support.commands import LINUX_ONLY
from support.longjobs import LongJobs, long_jobs
from support.ticking import Project, cli

pytestmark = [LINUX_ONLY, pytest.mark.slow]


@pytest.fixture
def longs(project: Project) -> Iterator[LongJobs]:
    with long_jobs(project) as longs:
        yield longs


def explained(longs: LongJobs, job_id: int) -> str:
    return " ".join(cli(longs.project, "explain", str(job_id)).split())


def test_a_long_job_whose_process_was_killed(longs: LongJobs) -> None:
    job_id = longs.begin("l.deaf")
    os.kill(longs.supervisor(job_id), signal.SIGKILL)
    longs.nobody_left(1)
    said = explained(longs, job_id)
    assert "Job 1 was running: attempt 1 on" in said
    assert "the process is gone, so the next tick on that host" in said
    assert "the runner's process is gone" in cli(longs.project, "status")
    longs.tick("--only", "t.quick")
    assert "was lost: its runner died or lost its lease, as recorded at" in explained(longs, job_id)
    longs.project.make_due()
    longs.tick()
    assert "Job 1 is running now: attempt 2 on" in explained(longs, job_id)
    assert "lost l.deaf #1, found" in " ".join(cli(longs.project, "history").split())
    assert longs.project.outcomes(job_id) == ["lost"]
