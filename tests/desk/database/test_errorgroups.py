"""Errors that differ only in numbers, ids and quoted values form one group, in the function and in ``jobs list``."""

from __future__ import annotations

from datetime import datetime, timedelta
from time import thread_time
from typing import Any

import pytest
from sqlalchemy import insert
from support.lookingrows import NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows

from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.rules.error_groups import OTHERS, TYPES_AT_MOST, class_and_text, grouped, normalised
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.mark.parametrize(
    ("error", "group"),
    [
        ("503 for invoice 17", "503 for invoice <n>"),
        ("404 for invoice 18", "404 for invoice <n>"),  # another cause
        ("exit status 3: no space left on /dev/sda1", "exit status 3: no space left on /dev/sda<n>"),
        ("HTTP 502 from api-7", "HTTP 502 from api-<n>"),
        ("[Errno 111] Connection refused", "[Errno 111] Connection refused"),
        ("no user 'ada' in table \"users\"", "no user <…> in table <…>"),
        ("can't open it", "can't open it"),
        ("port=443, host='api'", "port=<n>, host=<…>"),
        ("no reply from 10.0.0.12:5432", "no reply from <n>"),
        ("on 2026-07-01 12:00:07", "on <n> <n>"),
        ("no 3f2a9c1b-0000-4111-8222-abcdefabcdef", "no <id>"),
        ("no customer cus_9xKd81Ba", "no customer <id>"),
        ("<object at 0x7f2a8c0>", "<object at <id>>"),
        ("order 12,345.67 EUR", "order <n> EUR"),
        ("-5 degrees", "<n> degrees"),
        ("mail to ada@example.org bounced", "mail to <email> bounced"),
        ("utf8 cannot be read", "utf<n> cannot be read"),
        ("first line 1\nsecond line", "first line <n>"),
        ("", ""),
    ],
)
def test_what_differs_from_job_to_job_is_taken_out_and_what_went_wrong_stays(error: str, group: str) -> None:
    assert normalised(error) == group


@pytest.mark.parametrize(
    ("error_type", "text", "said"),
    [
        ("exit-3", "exit status 3: no space left", "exit status 3: no space left"),
        ("exit-3", "its process ended", "exit-3: its process ended"),
        ("ValueError", "no such invoice", "ValueError: no such invoice"),
        ("ValueError", "", "ValueError"),
        ("ValueError", None, "ValueError"),
        (None, "it is gone", "it is gone"),
        (None, None, ""),
    ],
)
def test_an_exit_status_is_said_once(error_type: str | None, text: str | None, said: str) -> None:
    assert class_and_text(error_type, text) == said


@pytest.mark.parametrize("evil", ["a_" * 200, "a.b" * 130, "'" * 400, "1-" * 200, "-" * 400, "error " * 66, "a@" * 200])
def test_no_text_takes_long_to_read(evil: str) -> None:
    began = thread_time()
    normalised(evil)
    assert thread_time() - began < 0.1


def test_errors_that_never_repeat_take_no_more_memory_than_so_many_groups() -> None:
    class Seen:
        def __init__(self, number: int) -> None:
            self.error_type, self.job_type, self.jobs, self.all_jobs = "E", f"t{number}", 1, 15
            self.error = "x" * number
            self.first_seen_at = self.last_seen_at = NOW
            self.sample_job_id = number

    found = grouped((Seen(number) for number in range(1, 11)), at_most=3)
    assert [(group.message, group.jobs) for group in found] == [("x", 1), ("xx", 1), ("xxx", 1), (OTHERS, 12)]
    alike = [Seen(number) for number in range(1, 200)]
    for one in alike:
        one.error = "x"
    [group, _] = grouped(alike)
    assert (group.jobs, len(group.job_types)) == (199, TYPES_AT_MOST)


def failed(rows: Rows, error: str, at: datetime, **values: Any) -> int:
    return rows.job(**({"status": "dead", "error_type": "ProviderError"} | values), last_error=error, last_failed_at=at)


