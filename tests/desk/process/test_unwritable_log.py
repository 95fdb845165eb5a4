"""A log that ticks cannot write is a finding in every view, from the tick that met it until a tick can write it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.disks import small_disk
from support.project import Project as Commands
from support.ticking import Project, patched

from cronjobs.engine.host import files
from cronjobs.engine.host.caller import os_user
from cronjobs.engine.host.files import why_unwritable

YAML = "schedules:\n  nightly: {cron: '15 2 29 2 *', job: t.quick}\n"


@pytest.fixture
def commands(project: Project) -> Commands:
    """The same project, for commands. Its log is in a folder that does not exist, and its path is a ``${…}``."""
    project.configure(YAML)
    file = project.folder / "cronjobs.yaml"
    file.write_text(file.read_text().replace("log: tick.log", "env_file: .env\nlog: ${LOG}"))
    (project.folder / ".env").write_text(f"LOG={project.folder}/logs/tick.log\n")
    return Commands(project.folder, project.url)


def kinds(commands: Commands) -> list[str]:
    return [found["kind"] for found in commands.call("status", "--json").json["findings"]]


@pytest.mark.either
def test_a_log_without_a_folder_is_a_finding_until_a_tick_can_write_it(project: Project, commands: Commands) -> None:
    said = f"log: there is no folder {project.folder}/logs"
    project.tick()
    [finding] = commands.call("status", "--json").json["findings"]
    assert (finding["kind"], finding["command"]) == ("config", "cronjobs check")
    assert finding["text"].endswith(said)
    status, live = commands.call("status"), commands.call("check", "--live")
    assert "all well" not in status.out
    assert "".join(said.split()) in "".join(status.out.split())  # the lines are wrapped
    assert (live.code, live.out.count(said)) == (1, 1)
    (project.folder / "logs").mkdir()
    project.tick()
    assert kinds(commands) == []
    assert "all well" in commands.call("status").out
    assert commands.call("check", "--live").code == 0


@pytest.mark.slow
@pytest.mark.either
def test_a_log_that_vanishes_after_idle_ticks_stays_a_finding_once_met(project: Project, commands: Commands) -> None:
    (project.folder / "logs").mkdir()
    project.tick()
    assert project.tick().process.returncode == 0
    (project.folder / "logs").rename(project.folder / "elsewhere")
    project.add("t.quick")
    for _ in range(3):
        project.tick()
        assert kinds(commands) == ["config"]


FULL_DISK = """
from cronjobs.engine.host import files
files.is_full = lambda folder: folder.name == "logs"
"""


@pytest.mark.either
def test_a_log_on_a_full_disk_is_a_finding_until_there_is_room(
    project: Project, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = project.folder / "logs"
    logs.mkdir()
    with monkeypatch.context() as full:
        full.setattr(files, "is_full", lambda folder: folder == logs)
        assert f"the disk of {logs} is full" in project.tick(**patched(project, FULL_DISK)).stderr
        assert kinds(commands) == ["config"]
        assert f"the disk of {logs} is full" in commands.call("check", "--live").out
    project.add("t.quick")
    project.tick()
    assert kinds(commands) == []


def test_a_full_disk_is_seen(tmp_path: Path) -> None:
    assert not files.is_full(tmp_path)
    with small_disk(tmp_path / "small") as disk:
        assert not files.is_full(disk.folder)
        disk.fill()
        assert files.is_full(disk.folder)
        assert files.why_unwritable(disk.folder / "tick.log") == f"the disk of {disk.folder} is full"


def test_the_mail_names_the_path_of_the_log(project: Project, commands: Commands) -> None:
    """The path comes from the ``env_file``, and the values there are masked, but a path of the log is no secret."""
    file = project.folder / "logs" / "tick.log"
    said = f"log {file} cannot be written: there is no folder {file.parent}"
    assert said in project.tick().stderr


def test_a_host_that_cannot_write_its_own_log_is_named(project: Project, commands: Commands) -> None:
    project.tick()
    (project.folder / "logs").mkdir()  # on the host of this command all is well by now
    [finding] = commands.call("status", "--json").json["findings"]
    assert finding["kind"] == "config"
    assert f"log: there is no folder {project.folder}/logs" in finding["text"]


def test_a_folder_that_this_user_may_not_look_into_is_an_answer_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    assert why_unwritable(tmp_path / "tick.log") == f"user {os_user()} cannot create files in {tmp_path}"
    monkeypatch.setattr("os.stat", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "denied")))
    assert why_unwritable(tmp_path / "tick.log") == f"there is no folder {tmp_path}"
