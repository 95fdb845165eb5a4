"""A project of version 0.1.0, with a row of every kind, becomes one of this version: nothing is lost, and it goes on.

Version 0.1.0 made revision 0001. What it wrote is written here by plain SQL, so that no code of today is in between.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select, text
from support.copied import everything
from support.databases import opened
from support.hosts import Host

from alembic import command
from cronjobs.config.settings import RunSettings, ScheduleSettings
from cronjobs.database.address import parse_url
from cronjobs.database.column_types import to_microseconds
from cronjobs.database.connection import Database
from cronjobs.database.tables import SCHEMA_REVISION, jobs
from cronjobs.insight.book_evidence import books
from cronjobs.jobs import registry
from cronjobs.schema import migrations
from cronjobs.testing import FakeClock
from cronjobs_copy.copying import copy

NOW = datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC)
SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
INSTALLED = NOW - 5 * DAY
NIGHT = datetime(2026, 3, 2, 2, 0, tzinfo=UTC)  # the newest occurrence, which no tick has settled yet
FINGERPRINT = "9c3f0d2a51b7e648"

# The file of each revision that went by 0.1.0, and how its SHA-256 begins.
REVISIONS_OF_0_1_0 = {
    "0001_first.py": "ae288bb6704d5f38",
    "0002_policy_pauses_lengths.py": "f798feb44412be0b",
    "0003_tick_of_occurrences.py": "0f8e7d7b741b3a5d",
    "0004_totals.py": "507352809591a32d",
    "0005_seeing.py": "4601928981de9b06",
    "0006_exec.py": "dfea9ed2f5126d95",
}

# What sync of 0.1.0 stored of {cron: "0 2 * * *", job: t.say}.
NIGHTLY = {
    "job": "t.say",
    "cron": "0 2 * * *",
    "timezone": "UTC",
    "payload": {},
    "queue": "default",
    "priority": 5,
    "catch_up": "latest",
    "catch_up_limit": 100,
    "overlap": "skip",
    "catch_up_within_s": 86400,
}
FORMER = {**NIGHTLY, "cron": "30 3 * * *"}


def ran(job_id: int, attempt: int, outcome: str, at: datetime, **columns: Any) -> dict[str, Any]:
    times = {"started_at": at, "finished_at": at + SECOND, "runner": "web1:b:1:7:1:t1", "worker": "1"}
    return {"job_id": job_id, "attempt": attempt, "outcome": outcome} | times | columns


def job(job_id: int, status: str, **columns: Any) -> dict[str, Any]:
    given = {"run_at": NOW - HOUR, "created_at": NOW - 2 * HOUR, "enqueued_by": "shop/web"} | columns
    final = {"finished_at": NOW - HOUR + SECOND} if status in ("succeeded", "dead", "cancelled") else {}
    return {"id": job_id, "job_type": "t.say", "status": status} | final | given


ROWS: dict[str, list[dict[str, Any]]] = {
    "jobs": [
        job(1, "succeeded", attempts=1, idempotency_key="invoice:42", result={"sent": "1.50"}, payload={"line": "ä☂"}),
        job(2, "failed", attempts=1, failures=1, run_at=NOW + HOUR, last_error="no luck", error_type="RuntimeError"),
        job(
            3, "failed", attempts=1, failures=1, last_error="no luck", last_failed_at=NOW - HOUR, payload={"line": "3"}
        ),
        job(4, "dead", attempts=2, failures=2, max_attempts=2, last_error="void", idempotency_key="invoice:43"),
        job(5, "cancelled", idempotency_key="invoice:44", cancel_requested_at=NOW - HOUR),
        job(6, "queued", payload={"line": "6"}, meta={"trace": "t6"}, priority=0, concurrency_key="smtp:a"),
        job(7, "queued", run_at=NOW + 30 * DAY, timeout_s=12.5, idempotency_key="invoice:45"),
        job(8, "running", attempts=1, locked_by="web2:b:1:9:1:t2", locked_until=NOW - HOUR, started_at=NOW - 2 * HOUR)
        | {"payload": {"line": "8, lost with its runner"}},
        job(9, "running", attempts=3, locked_by="web2:b:1:9:1:t3", locked_until=NOW + HOUR, started_at=NOW - SECOND),
        job(10, "succeeded", attempts=1, schedule="nightly", scheduled_for=NIGHT - DAY, run_at=NIGHT - DAY),
        job(11, "queued", queue="mail", payload={"line": "paused"}),
        job(12, "queued", attempts=1, interruptions=1, payload={"line": "12"}),
    ],
    "job_runs": [
        ran(1, 1, "succeeded", NOW - HOUR, output="said ☂"),
        ran(2, 1, "timed_out", NOW - HOUR, error_type="RuntimeError", error="no luck", traceback="line\nline"),
        ran(3, 1, "failed", NOW - HOUR, error_type="RuntimeError", error="no luck"),
        ran(4, 1, "snoozed", NOW - 2 * HOUR),
        ran(4, 2, "failed", NOW - HOUR, error="void"),
        ran(10, 1, "succeeded", NIGHT - DAY),
        ran(12, 1, "interrupted", NOW - HOUR),
        ran(9, 1, "lost", NOW - 3 * HOUR),
        ran(9, 2, "cancelled", NOW - 2 * HOUR),
    ],
    "schedules": [
        {"id": 1, "name": "nightly", "definition": NIGHTLY, "fingerprint": FINGERPRINT}
        | {"seen_until": NIGHT - DAY + 30 * SECOND, "next_at": NIGHT},
        {"id": 2, "name": "former", "definition": FORMER, "fingerprint": FINGERPRINT, "status": "retired"}
        | {"seen_until": INSTALLED, "next_at": None},
    ],
    "occurrences": [
        {"schedule_id": 1, "first_for": NIGHT - 4 * DAY, "last_for": NIGHT - 3 * DAY, "count": 2, "outcome": "missed"}
        | {"reason": "no tick", "decided_at": NIGHT - 2 * DAY},
        {"schedule_id": 1, "first_for": NIGHT - 2 * DAY, "last_for": NIGHT - 2 * DAY, "outcome": "skipped"}
        | {"reason": "overlap: job 9", "decided_at": NIGHT - 2 * DAY},
        {"schedule_id": 1, "first_for": NIGHT - DAY, "last_for": NIGHT - DAY, "outcome": "enqueued", "job_id": 10}
        | {"decided_at": NIGHT - DAY + 30 * SECOND},
    ],
    "ticks": [
        {
            "id": 1,
            "tick": "t0",
            "host": "web1",
            "boot_id": "b",
            "pid": 7,
            "version": "0.1.0",
            "fingerprint": FINGERPRINT,
        }
        | {
            "started_at": INSTALLED,
            "finished_at": INSTALLED + SECOND,
            "did": {"succeeded": 1},
            "ended": "nothing is due",
        },
        {"id": 2, "tick": "t3", "host": "web2", "pid": 9, "version": "0.1.0", "started_at": NOW - 2 * HOUR},
    ],
    "effects": [
        {"key": "mail:1", "job_id": 1, "attempt": 1, "state": "recorded", "result": {"id": "<1@shop>"}}
        | {"begun_at": NOW - HOUR, "recorded_at": NOW - HOUR},
        {"key": "mail:4", "job_id": 4, "attempt": 2, "state": "begun", "begun_at": NOW - HOUR},
        {"key": "mail:5", "job_id": 5, "attempt": 1, "state": "stopped", "begun_at": NOW - HOUR},
        {"key": "mail:6", "job_id": 6, "attempt": 1, "state": "skipped", "begun_at": NOW - HOUR},
    ],
    "queues": [{"name": "mail", "max_waiting": 5, "on_full": "drop", "dropped": 2}],
    "pauses": [
        {"scope": "queue", "name": "mail", "by": "ada", "why": "deploy", "paused_at": NOW - DAY},
        {"scope": "schedule", "name": "former", "until": NOW + DAY, "paused_at": NOW - DAY},
    ],
    "audit": [
        {"id": 1, "at": INSTALLED, "actor": "file", "host": "web1", "action": "define", "subject": "nightly"}
        | {"detail": NIGHTLY},
        {"id": 2, "at": INSTALLED, "actor": "tick", "host": "web1", "action": "sync", "subject": FINGERPRINT}
        | {"detail": {"add": ["nightly"], "change": [], "remove": [], "rename": []}},
        {"id": 3, "at": NOW - DAY, "actor": "ada", "action": "pause", "subject": "queue mail", "why": "deploy"},
    ],
}


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The handler of the project, and what it was given."""
    lines: list[str] = []
    before = dict(registry._registered)

    @registry.job("t.say")
    def say(line: str = "by schedule") -> None:
        lines.append(line)

    yield lines
    registry._registered.clear()
    registry._registered.update(before)