def test_jobs_are_listed_by_their_error(cronjobs: Cronjobs, rows: Rows) -> None:
    failed(rows, "503 for invoice 17", ago(days=3))
    last = failed(rows, "503 for invoice 18", ago(minutes=2), status="failed")
    failed(rows, "503 for invoice 9", ago(hours=5), job_type="reports.nightly")
    gone = failed(rows, "no invoice 4", ago(minutes=9))
    failed(rows, "503 for invoice 5", ago(minutes=1), status="succeeded")
    failed(rows, "503 for invoice 6", ago(minutes=1), status="cancelled")

    answer = cronjobs("jobs", "list", "--group-by", "error", "--json")

    assert answer.code == 0
    first, second = answer.json
    assert first | {"job_types": sorted(first["job_types"])} == {
        "error_type": "ProviderError",
        "message": "503 for invoice <n>",
        "job_types": ["mail.send", "reports.nightly"],
        "jobs": 3,
        "first_seen_at": ago(days=3).isoformat(),
        "last_seen_at": ago(minutes=2).isoformat(),
        "sample_job_id": last,
    }
    assert (second["message"], second["jobs"], second["sample_job_id"]) == ("no invoice <n>", 1, gone)
    out = cronjobs("jobs", "list", "--group-by", "error").out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert out.splitlines() == [
        "3  ProviderError: 503 for invoice <n>",
        f"   mail.send, reports.nightly; first seen 3d ago, last 2m ago; e.g. job {last}",
        "1  ProviderError: no invoice <n>",
        f"   mail.send; seen 9m ago; e.g. job {gone}",
    ]


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (["--status", "dead"], 2),
        (["--status", "cancelled"], 1),
        (["--type", "reports.nightly"], 1),
        (["--queue", "mail"], 1),
        (["--since", "1h"], 2),
        (["--error-type", "OSError"], 1),
        (["--error-type", "urllib.error.HTTPError"], 1),
        (["--error-type", "HTTPError"], 1),
        (["--error-type", "TTPError"], 0),
        (["--schedule", "nightly-report"], 1),
    ],
)
def test_every_filter_works_with_groups(cronjobs: Cronjobs, rows: Rows, filters: list[str], count: int) -> None:
    failed(rows, "a", ago(days=3), queue="mail", finished_at=ago(days=3))
    other = {"job_type": "reports.nightly", "schedule": "nightly-report", "error_type": "urllib.error.HTTPError"}
    failed(rows, "a", ago(minutes=1), **other)
    failed(rows, "a", ago(minutes=1), status="failed", error_type="OSError")
    failed(rows, "a", ago(minutes=1), status="cancelled")
    answer = cronjobs("jobs", "list", "--group-by", "error", "--json", *filters)
    assert sum(group["jobs"] for group in answer.json) == count


def test_what_is_not_read_is_counted(cronjobs: Cronjobs, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("often", "often", "seldom", "never"):
        failed(rows, name, ago(minutes=1))
    monkeypatch.setattr("cronjobs.desk.cli.jobs_list.ROWS_AT_MOST", 1)
    groups = cronjobs("jobs", "list", "--group-by", "error", "--json").json
    assert [(group["message"], group["jobs"], group["job_types"]) for group in groups] == [
        ("often", 2, ["mail.send"]),
        (OTHERS, 2, []),
    ]
    assert cronjobs("jobs", "list", "--group-by", "error").out.splitlines()[2:] == [f"2  {OTHERS}"]


def test_a_job_without_an_error_or_a_type_is_a_group_too(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.job(status="dead")
    [group] = cronjobs("jobs", "list", "--group-by", "error", "--json").json
    assert (group["error_type"], group["message"], group["jobs"]) == (None, "", 1)
    assert "(no message)" in cronjobs("jobs", "list", "--group-by", "error").out
    assert cronjobs("jobs", "list", "--group-by", "error", "--type", "nobody").err == "no job with an error\n"


@pytest.mark.slow
def test_twenty_thousand_dead_jobs_are_grouped_while_one_waits(
    cronjobs: Cronjobs, rows: Rows, database: Database
) -> None:
    usual = {"job_type": "mail.send", "status": "dead", "finished_at": NOW - timedelta(minutes=1)}
    made = [usual | {"last_error": f"503 for invoice {n}", "error_type": "ProviderError"} for n in range(20_000)]
    with database.write() as connection:
        connection.execute(insert(tables.jobs), made)
    began = thread_time()
    [group] = cronjobs("jobs", "list", "--group-by", "error", "--json").json
    assert group["jobs"] == 20_000
    assert thread_time() - began < 10
