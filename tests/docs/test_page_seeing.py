"""docs/how-to/seeing.md: after the night that the page describes, the commands print what the page shows."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert
from support.lookingrows import HOLDER, NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows
from support.pages import Page

from cronjobs.desk.cli.last_runs import BLOCKS
from cronjobs.engine.database import tables
from cronjobs.engine.database.address import Address
from cronjobs.testing import FakeClock

PAGE = Page("docs/how-to/seeing.md")
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
MIDNIGHT = NOW.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(hours=2)  # in Berlin
GAP = (4 * 60 + 11, 4 * 60 + 41)  # minutes after midnight without ticks


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


def at(hour: int, minute: int, second: float = 1) -> datetime:
    return MIDNIGHT + timedelta(hours=hour, minutes=minute, seconds=second)


@pytest.fixture
def night(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stock is synchronised every ten minutes; the report dies at 02:15; no tick comes from 04:11 to 04:41."""
    monkeypatch.setattr(Address, "__str__", lambda _: "postgresql://jobs@db.example.com/shop")
    ticks, ledger, runs, jobs = [], [], [], []
    minutes = int((NOW - MIDNIGHT).total_seconds() // 60)
    for minute in range(-60, minutes + 1):
        if not GAP[0] <= minute < GAP[1]:
            began = MIDNIGHT + minute * MINUTE + SECOND
            row = {"tick": f"t{minute}", "host": "web1", "pid": 7, "version": "0.1.0", "fingerprint": "3f2a9c1b0000"}
            ended = {"finished_at": began + timedelta(milliseconds=310), "ended": "nothing is due", "schedules_on": 1}
            ticks.append(row | ended | {"started_at": began})
    stock = rows.schedule(
        "sync-stock",
        definition={"every_s": 600, "job": "stock.sync", "timezone": "Europe/Berlin", "catch_up": "none"},
        next_at=at(14, 10, 0),
    )
    cron = {"cron": "15 2 * * *", "timezone": "Europe/Berlin", "job": "reports.nightly"}
    report = rows.schedule("nightly-report", definition=cron, next_at=datetime(2026, 7, 2, 0, 15, tzinfo=NOW.tzinfo))
    number = 0

    def ran(schedule: int, name: str, job_type: str, began: datetime, took: float, outcome: str, **values: Any) -> None:
        nonlocal number
        number += 1
        ended = began + took * SECOND
        common = {"id": number, "job_type": job_type, "schedule": name, "attempts": 1, "started_at": began}
        common |= {"run_at": began, "created_at": began, "finished_at": ended}
        jobs.append(common | {"status": "succeeded"} | values)
        run = {"job_id": number, "attempt": 1, "outcome": outcome, "started_at": began, "finished_at": ended}
        runs.append(run | {"runner": HOLDER, "error": values.get("last_error"), "error_type": values.get("error_type")})
        due = began.replace(second=0)
        row = {"schedule_id": schedule, "first_for": due, "last_for": due, "outcome": "enqueued", "decided_at": began}
        ledger.append(row | {"job_id": number, "count": 1, "reason": None})

    for minute in range(-60, minutes + 1, 10):
        if GAP[0] <= minute < GAP[1]:
            continue
        began, slow = MIDNIGHT + minute * MINUTE + 2 * SECOND, minute == minutes - minutes % 10
        ran(stock, "sync-stock", "stock.sync", began, 9.5 if slow else 1.1 + minute % 7 / 20, "succeeded")
    first, last = (MIDNIGHT + minute * MINUTE for minute in (4 * 60 + 20, 4 * 60 + 40))
    missed = {"schedule_id": stock, "first_for": first, "last_for": last, "outcome": "missed", "count": 3}
    ledger.append(
        missed | {"decided_at": at(4, 41), "job_id": None, "reason": "no tick fired it in time, and catch_up is none"}
    )
    error = {"last_error": "no space left on device", "error_type": "OSError", "failures": 1}
    ran(
        report, "nightly-report", "reports.nightly", at(2, 15, 2), 8.4, "failed", status="dead", max_attempts=1, **error
    )
    with rows.database.write() as connection:
        for job in jobs:
            connection.execute(insert(tables.jobs).values(job))
        for table, values in ((tables.ticks, ticks), (tables.job_runs, runs)):
            connection.execute(insert(table), values)
        connection.execute(insert(tables.occurrences), ledger)
    rows.job("mail.send", id=1030, run_at=ago(seconds=30), created_at=ago(seconds=30))


def shown(command: str) -> str:
    """The part of a command's output that the page shows."""
    text = PAGE.block("console", f"$ cronjobs {command}\n")
    return text.removeprefix(f"$ cronjobs {command}\n")


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "history --since 02:00 --until 05:30",
        "explain sync-stock --at 04:30",
        "explain 89",
    ],
)
def test_what_the_page_shows_is_what_is_printed(cronjobs: Cronjobs, night: None, command: str) -> None:
    answer = cronjobs(*command.split())
    assert answer.code == 0
    assert answer.out == shown(command)


def test_no_block_of_the_page_is_left_out_and_no_link_is_dead() -> None:
    assert PAGE.counts() == {
        "console": 6,
        "": 1,
    }  # the first section: test_page_seeing_commands.py; the books: test_page_troubleshooting_and_books.py
    assert PAGE.dead_links() == []


def test_the_page_names_each_sign_of_the_strip() -> None:
    assert {row["sign"].strip("`"): row["letter"].strip("`") for row in PAGE.table("The strip")}.keys() == set(
        BLOCKS.values()
    )


def test_the_objects_of_history_have_the_keys_of_the_page(cronjobs: Cronjobs, night: None, rows: Rows) -> None:
    with rows.database.write() as connection:
        for action, subject in (("pause", "all"), ("sync", "3f2a9c1b0000")):
            act = {"at": at(3, 0), "actor": "ada", "host": "web1", "action": action, "subject": subject}
            connection.execute(insert(tables.audit).values(act))
    entries = {entry["kind"]: set(entry) for entry in cronjobs("history", "--json").json}
    told = {}
    for line in PAGE.text.splitlines():
        if match := re.match(r"\| `(attempt|death|occurrence|gap|pause|deploy)` \|", line):
            told[match[1]] = {"kind", *re.findall(r"`(\w+)`", line)[1:]}
    assert told == entries
