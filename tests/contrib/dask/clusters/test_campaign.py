"""The short form of ``python -m tests.contrib.dask.clusters``, and its judge."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rounds import rounds
from support.ticking import Effect, Project

from contrib.dask.clusters.campaign import campaign, intervals, violations


@pytest.mark.slow
def test_no_attempt_runs_twice_while_a_cluster_is_under_fire(tmp_path: Path) -> None:
    jobs = rounds(10, 16)
    report = campaign(
        tmp_path,
        database="sqlite",
        seed=3,
        jobs=jobs,
        faults=rounds(3, 4),
        workers=2,
        threads=3,
        limit_s=400,
        without_tokens=False,
    )
    assert report["violations"] == [], report
    assert report["statuses"] == {"succeeded": jobs}
    assert sum(report["faults"].values()) > 0


def test_the_judge_sees_two_attempts_that_run_at_once(sqlite_project: Project) -> None:
    job_id = sqlite_project.add("far.work")
    sqlite_project.sql("UPDATE cronjobs_jobs SET status = 'succeeded', finished_at = run_at")
    lines = [(0.0, "start", 1, 7), (1.0, "beat", 1, 7), (0.9, "start", 2, 8), (2.0, "end", 2, 8), (3.0, "start", 2, 9)]
    found = [Effect(at, what, job_id, attempt, pid) for at, what, attempt, pid in lines]
    text = "".join(f"{each.at} {each.what} {each.job_id} {each.attempt} {each.pid}\n" for each in found)
    (sqlite_project.folder / "effects").write_text(text)
    starts = [each for each in found if each.what == "start"]
    assert violations(sqlite_project, [job_id], intervals(found), starts) == [
        f"attempt 2 of job {job_id} ran 2 times",
        f"attempts 1 and 2 of job {job_id} ran at the same time for 0.100 s",
    ]
