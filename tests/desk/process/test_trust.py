"""Who else may write what runs here: reported by check, refused by root's tick where it would give root away."""

from __future__ import annotations

import os
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.project import Project

from cronjobs.engine.config import trust
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.config.trust import Facts, UntrustedFiles, judge
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.files import make_folder, open_regular
from cronjobs.errors import ConfigError

ME, ANOTHER = 1000, 1001
STICKY = stat.S_ISVTX


@pytest.mark.parametrize(
    ("facts", "refused"),
    [
        (Facts(0o644, ME, False), None),
        (Facts(0o644, 0, False), None),  # root may write everything anyway
        (Facts(0o666, ME, False), True),
        (Facts(0o646, 0, False), True),
        (Facts(0o664, ME, False), None),  # a group of its own
        (Facts(0o664, ME, False, frozenset({"ada"})), True),
        (Facts(0o644, ME, False, frozenset({"ada"})), None),
        (Facts(0o777, ME, True), True),
        (Facts(0o777 | STICKY, 0, True), None),  # as /tmp
        (Facts(0o775 | STICKY, 0, True, frozenset({"ada"})), None),
        (Facts(0o666 | STICKY, ME, False), True),  # of a file it means nothing
        (Facts(0o644, ANOTHER, False), False),
        (Facts(0o755, ANOTHER, True), False),
        (Facts(0o666, ANOTHER, False), True),
    ],
)
def test_what_is_loose_and_what_is_refused(facts: Facts, refused: bool | None) -> None:
    judged = judge(facts, ME)
    assert (None if judged is None else judged[2]) == refused


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / ".env").write_text("A=b\n")
    (tmp_path / "src" / "shop").mkdir(parents=True)
    (tmp_path / "src" / "shop" / "__init__.py").touch()
    (tmp_path / "src" / "shop" / "jobs.py").touch()
    (tmp_path / "jobs.db").touch()
    file = tmp_path / "cronjobs.yaml"
    file.write_text(
        "database: sqlite:///jobs.db\nenv_file: .env\nimports: [shop.jobs]\npython_path: [src]\nsetup: prepare.all\n"
    )
    (tmp_path / "prepare.py").touch()
    return load(file, environ={})


LOOSE = [".env", "src", "src/shop", "src/shop/__init__.py", "src/shop/jobs.py", "jobs.db", "prepare.py"]


@pytest.mark.parametrize("name", [*LOOSE, "cronjobs.yaml", "."])
def test_roots_tick_refuses_what_everybody_may_write(settings: Settings, name: str) -> None:
    trust.require(settings, {}, me=0)
    (settings.folder / name).chmod(0o777)
    with pytest.raises(UntrustedFiles, match="can be written by everybody") as refused:
        trust.require(settings, {}, me=0)
    assert {found.path for found in refused.value.findings} == {settings.folder / name}
    assert refused.value.exit_code == 3
    trust.require(settings, {}, me=ME)  # the damage is that user's own
    trust.require(settings, {trust.VARIABLE: "1"}, me=0)


def test_the_way_out_is_named_and_works(settings: Settings) -> None:
    (settings.folder / "src").chmod(0o777)
    with pytest.raises(UntrustedFiles, match=r"write run: \{trust_files: true\}"):
        trust.require(settings, {}, me=0)
    settings.file.write_text(settings.file.read_text() + "run: {trust_files: true}\n")
    trusting = load(settings.file, environ={})
    trust.require(trusting, {}, me=0)
    settings.file.chmod(0o666)  # and who can write it could have written that line
    with pytest.raises(UntrustedFiles, match=f"set {trust.VARIABLE}=1 in the crontab"):
        trust.require(trusting, {}, me=0)


def test_an_outcast_in_the_group_counts_by_name(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.file.chmod(0o664)
    monkeypatch.setattr(trust, "_members", lambda group, owner: frozenset({"ada", "bob"}))
    with pytest.raises(UntrustedFiles, match=r"by its group \(ada, bob; mode 0664\)"):
        trust.require(settings, {}, me=0)


def test_check_reports_it_and_a_tick_of_roots_runs_nothing(sqlite_migrated: str, tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write(handlers="open('imported', 'w')\n")
    (tmp_path / "handlers.py").chmod(0o666)
    answer = project.call("check", "--no-import")
    assert answer.code == 1
    assert "handlers.py can be written by everybody (mode 0666)" in answer.out + answer.err
    if os.geteuid() == 0:  # what the tick of another user does is tested above
        project.run("enqueue", "t.x", "--no-import")
        tick = project.run("run-due")
        assert tick.code == 3
        assert "handlers.py can be written by everybody (mode 0666), and this tick runs as root" in tick.err
        assert not (tmp_path / "imported").exists()


# --- what is no file --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "socket"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW])
def test_only_a_regular_file_is_opened_and_nothing_is_waited_for(tmp_path: Path, kind: str, flags: int) -> None:
    there = tmp_path / "it"
    if kind == "fifo":
        os.mkfifo(there)
    elif kind == "device":
        there = Path("/dev/null")
    elif kind == "folder":
        there.mkdir()
    else:
        with closing(socket.socket(socket.AF_UNIX)) as listening:
            listening.bind(str(there))
    with pytest.raises(OSError, match="Is a directory" if kind == "folder" else "it is no regular file"):
        open_regular(there, flags)


def test_a_fifo_in_the_configuration_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = tmp_path / "cronjobs.yaml"
    file.write_text("database: sqlite:///x.db\nenv_file: pipe\n")
    with pytest.raises(ConfigError, match=r"env_file.*no regular file"):
        load(file, environ={})
    file.write_text("database: '${file:pipe}'\n")
    with pytest.raises(ConfigError, match="cannot be read: it is no regular file"):
        load(file, environ={})


# --- what we make -----------------------------------------------------------------------------------------------------


@pytest.fixture
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_no_umask")
def test_no_folder_is_made_for_everybody_to_write(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b" / "c", 0o700)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cronjobs", "init", str(tmp_path / "x" / "shop")], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("x", "x/shop")] == [0o755] * 2


def test_who_shares_the_database_shares_its_locks(sqlite_migrated: str) -> None:
    """A colleague of the same group can write to it, so it must be able to take its turn."""
    Path(sqlite_migrated).chmod(0o660)
    if os.geteuid() == 0:
        os.chown(sqlite_migrated, -1, 12)
    database = Database(parse_url(f"sqlite:///{sqlite_migrated}"))
    with database.write() as connection:
        connection.exec_driver_sql("SELECT 1")
    database.close()
    group = Path(sqlite_migrated).stat().st_gid
    for name in ("turn", "next"):
        lock = Path(f"{sqlite_migrated}-{name}").stat()
        assert (stat.S_IMODE(lock.st_mode), lock.st_gid) == (0o660, group)
    with closing(sqlite3.connect(sqlite_migrated)) as connection:
        assert connection.execute("SELECT count(*) FROM cronjobs_jobs").fetchone() == (0,)
