"""A secret in a schedule's payload was rotated. Rows still have the old one, but no command shows it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.project import Project

from cronjobs.masking import remember

OLD, NEW = "old-geheim-4711", "new-geheim-0815"
HANDLERS = """
import os
from cronjobs import RetryPolicy, job

@job("pay.card", retry=RetryPolicy(max_attempts=2, delays=["1s"]))
def card(token, merchant):
    raise ValueError(f"refused: {token['hooks'][0]}")
"""
YAML = """
timezone: UTC
schedules:
  nightly: {cron: "0 0 29 2 *", job: pay.card, payload: {token: {hooks: ["Bearer ${PAY_TOKEN}"]}, merchant: acme}}
"""
WITHOUT = "timezone: UTC\nschedules:\n  other: {cron: '0 0 29 2 *', job: pay.card}\n"
SHOWING = (
    ("jobs", "list", "--json"),
    ("jobs", "show", "1"),
    ("jobs", "show", "1", "--json"),
    ("schedules", "list", "--json"),
    ("schedules", "show", "nightly"),
    ("schedules", "show", "nightly", "--json"),
    ("audit",),
    ("audit", "--json"),
    ("explain", "1"),
    ("explain", "nightly"),
    ("history", "--since", "1h", "--json"),
    ("sync", "--plan"),
    ("status", "--json"),
)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    remember(())


@pytest.mark.parametrize("after", ["rotated", "and the schedule removed"])
def test_what_a_variable_held_before_is_shown_nowhere(
    sqlite_migrated: str, tmp_path: Path, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write(YAML, HANDLERS)
    monkeypatch.setenv("PAY_TOKEN", OLD)
    assert project.call("sync").code == 0
    assert project.call("trigger", "nightly", "--no-import").code == 0
    monkeypatch.setenv("PAY_TOKEN", NEW)
    if after != "rotated":
        project.write(WITHOUT, HANDLERS)
        assert project.call("sync", "--allow-removals").code == 0
    project.run("run-due")  # the handler repeats what its payload holds
    said = {" ".join(command): project.call(*command) for command in SHOWING}
    assert {name for name, answer in said.items() if OLD in answer.out + answer.err} == set()
    shown = said["jobs show 1"].out
    assert '"token": {"hooks": "***"}' in shown
    assert '"merchant": "acme"' in shown
    with closing(sqlite3.connect(sqlite_migrated)) as connection:
        [(error, trace)] = connection.execute("SELECT error, traceback FROM cronjobs_job_runs")
        [payload] = connection.execute("SELECT payload FROM cronjobs_jobs").fetchone()
    assert error == "refused: ***"
    assert OLD not in trace
    assert OLD in payload  # the handler got it
