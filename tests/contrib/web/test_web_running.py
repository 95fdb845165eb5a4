"""Running jobs on the pages: their progress, their estimated end, and the last lines of their output."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.browsing import Browser
from support.browsing import browser as browser
from support.browsing import clock as clock
from support.lookingrows import NOW, Rows, ago
from support.lookingrows import rows as rows

from cronjobs.contrib.web.progress import progress_of
from cronjobs.desk.store import tailing
from cronjobs.engine.database.connection import Database

HALF = {"done": 60, "of": 120, "note": "Berlin", "ran_s": 100, "first": 0, "first_s": 0}


# --- pure -------------------------------------------------------------------------------------------------------------


def test_the_end_is_told_from_the_pace_so_far() -> None:
    told = progress_of(HALF, ago(seconds=100), NOW)
    assert told is not None
    assert (told.words, told.done, told.of) == ("60 of 120 (50 %): Berlin", 60, 120)
    assert told.end_at == NOW + timedelta(seconds=100)


@pytest.mark.parametrize("column", [None, {}, [], "x", 7, {"output_end": 4}, {"done": "7"}, {"done": -1}])
def test_who_has_reported_nothing_has_no_bar(column: Any) -> None:
    assert progress_of(column, ago(seconds=100), NOW) is None


@pytest.mark.parametrize(
    ("column", "started_at"),
    [
        ({"done": 7, "ran_s": 100}, ago(seconds=100)),  # nobody knows of how many
        (HALF, None),
        (HALF | {"ran_s": 10}, ago(seconds=10)),  # too soon
        (HALF | {"done": 3}, ago(seconds=100)),  # too little
        (HALF | {"done": 120}, ago(seconds=100)),
        (HALF | {"done": 130}, ago(seconds=100)),
        (HALF, ago(hours=3)),  # it has said nothing since
        (HALF | {"done": 1e14, "of": 1e15, "ran_s": 1e14}, ago(hours=3)),
    ],
)
def test_where_nobody_could_tell_the_end_there_is_none(column: Any, started_at: datetime | None) -> None:
    told = progress_of(column, started_at, NOW)
    assert told is not None
    assert told.end_at is None
    assert told.of is None or told.done <= told.of


def test_an_end_of_thousands_of_years_is_none() -> None:
    column = {"done": 5e13, "of": 1e15, "ran_s": 1e11, "first": 0, "first_s": 0}
    late = datetime(9000, 1, 1, tzinfo=UTC)
    told = progress_of(column, late - timedelta(seconds=1e11), late)
    assert told is not None
    assert told.end_at is None


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_row_says_no_end_is_in_the_past_and_no_bar_is_too_long(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(300):
        names = ("done", "of", "ran_s", "first", "first_s")
        numbers = [0, -1, 1, 0.5, 19, 21, 100, 1e3, 1e9, 1e15, 1e300, float("nan"), None, True, "1"]
        column = {name: dice.choice(numbers) for name in names if dice.random() < 0.9}
        started_at = NOW + timedelta(seconds=dice.choice([-1e9, -1e4, -100, -30, 0, 100]))
        told = progress_of(column, started_at, NOW)
        if told is not None:
            assert told.end_at is None or told.end_at >= NOW
            assert told.of is None or 0 <= told.done <= told.of


# --- shown ------------------------------------------------------------------------------------------------------------


def test_a_bar_has_words_beside_it_on_every_page_that_shows_what_runs(rows: Rows, browser: Browser) -> None:
    job = rows.job(status="running", started_at=ago(seconds=100), progress=HALF)
    for page in ("/jobs", f"/jobs/{job}", "/hosts"):
        reply = browser.get(page)
        [bar] = [given for tag, given in reply.elements if tag == "progress"]
        assert bar == {"max": "120", "value": "60", "aria-label": f"progress of job {job}"}, page
        assert "60 of 120 (50 %): Berlin about 1m40s left, until 14:04:47" in reply.words, page


def test_a_tick_whose_process_is_gone_is_not_at_work(
    rows: Rows, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.tick(tick="dead", began=ago(seconds=30), finished_at=None, did={"runner": "web1:boot:1:1:1:dead"})
    assert "no end recorded yet" in browser.get("/hosts").words
    monkeypatch.setattr("cronjobs.desk.insight.releasing.is_gone", lambda *_: False)
    assert "at work" in browser.get("/hosts").words
    monkeypatch.setattr("cronjobs.desk.insight.releasing.is_gone", lambda *_: True)
    shown = browser.get("/hosts").words
    assert "its process is gone" in shown
    assert "at work" not in shown


def test_a_job_whose_runner_is_gone_is_marked_wherever_it_is_listed_as_running(
    rows: Rows, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.job(status="running", started_at=ago(seconds=4))
    for gone in (False, True):
        monkeypatch.setattr("cronjobs.desk.insight.releasing.is_gone", lambda *_, answer=gone: answer)
        for page in ("/", "/hosts", "/jobs"):
            shown = browser.get(page).words
            assert ("the runner's process is gone" in shown) is gone, page


def test_without_a_total_there_are_words_and_no_bar(rows: Rows, browser: Browser) -> None:
    rows.job(status="running", started_at=ago(seconds=100), progress={"done": 1200, "ran_s": 90})
    rows.job(status="running")
    reply = browser.get("/jobs")
    assert [tag for tag, _ in reply.elements if tag == "progress"] == []
    assert "1,200 done" in reply.words
    assert "left, until" not in reply.words


def test_what_a_job_reported_before_it_ended_is_no_progress(rows: Rows, browser: Browser) -> None:
    rows.job(status="succeeded", progress=HALF)
    rows.job(status="queued", progress=HALF)
    assert "60 of 120" not in browser.get("/jobs").words


def test_progress_is_read_of_running_jobs_only(rows: Rows, database: Database) -> None:
    runs = rows.job(status="running", progress=HALF)
    ended, silent = rows.job(status="dead", progress=HALF), rows.job(status="running")
    with database.read() as connection:
        assert tailing.progress_of(connection, [runs, ended, silent, 999]) == {runs: HALF, silent: None}
        assert tailing.progress_of(connection, []) == {}


def test_the_last_lines_of_what_a_running_job_prints_are_open(rows: Rows, browser: Browser) -> None:
    printed = "".join(f"line {number}\n" for number in range(50))
    job = rows.job(status="running", progress={"output_end": len(printed)}, live_output=printed)
    body = browser.get(f"/jobs/{job}").body
    folded, shown = body.split("earlier lines</summary>")[1].split("</details>")
    assert "line 29\n" in folded
    assert "line 30" not in folded
    assert shown.split("</pre>")[0].count("line ") == 20
    assert "line 49\n</pre>" in shown
