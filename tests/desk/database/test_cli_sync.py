"""``cronjobs sync``, ``pause`` and ``resume``: what they change, and that ticks obey it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update
from support.project import Project

from cronjobs.engine.database.tables import jobs, meta, pauses, schedules

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

COMMANDS = 'timezone: Europe/Berlin\njob_types: {t.ok: {command: ["true"]}}\n'
THREE = COMMANDS + (
    "schedules:\n  a: {every: 5m, job: t.ok, payload: {token: c4n4ry-1}}\n"
    '  b: {cron: "15 2 * * *", job: t.ok}\n  c: {every: 1h, job: t.ok}\n'
)


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> Project:
    """On both databases."""
    project = Project(tmp_path, database_url)
    project.write(THREE)
    return project


@pytest.fixture
def lite(tmp_path: Path, sqlite_migrated: str) -> Project:
    """Where the database does not matter."""
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write(THREE)
    return project


def active(project: Project) -> set[str]:
    return {row["name"] for row in project.rows("schedules") if row["status"] == "active"}


# --- sync -------------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_would_change_and_changes_nothing(project: Project) -> None:
    before = project.everything()
    done = project.call("sync", "--plan")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "+ a: every 5m → t.ok",
        '+ b: "15 2 * * *" Europe/Berlin → t.ok',
        "+ c: every 1h → t.ok",
    ]
    assert project.everything() == before


def test_sync_puts_the_file_in_force_and_a_second_time_there_is_nothing_to_do(project: Project) -> None:
    assert project.call("sync").code == 0
    assert active(project) == {"a", "b", "c"}
    again = project.call("sync")
    assert (again.code, again.out, again.err) == (0, "", "no schedule changes, and no queue's cap changes\n")
    [applied, _] = [row for row in project.rows("audit") if row["action"] == "sync"]
    assert applied["detail"] == {"add": ["a", "b", "c"], "change": [], "remove": [], "rename": []}
    assert project.rows("meta")[0]["project"] == "shop"


def test_what_changes_in_a_schedule_is_said_without_its_payload(project: Project) -> None:
    project.call("sync")
    changed = THREE.replace("every: 5m", "every: 10m").replace("c4n4ry-1", "c4n4ry-2")
    project.write(changed.replace("15 2 * * *", "30 2 * * *").replace("  c: {every: 1h, job: t.ok}\n", ""))
    done = project.call("sync")
    assert done.out.splitlines() == [
        "~ a: payload changed; every 5m → 10m",
        "~ b: cron 15 2 * * * → 30 2 * * *",
        "- c",
    ]
    assert active(project) == {"a", "b"}


def test_a_schedule_with_a_new_name_is_told_as_that(project: Project) -> None:
    project.call("sync")
    project.write(THREE.replace("  c: {every: 1h", "  d: {renamed_from: c, every: 2h"))
    planned = project.call("sync", "--plan")
    assert planned.out == "> c → d\n~ d: every 1h → 2h\n"
    assert project.call("sync", "--plan", "--json").json["rename"] == [{"from": "c", "to": "d"}]
    assert project.call("sync").out == planned.out
    assert active(project) == {"a", "b", "d"}


def test_sync_as_json_is_one_object(project: Project) -> None:
    project.call("sync")
    project.write(THREE.replace("every: 5m", "every: 10m, timeout: 5s").replace("c4n4ry-1", "c4n4ry-2"))
    done = project.call("sync", "--plan", "--json")
    assert done.json == {
        "applied": False,
        "add": [],
        "change": {
            "a": {"payload": "changed", "every_s": {"from": 300, "to": 600}, "timeout_s": {"from": None, "to": 5}}
        },
        "remove": [],
        "rename": [],
        "refused": None,
        "cap": [],
        "uncap": [],
        "problems": [],
    }
    assert "c4n4ry" not in done.out
    assert "timeout none → 5s" in project.call("sync", "--plan").out


@pytest.mark.parametrize("plan", [["--plan"], []])
def test_a_file_that_would_retire_most_schedules_is_refused(project: Project, plan: list[str]) -> None:
    project.call("sync")
    project.write(COMMANDS)
    done = project.call("sync", *plan)
    assert done.code == 1
    assert (
        'the file would retire 3 of 3 schedules (a, b, c): if that is intended, run "cronjobs sync --allow' in done.err
    )
    assert active(project) == {"a", "b", "c"}
    meant = project.call("sync", "--allow-removals", *plan)
    assert (meant.code, meant.out) == (0, "- a\n- b\n- c\n")
    assert active(project) == ({"a", "b", "c"} if plan else set())


def test_a_bad_entry_stays_as_it_is_and_the_others_are_applied(project: Project) -> None:
    project.call("sync")
    project.write(THREE.replace("15 2 * * *", "61 2 * * *").replace("every: 1h", "every: 2h"))
    done = project.call("sync")
    assert (done.code, done.out) == (3, "~ c: every 1h → 2h\n")
    assert "schedules.b.cron: minute 61 is not in 0–59" in done.err
    assert active(project) == {"a", "b", "c"}


def test_what_was_due_under_the_old_definition_is_settled_first(project: Project) -> None:
    project.call("sync")
    past = datetime.now(UTC) - timedelta(minutes=7)
    project.execute(update(schedules).where(schedules.c.name == "a").values(seen_until=past, next_at=past))
    project.write(THREE.replace("every: 5m", "every: 10m"))
    assert project.call("sync").code == 0
    assert [row["outcome"] for row in project.rows("occurrences")][-1] == "enqueued"
    assert [job["schedule"] for job in project.jobs()] == ["a"]


def test_somebody_elses_database_is_neither_planned_nor_changed(project: Project) -> None:
    project.execute(update(meta).values(project="other"))
    for command in (["sync"], ["sync", "--plan"], ["pause", "--all"], ["resume", "--all"]):
        done = project.call(*command)
        assert (done.code, done.out) == (3, "")
        assert 'belongs to project "other"' in done.err
    assert project.rows("schedules") == project.rows("pauses") == []


def test_a_plan_makes_no_file_and_needs_tables_on_postgresql(tmp_path: Path, empty_url: str) -> None:
    project = Project(tmp_path, empty_url)
    project.write(THREE)
    done = project.call("sync", "--plan")
    if empty_url.startswith("sqlite"):
        assert (done.code, len(done.out.splitlines())) == (0, 3)
        assert [file.name for file in tmp_path.iterdir()] == ["cronjobs.yaml"]
        Path(empty_url.removeprefix("sqlite:///")).touch()
        assert project.call("sync", "--plan").out == done.out
    else:
        assert done.code == 4
        assert '"cronjobs db upgrade"' in done.err


# --- pause and resume -------------------------------------------------------------------------------------------------


def test_a_pause_is_kept_said_and_audited_and_ended(project: Project) -> None:
    done = project.call("pause", "--all", "--why", "mail is\ndown")
    assert done.code == 0
    assert done.out.startswith("everything is paused by ")
    assert done.out.endswith(": mail is\\ndown\n")
    again = project.call("pause", "--all", "--until", "2030-07-01T09:00", "--json")
    assert len(again.json) == 1
    assert again.json[0]["until"] == "2030-07-01T07:00:00+00:00"
    assert "is taken as Europe/Berlin time" in again.err
    ended = project.call("resume", "--all")
    assert (ended.code, ended.out, ended.err) == (
        0,
        "",
        "resumed: everything; the next tick starts the jobs that waited\nnothing is paused\n",
    )
    nothing = project.call("resume", "--all")
    assert (nothing.code, nothing.err) == (
        0,
        "nothing to resume: no pause of everything is in force\nnothing is paused\n",
    )
    audit = [(row["action"], row["subject"], row["why"]) for row in project.rows("audit")]
    assert audit == [("pause", "all", r"mail is\ndown"), ("pause", "all", None), ("resume", "all", None)]
    assert all(row["actor"] and row["host"] for row in project.rows("audit"))


def test_each_pause_is_taken_off_by_itself(lite: Project) -> None:
    for command in (["--all"], ["--queue", "mail"], ["b", "--for", "1h"]):
        assert lite.call("pause", *command).code == 0
    said = [line.split(" is paused")[0] for line in lite.call("resume", "--all").out.splitlines()]
    assert said == ["queue mail", "schedule b"]
    assert lite.call("resume", "b").out.startswith("queue mail is paused")
    assert lite.call("resume", "--queue", "mail", "--json").json == []


def test_a_pause_whose_time_is_over_is_none(project: Project) -> None:
    project.call("pause", "--all", "--for", "1h")
    project.execute(update(pauses).values(until=datetime.now(UTC) - timedelta(seconds=1)))
    nothing = "nothing to resume: no pause of everything is in force\nnothing is paused\n"
    assert project.call("resume", "--all").err == nothing


@pytest.mark.parametrize(
    ("pause", "left"), [(["--all"], {"a", "b"}), (["--queue", "mail"], {"b"}), (["--queue", "default"], {"a"})]
)
def test_ticks_begin_nothing_that_is_paused(project: Project, pause: list[str], left: set[str]) -> None:
    # A job begins only if its timeout fits into what is left of the tick. Of a minute, a host that stalls leaves less.
    project.write("run: {every: 1h, budget: 10m}\n" + COMMANDS)
    project.call("pause", *pause)
    for queue, key in (("default", "a"), ("mail", "b")):
        project.execute(insert(jobs).values(job_type="t.ok", queue=queue, idempotency_key=key))
    assert project.run("run-due").code == 0
    assert {job["idempotency_key"] for job in project.jobs() if job["status"] == "queued"} == left
    project.call("resume", *pause)
    assert project.run("run-due").code == 0
    assert {job["status"] for job in project.jobs()} == {"succeeded"}


def test_a_paused_schedule_waits_and_resume_lists_what_it_held_back(project: Project) -> None:
    project.call("sync")
    paused = project.call("pause", "a", "--why", "not now")
    assert paused.out.startswith("schedule a is paused by ")
    past = datetime.now(UTC) - timedelta(minutes=11)
    project.execute(update(schedules).where(schedules.c.name == "a").values(seen_until=past, next_at=past))
    project.execute(update(pauses).values(paused_at=past))
    assert project.run("run-due").code == 0
    assert written(project, "a") == []
    resumed = project.call("resume", "a")
    job = next(job for job in project.jobs() if job["schedule"] == "a")
    assert re.fullmatch(
        rf"a: [23] occurrences waited, from .* to .*: [12] coalesced, 1 enqueued \(job {job['id']}\)\n",
        resumed.out,
    )


def test_a_pause_that_skips_records_what_comes_due_and_stops_no_deploy(project: Project) -> None:
    project.call("sync")
    skips = project.call("pause", "a", "--skip", "--why", "not now")
    assert skips.out.startswith("schedule a is paused by ")
    past = datetime.now(UTC) - timedelta(minutes=6)
    project.execute(update(schedules).values(seen_until=past, next_at=past))
    project.execute(update(pauses).values(paused_at=past))
    assert project.run("run-due").code == 0
    rows = written(project, "a")
    assert {row["outcome"] for row in rows} == {"skipped"}
    assert "not now" in rows[0]["reason"]
    assert "a" not in [job["schedule"] for job in project.jobs()]


def written(project: Project, name: str) -> list[dict[str, Any]]:
    [schedule] = [row for row in project.rows("schedules") if row["name"] == name]
    return [row for row in project.rows("occurrences") if row["schedule_id"] == schedule["id"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give one of: --all, --queue NAME, or a SCHEDULE"),
        (["--all", "a"], "give one of"),
        (["--all", "--queue", "x"], "give one of"),
        (["aa"], 'there is no schedule "aa", did you mean "a"?'),
        (["--queue", ""], "queue '' must have 1 to 200 characters"),
        (["a\nb"], "unprintable characters"),
        (["--all", "--for", "0s"], "--for must be above zero"),
        (["--all", "--for", "ever"], "is not a duration"),
        (["--all", "--until", "2020-01-01"], "--until has already passed: 2020-01-01 00:00:00 Europe/Berlin"),
        (["--all", "--until", "later"], "is not an ISO time"),
        (["--queue", "mail", "--skip"], "--skip is for --all or a schedule"),
        (["--all", "--until", "2030-01-01", "--for", "1h"], "give --until or --for, not both"),
    ],
)
def test_a_pause_that_cannot_be_meant_is_refused(lite: Project, arguments: list[str], said: str) -> None:
    done = lite.call("pause", *arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert lite.rows("pauses") == lite.rows("audit") == []


def test_a_queue_in_which_nothing_waits_is_paused_with_a_warning(lite: Project) -> None:
    lite.execute(insert(jobs).values(job_type="t.ok", queue="mail"))
    assert (
        'no job is waiting in a queue named "mial" now, did you mean "mail"?'
        in lite.call("pause", "--queue", "mial").err
    )
    assert lite.call("pause", "--queue", "mail").err == ""
    assert [row["name"] for row in lite.rows("pauses")] == ["mail", "mial"]


def test_json_is_an_array_of_the_pauses_in_force(lite: Project) -> None:
    found = json.loads(lite.call("pause", "b", "--json").out)
    assert [(pause["scope"], pause["name"], pause["until"]) for pause in found] == [("schedule", "b", None)]
