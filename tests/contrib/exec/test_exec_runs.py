"""Runs of exec as rows: found by name and time, settled, pruned, and judged."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cronjobs.clock import SYSTEM
from cronjobs.contrib.exec import delivery, due_by, findings, settling, spool
from cronjobs.contrib.exec.rows import rows
from cronjobs.contrib.exec.run import ExecRun
from cronjobs.contrib.exec.target import no_project
from cronjobs.desk.crontab import program
from cronjobs.desk.insight.explain_exec import exec_evidence
from cronjobs.desk.insight.findings import judge
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.store import exec_runs
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.probe import state_files
from cronjobs.engine.rules.lease import Finish, Lease
from cronjobs.engine.rules.recovery_policy import AttemptPolicy
from cronjobs.engine.store import counts, leases, operating
from cronjobs.engine.store.sql import database_now, run
from cronjobs.errors import BadValue
from cronjobs.model import RetryPolicy, Status
from cronjobs.testing import FakeClock

CRONTAB = "0 * * * * cronjobs exec hourly -c 'true'\n0 3 * * * cronjobs exec nightly -c true\n"


@pytest.fixture(autouse=True)
def crontab(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The user's, which a test may change; the host's zone is UTC."""
    text = {"text": CRONTAB}
    monkeypatch.setattr(program, "read", lambda: text["text"])
    monkeypatch.setattr(due_by, "host_timezone", lambda: "UTC")
    return text


def a_run(name: str, ago: timedelta, took: timedelta | None = timedelta(0), **more: Any) -> ExecRun:
    began = SYSTEM.now().timestamp() - ago.total_seconds()
    facts = {"token": f"{name}-{began}", "name": name, "locked_by": str(Identity.here()), "began": began}
    if took is not None:
        facts |= {"ended": began + took.total_seconds(), "took": took.total_seconds(), "status": 0}
    return ExecRun.read(facts | more)


def record(database: Database, *runs: ExecRun) -> None:
    for each in runs:
        (delivery.begin if each.ended is None else delivery.end)(database, each)


def found(database: Database, settings: Settings) -> dict[str, str]:
    with database.read() as connection:
        return {each.key: each.text for each in judge(look(connection, settings, JobTypes()), settings)}


HOUR = timedelta(hours=1)


def test_absence_and_overlap_are_findings_until_the_next_run(database: Database) -> None:
    settings = no_project()
    record(database, a_run("hourly", 3 * HOUR), a_run("other", 3 * HOUR, 2 * HOUR), a_run("other", 2 * HOUR))
    assert found(database, settings) == {
        "absent:hourly": "hourly was due under cron, but exec has recorded no run of it",
        "overlapped:other": "the last run of other began while the previous run was still running",
    }
    # A run that waited in the spool is recorded later than the runs after it.
    record(database, a_run("hourly", timedelta(0)), a_run("hourly", 2 * HOUR), a_run("other", timedelta(0)))
    assert found(database, settings) == {}


def test_a_line_that_a_schedule_has_taken_over_is_watched_no_more(database: Database) -> None:
    """Exec never runs it again, so no run would end the findings."""
    record(database, a_run("hourly", 3 * HOUR), a_run("other", 3 * HOUR, 2 * HOUR), a_run("other", 2 * HOUR))
    record(database, a_run("kept", 3 * HOUR, 2 * HOUR), a_run("kept", 2 * HOUR))
    record(database, a_run("handler", 3 * HOUR, cron="0 * * * *"))
    values = "(name, definition, fingerprint, seen_until) VALUES (:name, 'null', '', :at)"
    with database.write() as connection:
        now = database_now(connection)
        for name, at in {"hourly": now, "other": now, "kept": now - 2 * HOUR}.items():
            run(connection, f"INSERT INTO cronjobs_schedules {values}", name=name, at=at)
        handler = values.replace("null", '{{"job": "t.other"}}')
        run(connection, f"INSERT INTO cronjobs_schedules {handler}", name="handler", at=now)
    with database.read() as connection:
        assert {*exec_runs.run_by_cron(connection)} == {"exec:kept", "exec:handler"}
        keys = [each.key for each in findings.found(connection, no_project(), now).findings]
        assert keys == ["absent:handler", "overlapped:kept"]
        assert {each.name for each in rows(connection, now, None)[0]} == {"exec:kept", "exec:handler"}


