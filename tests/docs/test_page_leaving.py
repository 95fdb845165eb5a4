"""docs/how-to/leaving.md: its project is exported and handed over, and the lines of its crontab run it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import Page
from support.project import Project

PAGE = Page("docs/how-to/leaving.md")
NAMES = ["jobs.py", "hand_over.py", "call.py", "to_crontab.py"]

# It stands for Celery's app.
CELERY = """
class app:
    @staticmethod
    def send_task(name, *, kwargs, eta, task_id):
        print(name, kwargs, eta.isoformat(), task_id)
"""


def test_every_block_is_executed_here() -> None:
    assert PAGE.counts() == {"yaml": 1, "python": 4, "console": 1, "text": 1}
    assert PAGE.dead_links() == []


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "cronjobs.yaml").write_text(PAGE.block("yaml", "# cronjobs.yaml"))
    for name in NAMES:
        (tmp_path / name).write_text(PAGE.block("python", f"# {name}"))
    (tmp_path / "celery_app.py").write_text(CELERY)
    return Project(tmp_path, f"sqlite:///{tmp_path}/cronjobs.db")


def python(project: Project, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=project.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def exported(project: Project) -> None:
    """Type the commands of the page."""
    assert project.call("sync").code == 0
    for line in PAGE.block("console", "pause --all").splitlines():
        command, _, file = line.removeprefix("$ cronjobs ").partition(" > ")
        answer = project.call(*command.split())
        assert answer.code == 0, answer
        if file:
            (project.folder / file).write_text(answer.out)


def test_waiting_jobs_arrive_with_their_payload_and_instant(project: Project) -> None:
    assert project.call("sync").code == 0
    for days, at in ((7, "2098-01-31T09:30:00+00:00"), (8, "2099-01-31T09:30:00+00:00")):
        said = project.call("enqueue", "shop.report", "--payload", json.dumps({"days": days}), "--at", at)
        assert said.code == 0, said
    exported(project)
    assert sorted(python(project, "hand_over.py").splitlines()) == [
        "shop.report {'days': 7} 2098-01-31T09:30:00+00:00 cronjobs-1",
        "shop.report {'days': 8} 2099-01-31T09:30:00+00:00 cronjobs-2",
    ]


def test_the_crontab_is_the_one_shown_and_its_lines_run(project: Project) -> None:
    exported(project)
    crontab = python(project, "to_crontab.py")
    assert crontab == PAGE.block("text", "# backup")
    said = [
        python(project, *shlex.split(line.partition(".venv/bin/python ")[2]))
        for line in crontab.splitlines()
        if "call.py" in line
    ]
    assert said == ["report of 1 days\n", "in sync\n"]
