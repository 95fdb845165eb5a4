"""A job that may take longer than a tick: a separate process takes it over, and the tick ends as usual."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import until
from support.longjobs import LongJobs, long_jobs
from support.pages import Page
from support.ticking import Project, events

from cronjobs.clock import SYSTEM

pytestmark = [pytest.mark.slow, pytest.mark.either]

PAGE = Page("docs/how-to/long-work.md")


@pytest.fixture
def longs(project: Project) -> Iterator[LongJobs]:
    with long_jobs(project) as longs:
        yield longs


@pytest.fixture
def sqlite_longs(sqlite_project: Project) -> Iterator[LongJobs]:
    with long_jobs(sqlite_project) as longs:
        yield longs


def test_long_jobs_outlive_their_tick_and_their_ends_are_recorded(longs: LongJobs) -> None:
    project = longs.project
    gated, awaited = project.add("l.gated"), project.add("l.async")
    command = project.add("l.command", '{"month": 7}')
    tick = longs.tick()
    assert (tick.process.returncode, tick.stdout, tick.stderr) == (0, "", "")
    assert longs.did()["handed_over"] == 3
    until(lambda: len(project.effects("start")) == 3, 30)
    assert all(project.job(each)["status"] == "running" for each in (gated, awaited, command))
    assert len(longs.supervisors()) == 3
    project.open()
    assert longs.ended(gated)["result"] in ('{"attempt":1}', {"attempt": 1})
    assert longs.ended(awaited)["result"] in ('"awaited"', "awaited")
    assert longs.ended(command)["status"] == "succeeded"
    assert [project.outcomes(each) for each in (gated, awaited, command)] == [["succeeded"]] * 3
    assert "at work" in longs.cli("jobs", "show", str(gated))
    assert 'payload {"month": 7}' in longs.cli("jobs", "show", str(command))
    runner, worker = project.sql(f"SELECT runner, worker FROM cronjobs_job_runs WHERE job_id = {gated}")[0]
    assert ":long-" in runner
    assert worker == "1"
    assert set(project.times_ran("start").values()) == set(project.times_ran("end").values()) == {1}
    assert len(events(project.log(), "job.handed_over")) == len(events(project.log(), "job.succeeded")) == 3
    longs.nobody_left()


def test_the_tick_ends_while_its_long_job_goes_on_whose_output_it_does_not_hold_open(sqlite_longs: LongJobs) -> None:
    """Cron waits, and mails, until nobody holds the pipe of its line any more."""
    longs, project = sqlite_longs, sqlite_longs.project
    job_id = project.add("l.gated")
    argv = [sys.executable, "-m", "cronjobs", "run-due", "--config", str(project.folder / "cronjobs.yaml")]
    env = {"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(project.folder)}
    pipe = subprocess.PIPE
    cron = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    said, _ = cron.communicate(timeout=30)  # until the last writer is gone
    assert (cron.returncode, said) == (0, b"")
    with pytest.raises(ProcessLookupError):
        os.killpg(cron.pid, 0)  # nor does a signal to its group, as Ctrl-C is one, reach the long job
    assert project.job(job_id)["status"] == "running"
    assert longs.supervisors()
    project.open()
    assert longs.ended(job_id)["status"] == "succeeded"


def test_an_error_of_a_long_job_is_recorded_as_any_other_and_retried(longs: LongJobs) -> None:
    job_id = longs.project.add("l.fails")
    longs.tick()
    row = longs.ended(job_id)
    assert (row["status"], row["failures"], row["last_error"]) == ("failed", 1, "no such ledger")
    shown = longs.cli("jobs", "show", str(job_id))
    assert "about to fail" in shown
    assert 'raise ValueError("no such ledger")' in shown
    assert events(longs.project.log(), "job.retried")


def test_people_are_told_who_holds_a_long_job_and_since_when(longs: LongJobs) -> None:
    job_id = longs.begin("l.gated")
    host = longs.project.job(job_id)["locked_by"].partition(":")[0]
    told = longs.cli("jobs", "list")
    assert "running" in told
    assert f"on {host}, lease" in told
    told = longs.cli("status")
    assert "1 handed over" in told
    line = rf"^ +{job_id}  l\.gated  {re.escape(host)} +[\d.]+m?s  lease [\dms.]+ left$"
    assert re.search(line, told, re.MULTILINE), told
    assert f"attempt 1 on {host}, begun" in longs.cli("jobs", "show", str(job_id))
    assert f"is running now: attempt 1 on {host}, begun at" in longs.cli("explain", str(job_id))
    longs.project.open()
    longs.ended(job_id)
    assert "Attempt 1 succeeded at" in longs.cli("explain", str(job_id))


# --- which jobs are long ----------------------------------------------------------------------------------------------


def test_a_row_makes_a_long_job_of_an_ordinary_type_by_its_timeout(longs: LongJobs) -> None:
    job_id = longs.begin("t.gated", timeout_s=40)
    assert longs.supervisor(job_id)
    longs.project.open()
    assert longs.ended(job_id)["status"] == "succeeded"


@pytest.mark.parametrize(
    ("timeout_s", "shown"),
    [("1e300", "1e+300"), ("9e999", "inf"), ("1e9", "1000000000"), ("2592001", "2592001")],
)
def test_a_row_with_an_absurd_timeout_is_dead_with_the_reason(longs: LongJobs, timeout_s: str, shown: str) -> None:
    if timeout_s == "9e999" and not longs.project.is_sqlite:
        timeout_s = "Infinity"
    found = longs.project.value(
        f"INSERT INTO cronjobs_jobs (job_type, timeout_s) VALUES ('t.quick', {timeout_s!r}) RETURNING id"
        if timeout_s == "Infinity"
        else f"INSERT INTO cronjobs_jobs (job_type, timeout_s) VALUES ('t.quick', {timeout_s}) RETURNING id"
    )
    assert longs.tick().process.returncode == 1
    row = longs.project.job(found)
    assert row["status"] == "dead"
    assert row["last_error"].startswith(f"timeout_s {shown} is more than the longest timeout, 30 days")
    assert not longs.project.effects()


def test_a_row_whose_timeout_is_no_number_is_dead_with_the_reason(postgres_project: Project) -> None:
    with long_jobs(postgres_project) as longs:
        job_id = postgres_project.add("t.quick", timeout_s="NaN")
        assert longs.tick().process.returncode == 1
        assert postgres_project.job(job_id)["status"] == "dead"
        assert not postgres_project.effects()


# --- how many at once -------------------------------------------------------------------------------------------------


def most_at_once(project: Project) -> int:
    """By what the handlers did, not by rows."""
    moments = sorted((effect.at, {"start": 1, "end": -1}[effect.what]) for effect in project.effects())
    now = most = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


def test_four_ticks_at_once_run_no_more_long_jobs_than_a_host_may(longs: LongJobs) -> None:
    longs.configure("long_jobs: 2", budget_s=30)  # four ticks and four interpreters start at once
    project = longs.project
    jobs = [project.add("l.short") for _ in range(5)]
    until_s = SYSTEM.monotonic() + 120
    while any(project.job(each)["status"] != "succeeded" for each in jobs):
        assert SYSTEM.monotonic() < until_s, project.log()
        for tick in [longs.start() for _ in range(4)]:
            assert tick.wait(60) == 0, tick.stderr
    assert most_at_once(project) == 2
    assert set(project.times_ran("end").values()) == {1}
    assert all(project.outcomes(each) == ["succeeded"] for each in jobs)
    assert all(project.job(each)["failures"] == 0 for each in jobs)
    assert not events(project.log(), "job.not_handed_over")


def test_each_host_has_long_jobs_of_its_own(longs: LongJobs) -> None:
    longs.configure("long_jobs: 1")
    first = longs.begin("l.gated")
    waits = longs.project.add("l.gated")
    longs.tick()
    assert longs.project.job(waits) | {"status": "queued", "attempts": 0} == longs.project.job(waits)
    longs.tick(CRONJOBS_HOST="elsewhere")
    until(lambda: longs.project.times_ran("start")[waits], 30)
    assert longs.project.job(waits)["locked_by"].startswith("elsewhere:")
    longs.project.open()
    assert [longs.ended(each)["status"] for each in (first, waits)] == ["succeeded"] * 2


def test_with_long_jobs_0_no_long_job_begins_and_explain_says_why(longs: LongJobs) -> None:
    longs.configure("long_jobs: 0")
    job_id = longs.project.add("l.gated")
    quick, of_row = longs.project.add("t.quick"), longs.project.add("t.quick", timeout_s=600)
    for _ in range(5):  # on a slow host a short tick may find no time for it
        assert longs.tick().process.returncode == 0
        if longs.project.job(quick)["status"] != "queued":
            break
    assert longs.project.job(quick)["status"] == "succeeded"
    for each in (job_id, of_row):
        assert (longs.project.job(each)["status"], longs.project.job(each)["attempts"]) == ("queued", 0)
        assert "(run.long_jobs: 0), the only host that ticks" in longs.cli("explain", str(each))


def test_limit_only_and_queue_hold_for_long_jobs_too(longs: LongJobs) -> None:
    project = longs.project
    jobs = [project.add("l.gated") for _ in range(3)]
    elsewhere, other = project.add("l.gated", queue="q"), project.add("l.async")
    longs.tick("--limit", "1", "--only", "l.gated")
    assert longs.did()["handed_over"] == 1
    longs.tick("--queue", "q")
    assert project.job(elsewhere)["status"] == "running"
    assert project.job(other)["status"] == "queued"
    assert sum(project.job(each)["status"] == "running" for each in jobs) == 1
    longs.tick()
    assert sum(project.job(each)["status"] == "running" for each in (*jobs, elsewhere, other)) == 4
    project.open()


# --- being told -------------------------------------------------------------------------------------------------------


def test_a_long_job_that_ends_dead_between_ticks_is_told_by_the_next_one_once(longs: LongJobs) -> None:
    job_id = longs.project.add("l.gives-up")
    assert longs.tick().stderr == ""
    assert longs.ended(job_id)["status"] == "dead"
    longs.nobody_left()
    second, third = longs.tick(), longs.tick()
    assert (second.process.returncode, second.stdout) == (0, "")
    assert longs.says_it_gave_up(second.stderr, job_id)
    assert (third.stdout, third.stderr) == ("", "")


def test_an_idle_tick_is_silent_and_begins_nothing_while_a_long_job_runs(longs: LongJobs) -> None:
    job_id = longs.begin("l.gated")
    for _ in range(2):
        tick = longs.tick()
        assert (tick.process.returncode, tick.stdout, tick.stderr) == (0, "", "")
    longs.project.open()
    assert longs.ended(job_id)["attempts"] == 1
    assert longs.project.times_ran("start") == {job_id: 1}


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_s_commands_do_what_it_says(sqlite_longs: LongJobs) -> None:
    project = sqlite_longs.project
    yaml = PAGE.block("yaml", "long_jobs: 4").replace(
        "15 2 * * *", "15 2 29 2 *"
    )  # or a test at 02:15 waits for tonight's backup, too
    (project.folder / "cronjobs.yaml").write_text(yaml.replace("sqlite:///cronjobs.db", project.url))
    blocks = [PAGE.block("console", says) for says in ("jobs cancel 1", "pause --all")]
    commands = [line for block in blocks for line in block.splitlines()]
    folder = project.folder / "bin"
    folder.mkdir()
    (folder / "pg_dump").write_text("#!/bin/sh\nexec sleep 120\n")
    (folder / "pg_dump").chmod(0o755)
    env = {
        "PATH": f"{folder}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "XDG_STATE_HOME": str(project.folder),
        "COLUMNS": "200",
    }
    said = {}
    for command in commands:
        words = ["bash", "-c", command.removeprefix("$ ")]
        done = subprocess.run(
            words, cwd=project.folder, env=env, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        said[command.removeprefix("$ cronjobs ")] = done.stdout + done.stderr
    assert "1  running  backup" in said["jobs list --status running"]
    assert "is running now" in said["explain 1"]
    row = project.job(1)
    assert (row["status"], row["last_error"].partition(": ")[2]) == ("cancelled", "wrong disk")
