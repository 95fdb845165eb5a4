"""Only ``cronjobs exec`` can write rows with its names. So no enqueuer can make a missed run look like a run."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from support.postgres import ENQUEUE, as_role
from support.project import Project

from cronjobs import enqueue, enqueue_many, job
from cronjobs.clock import SYSTEM
from cronjobs.contrib.exec import delivery
from cronjobs.contrib.exec.run import ExecRun
from cronjobs.contrib.exec.target import no_project
from cronjobs.desk.insight.findings import judge
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.store import exec_runs
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store import operating
from cronjobs.engine.store.sql import run
from cronjobs.errors import DatabaseError, UsageError

HOUR = timedelta(hours=1)
FAKE = "INSERT INTO cronjobs_jobs (job_type) VALUES ('exec:backup')"


def ran(database: Database, *names: str, ago: timedelta = 3 * HOUR, **facts: Any) -> None:
    for name in names:
        began = SYSTEM.now().timestamp() - ago.total_seconds()
        read = {"token": f"{name} {began}", "name": name, "locked_by": str(Identity.here()), "cron": "0 * * * *"}
        ended = {"began": began, "ended": began + 1, "took": 1.0, "status": 0}
        delivery.end(database, ExecRun.read(read | ended | facts))


def found(database: Database) -> list[str]:
    with database.read() as connection:
        return [each.key for each in judge(look(connection, no_project(), JobTypes()), no_project())]


def test_no_way_to_enqueue_takes_a_name_of_exec(database: Database) -> None:
    refusal = 'begins with "exec:", which is reserved for "cronjobs exec"'
    for call in (
        lambda: enqueue(database.engine, "exec:backup"),
        lambda: enqueue_many(database.engine, "exec:backup", [{}]),
        lambda: job("exec:backup"),
    ):
        with pytest.raises(UsageError, match=refusal):
            call()
    with pytest.raises(DatabaseError, match="cronjobs_jobs_exec_began_ck"), database.write() as connection:
        connection.execute(text(FAKE))
    waiting = enqueue(database.engine, "t.say").id
    renamed = text("UPDATE cronjobs_jobs SET job_type = 'exec:backup' WHERE id = :id")
    with pytest.raises(DatabaseError, match="cronjobs_jobs_exec_began_ck"), database.write() as connection:
        connection.execute(renamed, {"id": waiting})


def test_the_command_refuses_a_name_of_exec(sqlite_migrated: str, tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write()
    answer = project.call("enqueue", "exec:backup")
    assert (answer.code, 'begins with "exec:"' in answer.err) == (2, True)
    assert project.rows("jobs") == []


def test_the_function_and_the_enqueuers_insert_refuse_it(postgres_migrated: str) -> None:
    with psycopg.connect(as_role(postgres_migrated, ENQUEUE), autocommit=True) as user:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match='job_type "exec:backup" begins with "exec:"'):
            user.execute("SELECT cronjobs_enqueue('exec:backup')")
        with pytest.raises(psycopg.errors.CheckViolation, match="cronjobs_jobs_exec_began_ck"):
            user.execute(FAKE)


def test_rows_that_never_began_hide_no_missed_run(database: Database) -> None:
    """These rows have a final status and no start, which the tables' CHECK allows."""
    ran(database, "backup", "zbackup")
    assert found(database) == ["absent:backup", "absent:zbackup"]
    later = {"status": "cancelled", "finished_at": SYSTEM.now(), "run_at": SYSTEM.now() + 900 * HOUR}
    names = ["backup", "backup", *(f"a{n}" for n in range(exec_runs.MOST_NAMES))]
    with database.write() as connection:
        connection.execute(jobs.insert(), [later | {"job_type": f"exec:{name}"} for name in names])
    assert found(database) == ["absent:backup", "absent:zbackup"]
    with database.read() as connection:
        assert exec_runs.begun_between(connection, "exec:a1", None, None, 1) == []


def test_more_names_than_are_watched_are_a_finding(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_runs, "MOST_NAMES", 2)
    ran(database, "a", "b")
    assert found(database) == ["absent:a", "absent:b"]
    ran(database, "c")
    assert found(database) == ["absent:a", "absent:b", "unwatched"]


@pytest.mark.parametrize("verb", ["retry", "cancel", "dismiss", "release"])
def test_the_verbs_of_operators_meet_no_check_with_a_run_of_exec(database: Database, verb: str) -> None:
    ran(database, "fails", status=256)
    began = SYSTEM.now().timestamp() - 60
    facts = {"token": "b", "name": "runs", "locked_by": str(Identity.here()), "began": began}
    delivery.begin(database, ExecRun.read(facts))
    act = operating.OperatorAction(verb, "ada", "here", None)
    with database.write() as connection:
        ids = [row.id for row in run(connection, "SELECT j.id FROM {jobs} j ORDER BY j.id")]
        match verb:
            case "retry":
                assert operating.retry(connection, ids, act).done == frozenset()
            case "release":
                assert operating.release(connection, [*operating.held(connection, ids).values()], act).written == {2}
            case _:
                getattr(operating, verb)(connection, ids, act)
