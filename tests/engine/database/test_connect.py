"""cronjobs.connect(): one transaction on the database of cronjobs.yaml, for scripts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.project import Project

from cronjobs import connect, enqueue
from cronjobs.errors import ConfigError, DatabaseVanished, ForeignDatabase, SchemaMissing


@pytest.fixture
def script(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(tmp_path, database_url)
    project.write()
    monkeypatch.chdir(tmp_path)
    for name in ("CRONJOBS_CONFIG", "CRONJOBS_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return project


def raise_after(told: object) -> None:
    raise ZeroDivisionError(told)


def test_a_block_is_one_transaction(script: Project) -> None:
    with connect() as connection:
        enqueue(connection, "t.say", {"n": 1})
        assert script.jobs() == []
    with pytest.raises(ZeroDivisionError), connect() as connection:
        raise_after(enqueue(connection, "t.say", {"n": 2}))
    assert [row["payload"] for row in script.jobs()] == [{"n": 1}]


def test_the_file_and_the_database_are_found_as_the_command_finds_them(
    script: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir("/")
    with pytest.raises(ConfigError), connect():
        raise AssertionError
    with connect(str(tmp_path / "cronjobs.yaml")) as connection:
        enqueue(connection, "t.say")
    monkeypatch.setenv("CRONJOBS_CONFIG", str(tmp_path / "cronjobs.yaml"))
    with connect() as connection:
        enqueue(connection, "t.say")
    with connect(database_url=script.url) as connection:
        enqueue(connection, "t.say")
    assert len(script.jobs()) == 3


@pytest.mark.needs("desk")
def test_another_projects_database_is_left_alone(script: Project) -> None:
    script.call("db", "adopt")
    (script.folder / "cronjobs.yaml").write_text(f"project: other\ndatabase: {script.url}\n")
    with pytest.raises(ForeignDatabase), connect():
        raise AssertionError


def test_missing_tables_of_a_server_name_the_command(postgres_url: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("CRONJOBS_DATABASE_URL", raising=False)
    Project(tmp_path, postgres_url).write()
    with pytest.raises(SchemaMissing, match="cronjobs db upgrade"), connect(tmp_path / "cronjobs.yaml"):
        raise AssertionError


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A folder with a file that names a database which is not there yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CRONJOBS_CONFIG", raising=False)
    monkeypatch.delenv("CRONJOBS_DATABASE_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    project = Project(tmp_path, "sqlite:///cronjobs.db")
    project.write('job_types: {t.say: {command: ["true"]}}\n')
    return project


@pytest.mark.needs("desk")
def test_in_a_fresh_folder_it_makes_the_file_and_its_tables_as_a_command_does(fresh: Project) -> None:
    before = os.umask(0)
    try:
        with connect() as connection:
            enqueue(connection, "t.say", {"n": 1})
    finally:
        os.umask(before)
    made = {file.name: oct(file.stat().st_mode & 0o777) for file in fresh.folder.glob("cronjobs.db*")}
    assert set(made.values()) == {"0o600"}
    assert fresh.call("db", "check").code == 0
    assert fresh.run("run-due").code == 0
    (fresh.folder / "cronjobs.db").unlink()
    with pytest.raises(DatabaseVanished), connect():
        raise AssertionError


@pytest.mark.needs("desk")
def test_the_command_line_replaces_a_job_that_has_not_begun(script: Project) -> None:
    given = ["enqueue", "t.say", "--no-import", "--idempotency-key", "k"]
    assert "enqueued" in script.call(*given, "--payload", '{"n": 1}').out
    assert "existed already (t.say, queued)" in script.call(*given, "--payload", '{"n": 2}').out
    assert script.jobs()[0]["payload"] == {"n": 1}
    assert "replaced, due now" in script.call(*given, "--payload", '{"n": 3}', "--on-conflict", "replace").out
    assert script.jobs()[0]["payload"] == {"n": 3}
    refused = script.call(*given, "--on-conflict", "update")
    assert (refused.code, "on_conflict 'update' is not one of keep, replace" in refused.err) == (2, True)