def as_0_1_0_left_it(database: Database, revision: str = "0001") -> dict[str, list[dict[str, Any]]]:
    """Make the tables of *revision* and fill them; return all their rows."""
    with migrations.transaction(database) as connection:
        command.upgrade(migrations._config({migrations.CONNECTION: connection}), revision)
    with database.write() as connection:
        for table, rows in ROWS.items():
            for row in rows:
                _insert(connection, f"cronjobs_{table}", row, sqlite=database.is_sqlite)
        connection.execute(text("UPDATE cronjobs_meta SET project = 'shop', environment = 'production'"))
        if not database.is_sqlite:  # as if the database had counted them itself
            for table in ("jobs", "schedules", "ticks", "audit"):
                connection.execute(
                    text(f"ALTER TABLE cronjobs_{table} ALTER COLUMN id RESTART WITH {len(ROWS[table]) + 1}")
                )
    return rows_of(database)


def _insert(connection: Connection, table: str, row: dict[str, Any], *, sqlite: bool) -> None:
    def value(given: Any) -> Any:
        if isinstance(given, datetime):
            return to_microseconds(given) if sqlite else given
        return json.dumps(given, ensure_ascii=False) if isinstance(given, dict) else given

    names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
    connection.execute(
        text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), {name: value(given) for name, given in row.items()}
    )


