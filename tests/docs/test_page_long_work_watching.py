"""docs/how-to/long-work.md is right: its file, its code and its commands."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from support.pages import Page
from support.project import Project

PAGE = Page("docs/how-to/long-work.md")


def test_no_block_of_the_page_is_left_out_and_no_link_is_dead() -> None:
    assert PAGE.counts() == {
        "yaml": 3,
        "python": 3,
        "console": 4,
    }  # test_page_long_work_pool.py, test_page_long_work_clusters.py
    assert PAGE.dead_links() == []


@pytest.fixture
def project(tmp_path: Path, sqlite_migrated: str) -> Project:
    """The page's project, on the database that its file names."""
    yaml = PAGE.block("yaml", "::progress").replace("sqlite:///cronjobs.db", f"sqlite:///{sqlite_migrated}")
    (tmp_path / "cronjobs.yaml").write_text(yaml)
    (tmp_path / "importing.py").write_text(PAGE.block("python", "# importing.py"))
    return Project(tmp_path, f"sqlite:///{sqlite_migrated}")


@pytest.mark.slow
def test_its_commands_print_what_they_are_shown_to_print(project: Project) -> None:
    for part in PAGE.block("console", "jobs tail 1").split("$ cronjobs ")[1:]:
        command, *shown = part.splitlines()
        done = project.run(*shlex.split(command))
        assert (done.code, done.out.splitlines()) == (0, shown)


@pytest.mark.slow
def test_its_command_says_progress_in_its_output(project: Project) -> None:
    done = project.run("run", "archive")
    assert done.code == 0
    assert "progress: 2 of 2 (100 %)" in done.err.replace("\r", "")
    assert project.rows("job_runs")[0]["output"] == "::progress 1/2 packing\npacked\n::progress 2/2\n"
