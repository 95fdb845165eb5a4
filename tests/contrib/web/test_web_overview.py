"""The first page: running and waiting jobs, the next schedules, the search for schedules, and lines that cron runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from support.browsing import Browser
from support.browsing import browser as browser
from support.browsing import clock as clock
from support.lookingrows import NOW, Rows, ago
from support.lookingrows import rows as rows

from cronjobs.contrib.web.pages.overview import BY_CRON, OPEN_FINDINGS, SCHEDULES, named
from cronjobs.contrib.web.schedule_strip import QUARTERS, first_quarter, hours_below
from cronjobs.desk.insight.formatting import LocalTimes
from cronjobs.desk.store import exec_runs
from cronjobs.desk.store.schedule_runs import active_names
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.rules.quarters import number_of
from cronjobs.engine.store.quarters import strips

# --- now --------------------------------------------------------------------------------------------------------------


def test_what_runs_is_shown_with_how_far_it_has_come(rows: Rows, browser: Browser) -> None:
    column = {"done": 60, "of": 120, "ran_s": 100, "first": 0, "first_s": 0}
    oldest = rows.job(status="running", started_at=ago(seconds=100), progress=column)
    over = rows.job(status="running", started_at=ago(seconds=90), locked_until=ago(seconds=5))
    rows.job(status="running", started_at=ago(seconds=80), cancel_requested_at=ago(seconds=5))
    for _ in range(4):
        rows.job(status="running", started_at=ago(seconds=1))
    reply = browser.get("/")
    [bar] = [given for tag, given in reply.elements if tag == "progress"]
    assert bar["aria-label"] == f"progress of job {oldest}"
    assert f"Running {oldest} mail.send for 1m40s on web1 60 of 120 (50 %) about 1m40s left" in reply.words
    assert f"{over} mail.send for 1m30s on web1 OVERDUE: lease ended 5s ago" in reply.words
    assert "asked to stop" in reply.words
    assert "and 2 more" in reply.words
    assert "/jobs?status=running" in reply.addresses()


def test_what_waits_is_shown_with_whether_it_grows(rows: Rows, browser: Browser) -> None:
    for minutes in (1, 1, 20):
        rows.job(run_at=ago(minutes=minutes))
    rows.job(queue="old", run_at=ago(hours=1))
    rows.job(queue="stopped", run_at=ago(hours=2))
    rows.pause("queue", "stopped")
    words = browser.get("/").words
    assert (
        "Waiting stopped 1 due , the oldest for 2h paused old 1 due , the oldest for 1h , steady default 3 due" in words
    )
    assert "growing: +2 in 10m" in words


def test_dead_jobs_that_are_all_dismissed_are_said_to_be(rows: Rows, browser: Browser) -> None:
    rows.job(status="dead", finished_at=ago(hours=1), dismissed_at=NOW)
    assert "1 dead in all, dismissed" in browser.get("/").words
    rows.job(status="dead", finished_at=ago(hours=1), dismissed_at=NOW)
    assert "2 dead in all, all dismissed" in browser.get("/").words
    rows.job(status="dead", finished_at=ago(hours=1))
    assert "3 dead in all, " not in browser.get("/").words


def test_of_many_queues_the_rest_is_counted(rows: Rows, browser: Browser) -> None:
    for number in range(7):
        rows.job(queue=f"q{number}", run_at=ago(minutes=10 - number))
    assert "and 2 more in other queues" in browser.get("/").words


def test_what_comes_next_is_shown_in_order(rows: Rows, browser: Browser) -> None:
    rows.schedule("second", next_at=NOW + timedelta(minutes=2))
    rows.schedule("first", next_at=NOW + timedelta(minutes=1))
    assert "Next first in 1m second in 2m" in browser.get("/").words


def test_where_nothing_goes_on_the_page_says_so(rows: Rows, browser: Browser) -> None:
    words = browser.get("/").words
    for nothing in ("nothing is running", "nothing is due", "no run is scheduled", "no active schedule"):
        assert nothing in words
    assert "Run by cron" not in words


def test_a_schedule_that_is_paused_is_active_and_the_page_says_who_paused_it(rows: Rows, browser: Browser) -> None:
    rows.schedule("nightly", next_at=NOW + timedelta(hours=1), status="active")
    rows.pause("schedule", "nightly", paused_at=ago(minutes=5), by="ada", why="month end")
    reply = browser.get("/")
    assert "of 1 active schedule" in reply.words
    assert "Next paused schedule nightly until someone resumes it, by ada: month end" in reply.words
    assert "no run is scheduled" not in reply.words
    assert "no schedule is active" not in reply.words


def test_of_many_findings_the_first_are_open_and_all_are_there(rows: Rows, browser: Browser) -> None:
    for number in range(OPEN_FINDINGS + 3):
        rows.job(job_type=f"nobody.{number}", run_at=ago(hours=1))
        rows.tick(host=f"web{number}", began=ago(minutes=1, seconds=number), did={"refused": "bad file"})
    body = browser.get("/").body
    found = body.count('class="finding ')
    assert found > OPEN_FINDINGS
    assert f"{found - OPEN_FINDINGS} more findings</summary>" in body
    assert body[: body.index("more findings</summary>")].count('class="finding ') == OPEN_FINDINGS


# --- schedules --------------------------------------------------------------------------------------------------------


def test_only_the_schedules_on_screen_have_strips(rows: Rows, browser: Browser) -> None:
    for number in range(2 * SCHEDULES + 5):
        rows.schedule(f"s-{number:02}", next_at=NOW + timedelta(minutes=number + 1))
    seen = []
    for page in ("/", "/?page=2", "/?page=3"):
        reply = browser.get(page)
        shown = reply.tables["Schedules"]
        assert reply.body.count('<svg class="strip"') == len(shown)
        seen += [row["schedule"] for row in shown]
    assert seen == [f"s-{number:02}" for number in range(2 * SCHEDULES + 5)]
    assert "/?page=3" in browser.get("/?page=2").addresses()
    assert "/" in browser.get("/?page=2").addresses()


def test_schedules_are_found_by_parts_of_their_names(rows: Rows, browser: Browser) -> None:
    for number in range(SCHEDULES + 3):
        rows.schedule(f"Billing-import-{number:02}", next_at=NOW + timedelta(minutes=number + 1))
    rows.schedule("счёт-ФАКТУРА", next_at=NOW + timedelta(hours=5))
    rows.schedule("old-billing", status="retired")
    reply = browser.get("/?find=IMPORT%20bill")
    assert len(reply.tables["Schedules"]) == SCHEDULES
    assert f"of {SCHEDULES + 3} active schedules whose name contains the search text" in reply.words
    assert "/?find=IMPORT%20bill&page=2" in reply.addresses()
    assert len(browser.get("/?find=IMPORT%20bill&page=2").tables["Schedules"]) == 3
    assert [row["schedule"] for row in browser.get(f"/?find={quote('фактура')}").tables["Schedules"]] == [
        "счёт-ФАКТУРА"
    ]
    assert "no active schedule has a name that contains the search text" in browser.get("/?find=old").words
    [field] = [given for tag, given in browser.get("/?find=%3Cb%3E%22").elements if given.get("name") == "find"]
    assert field["value"] == '<b>"'


def test_all_words_have_to_be_in_a_name() -> None:
    fits = named(" Straße  A ")
    assert fits("a-STRASSE")
    assert not fits("strasse-b".replace("a", ""))
    assert named("")("anything")


def test_names_of_retired_schedules_are_not_looked_at(rows: Rows, database: Database) -> None:
    active = rows.schedule("a")
    rows.schedule("b", status="retired")
    with database.read() as connection:
        assert active_names(connection) == {active: "a"}


@pytest.mark.parametrize(
    ("zone", "clocks"),
    [
        ("Europe/Berlin", ["18:00", "00:00", "06:00", "12:00"]),
        ("Asia/Kathmandu", ["18:00", "00:00", "06:00", "12:00"]),  # five hours and three quarters from UTC
        ("UTC", ["18:00", "00:00", "06:00", "12:00"]),
    ],
)
def test_the_hours_below_a_strip_are_those_of_the_local_clock(zone: str, clocks: list[str]) -> None:
    now = datetime(2026, 7, 1, 12, 3, tzinfo=UTC)
    first, times = first_quarter(now), LocalTimes(now, zone)
    found = hours_below(first, times)
    assert sorted(clock for _, clock in found) == sorted(clocks)
    for place, wall in found:
        at = datetime.fromtimestamp((first + round(place * QUARTERS / 100)) * 900, UTC)
        assert f"{times.local(at):%H:%M}" == wall
        assert 0 <= place < 100


def test_a_day_of_25_hours_has_each_hour_where_it_was() -> None:
    now = datetime(2026, 10, 25, 12, 0, tzinfo=UTC)  # in the night before, Berlin's clocks were set back
    assert [clock for _, clock in hours_below(first_quarter(now), LocalTimes(now, "Europe/Berlin"))] == [
        *("18:00", "00:00", "06:00", "12:00")
    ]


# --- what cron runs ---------------------------------------------------------------------------------------------------


def by_cron(rows: Rows, name: str, began: datetime, status: str = "succeeded") -> int:
    ended = {} if status == "running" else {"finished_at": began + timedelta(seconds=3)}
    return rows.job(f"exec:{name}", status, run_at=began, started_at=began, **ended)


def test_lines_that_cron_runs_have_rows_like_schedules(rows: Rows, browser: Browser) -> None:
    by_cron(rows, "backup", ago(minutes=50))
    dead = by_cron(rows, "backup", ago(minutes=20), "dead")
    by_cron(rows, "rotate", ago(minutes=5))
    reply = browser.get("/")
    backup, rotate = reply.tables["Run by cron"]
    assert backup["name"] == "exec:backup"
    assert backup["last"].startswith("dead")
    assert backup["last 24 h"].endswith("quarter-hours of the last 24 h: 1 dead, 1 succeeded")
    assert rotate["last 24 h"].endswith("quarter-hours of the last 24 h: 1 succeeded")
    assert f"/jobs/{dead}" in reply.addresses()
    assert "/jobs?type=exec%3Abackup" in reply.addresses()
    assert [row["name"] for row in browser.get("/?find=rot").tables["Run by cron"]] == ["exec:rotate"]


def test_of_many_lines_the_rest_is_a_click_away(rows: Rows, browser: Browser) -> None:
    for number in range(BY_CRON + 2):
        by_cron(rows, f"line-{number:02}", ago(minutes=5))
    reply = browser.get("/")
    assert len(reply.tables["Run by cron"]) == BY_CRON
    assert "/?by_cron=all" in reply.addresses()
    assert len(browser.get("/?by_cron=all").tables["Run by cron"]) == BY_CRON + 2


@pytest.mark.parametrize(("status", "shown"), [(None, "w"), ("succeeded", "w"), ("running", "r"), ("dead", "d")])
def test_a_quarter_with_an_unsettled_occurrence_shows_the_worst_of_it(
    rows: Rows, database: Database, status: str | None, shown: str
) -> None:
    """An occurrence that no tick had settled shared its quarter with a success, and nothing was to be seen of it."""
    id_ = rows.schedule("ten", next_at=ago(minutes=1), definition={"every_s": 600, "job": "t", "timezone": "UTC"})
    if status is not None:
        rows.occurrence(id_, ago(minutes=2), job_id=rows.job(status=status))
    with database.read() as connection:
        [letters] = strips(connection, [id_], first_quarter(NOW), QUARTERS).values()
    assert letters.strip(".") == shown


@pytest.mark.parametrize("definition", [{"cron": "7 * * * *"}, {"every_s": 3600}, {"cron": "no expression"}])
@pytest.mark.parametrize("hours", [-1, 3, 30])
def test_every_unsettled_occurrence_of_the_day_is_waiting(
    rows: Rows, database: Database, definition: dict[str, Any], hours: int
) -> None:
    """After an outage of more than a day, the strip said that nothing was due."""
    next_at = ago(hours=hours).replace(minute=7 if "cron" in definition else 0, second=0, microsecond=0)
    id_ = rows.schedule("hourly", next_at=next_at, definition=definition | {"job": "t", "timezone": "UTC"})
    with database.read() as connection:
        [letters] = strips(connection, [id_], first_quarter(NOW), QUARTERS).values()
    known = 1 if definition.get("cron") == "no expression" else 32
    due = [at for each in range(known) if (at := next_at + timedelta(hours=each)) <= NOW]
    places = {number_of(at) - first_quarter(NOW) for at in due} & set(range(QUARTERS))
    assert {place for place, letter in enumerate(letters) if letter == "w"} == places


def test_a_tick_that_was_just_killed_is_not_said_to_be_well(
    rows: Rows, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.tick(finished_at=None, did={"runner": "web1:boot:1:1:1:dead"})
    assert "All well: ticks are running" in browser.get("/").words
    monkeypatch.setattr("cronjobs.desk.insight.releasing.is_gone", lambda *_: True)
    page = browser.get("/").words
    assert "So far: no finding, but the last tick of host web1 died without recording its end" in page
    assert "All well" not in page


def test_what_a_clock_ahead_ran_too_early_is_no_success_on_the_pages(rows: Rows, browser: Browser) -> None:
    schedule = rows.schedule("nightly", next_at=NOW + timedelta(hours=20), seen_until=NOW)
    due = ago(hours=4)
    reason = "ran early at 2026-07-01T07:10:00+00:00 or before, because of a wrong clock, up to attempt 1"
    job = rows.job(status="succeeded", schedule="nightly", scheduled_for=due, run_at=due)
    rows.attempt(job)
    rows.occurrence(schedule, due, job_id=job, reason=reason)
    first, schedules_page = browser.get("/"), "/schedule?name=nightly"
    assert "quarter-hours of the last 24 h: 1 early" in first.words
    assert 'class="q-early"' in first.body
    assert 'class="badge early">ran early<' in browser.get(schedules_page).body
    with rows.database.write() as connection:
        again = tables.jobs.update().where(tables.jobs.c.id == job).values(attempts=2)
        connection.execute(again)  # and ran once more, in time
    assert "quarter-hours of the last 24 h: 1 succeeded" in browser.get("/").words
    assert "ran early<" not in browser.get(schedules_page).body


def test_the_strip_of_a_name_is_of_its_own_runs_in_its_quarters(rows: Rows, database: Database) -> None:
    first = first_quarter(NOW)
    by_cron(rows, "a", ago(hours=25))
    by_cron(rows, "a", ago(hours=2))
    by_cron(rows, "a", ago(hours=2), "dead")
    by_cron(rows, "a", ago(seconds=1), "running")
    by_cron(rows, "b", ago(hours=3))
    with database.read() as connection:
        letters = exec_runs.quarters_lately(connection, "exec:a", first, QUARTERS)
        assert exec_runs.quarters_lately(connection, "exec:none", first, QUARTERS) == "." * QUARTERS
    assert len(letters) == QUARTERS
    assert letters.strip(".").replace(".", "") == "dr"
    assert letters[QUARTERS - 1 - 8] == "d"
    assert letters[-1] == "r"
