"""``cronjobs doctor --release`` on a project: items to do come first and decide the exit code."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, text
from support.project import Answer, Project

from cronjobs.clock import SYSTEM
from cronjobs.contrib.doctor.cli import BY_CHECK
from cronjobs.contrib.doctor.examine import CHECKS
from cronjobs.desk.crontab import block, host, program
from cronjobs.desk.insight import leftovers as outside
from cronjobs.engine.database import tables
from cronjobs.engine.host.identity import Identity

READY = """
environment: production
timezone: Europe/Berlin
log: cronjobs.log
run: {ping: "https://ping.example/1"}
alerts: {channels: {ops: {command: [/bin/true]}}}
"""
HANDLERS = """
import cronjobs
@cronjobs.job("t.work", timeout="5s")
def work(): pass
"""


@pytest.fixture
def ready(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose host ticks, and for which nothing is to do."""
    project = Project(tmp_path, database_url)
    project.write(READY, HANDLERS)
    crontab = block.block(tmp_path / "cronjobs.yaml", program.interpreter())
    monkeypatch.setattr(program, "read", lambda: crontab)
    monkeypatch.setattr(host, "daemon_runs", lambda *_: True)
    monkeypatch.setattr(outside, "LOGROTATE", tmp_path)
    assert project.call("db", "adopt").code == 0
    tick = {"tick": "now", "host": Identity.here().host, "pid": 1, "version": "0", "schedules_on": 1}
    at = SYSTEM.now() - timedelta(seconds=20)
    project.execute(insert(tables.ticks).values(tick | {"started_at": at, "finished_at": at}))
    return project


def answers(found: Answer) -> dict[str, str]:
    return {each["item"]: each["answer"] for each in found.json["items"]}


@pytest.mark.needs("contrib.alerts")
def test_what_is_to_do_decides_the_exit_code(ready: Project) -> None:
    found = ready.call("doctor", "--release", "--json")
    assert found.code == 0, found.out
    assert found.json["ok"] is True
    assert found.json["counts"].get("to do", 0) == 0
    assert answers(found)["lost runs"] == "ask"
    ready.call("enqueue", "t.work")
    ready.execute(
        text(
            "UPDATE cronjobs_jobs SET status = 'dead', finished_at = run_at, attempts = 1, failures = 1, "
            "last_failed_at = run_at, last_error = 'x', error_type = 'X'"
        )
    )
    found = ready.call("doctor", "--release")
    assert found.code == 1
    assert "1 dead job" in found.out.splitlines()[0]
    assert found.out.splitlines()[-1].startswith("1 to do, ")


@pytest.mark.needs("contrib.alerts")
def test_an_alert_that_arrived_is_proof_of_its_channel(ready: Project) -> None:
    assert answers(ready.call("doctor", "--release", "--json"))["alerts"] == "ask"
    row = {"finding_id": 1, "channel": "ops", "sent_at": SYSTEM.now(), "sent": 1}
    ready.execute(insert(tables.alerts).values(row))
    assert answers(ready.call("doctor", "--release", "--json"))["alerts"] == "ok"


@pytest.mark.needs("contrib.alerts")
@pytest.mark.either
def test_without_a_database_the_rest_is_gone_through(ready: Project) -> None:
    found = ready.call("doctor", "--release", "--json", "--database-url", "postgresql://u@127.0.0.1:1/d")
    assert found.code == 1
    assert {name for name, answer in answers(found).items() if answer == "to do"} == {"database", "findings"}


@pytest.mark.either
def test_a_file_that_cannot_be_used_is_3_as_ever(ready: Project) -> None:
    (ready.folder / "cronjobs.yaml").write_text("run: {workers: none}\ndatabase: [\n")
    assert ready.call("doctor", "--release").code == 3


@pytest.mark.either
def test_a_rotation_is_found_by_the_logs_name(ready: Project) -> None:
    (ready.folder / "rotate").write_text(f"{ready.folder}/*.log {{\n    weekly\n}}\n")
    assert answers(ready.call("doctor", "--release", "--json"))["log"] == "ok"


def test_what_check_finds_is_not_listed_again() -> None:
    assert {check.name for check in CHECKS} > BY_CHECK
