"""``cronjobs init``: what it writes runs as it is, and it never overwrites."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.project import CRONJOBS, Project

from cronjobs.config.host_timezone import host_timezone


@pytest.fixture
def folder(tmp_path: Path) -> Project:
    return Project(tmp_path, f"sqlite:///{tmp_path}/shop/cronjobs.db")


def test_what_it_writes_runs_as_it_is(folder: Project) -> None:
    done = folder.run("init", "shop", env={"TZ": "Europe/Berlin"})
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "wrote shop/cronjobs.yaml",
        "wrote shop/jobs.py",
        "wrote shop/cronjobs.schema.json",
        "next:",
        "  cd shop",
        "  cronjobs check",
        "  cronjobs run-due",
        "  cronjobs crontab install",
    ]
    folder.folder /= "shop"
    text = (folder.folder / "cronjobs.yaml").read_text()
    assert "\nproject: shop " in text
    assert "\ntimezone: Europe/Berlin\n" in text
    checked = folder.run("check")
    assert (checked.code, checked.out, checked.err) == (0, "ok: 1 job type, 1 schedule\n", "")
    ticked = folder.run("run-due")
    assert (ticked.code, ticked.out, ticked.err) == (0, "", "")
    assert folder.run("run", "hello").code == 0
    assert folder.run("enqueue", "hello", "--in", "5m").err == ""
    assert folder.run("run", "--schedule", "hello").out.startswith("Hello, world! ")
    assert folder.run("check", "--live").code == 0


def test_in_the_folder_itself(folder: Project) -> None:
    done = folder.run("init")
    assert done.code == 0
    assert "cd" not in done.out.split()
    assert folder.run("check").code == 0


@pytest.mark.parametrize("name", ["cronjobs.yaml", "jobs.py", "cronjobs.schema.json"])
@pytest.mark.parametrize("kind", ["file", "dangling link", "folder"])
def test_it_never_overwrites_and_leaves_no_half(folder: Project, name: str, kind: str) -> None:
    there = folder.folder / name
    match kind:
        case "file":
            there.write_text("mine")
        case "folder":
            there.mkdir()
        case _:
            there.symlink_to("elsewhere")
    done = folder.call("init")
    assert (done.code, done.out) == (1, "")
    assert done.err == f"{name} is there already, and nothing is ever overwritten: nothing was written\n"
    assert [file.name for file in folder.folder.iterdir()] == [name]
    assert kind != "file" or there.read_text() == "mine"


def test_a_package_or_module_that_would_be_imported_instead_is_refused(folder: Project) -> None:
    package = folder.folder / "a" / "jobs"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    assert "is a package, and would be imported instead of jobs.py" in folder.call("init", "a").err
    shadow = folder.folder / "b"
    shadow.mkdir()
    (shadow / "cronjobs.py").touch()
    done = folder.call("init", "b")
    assert (done.code, [file.name for file in shadow.iterdir()]) == (1, ["cronjobs.py"])
    assert "rename cronjobs.py" in done.err


@pytest.mark.parametrize("where", ["file/x", "file", "/proc/nowhere"])
def test_a_folder_that_cannot_be_made_is_an_error_in_one_line(folder: Project, where: str) -> None:
    (folder.folder / "file").touch()
    done = folder.call("init", where)
    assert (done.code, done.out) == (1, "")
    assert "nothing was written" in done.err
    assert done.err.count("\n") == 1


def test_nobody_else_can_write_to_what_will_be_run(folder: Project) -> None:
    assert folder.run("init", "x", umask=0).code == 0
    for name in ("cronjobs.yaml", "jobs.py"):
        assert not (folder.folder / "x" / name).stat().st_mode & 0o022


@pytest.mark.parametrize("name", ["my shop", "été", "7", "yes", "a: b", "-x", "x\ny", "z" * 200, "\x1b[2J", "${HOME}"])
def test_any_folder_name_will_do(folder: Project, name: str) -> None:
    done = folder.call("init", "--", name)
    assert (done.code, done.err) == (0, "")
    folder.folder /= name
    assert folder.call("check", "--no-import").code == 0
    assert "\x1b" not in done.out


@pytest.mark.parametrize(
    ("tz", "timezone", "link", "expected"),
    [
        ("America/New_York", "Asia/Tokyo", "", "America/New_York"),
        (":Asia/Tokyo", "", "", "Asia/Tokyo"),
        (":/usr/share/zoneinfo/Asia/Tokyo", "", "", "Asia/Tokyo"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "Asia/Tokyo", "", "Asia/Tokyo"),
        ("", "Europe/Berlin\n", "/usr/share/zoneinfo/Asia/Tokyo", "Europe/Berlin"),
        ("", "", "/usr/share/zoneinfo/posix/Asia/Tokyo", "Asia/Tokyo"),
        ("", "", "../usr/share/zoneinfo/America/Argentina/Ushuaia", "America/Argentina/Ushuaia"),
        ("", "Etc/UTC", "", "UTC"),
        ("", "\x00\xff nonsense", "/nowhere", "UTC"),
        ("", "", "", "UTC"),
    ],
)
def test_the_hosts_time_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tz: str, timezone: str, link: str, expected: str
) -> None:
    monkeypatch.setenv("TZ", tz)
    (tmp_path / "etc").mkdir()
    if timezone:
        (tmp_path / "etc/timezone").write_bytes(timezone.encode("latin-1"))
    if link:
        (tmp_path / "etc/localtime").symlink_to(link)
    assert host_timezone(tmp_path) == expected


def test_a_full_disk_leaves_nothing(folder: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def full(path: Path, flags: int, mode: int) -> int:
        return opened("/dev/full", os.O_WRONLY) if path.name == "jobs.py" else opened(path, flags, mode)

    monkeypatch.setattr("cronjobs.cli.init.os.open", full)
    done = folder.call("init")
    assert done.code == 1
    assert "No space left on device: nothing was written" in done.err
    assert [file.name for file in folder.folder.iterdir()] == []


def test_with_a_closed_stdout_it_still_writes(folder: Project) -> None:
    script = f"{' '.join(CRONJOBS)} init >&- 2>&-"
    assert subprocess.run(["bash", "-c", script], cwd=folder.folder).returncode == 0
    assert (folder.folder / "jobs.py").exists()
