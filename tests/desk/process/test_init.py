"""``cronjobs init``: the files that it writes work unchanged, and it never overwrites a file."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from support.project import CRONJOBS, Project

import alembic
from cronjobs import enqueue
from cronjobs.engine.config.host_timezone import host_timezone
from cronjobs.engine.database.connection import Database
from cronjobs.engine.schema.migrations import upgrade
from cronjobs.errors import DatabaseError


@pytest.fixture(autouse=True)
def no_crontab(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH on which nobody has a crontab, whoever runs the tests, until one is written there."""
    bin_ = tmp_path_factory.mktemp("bin")
    (bin_ / "crontab").write_text(
        '#!/bin/sh\ncat "$(dirname "$0")/lines" 2>&- || { echo "no crontab for me" >&2; exit 1; }\n'
    )
    (bin_ / "crontab").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")
    for name in [name for name in os.environ if name.endswith("DATABASE_URL")]:
        monkeypatch.delenv(name)
    return bin_


@pytest.fixture
def folder(tmp_path: Path) -> Project:
    (tmp_path / "project").mkdir()
    return Project(tmp_path / "project", f"sqlite:///{tmp_path}/project/shop/cronjobs.db")


def test_what_it_writes_runs_as_it_is(folder: Project) -> None:
    done = folder.run("init", "shop", env={"TZ": "Europe/Berlin", "PATH": os.environ["PATH"]})
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "wrote shop/cronjobs.yaml",
        "wrote shop/jobs.py",
        "wrote shop/cronjobs.schema.json",
        "wrote shop/cronjobs.db",
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
    assert done.err == f"{name} already exists, and init overwrites no file: nothing was written\n"
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
def test_any_folder_name_will_do(folder: Project, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cronjobs.desk.init.write.migrations.upgrade", lambda _: (None, "0001"))  # not about the tables
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

    def full(path: Path, *flags: Any, **more: Any) -> int:
        return opened("/dev/full", os.O_WRONLY) if Path(path).name == "jobs.py" else opened(path, *flags, **more)

    monkeypatch.setattr("cronjobs.desk.init.write.os.open", full)
    done = folder.call("init")
    assert done.code == 1
    assert "No space left on device: nothing was written" in done.err
    assert [file.name for file in folder.folder.iterdir()] == []


def test_with_a_closed_stdout_it_still_writes(folder: Project) -> None:
    script = f"{' '.join(CRONJOBS)} init >&- 2>&-"
    assert subprocess.run(["bash", "-c", script], cwd=folder.folder).returncode == 0
    assert (folder.folder / "jobs.py").exists()


# --- in an app that is there ------------------------------------------------------------------------------------------

TEMPLATE = (Path(alembic.__file__).parent / "templates/generic/env.py").read_text()


TAKE_OVER = (
    '"cronjobs crontab import" in a separate folder converts them to schedules; '
    '"cronjobs crontab wrap" leaves them to cron, and records each run'
)


@pytest.fixture
def app(folder: Project, tmp_path: Path) -> Project:
    """A FastAPI app in a repository, with alembic, and a crontab of its owner."""
    here = folder.folder
    subprocess.run(["git", "init", "-q", "."], cwd=here, check=True)
    for name, text in {
        "src/shop/__init__.py": "",
        "pyproject.toml": '[project]\nname = "shop"\ndependencies = ["fastapi", "sqlalchemy"]\n',
        "alembic.ini": "[alembic]\nscript_location = migrations\n",
        "migrations/env.py": TEMPLATE,
        ".env": f"DATABASE_URL=sqlite:///{tmp_path}/app.db\n",
        ".gitignore": "*.log",
    }.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    (here / "migrations/env.py").chmod(0o640)
    (tmp_path / "app.db").touch()
    folder.url = f"sqlite:///{tmp_path}/app.db"
    return folder


def test_in_an_app_it_says_what_it_found_and_the_next_command_works(app: Project, no_crontab: Path) -> None:
    (no_crontab / "lines").write_text("0 3 * * * backup\n")
    done = app.call("init", "--yes")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "wrote cronjobs.yaml",
        "wrote src/shop/jobs.py",
        "wrote cronjobs.schema.json",
        f"added the tables to {app.url.removeprefix('sqlite:///')}",
        "edited migrations/env.py: autogenerate leaves the tables of cronjobs alone",
        "added to .gitignore: *.db-*, cronjobs.log*",
        "found:",
        "  .env: handlers get its variables, which cron would not give them",
        "  DATABASE_URL in .env: the jobs are kept in that database, beside your own tables",
        "  src/shop is the app's package: the first handler is src/shop/jobs.py",
        f"  your crontab has 1 line: {TAKE_OVER}",
        "next:",
        "  cronjobs check",
        "  cronjobs run-due",
        "  cronjobs crontab install",
        "then, in a request, in the same transaction as your own rows (FastAPI):",
        "  from shop.jobs import hello",
        '  hello.enqueue(session, name="Ada")   # you commit',
    ]
    assert (app.folder / ".gitignore").read_text() == "*.log\n*.db-*\ncronjobs.log*\n"
    env_py = app.folder / "migrations/env.py"
    assert env_py.read_text().count("include_object=include_object") == 2
    assert env_py.stat().st_mode & 0o777 == 0o640
    # Do what the last lines of init say, before any tick.
    engine = create_engine(app.url)
    with engine.begin() as connection:
        enqueue(connection, "hello", {"name": "Ada"})
    engine.dispose()
    assert app.run("check").out == "ok: 1 job type, 1 schedule\n"
    assert app.run("run-due").code == 0
    assert [job["status"] for job in app.jobs()] == ["succeeded"]


