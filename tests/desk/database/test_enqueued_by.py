"""The audit trail: who enqueued a job, and who retried, cancelled, released, paused, resumed or settled, and why."""

from __future__ import annotations

import getpass
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import insert, select
from support.project import Project
from support.targets import each_target, opened

from cronjobs import enqueue, enqueue_many, job
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import effects, jobs
from cronjobs.engine.host import caller
from cronjobs.engine.host.identity import Identity
from cronjobs.errors import UsageError


def enqueuers(database: Database) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(select(jobs.c.enqueued_by).order_by(jobs.c.id)).scalars())


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tests run as ada's manage.py."""
    monkeypatch.setattr("sys.argv", ["/srv/shop/manage.py", "runserver"])
    monkeypatch.setenv("LOGNAME", "ada")
    caller.caller.cache_clear()
    yield
    caller.caller.cache_clear()


@each_target
def test_who_enqueued_is_what_the_caller_says(database: Database, database_url: str, kind: str) -> None:
    @job("t.send")
    def send() -> None: ...

    with opened(kind, database_url) as user:
        enqueue(user.target, "t.say", enqueued_by="user 42")
        rows: list[Any] = [{}, ({}, {"enqueued_by": "user 44"})]
        enqueue_many(user.target, "t.say", rows, enqueued_by="import")
        send.options(enqueued_by="user 45").enqueue(user.target)
        enqueue(user.target, "t.say", idempotency_key="k", enqueued_by="first")
        enqueue(user.target, "t.say", idempotency_key="k", enqueued_by="second", on_conflict="replace")
        user.commit()
    assert enqueuers(database) == ["user 42", "import", "user 44", "user 45", "second"]


@pytest.mark.usefixtures("program")
def test_sqlite_which_knows_nobody_is_told_user_and_program(sqlite_migrated: str) -> None:
    with closing(sqlite3.connect(sqlite_migrated)) as connection:
        enqueue(connection, "t.say")
        enqueue_many(connection, "t.say", [{}])
        connection.execute("INSERT INTO cronjobs_jobs (job_type) VALUES ('t')")
        found = connection.execute("SELECT enqueued_by FROM cronjobs_jobs ORDER BY id").fetchall()
    assert found == [("ada/manage.py",), ("ada/manage.py",), (None,)]


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/usr/bin/gunicorn"], "gunicorn"),
        (["/srv/shop/__main__.py"], "shop"),
        (["-c"], "python"),
        ([""], "python"),
        (["/srv/\x1b[2J\n"], r"\x1b[2J\n"),
    ],
)
@pytest.mark.usefixtures("program")
def test_the_program_is_named_as_it_was_called(argv: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", argv)
    assert caller.caller() == f"ada/{name}"


def test_the_function_takes_who_enqueued_and_else_knows_it(postgres_migrated: str) -> None:
    with psycopg.connect(postgres_migrated, application_name="shop") as psql:
        psql.execute("SELECT cronjobs_enqueue('t'), cronjobs_enqueue('t', enqueued_by => 'user 42')")
        psql.execute("INSERT INTO cronjobs_jobs (job_type) VALUES ('t')")
        found = [row[0] for row in psql.execute("SELECT enqueued_by FROM cronjobs_jobs ORDER BY id").fetchall()]
    assert found[1] == "user 42"
    assert found[0] == found[2]
    assert found[0].endswith("/shop")


@pytest.mark.parametrize("who", ["", " ada", "a\nb", "x" * 201, 42])
def test_a_name_that_cannot_be_meant_is_refused(database: Database, who: Any) -> None:
    with database.write() as connection, pytest.raises(UsageError, match="enqueued_by"):
        enqueue(connection, "t.say", enqueued_by=who)


# --- operators --------------------------------------------------------------------------------------------------------


def test_every_act_of_an_operator_names_who_did_it_where_and_why(database_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, database_url)
    project.write()
    here = Identity.here()
    now = datetime.now(UTC)
    gone = f"{here.place}1:1:x"  # pid 1 began at another time
    states: list[dict[str, Any]] = [
        {"status": "dead", "finished_at": now},
        {"status": "queued"},
        {"status": "running", "locked_by": gone, "locked_until": now + timedelta(hours=1), "attempts": 1},
    ]
    for state in states:
        project.execute(insert(jobs).values(job_type="t", **state))
    project.execute(insert(effects).values(key="mail:1", state="begun"))
    for command in (
        ("jobs", "retry", "1"),
        ("jobs", "cancel", "2"),
        ("jobs", "release", "3"),
        ("pause", "--all"),
        ("resume", "--all"),
        ("effects", "settle", "mail:1", "done"),
    ):
        done = project.call(*command, "--why", f"why of {command[-1]}")
        assert done.code == 0, (command, done.err)
    told = [(row["action"], row["subject"], row["actor"], row["host"], row["why"]) for row in project.rows("audit")]
    who = (getpass.getuser(), socket.gethostname())
    assert told == [
        ("retry", "job 1", *who, "why of 1"),
        ("cancel", "job 2", *who, "why of 2"),
        ("release", "job 3", *who, "why of 3"),
        ("pause", "all", *who, "why of --all"),
        ("resume", "all", *who, "why of --all"),
        ("settle", "effect mail:1", *who, "why of done"),
    ]


def test_a_job_shows_who_enqueued_it(database_url: str, tmp_path: Path) -> None:
    project = Project(tmp_path, database_url)
    project.write()
    assert project.call("enqueue", "t.ok", "--no-import").code == 0
    said = project.call("jobs", "show", "1").out
    assert f"by cli:{getpass.getuser()}\n" in said
