"""docs/how-to/operating.md: a backup that is made while ticks run, and restored elsewhere or in place, works."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.databases import in_psql, until
from support.pages import Page
from support.postgres import SUPERUSER, PostgresServer, as_role
from support.ticking import Project, cli, rivals

PAGE = Page("docs/how-to/operating.md")

YAML = """
project: shop
environment: production
run: {workers: 2}
schedules:
  each-minute: {every: 1m, job: t.told, overlap: allow, catch_up: all}
"""
HANDLERS = """
@job("t.told")
def told(ctx):
    say("told", ctx)
@job("t.key")
def key(ctx):
    return ctx.idempotency_key
"""


FAR = {True: "4102444800000000", False: "2100-01-01"}


class Kept:
    """A project, and a backup of its database."""

    def __init__(self, project: Project, server: PostgresServer, new_url: Any) -> None:
        self.project, self._server, self._new_url = project.configure(YAML, HANDLERS), server, new_url
        self.backup = project.folder / ("backup.db" if project.is_sqlite else "backup.dump")

    def back_up(self) -> None:
        if self.project.is_sqlite:
            folder = Path(self.project.file).parent
            self._shell(PAGE.block("console", "VACUUM INTO").removeprefix("$ "), folder)
            (folder / "backup.db").replace(self.backup)
            assert self.backup.stat().st_mode & 0o077 == 0
        else:
            address = as_role(self.project.url, SUPERUSER)
            self._call("pg_dump", "--format=custom", f"--file={self.backup}", f"--dbname={address}")

    def restore(self) -> str:
        """Restore the backup into a new database; return its URL."""
        if self.project.is_sqlite:
            copy = self.project.folder / "restored.db"
            shutil.copy(self.backup, copy)
            return f"sqlite:///{copy}"
        url = str(self._new_url())
        self._call("pg_restore", f"--dbname={url}", "--exit-on-error", str(self.backup))
        return url

    def restore_in_place(self) -> None:
        if self.project.is_sqlite:
            for end in ("-wal", "-shm"):
                Path(f"{self.project.file}{end}").unlink(missing_ok=True)
            shutil.copy(self.backup, self.project.file)
        else:
            self.project.url = self.restore()
            self.project.configure(YAML, HANDLERS)

    def _call(self, program: str, *arguments: str) -> None:
        done = subprocess.run([self._server.bin / program, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def _shell(self, line: str, folder: Path) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        subprocess.run(["sh", "-c", line], cwd=folder, env={"PATH": path}, check=True)


@pytest.fixture
def kept(project: Project, postgres_server: PostgresServer, new_postgres_url: Any) -> Kept:
    return Kept(project, postgres_server, new_postgres_url)


@pytest.mark.slow
def test_a_backup_of_a_database_at_work_is_whole_and_its_copy_keeps_still(kept: Kept) -> None:
    project = kept.project
    gated, later = project.add("t.gated"), project.add("t.quick", run_at=FAR[project.is_sqlite])
    with rivals(project):
        until(lambda: len(project.effects("start")) == 1)
        kept.back_up()
        project.open()
        until(lambda: project.job(gated)["status"] == "succeeded")

    copy = Project(project.folder / "elsewhere", kept.restore())
    copy.folder.mkdir()
    copy.configure(YAML.replace("production", "staging"), HANDLERS)
    try:
        cli(copy, "db", "check")
        before = copy.everything()
        refused = copy.tick()
        assert refused.process.returncode == 3
        assert refused.stderr == PAGE.block("console", "nothing was written").partition("\n")[2]
        assert copy.everything() == before
        assert json.loads(cli(copy, "status", "--json"))["running"]["total"] == 1  # commands that only read are allowed

        copy.let_ticks_age()
        for line in PAGE.block("console", "jobs cancel").splitlines():
            cli(copy, *shlex.split(line)[2:])
        copy.let_leases_end()
        assert copy.tick().process.returncode == 0
        assert copy.effects("start") == copy.effects("ran") == []
        assert {copy.job(each)["status"] for each in (gated, later)} == {"cancelled"}
    finally:
        copy.end_everything()


@pytest.mark.slow
def test_an_older_state_in_place_does_what_the_table_says(kept: Kept) -> None:
    project = kept.project
    before = [project.add("t.quick", idempotency_key=f"before:{n}") for n in range(3)]
    assert project.tick().process.returncode == 0
    between = [project.add("t.quick") for _ in range(3)]
    running = project.add("t.gated")
    tick = project.start()
    until(lambda: len(project.effects("start")) == 1)
    kept.back_up()
    project.open()
    tick.wait()
    since = [project.add("t.key", idempotency_key=f"since:{n}") for n in range(2)]
    assert project.tick().process.returncode == 0
    ours = (*before, *between, running, *since)  # the schedule's own jobs come as minutes go by
    assert {project.job(each)["status"] for each in ours} == {"succeeded"}

    kept.restore_in_place()
    project.let_leases_end()
    _past_the_ids(project)
    new = project.add("t.key")
    assert new > max(since) + 900_000
    assert project.add("t.key", idempotency_key="since:0") > new
    with pytest.raises((sqlite3.IntegrityError, psycopg.errors.UniqueViolation)):
        project.add("t.quick", idempotency_key="before:0")
    for _ in range(2):
        assert project.tick().process.returncode == 0
    times = project.times_ran()
    assert {times[job] for job in before} == {1}
    assert {times[job] for job in between} <= {1, 2}
    assert project.times_ran("end")[running] == 2
    assert project.outcomes(running) == ["lost", "succeeded"]
    assert f"cronjobs-job-{new}" in str(project.job(new)["result"])
    told = project.sql("SELECT last_for, outcome FROM cronjobs_occurrences ORDER BY last_for")
    assert len(told) == len({last for last, _ in told})


def _past_the_ids(project: Project) -> None:
    kind = "SQLite" if project.is_sqlite else "PostgreSQL"
    statement = PAGE.block("sql", f"-- {kind}")
    if project.is_sqlite:
        project.sql(statement)
    else:
        in_psql(project.url, statement)
