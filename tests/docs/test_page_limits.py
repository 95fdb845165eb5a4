"""docs/how-to/limits.md is right: its file, its code and its commands."""

from __future__ import annotations

import importlib
import json
import shlex
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update
from support.pages import Page
from support.project import Project

from cronjobs.engine.database.tables import jobs as jobs_table
from cronjobs.engine.jobs import registry

PAGE = Page("docs/how-to/limits.md")


def test_no_block_of_the_page_is_left_out_and_no_link_is_dead() -> None:
    assert PAGE.counts() == {
        "yaml": 2,
        "python": 4,
        "text": 1,
        "sql": 1,
        "console": 2,
    }  # caps: test_page_limits_caps.py
    assert PAGE.dead_links() == []


@pytest.fixture
def project(tmp_path: Path, sqlite_migrated: str) -> Project:
    """The page's project, on the database that its file names."""
    (tmp_path / "cronjobs.yaml").write_text(PAGE.block("yaml", "limits:"))
    (tmp_path / "mailing.py").write_text(PAGE.block("python", "# mailing.py"))
    return Project(tmp_path, f"sqlite:///{sqlite_migrated}")


@pytest.fixture
def two_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Three jobs as the page enqueues them; two of them run."""
    before = dict(registry._registered)
    monkeypatch.chdir(project.folder)
    monkeypatch.syspath_prepend(str(project.folder))
    mailing = importlib.import_module("mailing")
    assert [mailing.welcome("ada@example.com") for _ in range(3)] == [1, 2, 3]
    until = datetime.now(UTC) + timedelta(minutes=1)
    lease = {"status": "running", "locked_by": "web1:b:1:1:1:t", "locked_until": until, "started_at": until}
    project.execute(update(jobs_table).where(jobs_table.c.id < 3).values(lease))
    yield project
    del sys.modules["mailing"]
    registry._registered.clear()
    registry._registered.update(before)


def commands() -> list[tuple[list[str], str]]:
    """Every command of the page, and the line below it, which is a part of what it says."""
    lines = [line for block in PAGE.blocks("console") for line in block.text.splitlines()]
    return [(shlex.split(line)[2:], lines[at + 1]) for at, line in enumerate(lines) if line.startswith("$ ")]


def test_its_commands_say_what_they_are_shown_to_say(two_run: Project) -> None:
    assert len(commands()) == 7
    for command, said in commands():
        answer = two_run.call(*command)
        assert said in " ".join((answer.out + answer.err).split()), command
        assert answer.code == (1 if command[0] == "run" else 0), command


def test_status_tells_programs_who_waits_for_which_limit(two_run: Project) -> None:
    told = json.loads(two_run.call("status", "--json").out)["waiting"]["limited"]
    assert told == [{"prefix": "smtp:", "most": 2, "each": None, "waiting": 1}]
    two_run.execute(update(jobs_table).where(jobs_table.c.id == 1).values(concurrency_key="other"))
    assert json.loads(two_run.call("status", "--json").out)["waiting"]["limited"] == []
    assert "limit" not in two_run.call("explain", "3").out


def test_a_bad_limit_is_what_a_job_waits_for_and_a_tick_ends_with_3(two_run: Project) -> None:
    file = two_run.folder / "cronjobs.yaml"
    file.write_text(file.read_text().replace('"smtp:": 2', '"smtp:": two'))
    assert 'limit "smtp:" in the file is bad' in " ".join(two_run.call("explain", "3").out.split())
    assert two_run.run("run-due").code == 3
    assert [job["status"] for job in two_run.jobs()] == ["running", "running", "queued"]
