"""The page of job types shows the same numbers as a plain sum over all counts."""

from __future__ import annotations

import random
from typing import Any

import pytest
from sqlalchemy import insert
from support.browsing import Browser
from support.browsing import browser as browser
from support.browsing import clock as clock
from support.lookingrows import NOW

from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store.counts import TypeSum, by_type, fold

THIS_HOUR = int(NOW.timestamp() // 3600)
SECOND = 1_000_000
COLUMNS = ["type", "jobs", "dead", "failed attempts", "run, average", "longest run", "wait, average", "longest wait"]


def put(database: Database, *rows: dict[str, Any]) -> None:
    with database.write() as connection:
        for row in rows:
            connection.execute(insert(tables.new_counts).values(row))


def counted(
    name: str, kind: str, outcome: str, number: int, *, each_s: int | None = None, ago: int = 0
) -> dict[str, Any]:
    times = {} if each_s is None else {"micros": float(number * each_s * SECOND), "longest": each_s * SECOND}
    bucket = -1 if each_s is None else 3
    return {"at_hour": THIS_HOUR - ago, "kind": kind, "name": name, "outcome": outcome, "bucket": bucket} | {
        "count": number,
        **times,
    }


def plainly(rows: list[dict[str, Any]], first: int) -> list[TypeSum]:
    found = []
    seen = [row for row in rows if row["at_hour"] >= first and row["kind"] in ("jobs", "attempts")]
    for name in sorted({row["name"] for row in seen}):
        jobs = [row for row in seen if row["name"] == name and row["kind"] == "jobs"]
        attempts = [row for row in seen if row["name"] == name and row["kind"] == "attempts"]
        found.append(
            TypeSum(
                name,
                ended=sum(row["count"] for row in jobs),
                dead=sum(row["count"] for row in jobs if row["outcome"] == "dead"),
                failed=sum(row["count"] for row in attempts if row["outcome"] in ("failed", "timed_out", "lost")),
                waited=sum(row["count"] for row in jobs if "micros" in row),
                ran=sum(row["count"] for row in attempts if "micros" in row),
                wait_micros=sum(row.get("micros", 0.0) for row in jobs),
                run_micros=sum(row.get("micros", 0.0) for row in attempts),
                longest_wait=max((row["longest"] for row in jobs if "longest" in row), default=None),
                longest_run=max((row["longest"] for row in attempts if "longest" in row), default=None),
            )
        )
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_sums_are_those_of_all_that_was_counted(database: Database, seed: int) -> None:
    dice = random.Random(seed)
    outcomes = {"jobs": ("succeeded", "dead", "cancelled"), "attempts": ("succeeded", "failed", "timed_out", "lost")}
    outcomes["scheduled"] = ("succeeded", "dead")
    rows = []
    for _ in range(40):
        kind = dice.choice(sorted(outcomes))
        times = None if kind == "scheduled" else dice.choice([None, 0, 1, 30, 90_000])
        rows.append(
            counted(
                dice.choice("abc"),
                kind,
                dice.choice(outcomes[kind]),
                dice.randrange(1, 9),
                each_s=times,
                ago=dice.choice([0, 1, 23, 24, 29 * 24]),
            )
        )
    put(database, *rows[:20])
    with database.write() as connection:
        fold(connection)
    put(database, *rows[20:])
    for hours in (1, 24, 30 * 24):
        with database.read() as connection:
            assert sorted(by_type(connection, THIS_HOUR - hours + 1)) == plainly(rows, THIS_HOUR - hours + 1)


def test_the_page_shows_what_costs_most_first(database: Database, browser: Browser) -> None:
    put(
        database,
        counted("mail.send", "jobs", "succeeded", 8, each_s=1),
        counted("mail.send", "jobs", "dead", 2, each_s=61),
        counted("mail.send", "attempts", "succeeded", 8, each_s=2),
        counted("mail.send", "attempts", "failed", 4, each_s=1),
        counted("mail.send", "attempts", "lost", 1),
        counted("reports.nightly", "jobs", "succeeded", 1, each_s=0),
        counted("reports.nightly", "attempts", "succeeded", 1, each_s=60),
        counted("old.type", "jobs", "cancelled", 3, ago=24),
        counted("much.older", "jobs", "cancelled", 3, ago=30 * 24),
    )
    page = browser.get("/types")
    rows = [tuple(row.values()) for row in page.tables["Job types"]]
    assert list(page.tables["Job types"][0]) == [*COLUMNS, "share of run time"]
    assert rows == [
        ("reports.nightly", "1", "0", "0", "1m", "1m", "0s", "0s", "75 %"),
        ("mail.send", "10", "2", "5", "1.7s", "2s", "13s", "1m1s", "25 %"),
    ]
    assert "/jobs?type=mail.send" in page.addresses()
    month = browser.get("/types?span=30d")
    assert [row["type"] for row in month.tables["Job types"]] == ["reports.nightly", "mail.send", "old.type"]
    assert month.tables["Job types"][2]["jobs"] == "3"


def test_where_nothing_ended_the_page_says_so(database: Database, browser: Browser) -> None:
    assert "no job ended in this time" in browser.get("/types").words
