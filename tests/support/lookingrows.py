"""Shared by tests of commands that show things: rows in every state, and the real command line with a fake clock."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, insert

from cronjobs.desk.cli import main
from cronjobs.engine.database import tables
from cronjobs.engine.database.address import Address
from cronjobs.engine.database.connection import Database
from cronjobs.testing import FakeClock

NOW = datetime(2026, 7, 1, 12, 3, 7, 200_000, tzinfo=UTC)  # this is 14:03:07 in Berlin
HOLDER = "web1:boot:1:4711:99:a1b2c3d4e5f6"

YAML = """\
project: shop
environment: production
database: @database@
timezone: Europe/Berlin
job_types:
  mail.send: {command: ["true"], retry: {max_attempts: 5}}
  reports.nightly: {command: ["true"]}
schedules:
  nightly-report: {cron: "15 2 * * *", timezone: America/New_York, job: reports.nightly}
  refresh-cache: {every: 10m, job: mail.send}
"""


def ago(**span: float) -> datetime:
    return NOW - timedelta(**span)


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cronjobs = Callable[..., Answer]


@pytest.fixture
def cronjobs(
    database_url: str,
    clock: FakeClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Cronjobs:
    """Run a command of the real command line in a folder with a cronjobs.yaml, 80 columns wide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("CRONJOBS_CONFIG", "CRONJOBS_DATABASE_URL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "cronjobs.yaml").write_text(YAML.replace("@database@", database_url))

    def leave(code: int, *, stuck: bool) -> None:
        raise SystemExit(code)  # the real function ends the process if any other test has left a thread

    def under_the_clock(address: Address, *, connections: int) -> Database:
        return Database(address, connections=connections, clock=clock)

    monkeypatch.setattr("cronjobs.engine.command.leaving.leave", leave)
    # Do not replace open_database: a module that is first imported now would keep it, and its clock, for all later
    # tests.
    monkeypatch.setattr("cronjobs.engine.command.database.Database", under_the_clock)

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["cronjobs", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.run()
        said = capsys.readouterr()
        return Answer(int(ended.value.code or 0), said.out, said.err)

    return run


@dataclass
class Rows:
    """Makes rows in every state with plain INSERTs."""

    database: Database

    def put(self, table: Table, **values: Any) -> Any:
        with self.database.write() as connection:
            key = next(iter(table.primary_key.columns))
            return connection.execute(insert(table).values(values).returning(key)).scalar_one()

    def job(self, job_type: str = "mail.send", status: str = "queued", **values: Any) -> int:
        usual: dict[str, Any] = {"run_at": ago(seconds=10), "created_at": ago(minutes=20)}
        if status in ("succeeded", "dead", "cancelled"):
            usual |= {"started_at": ago(minutes=10), "finished_at": ago(minutes=9), "attempts": 1}
        if status == "running":
            leased = {"locked_by": HOLDER, "locked_until": NOW + timedelta(seconds=48, milliseconds=300)}
            usual |= leased | {"started_at": ago(seconds=12), "attempts": 1}
        number: int = self.put(tables.jobs, job_type=job_type, status=status, **(usual | values))
        return number

    def attempt(self, job_id: int, outcome: str = "succeeded", **values: Any) -> None:
        usual = {"attempt": 1, "started_at": ago(minutes=10), "finished_at": ago(minutes=9), "runner": HOLDER}
        self.put(tables.job_runs, job_id=job_id, outcome=outcome, **(usual | values))

    def tick(self, host: str = "web1", began: datetime = NOW - timedelta(seconds=6), **values: Any) -> None:
        usual: dict[str, Any] = {"finished_at": began + timedelta(milliseconds=310), "ended": "nothing is due"}
        usual |= {"pid": 7, "version": "0.1.0", "fingerprint": "3f2a9c1b00000000", "tick": f"{host}{began}"}
        usual["schedules_on"] = 1
        self.put(tables.ticks, host=host, started_at=began, **(usual | values))

    def schedule(self, name: str, **values: Any) -> int:
        cron = {"cron": "15 2 * * *", "timezone": "America/New_York", "job": "reports.nightly"}
        usual: dict[str, Any] = {"definition": cron, "fingerprint": "3f2a9c1b00000000", "seen_until": ago(minutes=1)}
        number: int = self.put(tables.schedules, name=name, **(usual | values))
        return number

    def occurrence(self, schedule_id: int, last_for: datetime, outcome: str = "enqueued", **values: Any) -> None:
        usual = {"first_for": last_for, "decided_at": last_for}
        self.put(tables.occurrences, schedule_id=schedule_id, last_for=last_for, outcome=outcome, **(usual | values))

    def pause(self, scope: str, name: str = "", **values: Any) -> None:
        self.put(tables.pauses, scope=scope, name=name, **values)

    def belongs_to(self, project: str, environment: str) -> None:
        with self.database.write() as connection:
            connection.execute(tables.meta.update().values(project=project, environment=environment))


@pytest.fixture
def rows(database: Database) -> Rows:
    made = Rows(database)
    made.belongs_to("shop", "production")
    return made
