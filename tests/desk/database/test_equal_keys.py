"""Lists whose rows have equal sort keys: two schedules at 02:00, hosts that tick at once, jobs from one transaction."""

from __future__ import annotations

import re

import pytest
from support.lookingrows import NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows

from cronjobs.desk.store import history
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

LISTS = [
    "status",
    "history",
    "history --since 7d --limit 3",
    "jobs list",
    "jobs list --limit 3",
    "jobs list --status dead",
    "jobs list --status queued --since 1h",
    "jobs list --group-by error",
    "jobs show 1",
    "schedules list",
    "schedules show nightly-report",
    "next",
    "next -n 5",
    "next nightly-report",
    "effects list",
    "explain nightly-report",
    "explain refresh-cache",
    "explain 1",
    "sync --plan",
]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def alike(cronjobs: Cronjobs, rows: Rows) -> Cronjobs:
    """Two and more of everything, with the same instants, names in no order, and no two kinds of a value."""
    for host in ("web2", "web1", "web3"):
        rows.tick(host, ago(seconds=6))
        rows.tick(host, ago(minutes=90))
    for name in ("refresh-cache", "nightly-report", "a-third", "retired"):
        gone = name == "retired"
        schedule = rows.schedule(name, next_at=None if gone else NOW, status="retired" if gone else "active")
        for minute, outcome in enumerate(("skipped", "missed", "coalesced")):
            rows.occurrence(schedule, ago(minutes=60 + minute), outcome, reason=None, job_id=None)
        for minute, status in enumerate(("dead", "succeeded", "cancelled")):
            job_id = rows.job(status=status, schedule=name, last_error="e", error_type=None, last_failed_at=None)
            rows.occurrence(schedule, ago(minutes=30 + minute), job_id=job_id)
            for attempt in (1, 2):
                rows.attempt(job_id, "failed", attempt=attempt, finished_at=ago(minutes=9), started_at=ago(minutes=9))
        rows.pause("schedule", name, paused_at=ago(minutes=3))
    for status in ("queued", "failed", "running", "dead"):
        for _ in range(3):
            rows.job(status=status, created_at=ago(minutes=20))
    for key in ("k2", "k1"):
        rows.put(tables.effects, key=key, job_id=1, attempt=1, begun_at=ago(minutes=5))
    return cronjobs


def settled(text: str) -> str:
    """Cut off the fractions of a second that PostgreSQL's own clock adds to the fake clock, which stands still."""
    return re.sub(r"(:03:07\.2)\d+", r"\1", text)


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_list_with_equal_sort_keys_is_shown_and_in_the_same_order_each_time(
    alike: Cronjobs, database: Database, as_json: bool
) -> None:
    for command in LISTS:  # all of them look at the same rows, which take longer to make
        words = [*command.split(), *(["--json"] if as_json else [])]
        answer = alike(*words)
        assert answer.code == 0, (command, answer.err)
        assert "Traceback" not in answer.err, command
        assert settled(alike(*words).out) == settled(answer.out), command
        assert answer.json if as_json else answer.out, command


def test_what_ended_at_once_is_listed_by_its_number_in_whatever_order_it_was_written(
    rows: Rows, database: Database
) -> None:
    """Else the order of a list depends on the plan, which changes when PostgreSQL has counted the rows."""
    ids = [rows.job(status="succeeded") for _ in range(4)]
    for job_id in (ids[2], ids[0], ids[3], ids[1]):
        rows.attempt(job_id, "failed", attempt=1, finished_at=ago(minutes=9), started_at=ago(minutes=9))
    with database.read() as connection:
        found = history.attempts_since(connection, ago(minutes=30), 10)
    assert [row.job_id for row in found] == ids[::-1]
