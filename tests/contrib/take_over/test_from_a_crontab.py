"""Ten crontabs, run by Debian's cron and by cronjobs: each line gets the same environment and leaves the same files.

What cron gave them was captured with its daemon (``support.crontabs.three_ways``).
"""

from __future__ import annotations

import json
import pwd
from pathlib import Path
from typing import Any

import pytest
from support.commands import until
from support.crontabs.sandbox import CRONTABS, HERE, furnish, left
from support.ticking import Project

from cronjobs.clock import SYSTEM
from cronjobs.contrib.take_over.as_yaml import as_yaml
from cronjobs.contrib.take_over.convert_lines import Importer
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.execution.attempt import Attempt, WorkerContext
from cronjobs.engine.execution.handler import run_attempt
from cronjobs.engine.jobs import job_types
from cronjobs.model import Job

AS_CRON_RAN_THEM: dict[str, Any] = json.loads((HERE / "as_cron_ran_them.json").read_text())
USER = "ada-of-the-tests"


def imported(folder: Path, name: str) -> Settings:
    """The crontab of a user whose home is *folder*/home, as a configuration in *folder*."""
    home = folder / "home"
    home.mkdir()
    owner = pwd.struct_passwd((USER, "x", 1000, 1000, "", str(home), "/bin/bash"))
    found = Importer(owner, "UTC").convert(furnish(home, name))
    (folder / "cronjobs.yaml").write_text(as_yaml(found, of=name, timezone="UTC", sender="ada@example.com"))
    settings = load(folder / "cronjobs.yaml", environ={})
    assert settings.problems == ()
    return settings


def settled(folder: Path, name: str) -> bool:
    """Whether what runs in the background has ended, too, as far as one can see."""
    written = [file for file in (folder / "home" / "ran").glob("*/folder") if file.read_bytes().endswith(b"\n")]
    return len(written) == len(AS_CRON_RAN_THEM[name]["runs"])


@pytest.mark.needs("contrib.exec")
@pytest.mark.parametrize("name", CRONTABS)
def test_each_imported_line_runs_as_cron_ran_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    settings = imported(tmp_path, name)
    monkeypatch.setenv("FROM_THE_SHELL", "1")
    types = job_types.load(settings).types
    for number, schedule in enumerate(settings.schedules.values(), 1):
        job = Job(
            number, schedule.job, {"payload": "not read"}, attempt=1, locked_by="h:b:1:1:1:t", schedule=schedule.name
        )
        job_type = types[schedule.job]
        run_attempt(Attempt(job, job_type, job_type.timeout), WorkerContext(settings), SYSTEM)
    until(lambda: settled(tmp_path, name))
    assert left(tmp_path / "home", USER) == AS_CRON_RAN_THEM[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["05-manual-page", "09-shell-idioms", "10-input-and-home"])
def test_each_imported_line_run_by_a_tick_in_a_process_of_its_own_runs_as_cron_ran_it(
    tmp_path: Path, name: str
) -> None:
    settings = imported(tmp_path, name)
    project = Project(tmp_path, settings.database)
    assert project.tick().process.returncode == 0
    for schedule in settings.schedules.values():
        project.add(schedule.job)
    assert project.tick(within_s=60).process.returncode in (0, 1)
    until(lambda: not {"queued", "running"} & project.statuses().keys(), 60)
    until(lambda: settled(tmp_path, name))
    assert left(tmp_path / "home", USER) == AS_CRON_RAN_THEM[name]
    expected = {"succeeded": len(settings.schedules)}
    if name == "09-shell-idioms":  # the line that ends with "exit 7": one try, as under cron
        expected = {"succeeded": len(settings.schedules) - 1, "dead": 1}
    assert project.statuses() == expected
