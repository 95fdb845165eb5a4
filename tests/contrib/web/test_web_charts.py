"""Charts and a table of ended jobs and their waiting times, by hour and by day."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert
from support.browsing import Browser
from support.browsing import browser as browser
from support.browsing import clock as clock
from support.lookingrows import NOW, Rows
from support.lookingrows import rows as rows

from cronjobs.contrib.web.charts import axis, bars, charts, first_hour
from cronjobs.desk.insight.formatting import LocalTimes
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store.counts import HourSum, by_hour, fold

BERLIN = LocalTimes(NOW, "Europe/Berlin")
THIS_HOUR = int(NOW.timestamp() // 3600)
SECOND = 1_000_000


def ended(hours_ago: int, succeeded: int = 0, waited_s: int = 2, **more: int) -> HourSum:
    times = {"timed": succeeded, "micros": succeeded * waited_s * SECOND} if succeeded else {}
    longest = 2 * waited_s * SECOND if succeeded else None
    return HourSum(THIS_HOUR - hours_ago, succeeded, longest=longest, **(times | more))


# --- pure -------------------------------------------------------------------------------------------------------------


def test_each_of_24_hours_has_its_own_numbers_by_the_local_clock() -> None:
    found = bars(
        [ended(0, 3), ended(0, dead=1, failed=4), ended(23, 7), ended(24, 99)],
        BERLIN,
        "24h",
    )
    assert [bar.name for bar in found] == [f"{hour % 24:02}:00" for hour in range(15, 39)]
    assert (found[-1].succeeded, found[-1].dead, found[-1].failed, found[-1].ended) == (3, 1, 4, 4)
    assert (found[-1].waited, found[-1].longest) == (timedelta(seconds=2), timedelta(seconds=4))
    assert (found[0].ended, found[1].ended, found[1].waited) == (7, 0, None)


def test_days_begin_at_midnight_of_the_local_clock() -> None:
    """14:03 in Berlin: the day began fourteen hours ago, which are 15 with the one that is not over."""
    found = bars([], BERLIN, "30d")
    assert (len(found), found[0].name, found[-1].name) == (30, "2026-06-02", "2026-07-01")
    every = [ended(hours, 1) for hours in range(31 * 24)]
    found = bars(every, BERLIN, "30d")
    assert [bar.ended for bar in found] == [24] * 29 + [15]
    assert min(row.at_hour for row in every) == first_hour(NOW, "30d")


def test_the_day_of_25_hours_has_25() -> None:
    now = datetime(2026, 10, 26, 12, tzinfo=UTC)
    last = int(now.timestamp() // 3600)
    rows = [HourSum(last - before, 1) for before in range(72)]
    found = {bar.name: bar.ended for bar in bars(rows, LocalTimes(now, "Europe/Berlin"), "30d")}
    assert (found["2026-10-25"], found["2026-10-24"], found["2026-10-26"]) == (25, 24, 14)


@pytest.mark.parametrize("span", ["24h", "30d"])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_and_no_bar_leaves_the_chart(span: str, seed: int) -> None:
    dice = random.Random(seed)
    read = range(24 if span == "24h" else 29 * 24)
    words = ("succeeded", "dead", "cancelled", "failed")
    rows = [
        ended(
            dice.choice(read), waited_s=dice.choice([0, 1, 10**6]), **{dice.choice(words): dice.choice([1, 2, 10**12])}
        )
        for _ in range(dice.randrange(80))
    ]
    found = bars(rows, BERLIN, span)
    for word in words:
        assert sum(getattr(bar, word) for bar in found) == sum(getattr(row, word) for row in rows)
    for chart in charts(found, span):
        for rect in chart.rects:
            assert 0 <= rect.x <= rect.x + rect.width <= 100.01
            assert -0.01 <= rect.y <= rect.y + rect.height <= 100.02
    assert all(0 <= place < 100 for place, _ in axis(found, span))


def test_where_nothing_ended_the_charts_say_so() -> None:
    ended_, failures, waiting = charts(bars([], BERLIN, "24h"), "24h")
    assert ended_.about == "jobs ended 0 times in 24 hours, at most 0 in one hour; a job counts each time it ends"
    assert failures.about == "0 attempts failed or were lost in 24 hours, and there were 0 deaths"
    assert waiting.about == "from due to start: nothing began"
    assert {chart.rects for chart in (ended_, failures, waiting)} == {()}


# --- read -------------------------------------------------------------------------------------------------------------


def count(database: Database, at_hour: int, kind: str, outcome: str, bucket: int, number: int, **more: object) -> None:
    values = {"at_hour": at_hour, "kind": kind, "outcome": outcome, "bucket": bucket, "count": number, **more}
    with database.write() as connection:
        connection.execute(insert(tables.new_counts).values(name="mail.send", **values))


def test_sums_are_the_same_before_and_after_folding(rows: Rows, database: Database) -> None:
    count(database, THIS_HOUR, "jobs", "succeeded", 1, 3, micros=9.0, longest=5)
    count(database, THIS_HOUR, "jobs", "dead", 2, 1, micros=4.0, longest=4)
    count(database, THIS_HOUR, "jobs", "cancelled", -1, 2)
    count(database, THIS_HOUR - 1, "attempts", "failed", 1, 7, micros=1.0, longest=1)
    count(database, THIS_HOUR - 1, "attempts", "succeeded", 1, 90, micros=1.0, longest=1)
    count(database, THIS_HOUR - 1, "attempts", "lost", -1, 2)
    count(database, THIS_HOUR, "scheduled", "succeeded", -1, 50)
    count(database, THIS_HOUR - 30, "jobs", "dead", 1, 8)
    right = [
        HourSum(THIS_HOUR - 1, failed=9),
        HourSum(THIS_HOUR, succeeded=3, dead=1, cancelled=2, timed=4, micros=13.0, longest=5),
    ]
    with database.read() as connection:
        assert sorted(by_hour(connection, THIS_HOUR - 23)) == right
    with database.write() as connection:
        assert not fold(connection)
    with database.read() as connection:
        assert sorted(by_hour(connection, THIS_HOUR - 23)) == right
        assert by_hour(connection, THIS_HOUR + 1) == []
        assert {row.at_hour for row in by_hour(connection, 0)} == {THIS_HOUR, THIS_HOUR - 1, THIS_HOUR - 30}
    count(database, THIS_HOUR, "jobs", "succeeded", 1, 1, micros=1.0, longest=9)
    with database.read() as connection:
        [_, last] = bars(by_hour(connection, THIS_HOUR - 23), BERLIN, "24h")[-2:]
    assert (last.succeeded, last.ended, last.timed, last.micros) == (4, 7, 5, 14.0)
    assert last.longest == timedelta(microseconds=9)


# --- shown ------------------------------------------------------------------------------------------------------------


def test_the_first_page_draws_the_day_and_has_it_as_a_table(rows: Rows, database: Database, browser: Browser) -> None:
    count(database, THIS_HOUR, "jobs", "succeeded", 1, 1500, micros=1500.0 * SECOND, longest=3 * SECOND)
    count(database, THIS_HOUR - 2, "jobs", "dead", 1, 24, micros=0.0, longest=0)
    count(database, THIS_HOUR - 2, "attempts", "failed", 1, 30, micros=0.0, longest=0)
    count(database, THIS_HOUR - 100, "jobs", "succeeded", 1, 5, micros=0.0, longest=0)
    reply = browser.get("/")
    labels = [str(given["aria-label"]) for tag, given in reply.elements if tag == "svg" and given.get("role") == "img"]
    assert labels == [
        (
            "Jobs that ended: jobs ended 1,524 times in 24 hours, at most 1,500 in one hour; "
            "a job counts each time it ends"
        ),
        "Failures: 30 attempts failed or were lost in 24 hours, and there were 24 deaths",
        "Waiting time: from due to start: 1s on average in the worst hour, 3s at most",
    ]
    table = reply.tables["What ended"]
    assert len(table) == 24
    now = {"from": "14:00", "succeeded": "1,500", "dead": "0", "cancelled": "0", "failed attempts": "0"}
    assert table[-1] == now | {"average wait": "1s", "longest wait": "3s"}
    assert (table[-3]["dead"], table[-3]["failed attempts"]) == ("24", "30")
    month = browser.get("/?charts=30d")
    assert len(month.tables["What ended"]) == 30
    assert "jobs ended 1,529 times in 30 days" in month.words
    assert "/?charts=30d" in reply.addresses()


def test_another_word_for_the_charts_is_the_day(rows: Rows, browser: Browser) -> None:
    assert len(browser.get("/?charts=%3Cb%3E").tables["What ended"]) == 24
