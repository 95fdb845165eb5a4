"""Instants at the end of the calendar: refused where people write them, shown without an error where they are."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import NullPool, create_engine
from support.project import Project

from cronjobs import enqueue
from cronjobs.engine.database.column_types import SQLITE_LAST_INSTANT
from cronjobs.errors import UsageError
from cronjobs.model import in_zone
from cronjobs.testing import create_tables

END = datetime.max.replace(tzinfo=UTC)
EAST = ZoneInfo("Pacific/Kiritimati")  # UTC+14: on 9999-12-31 at 10:00 UTC its calendar is over


@pytest.mark.parametrize("back", [timedelta(0), timedelta(hours=13), timedelta(hours=15), timedelta(days=2)])
def test_an_instant_has_a_wall_time_or_is_in_utc(back: timedelta) -> None:
    shown = in_zone(END - back, EAST)
    assert shown == END - back
    assert shown.utcoffset() == (timedelta(hours=14) if back >= timedelta(hours=14) else timedelta(0))
    assert in_zone(datetime.min.replace(tzinfo=UTC), ZoneInfo("America/New_York")).tzinfo == UTC


@pytest.mark.parametrize("run_at", [END, END.replace(tzinfo=timezone(timedelta(hours=14))), END - timedelta(hours=30)])
def test_what_no_zone_could_show_is_not_enqueued(run_at: datetime) -> None:
    with create_engine("sqlite://", poolclass=NullPool).connect() as connection:
        create_tables(connection)
        with pytest.raises(UsageError, match="is not between"):
            enqueue(connection, "t.far", run_at=run_at)
        enqueue(connection, "t.far", run_at=END - timedelta(hours=49))


SHOWING = ["status", "history", "jobs list", "jobs show 1", "jobs show 2", "explain 1", "explain 2", "effects list"]


@pytest.mark.needs("desk")
def test_every_command_shows_what_plain_sql_has_written(sqlite_migrated: str, tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write("timezone: Pacific/Kiritimati\n")
    with closing(sqlite3.connect(sqlite_migrated)) as connection, connection:
        for statement in (
            "INSERT INTO cronjobs_jobs (job_type, run_at, created_at, scheduled_for) VALUES ('t', @, @, @)",
            (
                "INSERT INTO cronjobs_jobs (job_type, status, finished_at, last_failed_at, started_at) "
                "VALUES ('t', 'dead', @, @, @)"
            ),
            (
                "INSERT INTO cronjobs_job_runs (job_id, attempt, outcome, started_at, finished_at, runner) "
                "VALUES (2, 1, 'failed', @, @, 'me')"
            ),
            "INSERT INTO cronjobs_pauses (scope, name, until, paused_at) VALUES ('queue', 'x', @, @)",
            "INSERT INTO cronjobs_effects (key, job_id, begun_at) VALUES ('k', 1, @)",
            "INSERT INTO cronjobs_ticks (tick, host, pid, version, started_at) VALUES ('t', 'h', 1, '0', @)",
            "INSERT INTO cronjobs_audit (at, action, subject) VALUES (@, 'pause', 'queue x')",
        ):
            connection.execute(statement.replace("@", str(SQLITE_LAST_INSTANT)))
    for command in SHOWING:
        answer = project.call(*command.split())
        assert answer.code in (0, 1), (command, answer)
        assert answer.out, command
