"""SQLite keeps bytes in a column of texts: every looking command and page shows them, and none stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text
from support.browsing import Browser, by_link, pages
from support.lookingrows import NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows

from cronjobs.database.connection import Database
from cronjobs.testing import FakeClock

# What may be of any type: the other columns have a CHECK.
COLUMNS = {
    "jobs": ["last_error", "error_type", "result", "enqueued_by", "policy", "progress", "live_output"],
    "job_runs": ["runner", "worker", "error_type", "error", "traceback", "output"],
}
COMMANDS = [
    *("status", "status --json", "jobs list", "jobs list --json", "jobs show 1", "jobs show 2 --json", "jobs tail 1"),
    *("jobs tail 2", "explain 1", "explain 2", "explain 3 --json", "explain mail.send", "explain nightly-report"),
    *(
        "jobs list --group-by error",
        "history --since 24h",
        "history --around 13:55",
        "schedules list",
        "metrics",
        "report --out r",
    ),
]
ADDRESSES = ["/", "/jobs", "/jobs/1", "/jobs/2", "/jobs/3", "/schedule?name=nightly-report", "/queues", "/hosts"]


@pytest.fixture
def database_url(sqlite_migrated: str) -> str:
    return f"sqlite:///{sqlite_migrated}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


def test_bytes_where_texts_belong_stop_nobody_who_looks(
    cronjobs: Cronjobs, rows: Rows, database: Database, database_url: str, tmp_path: Path
) -> None:
    schedule = rows.schedule("nightly-report")
    for status in ("dead", "failed", "running"):
        rows.attempt(rows.job(status=status, failures=1), "failed")
    rows.occurrence(schedule, ago(hours=1), job_id=1)
    rows.tick()
    with database.write() as connection:
        for table, names in COLUMNS.items():
            changes = ", ".join(f"{name} = x'ff4f414f'" for name in names)
            connection.execute(text(f"UPDATE cronjobs_{table} SET {changes}"))
    _look_everywhere(cronjobs, COMMANDS)
    assert "OAO" in cronjobs("explain", "1").out
    access = by_link()
    browser = Browser(pages(database, database_url, tmp_path, access)).log_in(access)
    assert {address: browser.get(address).status for address in ADDRESSES} == dict.fromkeys(ADDRESSES, 200)
    assert "OAO" in browser.get("/jobs/1").words


def test_a_definition_and_an_ack_that_cannot_be_read_stop_nobody_who_looks(
    cronjobs: Cronjobs, rows: Rows, database: Database
) -> None:
    rows.schedule("nightly-report")
    rows.job(status="dead")
    assert cronjobs("ack", "dead", "--why", "known").code == 0
    for value in ("x'ff4f'", "'7'"):
        with database.write() as connection:
            connection.execute(text(f"UPDATE cronjobs_schedules SET definition = {value}"))
            connection.execute(text(f"UPDATE cronjobs_acks SET rows = {value}"))
        _look_everywhere(cronjobs, ["status", "ack", "schedules show nightly-report", "sync --plan"])


def _look_everywhere(cronjobs: Cronjobs, commands: list[str]) -> None:
    for words in commands:
        answer = cronjobs(*words.split())
        assert (answer.code, "fault" in answer.err) in ((0, False), (1, False)), (words, answer.err)
