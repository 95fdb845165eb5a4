"""Why jobs died, on the pages: shown first, and all jobs of a cause retried or dismissed in steps that can be left."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from support.browsing import HOST, Browser, Reply, by_link, pages
from support.lookingrows import NOW, Rows, ago
from support.lookingrows import rows as rows

from cronjobs import masking
from cronjobs.contrib.web import actions
from cronjobs.contrib.web.report import report
from cronjobs.contrib.web.security import ByLink
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.rules.causes import cause_of
from cronjobs.testing import FakeClock

INVOICE = cause_of("billing.send", "GiveUp", "there is no invoice 17").key
PROVIDER = cause_of("mail.send", "ProviderError", "503 for 9").key
TRACEBACK = 'File "/srv/shop/billing.py", line 9, in send'


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def access() -> ByLink:
    return by_link(may_act=True)


@pytest.fixture
def browser(database: Database, database_url: str, tmp_path: Path, access: ByLink) -> Iterator[Browser]:
    yield Browser(pages(database, database_url, tmp_path, access)).log_in(access)
    masking.remember(())


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


def form_of(reply: Reply, action: str) -> dict[str, str]:
    """The fields of the form on *reply* that is sent to *action*."""
    fields: dict[str, str] = {}
    ours = False
    for tag, given in reply.elements:
        ours = given.get("action") == action if tag == "form" else ours
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
    for verb in ("retry", "dismiss"):
        assert f"/cause/{INVOICE}/{verb}" in reply.addresses()


def test_where_nothing_is_dead_there_is_no_section(rows: Rows, browser: Browser) -> None:
    assert "Why jobs died" not in browser.get("/").words


def test_a_cause_has_a_page_with_its_jobs_its_times_and_one_traceback(night: list[int], browser: Browser) -> None:
    reply = browser.get(f"/cause/{INVOICE}")
    assert "8 × GiveUp: there is no invoice <n>" in reply.words
    assert "13:33:07" in reply.words
    assert "13:35:07" in reply.words
    assert reply.words.count(TRACEBACK) == 1
    assert {row["id"] for row in reply.tables["Jobs of this cause"]} == set(map(str, night))
    assert "None of the 2,000 jobs that died last" in browser.get(f"/cause/{'0' * 12}").words
    for address in ("/cause/x", f"/cause/{INVOICE[:-1]}", f"/cause/{INVOICE.upper()}", "/cause/", f"/cause/{INVOICE}/"):
        assert browser.get(address).status == 404


def test_the_report_says_it_too_and_leads_nowhere(night: list[int], database: Database, browser: Browser) -> None:
    application: Any = browser.application
    with database.read() as connection:
        written = report(connection, *application.current.now())
    assert "8 ×</strong> GiveUp: there is no invoice &lt;n&gt;" in written
    assert f"/cause/{INVOICE}" not in written


def test_a_run_of_exec_is_dismissed_and_not_retried(rows: Rows, browser: Browser) -> None:
    rows.job("exec:backup", "dead", last_error="exit status 3", error_type="CommandFailed")
    addresses = [each for each in browser.get("/").addresses() if each.startswith("/cause/")]
    assert [each.rpartition("/")[2] for each in addresses if each.count("/") == 3] == ["dismiss"]


# --- what is done -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "status", "said"), [("retry", "queued", "retried"), ("dismiss", "dead", "dismissed")])
def test_all_jobs_of_a_cause_and_no_other_are_changed_by_one_click_and_the_audit_names_who(
    night: list[int], database: Database, browser: Browser, verb: str, status: str, said: str
) -> None:
    before = statuses(database)
    page = f"/cause/{INVOICE}"
    reply = browser.act(page, f"{page}/{verb}", why="the invoices are back")
    assert (reply.status, reply.header("Location")) == (303, f"{page}?said=all_{said}")
    assert statuses(database) == before | dict.fromkeys(night, status)
    [entry] = audit(database)
    assert (entry.action, entry.actor, entry.host, entry.why) == (verb, "ada", "here", "the invoices are back")
    assert entry.detail == {"filter": {"cause": INVOICE}, "ids": night}
    assert said in browser.get(f"{page}?said=all_{said}").words.replace("queued again", "retried")
    assert browser.get("/").body.count('class="cause"') == 1
    assert browser.act("/", f"{page}/{verb}").header("Location") == f"{page}?said=unchanged"


def test_many_are_done_in_steps_each_of_which_commits_and_goes_on_by_a_button(
    night: list[int], rows: Rows, database: Database, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "AT_ONCE", 3)
    before, action = statuses(database), f"/cause/{INVOICE}/retry"
    reply, steps = browser.act("/", action, why="<mended>"), 1
    assert "3 jobs are retried so far" in reply.words
    assert sorted(statuses(database)[id_] for id_ in night) == ["dead"] * 5 + ["queued"] * 3
    # One dies later, and one that was retried dies again: neither is taken.
    later = died(rows, 0)
    again = next(id_ for id_ in night if statuses(database)[id_] == "queued")
    with database.write() as connection:
        values = {"status": "dead", "finished_at": NOW + timedelta(seconds=1)}
        connection.execute(update(tables.jobs).where(tables.jobs.c.id == again).values(values))
    while reply.status == 200:
        reply, steps = browser.post(action, form_of(reply, action)), steps + 1
    assert (steps, reply.header("Location")) == (3, f"/cause/{INVOICE}?said=all_retried")
    assert statuses(database) == before | dict.fromkeys(night, "queued") | {later: "dead", again: "dead"}
    assert [(row.actor, row.why, len(row.detail["ids"])) for row in audit(database)] == [
        ("ada", "<mended>", 3),
        ("ada", "<mended>", 3),
        ("ada", "<mended>", 2),
    ]


def test_no_more_than_so_many_deaths_are_read_by_one_request(
    night: list[int], database: Database, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "DEATHS_READ", 4)
    action = f"/cause/{PROVIDER}/dismiss"
    reply, steps = browser.act("/", action), 1
    while reply.status == 200:
        reply, steps = browser.post(action, form_of(reply, action)), steps + 1
    assert steps >= 3
    assert sum(len(row.detail["ids"]) for row in audit(database)) == 4


def test_whoever_closes_the_page_leaves_the_rest_and_another_can_go_on(
    night: list[int], database: Database, browser: Browser, database_url: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(actions, "AT_ONCE", 3)
    action = f"/cause/{INVOICE}/retry"
    left = browser.act("/", action)
    access = ByLink("grace", [HOST], "cronjobs_8642", may_act=True)
    other = Browser(pages(database, database_url, tmp_path, access)).log_in(access)
    monkeypatch.setattr(actions, "AT_ONCE", 2_000)
    assert other.act("/", action).header("Location").endswith("said=all_retried")
    reply = browser.post(action, form_of(left, action))  # the first one, after all: each job was retried once
    assert reply.header("Location").endswith("said=all_retried")
    done = [(row.actor, len(row.detail["ids"])) for row in audit(database)]
    assert done == [("ada", 3), ("grace", 5)]
    assert {statuses(database)[id_] for id_ in night} == {"queued"}


def test_what_could_not_be_changed_is_said(
    night: list[int], database: Database, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruned but for its key, so there is nothing to run."""
    with database.write() as connection:
        values = {"meta": {"cronjobs.stripped": True}}
        connection.execute(update(tables.jobs).where(tables.jobs.c.id == night[0]).values(values))
    reply = browser.act("/", f"/cause/{INVOICE}/retry")
    assert reply.header("Location") == f"/cause/{INVOICE}?said=some_left"
    assert "Some jobs were left as they are" in browser.get(f"/cause/{INVOICE}?said=some_left").words


