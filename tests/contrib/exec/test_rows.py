"""``status`` lists the crontab lines that cron itself runs, in the same way as it lists schedules."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from contrib.exec.test_exec_runs import a_run, record
from contrib.exec.test_exec_runs import crontab as crontab
from cronjobs.contrib.exec.rows import rows
from cronjobs.desk.cli.status import status_lines
from cronjobs.desk.cli.status_json import facts_object
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.sql import database_now

MINUTE = timedelta(minutes=1)


def failed(name: str, ago: timedelta) -> Any:
    return a_run(name, ago, MINUTE, status=7)


def shown(database: Database, limit: int | None) -> tuple[list[dict[str, Any]], int]:
    with database.read() as connection:
        found, names = rows(connection, database_now(connection), limit)
        return [facts_object(each) for each in found], names


def test_a_line_has_its_last_runs_and_its_next_one(database: Database) -> None:
    record(database, *(a_run("nightly", hours * timedelta(hours=1), hours * MINUTE) for hours in range(30, 6, -1)))
    record(database, failed("nightly", 5 * MINUTE))
    [[nightly], names] = shown(database, 20)
    assert (nightly["name"], names) == ("exec:nightly", 1)
    assert nightly["strip"] == ["succeeded"] * 19 + ["dead"]
    assert (nightly["last"]["outcome"], nightly["last"]["took_s"]) == ("dead", pytest.approx(60, abs=0.01))
    assert nightly["next_at"].hour == 3


def test_the_worst_come_first_and_the_rest_is_counted(database: Database) -> None:
    record(database, a_run("hourly", timedelta(hours=3)), a_run("by.hand", MINUTE), a_run("nightly", MINUTE))
    record(database, failed("broken", MINUTE))
    found, names = shown(database, 3)
    assert [each["name"] for each in found] == ["exec:hourly", "exec:broken", "exec:nightly"]
    assert names == 4
    assert len(shown(database, None)[0]) == 4
    assert found[1]["next_at"] is None, "no line of the crontab says when"


def test_a_run_that_goes_on_is_running(database: Database) -> None:
    record(database, a_run("hourly", 2 * MINUTE, None))
    [[hourly], _] = shown(database, 20)
    assert (hourly["strip"], hourly["last"]) == (["running"], None)


@pytest.mark.either
def test_status_lists_them(database: Database, tmp_path: Path) -> None:
    record(database, a_run("nightly", 3 * MINUTE, MINUTE))
    settings = Settings(file=tmp_path / "f", folder=tmp_path)
    with database.read() as connection:
        said = status_lines(connection, settings, JobTypes(), "", everything=False)
    [line] = [line for line in said if line.startswith("exec:nightly")]
    assert line.split()[1:4] == ["succeeded", "2m", "1m"]
    assert not any(line.startswith("schedules") for line in said)


@pytest.mark.either
def test_where_nothing_says_when_it_is_due_status_does_not_say_never(database: Database, tmp_path: Path) -> None:
    record(database, a_run("by.hand", MINUTE))
    settings = Settings(file=tmp_path / "f", folder=tmp_path)
    with database.read() as connection:
        said = status_lines(connection, settings, JobTypes(), "", everything=False)
    assert [line.split()[-1] for line in said if line.startswith("exec:by.hand")] == ["unknown"]