def test_tables_that_are_there_are_not_said_to_be_added(app: Project) -> None:
    (app.folder / "cronjobs.yaml").write_text(f"database: {app.url}\n")
    assert app.call("db", "upgrade").code == 0
    (app.folder / "cronjobs.yaml").unlink()
    assert f"the tables are in {app.url.removeprefix('sqlite:///')} already\n" in app.call("init", "--yes").out


def test_on_a_terminal_it_asks_and_does_what_is_answered(app: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cronjobs.desk.cli.init.is_interactive", lambda: True)
    done = app.call("init", stdin=b"\nn\n\n")
    assert done.err.count("[Y/n]") == 3
    assert "the app's own database (DATABASE_URL in .env)?" in done.err
    assert "into the app's package, as src/shop/jobs.py?" in done.err
    assert "to migrations/env.py, so that autogenerate does not drop" in done.err
    assert (app.folder / "jobs.py").exists()
    assert not (app.folder / "src/shop/jobs.py").exists()
    assert "include_object" in (app.folder / "migrations/env.py").read_text()
    assert app.run("check").code == 0
    assert "[Y/n]" not in app.call("init").err  # refused before anything is asked


def test_without_a_terminal_it_changes_no_file_of_the_app_but_the_ignored_names(app: Project) -> None:
    assert app.call("init").code == 0
    assert (app.folder / "migrations/env.py").read_text() == TEMPLATE


def everything(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file() and ".git/" not in str(file)}


@pytest.mark.parametrize("fails", ["src/shop/jobs.py", "the tables", "migrations/env.py", ".gitignore"])
def test_what_fails_on_the_way_leaves_the_app_as_it_was(
    app: Project, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    if fails == "the tables":
        (app.folder / ".env").write_text("")  # without a URL there, the tables go into a new file
        monkeypatch.setattr("cronjobs.desk.init.write.migrations.upgrade", _upgraded_and_then_out_of_space)
    before = everything(app.folder)
    opened = os.open

    def refused(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
        if flags & os.O_CREAT and fails in str(path):
            raise OSError(errno.EDQUOT, "Disk quota exceeded", str(path))
        return opened(path, flags, *arguments, **more)

    monkeypatch.setattr("cronjobs.desk.init.write.os.open", refused)
    done = app.call("init", "--yes")
    monkeypatch.undo()
    assert (done.code, done.out) == (1, ""), done.err
    assert done.err.endswith(": nothing was written\n")
    assert everything(app.folder) == before
    assert app.call("init", "--yes").code == 0


def _upgraded_and_then_out_of_space(database: Database) -> None:
    upgrade(database)
    raise DatabaseError("the disk is full")


def test_a_project_begins_anew_where_one_was_deleted(folder: Project) -> None:
    assert folder.call("init").code == 0
    for file in folder.folder.iterdir():
        file.unlink()
    assert folder.call("init").code == 0
    assert folder.run("run-due").code == 0


@pytest.mark.slow
def test_an_app_on_postgresql_needs_db_upgrade_and_is_told_so(app: Project, postgres_url: str) -> None:
    (app.folder / ".env").write_text(f"DATABASE_URL={postgres_url}\n")
    done = app.call("init")
    assert done.out.partition("next:\n")[2].startswith("  cronjobs db upgrade\n  cronjobs check\n")
    assert postgres_url not in done.out
    for words in (["db", "upgrade"], ["check"], ["run-due"], ["check", "--live"]):
        assert app.run(*words).code == 0
