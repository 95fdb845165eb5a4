"""``cronjobs effects list`` and ``effects settle``, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update
from support.project import Project

from cronjobs.desk.cli import effects as effects_command
from cronjobs.engine.database.tables import effects, jobs
from cronjobs.engine.host.identity import Identity
from cronjobs.errors import EffectUnknown

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

NOW = datetime.now(UTC)


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> Project:
    project = Project(tmp_path, database_url)
    project.write()
    return project


def add(project: Project, key: str, state: str = "begun", **columns: Any) -> None:
    if state == "recorded":
        columns.setdefault("recorded_at", NOW)
    columns.setdefault("begun_at", NOW - timedelta(minutes=5))
    project.execute(insert(effects).values(key=key, state=state, **columns))


def running_job(project: Project, job_id: int) -> None:
    columns = {"locked_by": "host:1", "locked_until": NOW + timedelta(hours=1), "attempts": 1}
    project.execute(insert(jobs).values(id=job_id, job_type="t", status="running", **columns))


TIMED_OUT = "attempt 1, which began it, timed out"


def dead_job(project: Project, job_id: int, key: str, earlier: str | None = None) -> None:
    columns = {"error_type": "EffectUnknown", "last_error": str(EffectUnknown(key, earlier)), "finished_at": NOW}
    project.execute(insert(jobs).values(id=job_id, job_type="t", status="dead", **columns))


def fill(project: Project) -> None:
    """Add one effect in each state, the newest last."""
    running_job(project, 7)
    add(project, "mail:1", "recorded", job_id=1, attempt=1, result={"id": 5}, begun_at=NOW - timedelta(minutes=9))
    add(project, "mail:2", job_id=2, attempt=1, begun_at=NOW - timedelta(minutes=8))
    add(project, "mail:3", "stopped", job_id=3, attempt=2, begun_at=NOW - timedelta(minutes=7))
    add(project, "pay:4", "skipped", job_id=4, attempt=1, begun_at=NOW - timedelta(minutes=6))
    add(project, "pay:7", job_id=7, attempt=1, begun_at=NOW - timedelta(minutes=5))


# --- list -------------------------------------------------------------------------------------------------------------


def test_effects_are_listed_with_what_is_known_of_them_the_newest_first(project: Project) -> None:
    fill(project)
    answer = project.call("effects", "list")
    assert (answer.code, answer.err) == (0, "")
    lines = [line.split() for line in answer.out.splitlines()]
    assert [line[:3] for line in lines] == [
        ["key", "state", "job"],
        ["pay:7", "running", "7"],
        ["pay:4", "skipped", "4"],
        ["mail:3", "stopped", "3"],
        ["mail:2", "unknown", "2"],
        ["mail:1", "done", "1"],
    ]
    assert '{"id": 5}' in answer.out


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (["--state", "unknown"], ["mail:2"]),
        (["--state", "stopped"], ["mail:3"]),
        (["--state", "skipped"], ["pay:4"]),
        (["--state", "running"], ["pay:7"]),
        (["--state", "done"], ["mail:1"]),
        (["--key", "mail:"], ["mail:3", "mail:2", "mail:1"]),
        (["--key", "mail:", "--state", "done"], ["mail:1"]),
        (["--key", "ail"], []),
        (["--key", "%"], []),
        (["--limit", "2"], ["pay:7", "pay:4"]),
    ],
)
def test_a_list_can_be_narrowed(project: Project, options: list[str], keys: list[str]) -> None:
    fill(project)
    answer = project.call("effects", "list", "--json", *options)
    assert [effect["key"] for effect in answer.json] == keys
    assert ("raise --limit" in answer.err) == ("--limit" in options)


def test_json_has_the_columns_and_what_is_known(project: Project) -> None:
    fill(project)
    [effect] = project.call("effects", "list", "--json", "--key", "mail:1").json
    assert effect.pop("begun_at").endswith("+00:00")
    assert effect.pop("recorded_at").endswith("+00:00")
    known = {"key": "mail:1", "job_id": 1, "attempt": 1, "state": "recorded", "result": {"id": 5}, "standing": "done"}
    assert effect == known | {"repeats": 0}


def test_an_effect_whose_process_is_gone_is_unknown_and_not_yet_settled(project: Project) -> None:
    fill(project)
    gone = f"{Identity.here().place}1:1:x"  # pid 1 began at another time
    project.execute(update(jobs).where(jobs.c.id == 7).values(locked_by=gone))
    assert [each["key"] for each in project.call("effects", "list", "--json", "--state", "running").json] == []
    unknown = project.call("effects", "list", "--json", "--state", "unknown").json
    assert [(each["key"], each["state"], each["standing"]) for each in unknown] == [
        ("pay:7", "begun", "unknown"),
        ("mail:2", "begun", "unknown"),
    ]
    answer = project.call("effects", "settle", "pay:7", "done")
    assert answer.code == 1
    assert (
        "job's process is gone: wait until a tick has recorded the loss, or type: cronjobs jobs release 7" in answer.err
    )


def test_repeats_of_an_effect_are_listed(project: Project) -> None:
    add(project, "mail:1", "recorded", job_id=1, attempt=3, repeats=2)
    head, line = project.call("effects", "list").out.splitlines()
    assert line[: head.index("repeats") + len("repeats")].endswith(" 2")
    assert project.call("effects", "list", "--json").json[0]["repeats"] == 2


def test_keys_and_results_do_nothing_to_a_terminal(project: Project) -> None:
    add(project, "k\x1b[2J\nnext", "recorded", result="\x1b[2J")
    out = project.call("effects", "list").out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 2


def test_an_empty_list_says_so(project: Project) -> None:
    assert project.call("effects", "list").err == "no effect\n"
    assert project.call("effects", "list", "--state", "unknown").err == "no such effect\n"
    assert project.call("effects", "list", "--json").json == []


# --- settle -----------------------------------------------------------------------------------------------------------


def audit(project: Project) -> list[dict[str, Any]]:
    return [row for row in project.rows("audit") if row["action"] == "settle"]


@pytest.mark.parametrize("state", ["begun", "stopped", "skipped"])
def test_an_effect_settled_as_done_is_recorded_with_its_result(project: Project, state: str) -> None:
    add(project, "mail:1", state, job_id=5, attempt=2)
    options = ["--result", '{"id": "a1"}', "--why", "seen in the\noutbox"]
    answer = project.call("effects", "settle", "mail:1", "done", *options)
    assert (answer.code, answer.out) == (0, "effect mail:1 is recorded as done: no attempt will repeat it\n")
    [row] = project.rows("effects")
    assert (row["state"], row["result"], row["job_id"], row["attempt"]) == ("recorded", {"id": "a1"}, 5, 2)
    assert row["recorded_at"] is not None
    [entry] = audit(project)
    assert (entry["subject"], entry["why"]) == ("effect mail:1", "seen in the\\noutbox")
    assert entry["detail"] == {"as": "done", "was": state, "job_id": 5, "attempt": 2}
    assert entry["actor"]
    assert entry["host"]


def test_a_result_can_be_added_to_an_effect_that_is_recorded_without_one_and_never_replaced(project: Project) -> None:
    """A handler that reads the result would otherwise fail for ever."""
    add(project, "mail:1", "begun", job_id=5, attempt=2)
    assert project.call("effects", "settle", "mail:1", "done").code == 0
    [before] = project.rows("effects")
    added = project.call("effects", "settle", "mail:1", "done", "--result", '{"id": "a1"}')
    assert (added.code, added.out) == (0, "effect mail:1 is recorded as done: no attempt will repeat it\n")
    [after] = project.rows("effects")
    assert after == before | {"result": {"id": "a1"}}
    assert [entry["detail"]["was"] for entry in audit(project)] == ["begun", "recorded"]
    for options in (["done", "--result", '{"id": "b2"}'], ["done"], ["not-done"]):
        refused = project.call("effects", "settle", "mail:1", *options)
        assert (refused.code, project.rows("effects")) == (1, [after])
    assert len(audit(project)) == 2


@pytest.mark.parametrize("state", ["begun", "stopped", "skipped"])
def test_an_effect_settled_as_not_done_was_never_begun(project: Project, state: str) -> None:
    add(project, "mail:1", state, job_id=5, attempt=2)
    answer = project.call("effects", "settle", "mail:1", "not-done")
    done = "effect mail:1 counts as never begun: if there is a later attempt, it will perform the effect\n"
    assert (answer.code, answer.out) == (0, done)
    assert project.rows("effects") == []
    [entry] = audit(project)
    assert entry["detail"] == {"as": "not-done", "was": state, "job_id": 5, "attempt": 2}


def test_settling_names_the_jobs_that_are_dead_for_the_effect_and_no_others(project: Project) -> None:
    """It names them in one command: after a bad night, a hundred effects may be settled together."""
    key = "mail:1 it's"
    add(project, key, "stopped", job_id=5, attempt=2)
    for job_id, of in ((5, key), (6, key), (7, "mail:2")):
        dead_job(project, job_id, of, TIMED_OUT if job_id == 6 else None)
    answer = project.call("effects", "settle", key, "done")
    assert answer.out.splitlines()[1:] == [
        "2 jobs died because of this effect. To run them again: cronjobs jobs retry 5 6"
    ]


def test_settling_says_how_many_jobs_its_command_leaves_out(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects_command, "LISTED_JOBS", 2)
    add(project, "mail:1", "stopped", job_id=5, attempt=2)
    for job_id in (5, 6, 7):
        dead_job(project, job_id, "mail:1")
    answer = project.call("effects", "settle", "mail:1", "done")
    assert answer.out.endswith("3 jobs died because of this effect. To run them again: cronjobs jobs retry 5 6\n")
    assert answer.err.startswith("this command leaves out 1 more job.")


@pytest.mark.parametrize(("status", "named"), [("dead", True), ("cancelled", True), ("queued", False)])
def test_settling_names_the_job_that_began_the_effect_and_ended_for_another_reason(
    project: Project, status: str, named: bool
) -> None:
    ended = {} if status == "queued" else {"finished_at": NOW}
    project.execute(insert(jobs).values(id=5, job_type="t", status=status, error_type="GiveUp", **ended))
    add(project, "mail:1", job_id=5, attempt=1)
    answer = project.call("effects", "settle", "mail:1", "done")
    again = "job 5 began this effect and did not succeed. To run the job again: cronjobs jobs retry 5"
    assert answer.out.splitlines()[1:] == ([again] if named else [])


def test_several_effects_are_settled_together_or_not_at_all(project: Project) -> None:
    fill(project)
    before = project.everything()
    refused = project.call("effects", "settle", "mail:2", "mail:1", "mail:3", "done")
    assert (refused.code, refused.out) == (1, "")
    assert project.everything() == before
    answer = project.call("effects", "settle", "mail:2", "mail:3", "mail:2", "done", "--why", "in the outbox")
    assert answer.out == "".join(
        f"effect {key} is recorded as done, without a result: no attempt will repeat it\n"
        for key in ("mail:2", "mail:3")
    )
    assert {row["key"] for row in project.rows("effects") if row["state"] == "recorded"} == {
        "mail:1",
        "mail:2",
        "mail:3",
    }
    assert [entry["subject"] for entry in audit(project)] == ["effect mail:2", "effect mail:3"]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("mail:1", "is recorded as done and is never repeated: nothing was changed"),
        ("pay:7", "job 7 is performing the effect pay:7 now"),
        ("mail:99", 'there is no effect mail:99: "cronjobs effects list" lists all effects'),
    ],
)
@pytest.mark.parametrize("verdict", ["done", "not-done"])
def test_what_needs_no_settling_stays_as_it_is(project: Project, key: str, said: str, verdict: str) -> None:
    fill(project)
    before = project.everything()
    answer = project.call("effects", "settle", key, verdict)
    assert (answer.code, answer.out) == (1, "")
    assert said in answer.err
    assert project.everything() == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["done", "--result", "{1"], "--result is not JSON"),
        (["done", "--result", "NaN"], "--result: result is nan, which is not JSON"),
        (["done", "--result", '"' + "x" * 300_000 + '"'], "larger than 262,144 bytes"),
        (["not-done", "--result", "1"], "an effect that was not done has no result"),
        (["perhaps"], "'perhaps' is not one of 'done', 'not-done'"),
    ],
)
def test_a_settlement_that_cannot_be_meant_is_refused(project: Project, options: list[str], said: str) -> None:
    add(project, "mail:1")
    before = project.everything()
    answer = project.call("effects", "settle", "mail:1", *options)
    assert answer.code == 2
    assert said in " ".join(answer.err.replace("│", " ").split())
    assert project.everything() == before
