"""What ``explain`` says about a name of ``cronjobs exec``: its runs, and a run that is absent."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import insert, update
from support.explained import MINUTE, World, brake, utc
from support.explained import clock as clock
from support.explained import cronjobs as cronjobs
from support.explained import world as world

from cronjobs.contrib.exec.findings import found
from cronjobs.desk.crontab import program
from cronjobs.desk.store import exec_runs
from cronjobs.engine.database import tables
from cronjobs.engine.rules.recovery_policy import AttemptPolicy
from cronjobs.engine.store.sql import database_now
from cronjobs.model import RetryPolicy

NIGHTLY = {"cron": "15 2 * * *", "timezone": "UTC", "host": "web1", "from": "crontab"}
POLICY = AttemptPolicy(RetryPolicy(1), on_lost="dead")
ROW = exec_runs.ExecRow(
    "",
    "exec:dump",
    "web1:boot:1:1:1:x",
    timedelta(0),
    10 * MINUTE,
    AttemptPolicy(RetryPolicy(1), on_lost="dead"),
    NIGHTLY,
    "ada",
)


def run(world: World, at: str) -> None:
    world.go(utc(at))
    with world.database.write() as connection:
        exec_runs.begin(connection, replace(ROW, key=at))


@pytest.fixture
def nights(world: World) -> World:
    """Runs of the first and the third night; the second and the fourth night have none."""
    world.file()
    run(world, "2026-03-02T02:15:01")
    run(world, "2026-03-04T02:15:01")
    world.go(utc("2026-03-05T08:00:00"))
    return world


def test_what_the_finding_says_to_type_explains_the_run_that_did_not_come(nights: World) -> None:
    with nights.database.read() as connection:
        findings = found(connection, nights.settings(), database_now(connection)).findings
    [absent] = [each for each in findings if each.key == "absent:dump"]
    assert absent.command == "cronjobs explain exec:dump"
    told = nights.ask("exec:dump")
    assert told.verdict == "absent"
    assert told.found["sentences"][0] == (
        "dump was due at 2026-03-05 02:15:00 UTC by the crontab of web1 (15 2 * * *), but did not start: "
        '"cronjobs exec" recorded no run since.'
    )
    assert " ".join(told.found["sentences"][1:3]) == (
        "The line is no longer there, cron did not start it, or the run's record has not reached this database. On the "
        'host with the crontab, see whether the crontab still has the line ("crontab -l"). "cronjobs doctor" there '
        "checks whether a cron daemon runs and whether records wait for the database."
    )
    assert "Job 2 is a run of cronjobs exec dump" in told


def test_a_wrapped_line_that_has_not_run_yet_is_known(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file()
    world.tick(utc("2026-03-02T08:00:10"))
    monkeypatch.setattr(program, "read", lambda: "A=b\n5 4 * * 0 /venv/bin/cronjobs exec reindex -c 'reindex --all'\n")
    for name in ("reindex", "exec:reindex"):
        told = world.ask(name)
        assert told.verdict == "pending"
        assert (
            f"line 2 of your crontab (5 4 * * 0) runs {name} through cronjobs exec, but this database has no run"
            in told
        )
    world.ask("rebuild", code=1)


def test_a_run_begins_before_it_ends_even_if_its_row_is_younger(world: World) -> None:
    world.file()
    run(world, "2026-03-02T02:15:01")
    began, ended = utc("2026-03-02T02:15:01"), utc("2026-03-02T02:15:01.200")
    attempt = {"job_id": 1, "attempt": 1, "outcome": "failed", "runner": "web1", "started_at": began}
    with world.database.write() as connection:
        connection.execute(insert(tables.job_runs).values(attempt | {"finished_at": ended}))
        over = {"status": "dead", "finished_at": ended, "locked_by": None, "locked_until": None}
        connection.execute(update(tables.jobs).values(over))
    began_at, failed = world.ask("1").found["sentences"][1:3]
    assert began_at.startswith("It began at 2026-03-02 02:15:01 UTC")
    assert failed.startswith("Attempt 1 failed at 02:15:01")


def test_a_run_of_exec_is_explained_by_its_time(nights: World) -> None:
    assert nights.ask("exec:dump", "--at", "2026-03-02T02:15").found["subject"] == "job 1"
    told = nights.ask("exec:dump", "--at", "2026-03-03T02:15")
    assert told.verdict == "absent"
    assert "dump was due at 2026-03-03 02:15:00 UTC" in told
    assert "The previous run began at 2026-03-02 02:15:01 (job 1)" in told
    assert nights.ask("dump", "--at", "02:15").verdict == "absent"
    assert nights.ask("dump", "--at", "03:00").verdict == "not_due"
    assert nights.ask("dump", "--at", "2026-03-06T02:15").verdict == "pending"


def test_a_span_of_exec_lists_runs_and_what_did_not_come(nights: World) -> None:
    answer = nights.cronjobs("explain", "exec:dump", "--since", "7d", "--json").json
    assert [(each["verdict"], each["facts"]["count"]) for each in answer["occurrences"]] == [
        ("running", 1), ("absent", 1), ("running", 1), ("absent", 1)
    ]  # fmt: skip
    assert answer["counts"] == {"running": 2, "absent": 2}
    lines = nights.say("exec:dump", "--since", "7d").out.splitlines()
    assert lines[1] == "4 occurrences: 2 running, 2 absent."
    assert any("2026-03-03 02:15:00" in line and '"cronjobs exec" recorded no run' in line for line in lines)


def test_a_dismissed_run_asks_for_no_other_dismissal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.file()
    run(world, "2026-03-02T02:15:01")
    with world.database.write() as connection:
        at = world.clock.now()
        ended = {"status": "dead", "locked_by": None, "locked_until": None, "finished_at": at}
        connection.execute(update(tables.jobs).values(ended))
    dismiss = '"cronjobs jobs dismiss 1" ends the reports about this death'
    assert dismiss in world.ask("dump")
    brake(world, "jobs", "dismiss", "1", monkeypatch=monkeypatch)
    told = world.ask("dump")
    assert dismiss not in told
    again = "cron runs its crontab line again when the line is due."
    assert told.steady[-1] == f"Job 1 died at 02:15:01, and was dismissed; {again}"