# --- who may ----------------------------------------------------------------------------------------------------------


def test_nothing_acts_on_a_cause_but_a_form_of_ours_in_this_session(
    night: list[int], database: Database, browser: Browser
) -> None:
    action = f"/cause/{INVOICE}/retry"
    csrf = browser.get("/").csrf
    before = statuses(database)
    post, form = browser.post, {"csrf": csrf}
    refused = {
        "no csrf": post(action),
        "wrong csrf": post(action, {"csrf": "0" * 64}),
        "csrf in the address": post(f"{action}?csrf={csrf}"),
        "no cookie": Browser(browser.application).post(action, form),
        "another origin": post(action, form, origin="http://evil.example"),
        "a sandboxed frame": post(action, form, origin="null"),
        "cross-site": post(action, form, sec_fetch_site="cross-site"),
        "same-site": post(action, form, sec_fetch_site="same-site"),
        "as text": post(action, form, CONTENT_TYPE="text/plain"),
        "by get": browser.get(f"{action}?csrf={csrf}"),
        "huge": post(action, form | {"why": "x" * 20_000}),
        "another verb": post(f"/cause/{INVOICE}/cancel", form),
        "no cause": post("/cause/everything/retry", form),
        "no instant": post(action, form | {"died_at": "yesterday", "job_id": "1"}),
        "no zone": post(action, form | {"died_at": "2026-07-01T12:00:00", "job_id": "1"}),
        "no job": post(action, form | {"died_at": NOW.isoformat(), "job_id": "-1"}),
        "half a place": post(action, form | {"job_id": "1"}),
    }
    assert {name: reply.status for name, reply in refused.items() if not 400 <= reply.status < 500} == {}
    assert statuses(database) == before
    assert audit(database) == []
    assert post(action, form, origin="null", sec_fetch_site="same-origin").status == 303


@pytest.mark.parametrize("count", ["x", "-1", "9" * 30, "²"])
def test_a_count_that_is_none_changes_nothing(
    night: list[int], database: Database, browser: Browser, count: str
) -> None:
    assert browser.act("/", f"/cause/{INVOICE}/retry", changed=count).status == 400
    assert "queued" not in statuses(database).values()


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
