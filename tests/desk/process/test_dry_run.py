"""``run-due --dry-run`` prints what a tick would do, and does nothing of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update
from support.commands import until
from support.project import Project

from cronjobs.engine.database.tables import jobs, meta, schedules

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

YAML = (
    'timezone: Europe/Berlin\njob_types: {t.ok: {command: ["true"]}, t.two: {command: ["true"]}}\n'
    "schedules:\n  a: {every: 24h, job: t.ok, priority: 3}\n  b: {every: 24h, job: t.ok, catch_up: none}\n"
)
NOW = datetime.now(UTC)


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> Project:
    """On both databases."""
    project = Project(tmp_path, database_url)
    project.write(YAML)
    return project


def dry(project: Project, *arguments: str) -> list[str]:
    """The lines of a dry run, which changed nothing."""
    before = project.everything()
    done = project.run("run-due", "--dry-run", *arguments)
    assert project.everything() == before
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("nothing was changed\n")
    return done.out.splitlines()[:-1]


def put(project: Project, **values: Any) -> None:
    project.execute(insert(jobs).values({"job_type": "t.ok", "run_at": NOW - timedelta(seconds=9)} | values))


def test_on_a_fresh_database_it_says_what_the_file_would_bring(project: Project) -> None:
    assert dry(project) == ["the file would be applied: + a, + b", "no job would run"]


def test_jobs_are_told_in_the_order_in_which_they_would_run(project: Project) -> None:
    put(project, priority=5, run_at=NOW - timedelta(seconds=5))
    put(project, priority=5, run_at=NOW - timedelta(seconds=7), job_type="t.two")
    put(project, priority=1, queue="mail")
    put(project, run_at=NOW + timedelta(hours=1))
    put(project, status="succeeded", finished_at=NOW)
    put(project, priority=9, timeout_s=3600)
    lines = dry(project)[1:]
    assert lines[0] == "would run 4 jobs, in this order:"
    assert [line.split(":")[0] for line in lines[1:5]] == [
        "  job 3 t.ok",
        "  job 2 t.two",
        "  job 1 t.ok",
        "  job 6 t.ok",
    ]
    assert ", queue mail" in lines[1]
    assert lines[4].endswith("in a process of its own: its timeout of 1h is longer than the 50s that a tick allows")
    assert lines[5].startswith("the next job is due ")
    assert [job["id"] for job in project.run("run-due", "--dry-run", "--json", "--queue", "mail").json["jobs"]] == [3]
    assert [job["id"] for job in project.run("run-due", "--dry-run", "--json", "--only", "t.two").json["jobs"]] == [2]


def test_many_jobs_are_counted_and_the_first_are_shown(project: Project) -> None:
    project.execute(insert(jobs).values([{"job_type": "t.ok", "run_at": NOW - timedelta(seconds=9)}] * 1200))
    lines = dry(project)[1:]
    assert lines[0] == "would run 1,200 jobs, in this order:"
    assert (len(lines), lines[-1]) == (52, "  … and 1,150 more")


def test_schedules_that_are_due_and_what_their_policies_make_of_it(project: Project) -> None:
    project.write(YAML.replace("24h", "5m"))
    until(lambda: datetime.now(UTC).timestamp() % 300 < 280, within_s=30)  # no occurrence while this test runs
    assert project.run("run-due").code == 0
    past = datetime.now(UTC) - timedelta(hours=30)
    project.execute(update(schedules).values(seen_until=past, next_at=past))
    lines = dry(project)
    assert any(line.startswith("schedule a: 7") and "would be recorded as missed" in line for line in lines)
    assert any(line.startswith("schedule a: 2") and "would be recorded as coalesced" in line for line in lines)
    assert any(line.startswith("schedule b: 3") and "would be recorded as missed" in line for line in lines)
    assert any(line.startswith("  a new job t.ok: priority 3, due ") for line in lines)
    told = project.run("run-due", "--dry-run", "--json").json
    really = project.run("run-due", "--json").json["occurrences"]
    counts = {"missed": 0, "coalesced": 0, "enqueued": 0}
    for schedule in told["schedules"]:
        counts["missed"] += schedule["missed"]
        counts["coalesced"] += schedule["coalesced"]
        counts["enqueued"] += len(schedule["occurrences"])
    assert {outcome: count for outcome, count in counts.items() if count} == really


def test_a_full_queue_keeps_an_occurrence_out_as_the_tick_says_a_second_later(project: Project) -> None:
    project.write(YAML + "queues: {default: {max_waiting: 1, on_full: error}}\n")
    assert project.run("run-due").code == 0
    put(project, run_at=NOW + timedelta(days=1))
    past = datetime.now(UTC) - timedelta(hours=25)
    project.execute(update(schedules).where(schedules.c.name == "a").values(seen_until=past, next_at=past))
    lines = dry(project)
    assert any(
        "would be recorded as skipped: full: queue default was at its limit of waiting jobs, 1" in line
        for line in lines
    )
    assert "no job would run" in lines
    told = project.run("run-due", "--dry-run", "--json").json["schedules"]
    [occurrence] = [each for schedule in told for each in schedule["occurrences"]]
    assert project.run("run-due").code == 0
    [row] = [row for row in project.rows("occurrences") if row["outcome"] == "skipped"]
    assert (occurrence["outcome"], occurrence["reason"]) == (row["outcome"], row["reason"])


def test_a_cap_that_the_file_brings_counts_already(project: Project) -> None:
    assert project.run("run-due").code == 0
    put(project, run_at=NOW + timedelta(days=1))
    past = datetime.now(UTC) - timedelta(hours=25)
    project.execute(update(schedules).where(schedules.c.name == "a").values(seen_until=past, next_at=past))
    assert any("would become a job" in line for line in dry(project))
    project.write(YAML + "queues: {default: {max_waiting: 1, on_full: error}}\n")
    assert any("would be recorded as skipped: full" in line for line in dry(project))


def test_a_job_that_waits_for_a_limit_is_told_so(project: Project) -> None:
    project.write(YAML + "limits: {smtp: 1}\n")
    put(project, concurrency_key="smtp:a")
    put(project, concurrency_key="smtp:b")
    put(project, concurrency_key="other")
    first, second, third = (line for line in dry(project) if line.startswith("  job "))
    assert "waits" not in first + third
    assert second.endswith('waits: limit "smtp" is reached (1 at once)')
    waits = [job["waits_for"] for job in project.run("run-due", "--dry-run", "--json").json["jobs"]]
    assert waits == [None, 'limit "smtp" is reached (1 at once)', None]


def test_what_the_tick_refuses_a_dry_run_refuses(project: Project) -> None:
    for arguments in ([], ["--dry-run"]):
        done = project.run("run-due", *arguments, env={"CRONJOBS_SCHEDULES": "of"})
        assert (done.code, done.err.count("CRONJOBS_SCHEDULES is neither on nor off")) == (2, 1)


def test_an_occurrence_that_gives_way_names_the_job_it_gives_way_to(project: Project) -> None:
    assert project.run("run-due").code == 0
    put(project, schedule="a", run_at=NOW + timedelta(days=1))
    past = datetime.now(UTC) - timedelta(hours=25)
    project.execute(update(schedules).where(schedules.c.name == "a").values(seen_until=past, next_at=past))
    lines = dry(project)
    assert any("would be recorded as skipped: overlap: job 1 was still unfinished" in line for line in lines)
    assert "no job would run" in lines


def test_what_is_paused_waits_unresolved_or_ran_out_is_told(project: Project) -> None:
    assert project.run("run-due").code == 0
    put(project, job_type="t.gone")
    put(project)
    put(project, status="running", attempts=1, locked_by="a:b:c:1:2:3", locked_until=NOW - timedelta(seconds=1))
    project.call("pause", "--queue", "default", "--why", "deploy")
    lines = dry(project)
    assert lines[0].startswith("queue default is paused by ")
    assert lines[1] == "1 lease expired: the tick would first record how those attempts ended"
    assert lines[2] == "no job would run"
    assert lines[3] == '1 job of type "t.gone" would wait: no handler or command for this type is registered here'
    project.call("resume", "--queue", "default")
    assert "would run 1 job, in this order:" in dry(project)


def test_what_a_sync_would_do_is_told(project: Project) -> None:
    assert project.run("run-due").code == 0
    assert dry(project) == ["no job would run"]
    project.write(
        YAML.replace("every: 24h, job: t.ok, priority: 3", "every: 48h, job: t.ok") + "  c: {every: 1h, job: t.ok}\n"
    )
    assert dry(project)[0] == "the file would be applied: + c, ~ a"
    project.write(YAML.partition("schedules:")[0])
    said = "the file would retire 2 of 2 schedules"
    assert dry(project)[0].startswith(f"the file would not be applied: {said}")
    tick = project.run("run-due")
    assert (tick.code, "cronjobs check" in tick.err) == (3, False)
    assert said in tick.err
    assert tick.err.rstrip().endswith("sync --plan")
    assert f"could not use the file and still cannot: {said}" in " ".join(project.run("history").out.split())


def test_where_schedules_are_off_none_is_told(project: Project) -> None:
    before = project.run("run-due", "--dry-run", env={"CRONJOBS_SCHEDULES": "off"})
    assert before.out == "no job would run\nnothing was changed\n"


def test_as_json_it_is_one_object(project: Project) -> None:
    put(project)
    before = project.everything()
    told = project.run("run-due", "--dry-run", "--json").json
    assert project.everything() == before
    assert (told["dry_run"], told["due"], told["expired"]) == (True, 1, 0)
    assert told["sync"] == {"add": ["a", "b"], "change": [], "remove": [], "refused": None, "rename": []}
    assert {name: told["jobs"][0][name] for name in ("id", "job_type", "priority")} == {
        "id": 1,
        "job_type": "t.ok",
        "priority": 5,
    }
    assert told["unresolved"] == told["paused"] == told["faults"] == told["problems"] == []


def test_from_somebody_elses_database_nothing_would_run(project: Project) -> None:
    project.execute(update(meta).values(project="other"))
    put(project)
    done = project.run("run-due", "--dry-run")
    assert (done.code, done.out) == (3, "")
    assert 'belongs to project "other"' in done.err


def test_a_module_that_prints_or_fails_does_not_spoil_the_answer(project: Project) -> None:
    project.write("", "print('noise')\nimport nowhere")
    done = project.run("run-due", "--dry-run", "--json")
    assert done.json["faults"][0]["where"] == "module handlers"
    assert "noise" in done.err


def test_a_dry_run_makes_no_database(tmp_path: Path, sqlite_url: str) -> None:
    project = Project(tmp_path, sqlite_url)
    project.write(YAML)
    done = project.run("run-due", "--dry-run")
    assert (done.code, done.out) == (0, "there is no database yet: the first tick creates it\n")
    assert not list(tmp_path.rglob("*.db*"))
