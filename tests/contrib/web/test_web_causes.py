"""The causes of deaths on the pages.

All jobs of a cause can be retried or dismissed, in steps that can be interrupted.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from support.browsing import Browser, Reply, by_link, pages
from support.browsing import acting_browser as acting_browser
from support.browsing import clock as clock
from support.lookingrows import Rows, ago
from support.lookingrows import rows as rows

from cronjobs.contrib.web.report import report
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.rules.causes import cause_of

INVOICE = cause_of("billing.send", "GiveUp", "there is no invoice 17").key
PROVIDER = cause_of("mail.send", "ProviderError", "503 for 9").key
TRACEBACK = 'File "/srv/shop/billing.py", line 9, in send'


def died(rows: Rows, minutes: float, number: int = 0) -> int:
    values = {"status": "dead", "error_type": "GiveUp", "last_error": f"there is no invoice {number}"}
    return rows.job("billing.send", finished_at=ago(minutes=minutes), **values)


@pytest.fixture
def night(rows: Rows) -> list[int]:
    """Eight deaths of one cause, between them four of another; the ids of the eight."""
    ids = []
    for number in range(8):
        ids.append(died(rows, 30 - number // 3, number))  # some at the same instant
        rows.attempt(ids[-1], "failed", traceback=f"{TRACEBACK} {number}")
        if number % 2:
            error = {"error_type": "ProviderError", "last_error": f"503 for {number}"}
            rows.job(status="dead", finished_at=ago(minutes=30 - number // 3), **error)
    return ids


def statuses(database: Database) -> dict[int, str]:
    with database.read() as connection:
        return {row.id: row.status for row in connection.execute(select(tables.jobs.c.id, tables.jobs.c.status))}


def audit(database: Database) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(select(tables.audit).order_by(tables.audit.c.id)))


def address(verb: str, key: str = INVOICE) -> str:
    """Where it is said what will happen to all jobs of a cause."""
    return f"/bulk?verb={verb}&q=cause%3A{key}&all=1"


def form_of(reply: Reply, action: str) -> dict[str, str]:
    """The fields of the form on *reply* that is sent to *action*."""
    fields: dict[str, str] = {}
    ours = False
    for tag, given in reply.elements:
        if tag == "form":
            ours = given.get("action") == action and not fields
        if ours and tag == "input":
            fields[str(given["name"])] = str(given.get("value") or "")
    assert "csrf" in fields
    return fields


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_the_first_page_says_why_jobs_died_before_anything_else_but_the_findings(
    night: list[int], browser: Browser
) -> None:
    reply = browser.get("/")
    words = reply.words
    assert "8 × GiveUp: there is no invoice <n> billing.send, 13:33:07 to 13:35:07" in words
    assert words.index("Findings") < words.index("Why jobs died") < words.index("Schedules")
    assert words.index("8 × GiveUp") < words.index("4 × ProviderError: 503 for <n>")
    assert {f"/cause/{key}" for key in (INVOICE, PROVIDER)} <= set(reply.addresses())
    assert {address(verb) for verb in ("retry", "dismiss")} <= set(reply.addresses())


def test_where_nothing_is_dead_there_is_no_section(rows: Rows, browser: Browser) -> None:
    assert "Why jobs died" not in browser.get("/").words


def test_a_cause_has_a_page_with_its_jobs_its_times_and_one_traceback(night: list[int], browser: Browser) -> None:
    reply = browser.get(f"/cause/{INVOICE}")
    assert "8 × GiveUp: there is no invoice <n>" in reply.words
    assert "13:33:07" in reply.words
    assert "13:35:07" in reply.words
    assert reply.words.count(TRACEBACK) == 1
    assert {row["id"] for row in reply.tables["Jobs of this cause"]} == set(map(str, night))
    assert "No open job died of this cause" in browser.get(f"/cause/{'0' * 12}").words
    for address in ("/cause/x", f"/cause/{INVOICE[:-1]}", f"/cause/{INVOICE.upper()}", "/cause/", f"/cause/{INVOICE}/"):
        assert browser.get(address).status == 404


def test_the_report_says_it_too_and_leads_nowhere(night: list[int], database: Database, browser: Browser) -> None:
    application: Any = browser.application
    with database.read() as connection:
        written = report(connection, *application.current.now())
    assert "8 ×</strong> GiveUp: there is no invoice &lt;n&gt;" in written
    assert f"/cause/{INVOICE}" not in written
    assert written.count('<svg class="chart"') == 3


def test_a_run_of_exec_is_dismissed_and_not_retried(rows: Rows, browser: Browser) -> None:
    rows.job("exec:backup", "dead", last_error="exit status 3", error_type="CommandFailed")
    found = [each for each in browser.get("/").addresses() if each.startswith("/bulk")]
    assert [each.partition("&")[0] for each in found] == ["/bulk?verb=dismiss"]


# --- what is done -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "status", "word"), [("retry", "queued", "retried"), ("dismiss", "dead", "dismissed")])
@pytest.mark.parametrize("page", ["/", f"/cause/{INVOICE}"])
def test_all_jobs_of_a_cause_and_no_other_are_changed_when_it_was_said_and_the_audit_names_who(
    night: list[int], rows: Rows, database: Database, browser: Browser, verb: str, status: str, word: str, page: str
) -> None:
    assert [each for each in browser.get(page).addresses() if each.startswith("/bulk/")] == []
    assert address(verb) in browser.get(page).addresses()
    told = browser.get(address(verb))
    assert "Jobs that died of GiveUp: there is no invoice <n> billing.send" in told.words
    assert f"8 jobs will be {word}" in told.words
    fields = form_of(told, f"/bulk/{verb}")
    later = died(rows, 0)
    before = statuses(database)
    reply = browser.post(f"/bulk/{verb}", fields | {"why": "the invoices are back"})
    assert reply.status == 303
    assert statuses(database) == before | dict.fromkeys(night, status) | {later: "dead"}
    [entry] = audit(database)
    assert (entry.action, entry.actor, entry.host, entry.why) == (verb, "ada", "here", "the invoices are back")
    assert entry.detail["filter"]["search"] == f"cause:{INVOICE}"
    assert entry.detail["ids"] == night
    through = browser.get(reply.header("Location"))
    assert f"8 jobs {word} so far" in through.words
    assert "Nothing is left to do" in through.words
    assert "4 × ProviderError: 503 for <n>" in through.words  # what else is wrong
    assert address("retry", PROVIDER) in through.addresses()


@pytest.mark.parametrize("verb", ["retry", "dismiss"])
def test_the_page_names_the_cause_when_no_dead_job_has_it_any_more(rows: Rows, browser: Browser, verb: str) -> None:
    job_id = died(rows, 9, 17)
    rows.attempt(job_id, "failed", error_type="GiveUp", error="there is no invoice 17")
    reply = browser.post(f"/bulk/{verb}", form_of(browser.get(address(verb)), f"/bulk/{verb}"))
    through = browser.get(reply.header("Location"))
    assert "Nothing is left to do" in through.words
    assert "Jobs that died of GiveUp: there is no invoice <n> billing.send" in through.words


def test_a_bad_night_takes_five_clicks(rows: Rows, database: Database, browser: Browser) -> None:
    for number in range(24):
        died(rows, 30, number)
    for number in range(6):
        rows.job("mail.send", "dead", error_type="ProviderError", last_error=f"503 for {number}")
    rows.occurrence(rows.schedule("nightly-report"), ago(hours=6), "missed")
    page = browser.get("/")
    for known in ("24 × GiveUp: there is no invoice <n>", "6 × ProviderError: 503", "nightly-report missed 1 run"):
        assert known in page.words
    clicks = 0
    for verb, key in (("retry", INVOICE), ("dismiss", PROVIDER)):
        assert address(verb, key) in page.addresses()
        fields = form_of(browser.get(address(verb, key)), f"/bulk/{verb}")
        page = browser.get(browser.post(f"/bulk/{verb}", fields).header("Location"))
        clicks += 2
    assert browser.post("/trigger", form_of(page, "/trigger")).header("Location").endswith("said=triggered")
    assert clicks + 1 == 5
    assert "Why jobs died" not in browser.get("/").words
    assert Counter(statuses(database).values()) == {"queued": 25, "dead": 6}
    assert [entry.action for entry in audit(database)] == ["retry", "dismiss", "trigger"]


# --- who may ----------------------------------------------------------------------------------------------------------


def test_who_may_only_look_sees_why_and_has_no_button(
    night: list[int], database: Database, database_url: str, tmp_path: Path
) -> None:
    access = by_link()
    browser = Browser(pages(database, database_url, tmp_path, access)).log_in(access)
    for page in ("/", f"/cause/{INVOICE}"):
        reply = browser.get(page)
        assert "8 × GiveUp" in reply.words
        assert [given for tag, given in reply.elements if tag == "form" and given.get("method")] == []


def test_errors_and_types_that_are_markup_stay_text(rows: Rows, browser: Browser) -> None:
    hostile = "<script>alert(1)</script>\x1b[2J\u202e postgresql://me:hunter22@db"
    rows.job(hostile, "dead", last_error=hostile, error_type=hostile)
    key = cause_of(hostile, hostile, hostile).key
    for page in ("/", f"/cause/{key}"):
        body = browser.get(page).body
        assert "&lt;script&gt;" in body
        assert not any(text in body for text in ("<script>", "\x1b", "\u202e", "hunter22"))
