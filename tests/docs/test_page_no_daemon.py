"""docs/how-to/no-daemon.md: the test of its project passes, and cron's line runs as rarely as the file says."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from support.pages import ROOT, Page
from support.project import Project

from cronjobs.engine.config.settings import RunSettings
from cronjobs.engine.probe.server_session import CONNECT_TIMEOUT_S
from cronjobs.engine.rules.occurrences import ON_TIME_WITHIN

PAGE = Page("docs/how-to/no-daemon.md")
pytestmark = pytest.mark.either


@pytest.fixture
def project(tmp_path: Path) -> Project:
    for language, name in (("yaml", "cronjobs.yaml"), ("python", "jobs.py"), ("python", "test_quarters.py")):
        (tmp_path / name).write_text(PAGE.block(language, f"# {name}"))
    return Project(tmp_path, f"sqlite:///{tmp_path}/cronjobs.db")


def test_every_block_is_executed_here() -> None:
    assert PAGE.counts() == {"yaml": 1, "python": 2, "console": 1}
    assert PAGE.dead_links() == []


@pytest.mark.slow
def test_the_pages_own_test_passes(project: Project) -> None:
    alone = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run([sys.executable, *alone], cwd=project.folder, capture_output=True, text=True, timeout=120)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_crons_line_comes_every_quarter_of_an_hour(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", project.url)
    command = PAGE.block("console", "crontab show").removeprefix("$ cronjobs ").split()
    shown = project.call(*command)
    assert shown.code == 0
    assert [line for line in shown.out.splitlines() if line.startswith("*/15 * * * * ")]
    assert project.call("check").code == 0


def test_its_figures_are_those_of_the_code() -> None:
    text = " ".join(PAGE.text.split())
    assert f"gives up after {CONNECT_TIMEOUT_S} s" in text
    assert f"more than {ON_TIME_WITHIN // timedelta(minutes=1)} minutes old" in text
    assert RunSettings().every == timedelta(minutes=1)


def test_the_container_is_started_as_on_kubernetes() -> None:
    whole = (ROOT / "examples/deploy/kubernetes.yaml").read_text()
    [command] = [row["value"] for row in PAGE.table("Cloud Run, and other schedulers that start containers")[:1]]
    assert {word for word in command.strip("`").split() if word.startswith("-")} <= set(
        whole.replace(",", " ").replace("]", " ").replace('"', " ").split()
    )
