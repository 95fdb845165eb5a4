"""Annotations that pydantic reads, in a tick: imported for such a value alone, and missing without harm to others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.project import BARE, Project

HANDLERS = """
import sys
from datetime import date
from cronjobs import job

@job("t.plain")
def plain(ids: list[int], name: str | None = None):
    return "pydantic" in sys.modules

@job("t.dated")
def dated(day: date):
    return day.year
"""
# Imported by Python as it starts: an environment without pydantic.
MISSING = """
import sys, importlib.metadata as metadata
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("pydantic", "pydantic_core"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
version = metadata.version
def missing(name):
    if name == "pydantic":
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = missing
"""


@pytest.fixture
def project(tmp_path: Path, sqlite_migrated: str) -> Project:
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write("", HANDLERS)
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "sitecustomize.py").write_text(MISSING)
    return project


def tick(project: Project, **env: Any) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cronjobs", "run-due"]
    return subprocess.run(argv, cwd=project.folder, env=BARE | env, capture_output=True, text=True)


def test_plain_annotations_import_no_pydantic_beside_a_handler_that_needs_it(project: Project) -> None:
    project.call("enqueue", "t.plain", "--payload", '{"ids": [1, 2]}')
    assert tick(project).returncode == 0
    project.call("enqueue", "t.dated", "--payload", '{"day": "2026-11-23"}')
    assert tick(project).returncode == 0
    assert [row["result"] for row in project.jobs()] == [False, 2026]


def test_without_pydantic_a_type_that_needs_it_is_at_fault_and_the_others_run(project: Project) -> None:
    project.call("enqueue", "t.dated", "--payload", '{"day": "2026-11-23"}')
    project.call("enqueue", "t.plain", "--payload", '{"ids": [1, 2]}')
    done = tick(project, PYTHONPATH=str(project.folder / "missing"))
    assert done.returncode == 3
    needs = "needs pydantic 2.7 or newer (day): pip install 'cronjobs[types]'"
    assert needs in done.stderr
    assert [(row["status"], row["attempts"]) for row in project.jobs()] == [("queued", 0), ("succeeded", 1)]
    assert tick(project).returncode == 0
    assert project.jobs()[0]["result"] == 2026, "it waited for pydantic"