def test_a_line_that_left_the_crontab_is_expected_no_more(database: Database, crontab: dict[str, str]) -> None:
    record(database, a_run("hourly", 3 * HOUR), a_run("mine", 3 * HOUR, cron="0 * * * *"))
    settling.tidy(database, None, local=False)
    assert [*found(database, no_project())] == ["absent:hourly", "absent:mine"]
    crontab["text"] = "0 3 * * * cronjobs exec nightly -c true\n"
    settling.tidy(database, None, local=False)
    assert [*found(database, no_project())] == ["absent:mine"], "which the command line itself expects"


def test_a_line_that_came_back_to_the_crontab_is_expected_from_then_on(
    database: Database, crontab: dict[str, str], clock: FakeClock
) -> None:
    """Unwrap, and wrap again: a run that ends in between must not switch off the watch over the other lines."""
    record(database, a_run("hourly", 3 * HOUR))
    crontab["text"] = ""
    settling.tidy(database, None, local=False)
    assert found(database, no_project()) == {}
    crontab["text"] = CRONTAB
    settling.tidy(database, None, local=False)
    assert found(database, no_project()) == {}, "no run was due since the line came back"
    clock.advance(2 * HOUR)
    assert [*found(database, no_project())] == ["absent:hourly"]


def test_a_line_that_records_for_another_project_now_is_expected_no_more(
    database: Database, crontab: dict[str, str]
) -> None:
    record(database, a_run("hourly", 3 * HOUR), a_run("nightly", 30 * HOUR))
    crontab["text"] = CRONTAB.replace("exec hourly", "exec hourly --config /srv/ops/cronjobs.yaml")
    settling.tidy(database, "/srv/ops/cronjobs.yaml", local=False)
    assert [*found(database, no_project())] == ["absent:hourly", "absent:nightly"]
    settling.tidy(database, None, local=False)
    assert [*found(database, no_project())] == ["absent:nightly"]


def test_a_line_that_left_the_crontab_is_forgotten_before_its_next_run_is_due(
    database: Database, crontab: dict[str, str], clock: FakeClock
) -> None:
    far = f"0 {(clock.now() + 12 * HOUR).hour} * * *"  # not within the three hours, whenever the test runs
    record(database, a_run("hourly", timedelta(0)), a_run("nightly", timedelta(0), cron=far))
    crontab["text"] = f"{far} cronjobs exec nightly -c true\n"
    settling.tidy(database, None, local=False)
    clock.advance(3 * HOUR)
    assert found(database, no_project()) == {}


def test_a_run_whose_exec_is_gone_is_dead_and_its_end_counts_when_it_comes_after_all(
    database: Database, clock: FakeClock
) -> None:
    here = str(Identity.here())
    gone = ":".join([*here.split(":")[:3], "1", "1", "token"])  # no process has this PID and start time
    before_boot = here.replace(here.split(":")[1], "00000000-0000-0000-0000-000000000000")
    rebooted = a_run("rebooted", HOUR, None, locked_by=before_boot)
    record(database, a_run("killed", HOUR, None, locked_by=gone), rebooted, a_run("alive", HOUR, None))
    settling.settle_lost(database)
    assert statuses(database) == {"exec:alive": "running", "exec:killed": "dead", "exec:rebooted": "dead"}
    late = replace(rebooted, ended=rebooted.began + 60, took=60.0, status=0)
    assert delivery.end(database, late)
    assert not delivery.end(database, late), "once"
    assert statuses(database)["exec:rebooted"] == "succeeded"
    with database.read() as connection:
        outcomes = run(connection, "SELECT outcome FROM {job_runs} ORDER BY job_id").scalars().all()
    assert sorted(outcomes) == ["lost", "succeeded"]


