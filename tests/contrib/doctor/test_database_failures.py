"""A database that is full, read-only or corrupted: the cause is named, and no handler runs without a claim.

Real ticks; the effects file, outside the database, says how often handlers ran.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError
from support.commands import until
from support.disks import Disk, FileLimit, obey_modes, read_only, small_disk, spoil_header, spoil_pages
from support.postgres import SUPERUSER, PostgresServer, as_role
from support.ticking import Project, Tick, events

from cronjobs.contrib.doctor.host_checks import volumes
from cronjobs.contrib.doctor.host_verdicts import disk_space
from cronjobs.engine.config.load import load
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database, as_database_error
from cronjobs.engine.schema import migrations

NewProject = Callable[[str], Project]

BUDGET = ("--budget", "6s")


def assert_told(tick: Tick, *words: str) -> None:
    """Exit 4, and one line that names the cause and what to do."""
    assert tick.wait() == 4
    assert tick.stderr.count("\n") == 1, tick.stderr
    for word in words:
        assert word in tick.stderr, tick.stderr
    assert "Traceback" not in tick.stderr


def assert_runs_once_afterwards(project: Project, *ids: int) -> None:
    """Nothing ran as long as no claim could be recorded; now that the cause is gone everything runs once."""
    assert project.effects() == []
    assert {project.job(job_id)["attempts"] for job_id in ids} == {0}
    assert project.tick().wait() == 0
    assert project.times_ran() == dict.fromkeys(ids, 1)
    assert [project.outcomes(job_id) for job_id in ids] == [["succeeded"]] * len(ids)


# --- no room: SQLite --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["disk", "limit"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, sqlite_migrated: str) -> Iterator[Disk]:
    """A disk with a migrated database on it, and how to fill it."""
    if request.param == "limit":
        yield FileLimit(Path(sqlite_migrated).parent)
        return
    with small_disk(tmp_path / "disk") as small:
        shutil.copy(sqlite_migrated, small.folder)
        yield small


@pytest.fixture
def project_on_disk(disk: Disk, new_project: NewProject) -> Project:
    return new_project(f"sqlite:///{disk.folder}/cronjobs.db").configure("run: {workers: 2}\n")


@pytest.mark.slow
def test_without_room_nothing_runs_and_the_cause_is_told(project_on_disk: Project, disk: Disk) -> None:
    project = project_on_disk
    ids = [project.add("t.quick") for _ in range(3)]
    disk.fill()
    assert_told(project.tick(*BUDGET, **disk.changes), disk.said, str(disk.folder))
    disk.free()
    assert_runs_once_afterwards(project, *ids)


def test_a_result_without_room_is_kept_and_written_when_there_is_some(project_on_disk: Project, disk: Disk) -> None:
    project = project_on_disk
    job_id = project.add("t.gated", timeout_s=15)
    tick = project.start()
    until(lambda: project.effects("start"))
    disk.fill(tick)
    project.open()
    until(lambda: "database.trouble" in project.log())
    disk.free(tick)
    assert tick.wait() == 0
    assert project.outcomes(job_id) == ["succeeded"]
    assert project.times_ran("end") == {job_id: 1}


@pytest.mark.slow
def test_a_result_that_never_found_room_is_told_and_its_job_is_found_lost(project_on_disk: Project, disk: Disk) -> None:
    project = project_on_disk
    job_id = project.add("t.gated", timeout_s=1)
    tick = project.start(*BUDGET)
    until(lambda: project.effects("start"))
    disk.fill(tick)
    project.open()
    assert tick.wait() in (4, -signal.SIGALRM)  # the tick tried until its time was over
    assert "job.end_not_recorded" in tick.stderr
    assert disk.said in tick.stderr
    disk.free()
    assert project.job(job_id)["status"] == "running"
    project.let_leases_end()
    assert project.tick().wait() == 0
    assert project.outcomes(job_id) == ["lost", "succeeded"]
    assert events(project.log(), "job.lost")


# --- no room for SQLite's temporary files -----------------------------------------------------------------------------


@pytest.fixture
def full_temporary_folder(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "temporary") as small:
        small.fill()
        yield small.folder


def test_a_full_temporary_folder_stops_no_job_of_a_database_whose_disk_has_room(
    sqlite_project: Project, full_temporary_folder: Path
) -> None:
    project = sqlite_project
    large = [project.add("t.quick", json.dumps({"data": "y" * 200_000})) for _ in range(2)]
    small = [project.add("t.quick", json.dumps({"data": "y" * 20_000})) for _ in range(40)]
    # SQLite reads the variable when it starts
    tick = project.tick(env={"SQLITE_TMPDIR": str(full_temporary_folder)}, fresh=True)
    assert (tick.wait(), tick.stderr) == (0, "")
    assert project.times_ran() == dict.fromkeys([*large, *small], 1)


def test_doctor_looks_at_the_temporary_folder(
    sqlite_project: Project, full_temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLITE_TMPDIR", str(full_temporary_folder))
    verdict = disk_space(volumes(load(sqlite_project.folder / "cronjobs.yaml", environ=os.environ)))
    assert (verdict.status, str(full_temporary_folder) in verdict.text) == ("problem", True)


def test_a_full_temporary_folder_is_named_and_not_the_disk_of_the_database(
    tmp_path: Path, full_temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLITE_TMPDIR", str(full_temporary_folder))
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    for folder, said in ((tmp_path, str(full_temporary_folder)), (full_temporary_folder, "make room on its disk")):
        address = parse_url(f"sqlite:///{folder}/jobs.db")
        told = str(as_database_error(address, DBAPIError("SELECT 1", None, error)))
        assert said in told
        assert ("SQLITE_TMPDIR" in told) is (folder == tmp_path)


# --- no leave to write: SQLite ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["file", "folder", "both"])
def test_a_file_that_may_not_be_written_is_told_and_nothing_runs(sqlite_project: Project, what: str) -> None:
    project = sqlite_project
    ids = [project.add("t.quick") for _ in range(2)]
    file = Path(project.file)
    with (
        read_only(file if what == "file" else file.parent),
        read_only(file.parent if what == "both" else file),
    ):
        tick = project.tick(*BUDGET, preexec_fn=obey_modes)
    assert_told(tick, "cannot be written to", str(file), "let this user write")
    assert_runs_once_afterwards(project, *ids)


# --- spoiled: SQLite --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", [spoil_header, spoil_pages])
def test_a_spoiled_file_is_told_and_nothing_runs(sqlite_project: Project, spoil: Callable[[Path], None]) -> None:
    project = sqlite_project
    ids = [project.add("t.quick") for _ in range(2)]
    file = Path(project.file)
    backup = shutil.copy(file, file.with_name("backup"))
    spoil(file)
    assert_told(project.tick(*BUDGET), "is damaged", str(file), "restore the database from a backup")
    for left in file.parent.glob(f"{file.name}-*"):
        left.unlink()
    shutil.copy(backup, file)
    assert_runs_once_afterwards(project, *ids)


# --- no room, no leave to write: PostgreSQL ---------------------------------------------------------------------------


@contextmanager
def disk_full(project: Project) -> Iterator[None]:
    """Let every claim fail with what the server says when its disk is full."""
    project.admin_sql(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
        "'could not extend file \"base/1/2\": No space left on device' USING ERRCODE = '53100'; END $$"
    )
    project.admin_sql("CREATE TRIGGER full_disk BEFORE UPDATE ON cronjobs_jobs EXECUTE FUNCTION full_disk()")
    yield
    project.admin_sql("DROP TRIGGER full_disk ON cronjobs_jobs")


@contextmanager
def server_read_only(project: Project) -> Iterator[None]:
    """What a standby does, and a provider whose disk is nearly full."""
    name = project.value("SELECT current_database()")
    project.admin_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    yield
    with closing(psycopg.connect(as_role(project.url, SUPERUSER), autocommit=True)) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only".encode())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (disk_full, ["no room left", "No space left on device", "make room"]),
        (server_read_only, ["cannot be written to", "whether the server is a standby"]),
    ],
)
def test_a_server_that_takes_no_writes_is_told_and_nothing_runs(
    postgres_project: Project, how: Callable[[Project], AbstractContextManager[None]], said: list[str]
) -> None:
    project = postgres_project.configure("schedules:\n  s: {every: 12h, job: t.quick}\n")
    ids = [project.add("t.quick") for _ in range(2)]
    with how(project):
        tick = project.tick(*BUDGET)
    assert_told(tick, *said)
    assert 'ended="the database is read-only"' in project.log()  # not at the end of its budget: it would not help
    assert str(parse_url(project.url).url.password) not in tick.stderr
    assert_runs_once_afterwards(project, *ids)


def test_a_result_that_the_server_has_no_room_for_is_kept_and_written_later(postgres_project: Project) -> None:
    project = postgres_project
    job_id = project.add("t.gated", timeout_s=15)
    tick = project.start()
    until(lambda: project.effects("start"))
    with disk_full(project):
        project.open()
        until(lambda: "database.trouble" in project.log())
    assert tick.wait() == 0
    assert project.outcomes(job_id) == ["succeeded"]
    assert project.times_ran("end") == {job_id: 1}


# --- restarts ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_project(own_postgres_server: PostgresServer, new_project: NewProject) -> Project:
    """A project on a running server of its own."""
    own_postgres_server.start()
    own_postgres_server.execute("CREATE DATABASE shop")
    database = Database(parse_url(own_postgres_server.url("shop")))
    migrations.upgrade(database)
    database.close()
    return new_project(own_postgres_server.url("shop"))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
def test_a_server_restarted_while_jobs_run_loses_and_doubles_no_effect(
    own_postgres_server: PostgresServer, own_project: Project, how: signal.Signals
) -> None:
    """Twice in one tick: with a claim under way, and while results wait to be written."""
    project = own_project.configure("run: {workers: 3, lease: 30s}\n")
    project.add_many("t.quick", 150)
    ids = [project.add("t.gated", f'{{"gate": "{name}"}}', timeout_s=20, priority=0) for name in ("one", "two")]
    tick = project.start()
    until(lambda: len(project.effects("start")) == 2 and len(project.times_ran()) > 10)
    own_postgres_server.stop(how)
    project.open("one")
    until(lambda: len(project.effects("end")) == 1)
    own_postgres_server.start()
    until(lambda: project.outcomes(ids[0]) == ["succeeded"])
    own_postgres_server.stop(how)
    project.open("two")
    until(lambda: len(project.effects("end")) == 2)
    own_postgres_server.start()
    assert tick.wait() == 0
    assert project.statuses() == {"succeeded": 152}
    assert set(project.times_ran().values()) == {1}
    assert project.times_ran("end") == dict.fromkeys(ids, 1)
    assert project.value("SELECT max(attempts) FROM cronjobs_jobs WHERE job_type = 't.gated'") == 1
