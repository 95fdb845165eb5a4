"""No badge contradicts its row, a finding links to the job of its own occurrence, and errors keep their newlines."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.browsing import Browser
from support.browsing import browser as browser
from support.browsing import clock as clock
from support.lookingrows import NOW, Rows, ago
from support.lookingrows import rows as rows

from cronjobs import masking
from cronjobs.contrib.web.templating import beside
from cronjobs.engine.database import tables

LAST_DUE = datetime(2026, 7, 1, 6, 15, tzinfo=UTC)  # of Rows.schedule


@pytest.mark.parametrize(
    ("status", "badge", "more"),
    [
        ("dead", ("dead", "dead"), {}),
        ("dead", ("dismissed", "dead, dismissed"), {"dismissed_at": NOW}),
        ("failed", ("retrying", "retrying"), {"failures": 1, "attempts": 1}),
        ("queued", ("queued", "queued"), {}),
        ("running", ("running", "running"), {}),
        ("cancelled", ("cancelled", "cancelled"), {}),
        ("succeeded", ("succeeded", "succeeded"), {}),
        (None, ("gone", "pruned"), {}),
    ],
)
def test_the_badge_of_an_occurrence_is_how_its_job_stands(
    rows: Rows, browser: Browser, status: str | None, badge: tuple[str, str], more: dict[str, Any]
) -> None:
    job = 999 if status is None else rows.job(status=status, schedule="nightly-report", **more)
    rows.occurrence(rows.schedule("nightly-report"), LAST_DUE, job_id=job)
    body = browser.get("/schedule?name=nightly-report").body
    assert re.findall(r'<li><p>\s*<span class="badge ([\w-]+)">([^<]+)</span>', body) == [badge]
    assert '"badge enqueued"' not in body


def test_what_made_no_job_keeps_its_verdict(rows: Rows, browser: Browser) -> None:
    twice = {"cron": "15 2,3 * * *", "timezone": "America/New_York", "job": "reports.nightly"}
    schedule = rows.schedule("nightly-report", definition=twice)
    rows.occurrence(schedule, LAST_DUE, "missed")
    rows.occurrence(
        schedule, LAST_DUE + timedelta(hours=1), "skipped", reason="overlap", job_id=rows.job(status="dead")
    )
    body = browser.get("/schedule?name=nightly-report").body
    assert re.findall(r'<li><p>\s*<span class="badge ([\w-]+)">', body) == ["skipped", "missed"]


def test_a_finding_leads_to_the_job_of_its_own_occurrence(rows: Rows, browser: Browser) -> None:
    """Of two that died (and were dismissed) it names the one that is past its grace, and leads there."""
    hourly = {"cron": "0 * * * *", "timezone": "UTC", "job": "reports.nightly", "grace_s": 3600}
    schedule = rows.schedule("nightly-report", definition=hourly, next_at=NOW + timedelta(minutes=57))
    rows.put(tables.audit, action="define", subject="nightly-report", at=ago(days=2))
    older, newer = (
        rows.job(status="dead", schedule="nightly-report", scheduled_for=due, dismissed_at=NOW)
        for due in (ago(hours=1, minutes=3, seconds=7.2), ago(minutes=3, seconds=7.2))
    )
    rows.occurrence(schedule, ago(hours=1, minutes=3, seconds=7.2), job_id=older)
    rows.occurrence(schedule, ago(minutes=3, seconds=7.2), job_id=newer)
    rows.tick()
    body = browser.get("/").body
    [finding] = re.findall(r'<li class="finding critical">(?:(?!</li>).)*within its grace.*?</li>', body, re.DOTALL)
    assert f"due 2026-07-01 11:00:00 UTC: job {older} is dead" in finding
    assert re.findall(r'href="(/jobs/[^"]*)"', finding) == [f"/jobs/{older}"]
    assert 'href="/schedule?name=nightly-report"' in finding


def test_the_finding_of_dead_jobs_leads_to_them(rows: Rows, browser: Browser) -> None:
    rows.job(status="dead")
    assert browser.get("/").addresses().count("/jobs?status=dead") == 3  # and two figures


ERROR = "no route to host\n  rsync: connection unexpectedly closed\n\nC:\\new is \\n fine"


def test_errors_keep_their_lines_and_share_one_in_a_list(rows: Rows, browser: Browser) -> None:
    job = rows.job(status="dead", last_error=ERROR, error_type="OSError", failures=1)
    rows.attempt(job, "failed", error=ERROR, error_type="OSError")
    body = browser.get(f"/jobs/{job}").body
    assert "no route to host\n  rsync: connection unexpectedly closed\n\nC:\\new is \\n fine" in body
    listed = browser.get("/jobs").tables["Jobs"][0]["note"]
    assert "no route to host / rsync: connection unexpectedly closed / C:\\new is \\n fine" in listed


def test_a_secret_over_two_lines_of_an_error_stays_hidden(rows: Rows, browser: Browser) -> None:
    masking.remember({"s3cret-canary"})
    job = rows.job(status="dead", last_error="a s3cret-canary\nb s3cret-canary", failures=1)
    for page in (f"/jobs/{job}", "/jobs"):
        assert "s3cret-canary" not in browser.get(page).body


def test_the_list_shows_the_payload_of_what_has_no_error_and_hides_what_is_to_be_hidden(
    rows: Rows, browser: Browser
) -> None:
    masking.remember({"s3cret-canary"})
    rows.job(payload={"n": 4711, "to": "s3cret-canary"})
    rows.job(payload={"n": 4712, "card": "4111"}, meta=masking.as_meta(["card"]))
    rows.job(status="dead", payload={"n": 4713}, last_error="no route")
    rows.job(payload={})
    notes = [row["note"] for row in browser.get("/jobs?sort=id").tables["Jobs"]]
    assert notes[0].startswith('{"n": 4711, "to": "***')
    assert '"n": 4712' in notes[1]
    assert "4111" not in notes[1]
    assert "4713" not in notes[2]
    assert notes[3] == ""


def test_a_dead_job_leads_to_its_cause_until_it_is_dealt_with(rows: Rows, browser: Browser) -> None:
    rows.job(status="dead", error_type="OSError", last_error="no route 1")
    rows.job(status="dead", error_type="OSError", last_error="no route 2", dismissed_at=NOW)
    [cause] = [found for found in browser.get("/jobs/1").addresses() if found.startswith("/cause/")]
    assert "1 × OSError: no route 1" in browser.get(cause).words
    assert "/cause/" not in browser.get("/jobs/2").body


def test_errors_are_grouped_of_the_last_that_failed(
    rows: Rows, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their number: a page that reloads itself does not read all dead jobs each time."""
    monkeypatch.setattr("cronjobs.contrib.web.pages.jobs.ERRORS_READ", 3)
    for number in range(3):
        rows.job(status="dead", last_error=f"503 for {number}", finished_at=ago(minutes=5 - number))
        rows.job(status="failed", last_error="full", last_failed_at=ago(minutes=5 - number))
    page = browser.get("/jobs")
    assert [(row["jobs"], row["error"]) for row in page.tables["Errors"]] == [("3", "503 for <n>"), ("3", "full")]
    assert "there are more" not in page.words
    rows.job(status="dead", last_error="no route", finished_at=ago(minutes=1))
    page = browser.get("/jobs?status=dead")
    assert [(row["jobs"], row["error"]) for row in page.tables["Errors"]] == [("2", "503 for <n>"), ("1", "no route")]
    assert "These counts cover only the last 3 jobs that died or failed; there are more." in page.words


def test_lines_beside_each_other_leave_out_empty_ones() -> None:
    assert beside("a\r\n\n  b\n") == "a / b"
    assert beside(None) == ""
