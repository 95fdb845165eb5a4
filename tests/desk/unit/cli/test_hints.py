"""The hints of a command after an unknown word or option."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import Project

FILE = """
database: sqlite:///cronjobs.db
timezone: UTC
job_types: {a: {command: [cd, /srv]}}
schedules: {nightly: {cron: "15 2 * * *", job: a}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    (tmp_path / "cronjobs.yaml").write_text(FILE)
    made = Project(tmp_path, "")
    assert made.call("sync").code == 0
    return made


@pytest.mark.needs("contrib")
def test_hints_lead_to_what_there_is(project: Project) -> None:
    for command, said in (
        ("pause --schedule nightly", "No such option: --schedule: write the schedule without --schedule"),
        ("enqueue --type a", "No such option: --type: write the type without --type"),
        ("enqueue a --prioritiy 3", "(Possible options: --priority)"),
        ("history --since 2999-01-01", "--since: 2999-01-01 is in the future"),
        ("books --from 2999-01-01", "--from: 2999-01-01 is in the future"),
        ("explain 77", "there is no job 77: none was ever enqueued here"),
        ("config show nosuch", '"cronjobs config show" lists all'),
        ("alerts test", 'for example, write "alerts: {channels: {ops: {mail: {host: localhost'),
        ("enqueue a --at tomorrow", "or --in 24h"),
        ("pause --all --until tomorrow", "or --for 24h"),
        ("check", "cd is a shell builtin: run the line in a shell, with [sh, -c, …]"),
    ):
        answer = project.call(*command.split())
        assert answer.code in (1, 2), command
        assert said in answer.out + answer.err, command


def test_an_option_that_is_hardly_alike_is_not_proposed(project: Project) -> None:
    assert "Possible options" not in project.call("pause", "--schedule", "nightly").err
    assert "Possible options" not in project.call("next", "--until", "tomorrow").err


def test_who_paused_is_not_who_is_to_resume(project: Project) -> None:
    assert project.call("pause", "nightly").out.rstrip().endswith("until someone resumes it")