def rows_of(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Every row as the database has it, by the columns that 0.1.0 knew."""
    found = {}
    with database.read() as connection:
        for table in ROWS:
            rows = connection.execute(text(f"SELECT * FROM cronjobs_{table}")).mappings()
            known = {name for row in ROWS[table] for name in row}
            found[table] = sorted(({name: row[name] for name in known} for row in rows), key=repr)
    return found


def test_nothing_is_lost_what_is_due_runs_once_and_the_books_balance(
    empty_url: str, tmp_path: Path, said: list[str]
) -> None:
    clock = FakeClock(NOW)
    with opened(empty_url) as plain:
        old = as_0_1_0_left_it(plain)
        assert migrations.upgrade(plain) == ("0001", SCHEMA_REVISION)
        assert rows_of(plain) == old
        assert migrations.check(plain) == []
    database = Database(parse_url(empty_url), clock=clock)
    host = Host(database, tmp_path, "web1")
    nightly = ScheduleSettings(name="nightly", job="t.say", cron="0 2 * * *")
    host.carry(project="shop", environment="production", schedules={"nightly": nightly}, run=RunSettings(workers=1))
    host.tick()
    assert sorted(said) == ["12", "3", "6", "8, lost with its runner", "by schedule"]
    host.tick()
    assert len(said) == 5
    with database.read() as connection:
        rows = [*connection.execute(select(jobs.c.id, jobs.c.status, jobs.c.attempts).order_by(jobs.c.id))]
        kept = books(connection, host.settings, INSTALLED - DAY, NOW + HOUR)
    scheduled = rows.pop()
    assert (scheduled.status, scheduled.id) == ("succeeded", 13)
    assert {row.id: (row.status, row.attempts) for row in rows} == {
        1: ("succeeded", 1),
        2: ("failed", 1),
        3: ("succeeded", 2),
        4: ("dead", 2),
        5: ("cancelled", 0),
        6: ("succeeded", 1),
        7: ("queued", 0),
        8: ("succeeded", 2),
        9: ("running", 3),
        10: ("succeeded", 1),
        11: ("queued", 0),
        12: ("succeeded", 2),
    }
    assert [book.differences for book in kept] == [[]] * len(kept)
    days = [day.counts for book in kept for day in book.days if day.schedule == "nightly"]
    assert {word: sum(day[word] for day in days) for word in ("ran", "missed", "skipped")} == {
        "ran": 2,
        "missed": 2,
        "skipped": 1,
    }
    database.close()


def test_an_upgraded_file_is_copied_to_postgresql_whole(sqlite_url: str, postgres_url: str) -> None:
    with opened(sqlite_url) as old, opened(postgres_url) as new:
        as_0_1_0_left_it(old)
        migrations.upgrade(old)
        with old.write() as connection:  # which copy would call work in flight
            connection.execute(text("UPDATE cronjobs_jobs SET locked_until = locked_until - 40000000000000"))
        migrations.upgrade(new)
        settings = Host(old, Path()).carry(project="shop", environment="production")
        copy(old, new, settings, actor="ada")
        assert everything(new) == everything(old)


@pytest.mark.parametrize("revision", [name[:4] for name in REVISIONS_OF_0_1_0][1:])
def test_so_is_a_database_of_any_revision_before_0_2_0(sqlite_url: str, revision: str) -> None:
    with opened(sqlite_url) as database:
        old = as_0_1_0_left_it(database, revision)
        assert migrations.upgrade(database) == (revision, SCHEMA_REVISION)
        assert rows_of(database) == old
        assert migrations.check(database) == []


@pytest.mark.parametrize("name", REVISIONS_OF_0_1_0)
def test_a_revision_that_somebody_has_is_never_edited(name: str) -> None:
    """A changed revision gives new databases other tables than those that have applied it: write another one."""
    content = (Path(migrations.script_location()) / "versions" / name).read_bytes()
    assert hashlib.sha256(content).hexdigest()[:16] == REVISIONS_OF_0_1_0[name]