def test_a_run_that_the_database_refuses_keeps_no_other_in_the_spool(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    began = SYSTEM.now().timestamp() - 60
    run_of = {"name": "backup", "cron": None, "locked_by": str(Identity.here()), "took": 1.0, "status": 0}
    for token, name, at in (("a", "x" * 3000, began), ("b", "backup", began + 1), ("c", "early", 30.0)):
        assert spool.put("here", run_of | {"token": token, "name": name, "began": at, "ended": at + 1}) is None
    with pytest.raises(BadValue, match=r"-a\.json\.refused: .*lengths_ck"):
        delivery.deliver(database, "here")
    delivery.deliver(database, "here")  # the database's refusal is reported once
    assert state_files.spooled(None) == []
    [aside] = (tmp_path / "cronjobs" / spool.FOLDER).iterdir()
    assert aside.name.endswith("-a.json.refused")
    with database.read() as connection:
        rows = run(connection, "SELECT job_type, status, run_at FROM {jobs} ORDER BY job_type").all()
    assert [(row.job_type, row.status) for row in rows] == [("exec:backup", "succeeded"), ("exec:early", "succeeded")]
    # The clock of a host without one of its own began in 1970.
    assert abs(rows[1].run_at - rows[0].run_at) < timedelta(minutes=10)


def test_released_by_hand_it_is_dead(database: Database) -> None:
    record(database, a_run("gone", HOUR, None))
    act = operating.OperatorAction("release", "ada", "here", None)
    with database.write() as connection:
        held = [*operating.held(connection, [1]).values()]
        assert operating.release(connection, held, act).written == {1}
        assert operating.retry(connection, [1], act).done == frozenset()
    assert statuses(database) == {"exec:gone": "dead"}


def statuses(database: Database) -> dict[str, str]:
    with database.read() as connection:
        rows = run(connection, "SELECT job_type, status FROM {jobs} ORDER BY job_type").all()
    return {row.job_type: row.status for row in rows}


def test_explain_finds_the_newest_run_by_its_name(database: Database) -> None:
    record(database, a_run("nightly", timedelta(0), status=256), a_run("nightly", HOUR))
    with database.read() as connection:
        by_name, by_type = (
            exec_evidence(connection, named, no_project(), JobTypes) for named in ("nightly", "exec:nightly")
        )
        assert by_name is not None
        assert by_type is not None
        told = by_name.latest()
        assert told == by_type.latest()
        assert told.verdict == "dead"
        assert told.sentences[0].startswith("Job 1 is a run of cronjobs exec nightly")
        assert exec_evidence(connection, "night", no_project(), JobTypes) is None


def test_the_users_own_database_forgets_what_is_old(database: Database) -> None:
    record(database, a_run("old", 100 * 24 * HOUR), a_run("new", HOUR))
    with database.write() as connection:
        assert exec_runs.prune(connection, {Status.SUCCEEDED: timedelta(days=90)}) == 1
    assert statuses(database) == {"exec:new": "succeeded"}


def test_a_run_of_exec_that_was_taken_for_lost_counts_as_what_it_was_then_and_is_now(database: Database) -> None:
    policy = AttemptPolicy(RetryPolicy(max_attempts=1))
    row = exec_runs.ExecRow("k", "exec:backup", "me", timedelta(0), timedelta(days=1), policy, {}, "cron")
    with database.write() as connection:
        job_id = exec_runs.begin(connection, row)
        assert job_id is not None
        lost = Finish(Lease(job_id, 1, "me"), Status.DEAD, 0, 1, 0, "lost", error="gone", error_type="Lost")
        leases.finish(connection, [lost])
    succeeded = Finish(Lease(job_id, 1, "me"), Status.SUCCEEDED, 0, 0, 0, "succeeded", duration=timedelta(0))
    for _ in range(2):  # the second round finds it written, and changes nothing
        with database.write() as connection:
            exec_runs.end(connection, exec_runs.find(connection, "k"), row, succeeded)
    with database.read() as connection:
        ended = {(key.kind, key.outcome): each.number for key, each in counts.all_that_ended(connection).items()}
    assert ended == dict.fromkeys(
        (("jobs", "dead"), ("jobs", "succeeded"), ("attempts", "lost"), ("attempts", "succeeded")), 1
    )
