"""The file that ``cronjobs init`` writes works unchanged, and so does each example in it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml
from support.configfile import read, with_examples

from cronjobs.desk.init.starter import starter_handlers, starter_yaml
from cronjobs.engine.config.keys import FILE, RUN
from cronjobs.engine.config.keys_of_jobs import SCHEDULE


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_starter_runs_as_it_is(tmp_path: Path) -> None:
    found = read(starter_yaml(timezone="Europe/Berlin", project="shop", changed={}, handlers="jobs.py"))
    assert found.problems == ()
    assert found.database == f"sqlite:///{tmp_path}/cronjobs.db"
    assert (found.project, found.timezone, found.imports) == ("shop", "Europe/Berlin", ("jobs",))
    assert found.log == tmp_path / "cronjobs.log"
    (schedule,) = found.schedules.values()
    assert f'@job("{schedule.job}"' in starter_handlers()


@pytest.mark.needs("contrib")
def test_every_example_in_the_starter_is_valid() -> None:
    Path(".env").touch()
    text = with_examples(starter_yaml(timezone="UTC", project="shop", changed={}, handlers="jobs.py"))
    found = read(text)
    assert found.problems == ()
    assert yaml.safe_load(text).keys() == FILE.keys() - {"schema", "executors", "extras"}
    assert set(found.schedules) == {"hello", "nightly-report", "tidy-up"}
    shown = {key for schedule in yaml.safe_load(text)["schedules"].values() for key in schedule}
    assert shown == SCHEDULE.keys() - {
        *(
            "queue",
            "priority",
            "catch_up_limit",
            "environments",
            "retry_until",
            "grace",
            "spread",
            "renamed_from",
            "warn_after_failures",
            "ping",
        )
    }
    assert yaml.safe_load(text)["run"].keys() <= RUN.keys()


@pytest.mark.parametrize("project", ["my-shop", "yes", "7", "a: b", "${HOME}", 'say "hi"', "# x", "été", "null"])
def test_any_name_of_a_folder_makes_a_project(project: str) -> None:
    assert read(starter_yaml(timezone="UTC", project=project, changed={}, handlers="jobs.py")).project == project


def test_the_handlers_are_python() -> None:
    module = ast.parse(starter_handlers())
    assert [node.name for node in module.body if isinstance(node, ast.FunctionDef)] == ["hello"]
    assert all(len(line) <= 120 for line in starter_handlers().splitlines())
