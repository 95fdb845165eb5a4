"""An unexpected error in any command: one line with the version and the place of the traceback, and exit code 70."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from support import forked
from support.project import Project as Commands
from support.ticking import Project

from cronjobs.engine.config import load
from cronjobs.engine.run_due.cron_mail import MOST_WAITING, Outlet
from cronjobs.engine.schema import ensure_tables
from cronjobs.version import __version__


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    project = Commands(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    project.write("log: tick.log\n")
    assert project.call("db", "upgrade").code == 0
    return project


class Unexpected(Exception):
    pass


def fail(*_: Any, **__: Any) -> NoReturn:
    raise Unexpected("half \x1b[2J\nof a bug")


@pytest.mark.parametrize("command", [["status"], ["jobs", "list"], ["enqueue", "t.quick"], ["pause", "--all"]])
def test_any_command_ends_with_70_and_one_line(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(ensure_tables, "require_schema", fail)
    answer = commands.call(*command)
    assert answer.code == 70
    [line] = answer.err.splitlines()
    assert f"an internal error in cronjobs {__version__}, Unexpected: half \\x1b[2J\\nof a bug" in line
    log = commands.folder / "tick.log"
    assert line.endswith(f"its traceback is in {log}")
    assert "\n    Traceback (most recent call last):\n" in log.read_text()
    assert "in fail" in log.read_text()
    assert "\x1b" not in answer.err + log.read_text()
    assert "in fail" in commands.call("-v", *command).err


def test_a_log_of_json_lines_has_the_traceback_as_a_fact(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    commands.write("log: tick.jsonl\n")
    monkeypatch.setattr(ensure_tables, "require_schema", fail)
    assert commands.call("status").code == 70
    [line] = (commands.folder / "tick.jsonl").read_text().splitlines()
    assert '"traceback": "Traceback (most recent call last):\\n' in line


def test_without_a_log_the_traceback_follows(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "load", fail)
    monkeypatch.setattr("cronjobs.engine.command.settings.load", fail)
    first, *rest = commands.call("status").err.splitlines()
    assert "Unexpected" in first
    assert rest[0] == "Traceback (most recent call last):"


@pytest.mark.slow
def test_cron_mails_a_fault_of_ours_once_and_then_rarely(sqlite_project: Project) -> None:
    (sqlite_project.folder / "patch").mkdir()
    (sqlite_project.folder / "patch" / "sitecustomize.py").write_text(
        "from cronjobs.engine.store import meta\n"
        "def fail(*_): raise KeyError('nobody expected this')\n"
        "meta.require_schema = fail\n"
    )
    sqlite_project.configure()
    env = {"PYTHONPATH": str(sqlite_project.folder / "patch")}
    first, second = (sqlite_project.tick(env=env) for _ in range(2))
    assert [first.wait(), second.wait()] == [70, 70]
    assert "KeyError: 'nobody expected this'" in first.stderr
    assert first.stderr.count("\n") == 1
    assert second.stderr == ""
    assert sqlite_project.log().count("Traceback") == 2
    after = sqlite_project.tick()
    assert after.wait() == 0
    assert "over after" in after.stderr


def test_a_broken_installation_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ImportError('half of it is missing')\n")
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    ended = forked.run([sys.executable, "-m", "cronjobs", "status"], env=env)
    assert ended.returncode == 70
    [line] = ended.stderr.splitlines()
    assert line.startswith(f"cronjobs {__version__} cannot start, ImportError: half of it is missing")


# --- nobody reads -----------------------------------------------------------------------------------------------------


def test_a_pipe_that_nobody_reads_holds_no_tick_up(sqlite_project: Project) -> None:
    sqlite_project.configure()
    sqlite_project.add_many("t.quick", 200)
    read, write = os.pipe()
    try:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        tick = sqlite_project.start("-v", stdout=write, stderr=write)
        assert tick.wait() == 0
    finally:
        os.close(read)
        os.close(write)
    assert sqlite_project.statuses() == {"succeeded": 200}


@pytest.mark.slow
def test_lines_that_nobody_read_are_counted_and_the_others_arrive_whole() -> None:
    read, write = os.pipe()
    outlet = Outlet(write)
    lines = [f"{number:06} {'x' * 1000}" for number in range(MOST_WAITING // 1000 + 200)]
    for line in lines:
        outlet.say(line)
    os.set_blocking(read, False)
    got = b""
    for _ in range(20):
        got += os.read(read, 1 << 20)
        outlet.end()
        if b"more lines were dropped" in got:
            break
    os.close(write)
    *arrived, last = got.decode().splitlines()
    assert arrived == lines[: len(arrived)]
    assert last == f"({len(lines) - len(arrived)} more lines were dropped because nobody read the output)"
    os.close(read)
    outlet.say("a reader that left is no error")
