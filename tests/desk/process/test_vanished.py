"""If a SQLite file has disappeared, no command replaces it with an empty one unasked."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.project import Project
from support.ticking import Project as Ticking

from cronjobs.engine.config.load import load
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.jobs.connect import connect
from cronjobs.errors import DatabaseVanished


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    project = Project(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")
    project.write()
    assert project.call("jobs", "list").code == 0  # the first start needs no set-up
    return project


def lose(project: Project) -> Path:
    for file in project.folder.glob("jobs.db*"):
        file.unlink()
    return project.folder / "jobs.db"


COMMANDS = ["jobs list", "status", "enqueue t.work", "db upgrade", "db current", "pause --all"]
# These commands also work before the file exists.
COMMANDS += ["check --live", "sync --plan", "run-due --dry-run", "check --against sqlite:///FOLDER/jobs.db"]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_file_that_is_gone_is_exit_4_with_the_command_for_a_new_one(project: Project, words: str) -> None:
    file = lose(project)
    answer = project.call(*words.replace("FOLDER", str(project.folder)).split())
    assert answer.code == 4
    assert "existed before, but is missing now" in answer.err
    assert 'cronjobs db upgrade --new"' in answer.err
    assert not file.exists()


@pytest.mark.needs("contrib")
def test_the_doctor_says_so_too(project: Project) -> None:
    lose(project)
    told = " ".join(project.call("doctor").out.split())
    assert "existed before, but is missing now" in told
    assert "makes it" not in told


def test_a_tick_makes_no_new_one_either_and_goes_on_when_the_disk_is_back(tmp_path: Path) -> None:
    project = Ticking(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}").configure()
    assert project.tick().wait() == 0
    for file in tmp_path.glob("jobs.db*"):
        file.rename(tmp_path / f"unmounted-{file.name}")
    tick = project.tick()
    assert (tick.wait(), "is missing now" in tick.stderr, (tmp_path / "jobs.db").exists()) == (4, True, False)
    for file in tmp_path.glob("unmounted-*"):
        file.rename(tmp_path / file.name.removeprefix("unmounted-"))
    assert project.tick().wait() == 0


def test_an_empty_file_in_its_place_is_none_either(project: Project) -> None:
    lose(project).touch()
    assert project.call("status").code == 4
    with pytest.raises(DatabaseVanished), connect(project.folder / "cronjobs.yaml"):
        pass


def create_again(file: Path) -> None:
    with closing(sqlite3.connect(file)) as app:
        app.execute("CREATE TABLE orders (id INTEGER)")
        app.commit()


@pytest.mark.slow
def test_a_file_that_an_app_created_again_has_lost_the_jobs(project: Project) -> None:
    file = lose(project)
    create_again(file)
    lost = "had the tables of cronjobs before, but the file there now has none"
    for words in ("status", "db upgrade"):
        answer = project.call(*words.split())
        assert (answer.code, lost in answer.err, 'cronjobs db upgrade --new"' in answer.err) == (4, True, True)
    dry = project.call("run-due", "--dry-run")
    assert (dry.code, lost in dry.err) == (4, True)
    assert project.call("db", "upgrade", "--new").code == 0
    assert project.call("status").code == 0


def test_an_apps_file_that_never_had_our_tables_gets_them(project: Project) -> None:
    create_again(project.folder / "other.db")
    project.url = f"sqlite:///{project.folder / 'other.db'}"
    project.write()
    listed = project.call("jobs", "list")  # only reads
    assert (listed.code, 'run "cronjobs db upgrade"' in listed.err) == (4, True)
    assert project.call("db", "upgrade").code == 0
    assert project.call("jobs", "list").code == 0


@pytest.mark.slow
def test_a_new_one_is_made_when_it_is_asked_for(project: Project) -> None:
    lose(project)
    assert project.call("db", "upgrade", "--new").code == 0
    assert project.call("jobs", "list").code == 0


def test_where_nothing_can_be_remembered_everything_works_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    project = Project(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")
    project.write()
    for _ in range(2):
        assert project.call("jobs", "list").code == 0
        lose(project)


def test_another_file_of_the_same_project_begins_without_set_up(project: Project) -> None:
    project.url = f"sqlite:///{project.folder / 'other.db'}"
    project.write()
    assert project.call("jobs", "list").code == 0
    assert parse_url(load(project.folder / "cronjobs.yaml", environ={}).database).is_sqlite
