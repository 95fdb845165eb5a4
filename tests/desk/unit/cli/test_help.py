"""A command's help describes this command, and not another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    return Project(tmp_path, "")


def test_resume_does_not_say_what_a_pause_does(project: Project) -> None:
    resume, pause = (project.call(name, "--help").out for name in ("resume", "pause"))
    assert "no job starts" in pause
    assert "no job starts" not in resume
    assert "End the pause of everything" in resume
    assert "End the pause of this queue" in resume


def test_the_root_says_where_its_verbose_and_quiet_count(project: Project) -> None:
    out = project.call("--help").out
    assert "Print the traceback of an internal error; in run-due, also a line for each finished job." in out
    assert "In run-due: print only errors." in out
