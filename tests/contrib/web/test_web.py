"""The pages: who may see them, who may act, and that text in rows stays text. ``test_numbers`` tests the figures."""

from __future__ import annotations

import json
import re
import sqlite3
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import pytest
from jinja2 import UndefinedError, meta, nodes
from sqlalchemy import insert, select
from support.browsing import HOST, Browser, Reader, Reply, by_link, pages
from support.databases import opened
from support.grown import Grown
from support.hosts import Host
from support.lookingrows import NOW, YAML, Rows, ago
from support.lookingrows import rows as rows
from support.postgres import OWNER, READ, as_role

from cronjobs import masking
from cronjobs.contrib.web import application, templating, view
from cronjobs.contrib.web.report import report
from cronjobs.contrib.web.security import LinkAccess
from cronjobs.contrib.web.templating import environment, shown
from cronjobs.desk.store import reading
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.rules.causes import cause_of
from cronjobs.engine.store import effects as ledger
from cronjobs.engine.store.quarters import NEVER
from cronjobs.errors import EffectUnknown
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

CAUSE = cause_of("mail.send", "HTTPError", "503").key
PAGES = [
    "/",
    "/jobs",
    "/jobs/1",
    "/schedule?name=nightly-report",
    "/queues",
    "/types",
    "/hosts",
    f"/cause/{CAUSE}",
    "/bulk?verb=retry&all=1",
]
SCRIPTS = ["/static/reload.js", "/static/going-on.js"]
STATIC = ["/static/style.css", "/static/icon.svg", *SCRIPTS]
ACTIONS = [
    *(f"/jobs/1/{verb}" for verb in ("retry", "cancel", "release", "dismiss")),
    *(f"/bulk/{verb}" for verb in ("retry", "cancel", "dismiss")),
    *("/pause", "/resume", "/trigger", "/findings/ack", "/findings/unack"),
]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def access() -> LinkAccess:
    return by_link(may_act=True)


@pytest.fixture
def some(rows: Rows) -> Rows:
    """A dead job, a schedule, a tick."""
    assert rows.job(status="dead", last_error="503", error_type="HTTPError", failures=1) == 1
    rows.attempt(1, "failed", error="503", error_type="HTTPError", output="trying\n")
    schedule = rows.schedule("nightly-report", next_at=NOW + timedelta(hours=3))
    rows.occurrence(schedule, ago(hours=6), job_id=1)
    rows.tick(did={"dead": 1}, schedules_on=1)
    return rows


@pytest.fixture
def outside(database: Database, database_url: str, tmp_path: Path, access: LinkAccess) -> Iterator[Browser]:
    """Somebody without a session."""
    yield Browser(pages(database, database_url, tmp_path, access))
    masking.remember(())


@pytest.fixture
def browser(outside: Browser, access: LinkAccess) -> Browser:
    return outside.log_in(access)


def everything(database: Database) -> Any:
    with database.read() as connection:
        return {name: connection.execute(select(table)).all() for name, table in tables.metadata.tables.items()}


def status_of(database: Database, job_id: int) -> str:
    with database.read() as connection:
        return str(connection.execute(select(tables.jobs.c.status).where(tables.jobs.c.id == job_id)).scalar_one())


# --- who may look -----------------------------------------------------------------------------------------------------


def test_without_the_link_there_is_nothing_to_see(some: Rows, outside: Browser) -> None:
    for address in [*PAGES, *STATIC, "/jobs/99", "/nothing", "/?once=wrong", "/?once="]:
        for method in ("GET", "HEAD"):
            reply = outside.get(address, method)
            assert reply.status == 401
            assert "mail.send" not in reply.body
            assert "nightly" not in reply.body
    assert outside.cookies == {}


def test_the_link_works_once_and_leads_to_an_address_without_it(
    some: Rows, outside: Browser, access: LinkAccess
) -> None:
    reply = outside.get(f"/?once={access.token}")
    assert (reply.status, reply.header("Location")) == (303, "/")
    cookie = reply.header("Set-Cookie")
    assert cookie.startswith("cronjobs_8642=")
    assert set(cookie.split("; ")[1:]) == {"HttpOnly", "SameSite=Strict", "Path=/"}
    assert access.token not in cookie
    assert [outside.get(address).status for address in PAGES] == [200] * len(PAGES)
    assert Browser(outside.application).get(f"/?once={access.token}").status == 401
    assert outside.get(f"/?once={access.token}").status == 200  # a reload by who has the cookie


def test_nothing_but_a_get_by_a_person_uses_the_link_up(outside: Browser, access: LinkAccess) -> None:
    link = f"/?once={access.token}"
    assert outside.get(link, "HEAD").status == 401
    assert outside.get(link, sec_purpose="prefetch;prerender").status == 401
    assert outside.post(link).status == 401
    assert outside.get(f"/jobs?once={access.token}").status == 401
    assert outside.get(link, host="evil.example:8642").status == 421
    assert outside.get(link).status == 303


@pytest.mark.parametrize("cookie", ["", "x", "cronjobs_8642", "cronjobs_8642=", "cronjobs_8642=wrong", "=;;=", "é=é"])
def test_a_cookie_that_was_not_given_opens_nothing(browser: Browser, cookie: str) -> None:
    assert Browser(browser.application).get("/", cookie=cookie).status == 401


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8642", "127.0.0.1", "127.0.0.1:80", "localhost:8642", f"{HOST}.evil.example"],
)
def test_another_host_name_is_misdirected_whatever_else_is_right(some: Rows, browser: Browser, host: str) -> None:
    csrf = browser.get("/jobs/1").csrf
    browser.host = host
    assert {browser.get(address).status for address in [*PAGES, *STATIC]} == {421}
    assert browser.post("/jobs/1/retry", {"csrf": csrf}).status == 421


def test_every_answer_forbids_what_browsers_could_do_with_it(some: Rows, browser: Browser, outside: Browser) -> None:
    stranger = Browser(outside.application)
    for reply in [*(browser.get(address) for address in [*PAGES, *STATIC, "/nothing"]), stranger.get("/")]:
        policy = reply.header("Content-Security-Policy")
        assert dict(each.split(" ", 1) for each in policy.split("; ")) == {
            **dict.fromkeys(("default-src", "base-uri", "frame-ancestors"), "'none'"),
            **dict.fromkeys(("script-src", "connect-src", "style-src", "img-src", "form-action"), "'self'"),
        }
        assert reply.header("Referrer-Policy") == "no-referrer"
        assert reply.header("X-Content-Type-Options") == "nosniff"
        assert reply.header("Cache-Control") == "no-store"
        assert reply.header("Content-Length") == str(len(reply.body.encode()))


def test_pages_ask_nobody_else_and_have_one_script_of_ours_and_nothing_inline(some: Rows, browser: Browser) -> None:
    for address in PAGES:
        reply = browser.get(address)
        assert reply.body.count("<script") == 1
        script = SCRIPTS[address.startswith("/bulk")]
        assert f'<script src="{script}" defer></script>' in reply.body
        assert all(found.startswith(("/", "#")) and not found.startswith("//") for found in reply.addresses())
        assert not [tag for tag, _ in reply.elements if tag in ("style", "iframe", "object", "base", "img")]
        assert not [name for _, given in reply.elements for name in given if name == "style" or name.startswith("on")]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_makes_no_markup_of_text_and_runs_none(script: str) -> None:
    text = (Path(application.__file__).parent / script[1:]).read_text()
    past = (
        r"innerHTML\s*\+?=[^=]|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|createElement\(.script"
    )
    assert re.findall(past, text) == []
    assert re.findall(r"https?:|//\w+\.", text) == []
    if "reload" not in script:
        assert not re.findall("fetch|XMLHttp|location", text)
        return
    # It asks for the page that it is on, and follows no redirect away from it.
    assert re.findall(r"fetch\((.*)", text) == ['location.href.split("#")[0], {']
    assert 'redirect: "error"' in text


def test_a_page_that_is_told_and_a_report_have_no_script(some: Rows, database: Database, browser: Browser) -> None:
    assert "<script" not in browser.get("/jobs/0").body
    application: Any = browser.application
    with database.read() as reader:
        written = report(reader, *application.current.now())
    assert "<script" not in written
    assert 'id="reload"' not in written


# --- who may act ------------------------------------------------------------------------------------------------------


def attempts_to_act(browser: Browser, csrf: str) -> dict[str, Reply]:
    """One thing is wrong with each."""
    post = browser.post
    stranger = Browser(browser.application)
    return {
        "no csrf": post("/jobs/1/retry"),
        "wrong csrf": post("/jobs/1/retry", {"csrf": "0" * 64}),
        "csrf in the address": post(f"/jobs/1/retry?csrf={csrf}"),
        "no cookie": stranger.post("/jobs/1/retry", {"csrf": csrf}),
        "another origin": post("/jobs/1/retry", {"csrf": csrf}, origin="http://evil.example"),
        "another port": post("/jobs/1/retry", {"csrf": csrf}, origin="http://127.0.0.1:9999"),
        "a broken origin": post("/jobs/1/retry", {"csrf": csrf}, origin="http://[::1"),
        "a sandboxed frame": post("/jobs/1/retry", {"csrf": csrf}, origin="null"),
        "a frame elsewhere": post("/jobs/1/retry", {"csrf": csrf}, origin="null", sec_fetch_site="cross-site"),
        "cross-site": post("/jobs/1/retry", {"csrf": csrf}, sec_fetch_site="cross-site"),
        "same-site": post("/jobs/1/retry", {"csrf": csrf}, sec_fetch_site="same-site"),
        "ours and cross-site": post(
            "/jobs/1/retry", {"csrf": csrf}, origin=f"http://{HOST}", sec_fetch_site="cross-site"
        ),
        "as text": post("/jobs/1/retry", {"csrf": csrf}, CONTENT_TYPE="text/plain"),
        "by get": browser.get(f"/jobs/1/retry?csrf={csrf}"),
        "twice": browser._ask("POST", "/jobs/1/retry", f"csrf={csrf}&csrf={csrf}".encode(), {"CONTENT_TYPE": FORM}),
        "huge": post("/jobs/1/retry", {"csrf": csrf, "why": "x" * 20_000}),
    }


FORM = "application/x-www-form-urlencoded"


def test_nothing_acts_but_a_form_of_ours_in_this_session(some: Rows, database: Database, browser: Browser) -> None:
    csrf = browser.get("/jobs/1").csrf
    before = everything(database)
    refused = attempts_to_act(browser, csrf)
    assert {name: reply.status for name, reply in refused.items() if reply.status < 400} == {}
    assert everything(database) == before
    assert browser.post("/jobs/1/retry", {"csrf": csrf}).status == 303


def test_a_form_of_ours_acts_as_browsers_send_it(some: Rows, browser: Browser) -> None:
    csrf = browser.get("/jobs/1").csrf
    # Our pages have no referrer, for which Chromium and Firefox send a null origin.
    reply = browser.post("/jobs/1/retry", {"csrf": csrf}, origin="null", sec_fetch_site="same-origin")
    assert (reply.status, reply.header("Location")) == (303, "/jobs/1?said=retried")
    reply = browser.post("/jobs/1/cancel", {"csrf": csrf}, origin=f"http://{HOST}", sec_fetch_site="same-origin")
    assert (reply.status, reply.header("Location")) == (303, "/jobs/1?said=cancelled")
    assert "The job is cancelled" in browser.get("/jobs/1?said=cancelled").words


def test_without_actions_there_is_no_button_and_no_form_does_anything(
    some: Rows, database: Database, database_url: str, tmp_path: Path
) -> None:
    access = by_link()
    browser = Browser(pages(database, database_url, tmp_path, access)).log_in(access)
    csrf = browser.get("/jobs/1").csrf
    before = everything(database)
    for address in ACTIONS:
        fields = {"csrf": csrf, "scope": "all", "name": "", "finding": "dead"}
        reply = browser.post(address, fields)
        assert reply.status == 403
        assert "--actions" in reply.words
    assert everything(database) == before
    for address in PAGES:
        forms = [given for tag, given in browser.get(address).elements if tag == "form" and given.get("method")]
        assert forms == []


def test_each_action_is_that_of_its_command_and_in_the_audit_with_who(
    some: Rows, database: Database, browser: Browser, clock: FakeClock
) -> None:
    assert browser.act("/jobs/1", "/jobs/1/retry").header("Location") == "/jobs/1?said=retried"
    assert browser.act("/jobs/1", "/jobs/1/retry").header("Location") == "/jobs/1?said=unchanged"
    assert browser.act("/jobs/1", "/jobs/1/cancel", why="wrong customer").header("Location") == "/jobs/1?said=cancelled"
    assert browser.act("/jobs/1", "/pause", scope="queue", name="mail", why="provider").status == 303
    assert browser.act("/jobs/1", "/pause", scope="schedule", name="nightly-report").status == 303
    assert browser.act("/jobs/1", "/pause", scope="all", name="").status == 303
    words = browser.get("/queues").words
    assert "everything" in words
    assert "provider" in words
    for scope, name in (("all", ""), ("queue", "mail"), ("schedule", "nightly-report")):
        assert browser.act("/jobs/1", "/resume", scope=scope, name=name).header("Location").endswith("said=resumed")
        clock.advance(timedelta(seconds=1))
        assert browser.act("/jobs/1", "/resume", scope=scope, name=name).header("Location").endswith("said=not_paused")
    triggered = browser.act("/jobs/1", "/trigger", name="nightly-report")
    assert triggered.header("Location") == "/schedule?name=nightly-report&said=triggered"
    refused = browser.act("/jobs/1", "/trigger", name="nightly-report")
    assert (refused.status, refused.addresses()) == (409, ["/"])  # overlap
    assert browser.act("/jobs/1", "/trigger", name="nobody").status == 409
    assert browser.act("/jobs/1", "/pause", scope="schedule", name="nobody").status == 404
    assert browser.act("/jobs/1", "/pause", scope="all", name="mail").status == 400
    found = everything(database)
    done = [(row.action, row.subject, row.actor, row.host, row.why) for row in found["cronjobs_audit"]]
    assert done == [
        ("retry", "job 1", "ada", "here", None),
        ("cancel", "job 1", "ada", "here", "wrong customer"),
        ("pause", "queue mail", "ada", "here", "provider"),
        ("pause", "schedule nightly-report", "ada", "here", None),
        ("pause", "all", "ada", "here", None),
        ("resume", "all", "ada", "here", None),
        ("resume", "queue mail", "ada", "here", None),
        ("resume", "schedule nightly-report", "ada", "here", None),
        ("trigger", "nightly-report", "ada", "here", None),
    ]
    assert [row.schedule for row in found["cronjobs_jobs"]] == [None, "nightly-report"]


def test_an_acknowledged_finding_is_still_shown_as_such(some: Rows, database: Database, browser: Browser) -> None:
    assert "acknowledged by" not in browser.get("/").words
    reply = browser.act("/jobs/1", "/findings/ack", finding="dead", why="known", **{"for": "8h"})
    assert reply.header("Location") == "/?said=acked"
    words = browser.get("/").words
    assert "acknowledged 1 dead job that nobody has retried" in words
    assert "acknowledged by ada until 22:03:07: known" in words
    [ack] = everything(database)["cronjobs_acks"]
    assert (ack.finding, ack.by) == ("dead", "ada")
    assert abs(ack.until - NOW - timedelta(hours=8)) < timedelta(minutes=1)
    assert browser.act("/jobs/1", "/findings/ack", finding="nothing").header("Location") == "/?said=gone"
    assert browser.act("/jobs/1", "/findings/ack", finding="dead", **{"for": "9y"}).status == 400


def test_a_job_says_its_last_error_once(rows: Rows, browser: Browser) -> None:
    """In its attempt, or among the facts if it died without one, as at its deadline."""
    job_id = rows.job("billing.send", "dead", last_error="no invoice\nas of today", error_type="GiveUp")
    assert browser.get(f"/jobs/{job_id}").body.count('<pre tabindex="0">no invoice\nas of today</pre>') == 1
    rows.attempt(job_id, "failed", error="no invoice\nas of today", error_type="GiveUp")
    page = browser.get(f"/jobs/{job_id}")
    assert "last error" not in page.words
    assert page.body.count('<pre tabindex="0">GiveUp: no invoice\nas of today</pre>') == 1


def test_an_ack_is_taken_back(some: Rows, database: Database, browser: Browser) -> None:
    browser.act("/", "/findings/ack", finding="dead")
    assert "Undo dead" in browser.get("/").words
    assert browser.act("/", "/findings/unack", finding="dead", why="it is not").header("Location") == "/?said=unacked"
    assert "acknowledged by" not in browser.get("/").words
    assert browser.act("/", "/findings/unack", finding="dead").header("Location") == "/?said=not_acked"
    found = everything(database)
    assert found["cronjobs_acks"] == []
    done = [(row.action, row.subject, row.actor, row.host, row.why) for row in found["cronjobs_audit"]]
    assert done == [("ack", "dead", "ada", "here", None), ("unack", "dead", "ada", "here", "it is not")]


def test_each_pause_has_a_button_that_ends_it_and_no_other(some: Rows, browser: Browser) -> None:
    """Also of a queue in which nothing waits; and a queue that is paused with everything has none of its own."""
    some.job(queue="mail")
    some.pause("queue", "empty")
    some.pause("all")
    shown = browser.get("/queues").tables
    assert [row["pause"] for row in shown["Queues"]] == [""]
    assert [row["resume"] for row in shown["Pauses"]] == ["Resume everything", "Resume queue empty"]
    browser.act("/queues", "/resume", scope="all", name="")
    browser.act("/queues", "/resume", scope="queue", name="empty")
    page = browser.get("/queues")
    assert page.tables.get("Pauses", []) == []
    assert [row["pause"] for row in page.tables["Queues"]] == ["Pause queue mail"]
    assert "Pause everything" in page.words


def test_the_page_of_the_queues_shows_each_limit_and_who_waits_for_it(
    rows: Rows, database: Database, database_url: str, tmp_path: Path
) -> None:
    access = by_link()
    yaml = YAML + "limits: {mail: {most: 1}, pay: {most: 2, each: 1}}\n"
    browser = Browser(pages(database, database_url, tmp_path, access, yaml)).log_in(access)
    rows.job(status="running", concurrency_key="mail:1")
    rows.job(concurrency_key="mail:2", run_at=ago(minutes=1))
    mail, pay = (tuple(row.values()) for row in browser.get("/queues").tables["Limits"])
    assert mail == ("mail", "1", "1 reached", "1")
    assert pay == ("pay", "2, 1 of each key", "0", "0")


def test_a_running_job_shows_what_it_has_printed_so_far(some: Rows, browser: Browser) -> None:
    printed = "line 1\n<b>line 2</b>\n"
    job = some.job(status="running", progress={"output_end": len(printed)}, live_output=printed)
    assert "Output so far line 1 <b>line 2</b>" in browser.get(f"/jobs/{job}").words


def test_a_dead_job_is_dismissed_once(some: Rows, database: Database, browser: Browser) -> None:
    assert buttons(browser, 1) == {"Retry", "Dismiss"}
    assert browser.act("/jobs/1", "/jobs/1/dismiss", why="known").header("Location") == "/jobs/1?said=dismissed"
    assert buttons(browser, 1) == {"Retry"}
    assert "dead, dismissed" in browser.get("/jobs/1?said=dismissed").words
    assert browser.act("/jobs/1", "/jobs/1/dismiss").header("Location") == "/jobs/1?said=unchanged"
    [act] = everything(database)["cronjobs_audit"]
    assert (act.action, act.subject, act.actor, act.host, act.why) == ("dismiss", "job 1", "ada", "here", "known")
    assert "dead jobs that nobody" not in browser.get("/").words


def test_a_job_that_an_unknown_effect_stopped_is_retried_only_after_somebody_settled_the_effect(
    some: Rows, database: Database, browser: Browser
) -> None:
    stopped = some.job(status="dead", error_type="EffectUnknown", last_error=str(EffectUnknown("invoice:7")))
    # Another job began this effect.
    some.put(tables.effects, key="invoice:7", job_id=None, attempt=1, state="stopped", begun_at=ago(minutes=9))
    shown = browser.get(f"/jobs/{stopped}")
    assert 'Retry is possible after somebody has typed "cronjobs effects settle invoice:7 done"' in shown.words
    assert "<button disabled" in shown.body
    assert f"/jobs/{stopped}/retry" not in shown.body
    assert f"/jobs/{stopped}/dismiss" in shown.body
    done = browser.act(f"/jobs/{stopped}", f"/jobs/{stopped}/retry")
    assert done.header("Location") == f"/jobs/{stopped}?said=unsettled"
    bulk = browser.get(f"/bulk?verb=retry&job={stopped}")
    assert "until somebody settles that effect" in bulk.words
    fields = dict(re.findall(r'name="(q|as_of|upper|below)" value="([^"]*)"', bulk.body))
    assert browser.post("/bulk/retry", {"csrf": bulk.csrf, **fields}).status == 303
    assert status_of(database, stopped) == "dead"
    with database.write() as connection:
        ledger.remove(connection, "invoice:7")  # somebody found that the effect did not happen
    assert f"/jobs/{stopped}/retry" in browser.get(f"/jobs/{stopped}").body
    browser.act(f"/jobs/{stopped}", f"/jobs/{stopped}/retry")
    assert status_of(database, stopped) == "queued"


def test_only_a_job_whose_runner_is_gone_is_released(some: Rows, database: Database, browser: Browser) -> None:
    here = Identity.here()
    gone = some.job(status="running", locked_by=str(replace(here, started="1", tick="before")))
    asked = some.job(
        status="running", locked_by=str(replace(here, started="1", tick="before")), cancel_requested_at=ago(minutes=1)
    )
    alive, elsewhere = some.job(status="running", locked_by=str(here)), some.job(status="running")
    said = {
        job: browser.act(f"/jobs/{job}", f"/jobs/{job}/release", why="rebooted").header("Location").partition("=")[2]
        for job in (gone, asked, alive, elsewhere, 1)
    }
    assert said == {gone: "released", asked: "cancelled", alive: "held", elsewhere: "held", 1: "unchanged"}
    found = everything(database)
    jobs = {row.id: (row.status, row.failures, row.losses) for row in found["cronjobs_jobs"]}
    assert jobs == {
        1: ("dead", 1, 0),
        gone: ("queued", 0, 1),
        asked: ("cancelled", 0, 1),
        alive: ("running", 0, 0),
        elsewhere: ("running", 0, 0),
    }
    done = [(row.action, row.subject, row.actor, row.host, row.why) for row in found["cronjobs_audit"]]
    assert done == [("release", f"job {job}", "ada", "here", "rebooted") for job in (gone, asked)]
    assert buttons(browser, elsewhere) == {"Cancel", "Release"}
    assert (
        "runner is alive, or the host that serves these pages cannot see the runner"
        in browser.get(f"/jobs/{alive}?said=held").words
    )


def test_a_run_of_exec_has_no_button_that_does_nothing(rows: Rows, browser: Browser) -> None:
    dead = rows.job(status="dead", job_type="exec:backup", last_error="exit status 3", error_type="exit-3")
    running = rows.job(status="running", job_type="exec:backup")
    assert (buttons(browser, dead), buttons(browser, running)) == ({"Dismiss"}, {"Release"})


def test_a_run_of_exec_that_waits_can_be_cancelled(rows: Rows, browser: Browser) -> None:
    """Only another program writes such a row. No tick ever runs it."""
    assert buttons(browser, rows.job(job_type="exec:backup", started_at=ago(hours=1))) == {"Cancel"}


@pytest.mark.parametrize(
    "number", ["9" * 25, "0" * 20 + "9" * 20, "0" * 5000 + "1"], ids=["long", "zeros", "thousands"]
)
def test_a_number_that_no_job_can_have_is_no_address_of_an_action(some: Rows, browser: Browser, number: str) -> None:
    assert browser.act("/jobs/1", f"/jobs/{number}/retry").status == 404


def buttons(browser: Browser, job_id: int) -> set[str]:
    body = browser.get(f"/jobs/{job_id}").body
    return set(re.findall(r"<button>(\w+)</button>", body))


def test_a_database_of_another_project_is_shown_and_not_changed(
    some: Rows, database: Database, browser: Browser
) -> None:
    some.belongs_to("shop", "staging")
    before = everything(database)
    assert browser.get("/").status == 200
    assert browser.act("/jobs/1", "/jobs/1/retry").status == 409
    assert everything(database) == before


# --- what comes in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "/jobs/0",
        "/jobs/01x",
        "/jobs/99999999999999999999999",
        "/jobs/" + "0" * 20 + "1999",
        "/jobs/²",
        "/jobs/1/",
        "/?page=0",
        "/?page=" + "0" * 5000 + "1",
        "/?page=x",
        "/?page=1&page=2",
        "/jobs?after=x",
        "/jobs?after=1,2026-01-01T00:00:00Z",
        "/jobs?q=status:dead&after=1",
        "/jobs?q=status:dead&after=1,2026-01-01T00:00:00",
        "/jobs?after=9223372036854775808",
        "/bulk?verb=release&all=1",
        "/bulk?verb=retry&all=1&upper=-1",
        "/bulk?verb=retry&all=1&upper=1&as_of=yesterday",
        "/bulk?verb=retry&all=1&upper=1&as_of=2026-07-01T12:00:00",
        "/bulk?verb=retry&all=1&upper=1&as_of=2036-07-01T12:00:00Z",
        "/jobs?type=%00",
        "/jobs?type=%ff",
        "/jobs?" + "&".join(f"f{n}=1" for n in range(50)),
        "/bulk?verb=retry&" + "&".join("job=1" for _ in range(600)),
        "/schedule",
        "/schedule?name=nobody",
        "/schedule?name=nightly-report&from=x",
        "/schedule?name=nightly-report&from=0001-01-01T00:00:00",
        "/schedule?name=nightly-report&from=2026-01-01T00:00:00&to=2026-07-01T00:00:00",
        "/static/../application.py",
        "/static/view.py",
        "/\xff",
        "/\0",
    ],
)
def test_an_address_that_means_nothing_is_refused_in_a_sentence(some: Rows, browser: Browser, address: str) -> None:
    reply = browser.get(address)
    assert reply.status in (400, 404)
    assert reply.words
    assert reply.addresses() == ["/"]  # nobody is left there


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "post"])
def test_other_methods_are_not_allowed(some: Rows, browser: Browser, method: str) -> None:
    acting = [] if method == "post" else ["/jobs/1/retry"]  # Werkzeug reads methods in any case
    for address in ["/", "/static/style.css", *acting]:
        reply = browser.get(address, method)
        assert reply.status == 405
        assert reply.header("Allow")


def test_what_acts_is_no_page(some: Rows, browser: Browser) -> None:
    for address in ACTIONS:
        reply = browser.get(address)
        assert (reply.status, reply.header("Allow"), reply.addresses()) == (405, "POST", ["/"])


@pytest.mark.parametrize("limit", ["0", "007", "9" * 5000, "-1", "x", "²"])
def test_any_limit_is_a_page(some: Rows, browser: Browser, limit: str) -> None:
    assert browser.get(f"/jobs?{urlencode({'limit': limit})}").status == 200


# --- what rows say stays text -----------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script>\"'>&lt;b>\x1b[2J\u202e javascript:alert(1) </pre></textarea>"


def test_names_errors_and_payloads_that_are_markup_stay_text(rows: Rows, browser: Browser) -> None:
    name = HOSTILE[:60]
    payload = {HOSTILE: [HOSTILE, {"x": "</script>"}]}
    names = {"job_type": name, "queue": name, "schedule": name}
    texts = ("last_error", "error_type", "idempotency_key", "concurrency_key", "enqueued_by", "result")
    more: dict[str, Any] = dict.fromkeys(texts, HOSTILE) | {"payload": payload, "meta": {"a": HOSTILE}}
    job = rows.job(status="dead", **names, **more)
    shapes = {"error": HOSTILE, "error_type": HOSTILE, "traceback": HOSTILE, "output": HOSTILE, "worker": HOSTILE}
    rows.attempt(job, "failed", **shapes, runner=HOSTILE)
    rows.job(job_type=name, status="queued", queue=name)
    rows.job(job_type=name, status="running", locked_by=HOSTILE, schedule=name)
    schedule = rows.schedule(name, definition={"cron": HOSTILE, "job": HOSTILE, HOSTILE: HOSTILE}, next_at=NOW)
    rows.occurrence(schedule, ago(hours=1), "skipped", reason=HOSTILE)
    rows.pause("schedule", name, by=HOSTILE, why=HOSTILE)
    rows.tick(host=name, version=HOSTILE, ended=HOSTILE, fingerprint=HOSTILE, did={HOSTILE: HOSTILE})
    rows.put(tables.audit, action=HOSTILE, subject=HOSTILE, actor=HOSTILE, host=HOSTILE, why=HOSTILE, detail={})
    rows.put(tables.queues, name=name, max_waiting=1)
    seen = ""
    links = {f"/jobs/{job}", "/"}
    asked: set[str] = set()
    while todo := {link for link in links - asked if "from=" not in link}:  # wherever a link leads
        address = todo.pop()
        asked.add(address)
        reply = browser.get(address)
        assert reply.status == 200, address
        links |= {found for tag, given in reply.elements if tag == "a" and (found := str(given["href"]))[0] == "/"}
        tags = {tag for tag, _ in reply.elements}
        script = SCRIPTS[address.startswith("/bulk")]
        assert [given for tag, given in reply.elements if tag == "script"] == [{"src": script, "defer": None}]
        assert tags & {"textarea", "b"} == set()
        assert not [each for _, given in reply.elements for each in given if each.startswith("on") or "<" in each]
        assert "\x1b" not in reply.body
        assert "\u202e" not in reply.body
        seen += reply.words
    assert "<script>alert(1)</script>" in seen  # as text
    assert len(asked) > 8


def test_bytes_and_json_that_nobody_can_read_break_no_page(rows: Rows, database: Database, browser: Browser) -> None:
    job = rows.job(status="dead", payload=[1, "x"], last_error="x" * 100_000)
    deep = rows.job(status="dead")
    with database.write() as connection:
        change = tables.jobs.update().where(tables.jobs.c.id == deep)
        connection.execute(change.values(payload=json.loads("[" * 500 + "]" * 500)))
        if database.is_sqlite:
            connection.exec_driver_sql(
                f"UPDATE cronjobs_jobs SET meta = '{{', last_error = CAST(x'ff41' AS TEXT) WHERE id = {deep}"
            )
    rows.schedule("unreadable", definition=["?"], next_at=NOW)
    rows.schedule("odd", definition={"every_s": 1e300, "spread_s": -1, "cron": None, "payload": 7}, next_at=NOW)
    for address in (f"/jobs/{job}", f"/jobs/{deep}", "/jobs", "/", "/schedule?name=unreadable", "/schedule?name=odd"):
        assert browser.get(address).status == 200


def written(template: str) -> str:
    value = "<b title='x'>\x1b\u202e s3cret-canary </b>"
    return environment().from_string(template).render(value=value, raw=b"a\xff<", absent=None)


def test_what_templates_show_is_masked_visible_and_escaped() -> None:
    masking.remember({"s3cret-canary"})
    try:
        harmless = "&lt;b title=&#39;x&#39;&gt;\\x1b\\u202e *** &lt;/b&gt;"
        assert written("{{ value }}") == harmless
        assert written('<p title="{{ value }}">') == f'<p title="{harmless}">'
        assert written("{% macro m(x) %}<i>{{ x }}</i>{% endmacro %}{{ m(value) }}") == f"<i>{harmless}</i>"
        assert written("{% set x %}<i>{{ value }}</i>{% endset %}{{ x }}") == f"<i>{harmless}</i>"
        assert written("{{ raw }}{{ absent }}") == "a\ufffd&lt;"
    finally:
        masking.remember(())


def test_a_template_that_names_what_is_not_there_is_an_error() -> None:
    for template in ("{{ nothing }}", "{{ value.nothing }}", "{% if nothing %}{% endif %}"):
        with pytest.raises(UndefinedError):
            written(template)


def templates() -> dict[str, str]:
    loader = environment().loader
    assert loader is not None
    return {name: loader.get_source(environment(), name)[0] for name in loader.list_templates()}


def needed_by(template: str) -> set[str]:
    """Names that a template, and all that it is made of, reads in some branch and does not make itself."""
    parsed = environment().parse(templates()[template])
    names = set(meta.find_undeclared_variables(parsed))
    for other in meta.find_referenced_templates(parsed):
        names |= needed_by(str(other)) if other != "macros.html" else {"view"}
    made = {name.name for name in parsed.find_all(nodes.Name) if name.ctx == "store"}
    made |= {macro.name for macro in parsed.find_all(nodes.Macro)} | {
        each.target for each in parsed.find_all(nodes.Import)
    }
    return names - made - environment().globals.keys()


def test_each_page_gives_its_template_all_names_also_those_of_branches_not_taken_here(
    some: Rows, database: Database, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, set[str]] = {}

    def rendered(template: str, **values: Any) -> str:
        given[template] = set(values)
        return templating.rendered(template, **values)

    monkeypatch.setattr(view, "rendered", rendered)
    for address in PAGES:
        browser.get(address)
    assert isinstance(browser.application, application.Application)
    with database.read() as connection:
        report(connection, *browser.application.current.now())
    assert len(given) == len(PAGES) + 1
    assert {template: missing for template in given if (missing := needed_by(template) - given[template])} == {}


def test_every_address_of_a_template_is_one_of_ours_and_every_value_in_a_tag_is_quoted() -> None:
    assert len(templates()) > 10
    for name, text in templates().items():
        addresses = re.findall(r"\b(?:href|action|src|formaction)\s*=\s*(.{13})", text)
        ours = ('"{{ view.url(', '"{{ home }}"', '"#')
        assert [each for each in addresses if not each.startswith(ours)] == [], name
        # With all that Jinja does between quotes taken out, none is left inside a tag.
        tags = re.findall(r"<[a-z][^>]*>", re.sub(r'="[^"{]*(?:\{\{.*?\}\}[^"{]*)*"', "", text))
        assert [tag for tag in tags if "{{" in tag] == [], name


def test_no_template_lets_text_pass_as_markup() -> None:
    """``~`` joins markup with text before it is masked; ``safe`` as a filter, or autoescape off, escapes nothing."""
    for name, text in templates().items():
        code = " ".join(re.findall(r"\{[{%].*?[%}]\}", text, re.DOTALL))
        past = r"\|\s*(?:safe|forceescape|escape|e|join|format|tojson)\b|~|autoescape|Markup"
        assert re.findall(past, code) == [], name
    source = "".join(file.read_text() for file in Path(application.__file__).parent.rglob("*.py"))
    assert source.count("Markup(") == 1  # of the style sheet
    assert "</" not in (Path(application.__file__).parent / "static/style.css").read_text()


def test_only_markup_of_a_template_is_shown_as_it_is() -> None:
    assert [shown(value) for value in (None, 7, "a\x1b", b"\xff")] == ["", 7, "a\\x1b", "\ufffd"]


# --- what is long -----------------------------------------------------------------------------------------------------


def test_long_text_has_an_ellipsis_with_the_whole_in_its_title_and_on_the_page_of_the_job(
    rows: Rows, browser: Browser
) -> None:
    kind, queue, schedule = (f"{word}-{'x' * 180}-end" for word in ("type", "queue", "schedule"))
    error = f"error {'y ' * 400}end"
    job = rows.job(status="dead", job_type=kind, queue=queue, schedule=schedule, last_error=error, error_type="E")
    rows.job(job_type=kind, queue=queue)
    rows.schedule(schedule, next_at=NOW)
    for address, whole in {
        "/jobs": [kind, schedule, f"queue {queue[:79]}…: {error}"],
        "/": [schedule],
        "/queues": [queue],
    }.items():
        page = browser.get(address)
        titles = {str(given["title"]) for _, given in page.elements if given.get("title")}
        assert set(whole) <= titles, address
        cells = [cell for table in page.tables.values() for row in table for cell in row.values()]
        assert max(len(cell) for cell in cells) < 420
        for text in whole:  # a name keeps its end, by which it is told from others
            assert any(cell.endswith(("…", f"… {text[-12:]}")) and cell[:60] == text[:60] for cell in cells), text[:20]
    words = browser.get(f"/jobs/{job}").words
    for text in (kind, queue, error):
        assert text in words
    assert schedule in browser.get(f"/schedule?name={schedule}").words


def test_the_style_breaks_no_word_of_a_table() -> None:
    """What a browser makes of it was looked at, 1200 and 390 pixels wide."""
    sheet = (Path(application.__file__).parent / "static/style.css").read_text()
    assert not re.findall(r"overflow-wrap:\s*anywhere|word-break|hyphens", sheet)
    assert "text-overflow: ellipsis" in sheet


# --- what is hidden ---------------------------------------------------------------------------------------------------


def test_secrets_and_hidden_keys_are_on_no_page(
    rows: Rows, database: Database, database_url: str, tmp_path: Path
) -> None:
    canary = "canary-4711-secret"
    yaml = YAML.replace("mail.send: {", "mail.send: {hide: [card, token], ")
    access = by_link()
    browser = Browser(pages(database, database_url, tmp_path, access, yaml)).log_in(access)
    masking.remember({canary})
    try:
        payload = {"card": "4111 1111", "nested": [{"token": {"deep": "t0ken"}}], "note": f"see {canary}", "n": 1}
        payload["pin"] = "r0tated"
        meta = {"cronjobs.secret_keys": '["pin"]'}
        job = rows.job(
            status="dead", payload=payload, last_error=f"no {canary}", idempotency_key=f"k:{canary}", meta=meta
        )
        rows.attempt(job, "failed", error=canary, output=f"out {canary}", traceback=canary)
        definition = {"cron": "* * * * *", "job": "mail.send", "payload": payload, "timezone": "UTC"}
        definition["secret_keys"] = ["pin"]
        rows.schedule("refresh-cache", definition=definition)
        rows.tick(ended=canary)
        for address in (
            f"/jobs/{job}",
            "/jobs",
            "/",
            "/schedule?name=refresh-cache",
            "/hosts",
            f"/jobs?key=k:{canary}",
        ):
            body = browser.get(address).body
            assert canary not in body
            assert "4111" not in body
            assert "t0ken" not in body
            assert "r0tated" not in body
        shown = browser.get(f"/jobs/{job}").words
        assert '"card": "***"' in shown
        assert '"n": 1' in shown
    finally:
        masking.remember(())


ODD = "qzv\"w'\\jx%+/=é kh-7391-Tail"
SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "percent": lambda text: quote(text, safe=""),
    "repr": repr,
    "json": json.dumps,
    "bytes": lambda text: repr(text.encode()),
    "base64": lambda text: b64encode(text.encode()).decode(),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_secret_is_on_no_page_in_any_spelling(
    rows: Rows, database: Database, database_url: str, tmp_path: Path, spelling: str
) -> None:
    spelt = SPELLINGS[spelling](ODD)
    access = by_link()
    browser = Browser(pages(database, database_url, tmp_path, access, YAML)).log_in(access)
    masking.remember({ODD})
    try:
        said = {"said": [f"a {spelt}"]}
        job = rows.job(
            status="dead", attempts=1, payload=said, result=said, meta={"said": spelt}, last_error=f"no {spelt}"
        )
        rows.attempt(job, "failed", error=spelt, output=f"out {spelt}", traceback=f"trace {spelt}")
        rows.schedule("refresh-cache", definition={"cron": "* * * * *", "job": "mail.send", "payload": said})
        rows.tick(ended=spelt)
        for address in (f"/jobs/{job}", "/jobs", "/", "/schedule?name=refresh-cache", "/hosts"):
            body = unescape(browser.get(address).body)
            assert [spelt[at : at + 8] for at in range(len(spelt) - 7) if spelt[at : at + 8] in body] == [], address
    finally:
        masking.remember(())


def test_an_entry_that_cannot_be_read_hides_the_whole_payload(
    rows: Rows, database: Database, database_url: str, tmp_path: Path
) -> None:
    access = by_link()
    yaml = YAML.replace("mail.send: {", "mail.send: {timeout: soon, hide: [card], ")
    browser = Browser(pages(database, database_url, tmp_path, access, yaml)).log_in(access)
    job = rows.job(payload={"card": "4111 1111"})
    assert "4111" not in browser.get(f"/jobs/{job}").body


# --- figures ----------------------------------------------------------------------------------------------------------


def test_the_first_page_has_the_findings_of_status_with_command_and_since(some: Rows, browser: Browser) -> None:
    words = browser.get("/").words
    assert "critical" in words or "warning" in words
    assert "cronjobs jobs list --status dead" in words
    assert "nightly-report dead 9m ago" in words


@pytest.mark.parametrize(
    ("status", "told", "reached"),
    [
        ("succeeded", "succeeded", {"started_at": ago(minutes=3), "finished_at": ago(minutes=2)}),
        ("failed", "retrying", {"started_at": ago(minutes=3), "last_failed_at": ago(minutes=2), "failures": 1}),
        ("dead", "dead", {"started_at": ago(minutes=3), "finished_at": ago(minutes=2), "failures": 1}),
        ("cancelled", "cancelled", {"started_at": ago(minutes=3), "finished_at": ago(minutes=2)}),
    ],
)
def test_the_last_result_is_dated_when_it_came_not_when_it_was_due(
    rows: Rows, browser: Browser, status: str, told: str, reached: dict[str, Any]
) -> None:
    """As `status` dates it. A run that a pause held back for hours said that it succeeded hours ago."""
    job = rows.job(status=status, run_at=ago(hours=6), schedule="nightly-report", attempts=1, **reached)
    rows.attempt(job, "succeeded", finished_at=ago(minutes=2))
    rows.occurrence(rows.schedule("nightly-report"), ago(hours=6), job_id=job)
    page = browser.get("/")
    assert f"nightly-report {told} 2m ago" in page.words
    assert 'title="14:01:07 Europe/Berlin"' in page.body


def test_a_run_at_work_is_dated_by_its_start_and_what_did_not_run_by_when_it_was_due(
    rows: Rows, browser: Browser
) -> None:
    job = rows.job(status="running", schedule="at-work", run_at=ago(hours=6), started_at=ago(minutes=2), attempts=1)
    rows.occurrence(rows.schedule("at-work"), ago(hours=6), job_id=job)
    rows.occurrence(rows.schedule("left-out"), ago(hours=6), "missed")
    words = browser.get("/").words
    assert "at-work running 2m ago" in words
    assert "left-out missed 6h ago" in words


def test_missed_runs_offer_no_trigger_while_a_triggered_job_waits(rows: Rows, browser: Browser) -> None:
    rows.occurrence(rows.schedule("left-out"), ago(hours=6), "missed")
    assert 'action="/trigger"' in browser.get("/").body
    job = rows.job(schedule="left-out", run_at=ago(hours=-1))
    rows.put(tables.audit, action="trigger", subject="left-out", actor="ada", at=ago(hours=1), detail={"job_id": job})
    page = browser.get("/")
    assert f"cronjobs explain {job}" in page.words
    assert 'action="/trigger"' not in page.body


def test_filters_choose_as_the_command_does_and_survive_odd_names(some: Rows, browser: Browser) -> None:
    some.job(job_type="reports.nightly", queue="a&b=c#d", schedule="x/y?z", idempotency_key="key:1 %")
    rest = {"status": "queued", "queue": "a&b=c#d", "schedule": "x/y?z", "type": "reports.nightly", "key": "key:1 %"}
    for name, value in rest.items():
        words = browser.get(f"/jobs?{urlencode({name: value})}").words
        assert "reports.nightly" in words
    assert "no jobs" in browser.get("/jobs?key=other").words
    assert "no jobs" in browser.get(f"/jobs?{urlencode(rest | {'type': 'mail.send'})}").words
    assert "HTTPError: 503" in browser.get("/jobs").words


def test_one_request_is_one_short_transaction_that_cannot_write(
    some: Rows, database: Database, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(connection: Any, *_: Any) -> str:
        connection.execute(tables.audit.insert().values(action="x", subject="y"))
        return ""

    with monkeypatch.context() as patch:
        patch.setitem(application.PAGES, "/", write)
        reply = browser.get("/")
    assert reply.status == 503
    assert len(everything(database)["cronjobs_audit"]) == 0
    assert browser.act("/jobs/1", "/jobs/1/retry").status == 303  # the connection is as before


def test_a_statement_that_takes_too_long_is_stopped_and_told(
    some: Rows, database: Database, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LIMIT_S", 0.05)
    slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000000) SELECT count(*) FROM n"

    def page(connection: Any, *_: Any) -> str:
        return str(connection.exec_driver_sql(slow).scalar())

    with monkeypatch.context() as patch:
        patch.setitem(application.PAGES, "/", page)
        assert browser.get("/").status == 503
    assert browser.get("/jobs").status in (200, 503)


# --- the database -----------------------------------------------------------------------------------------------------


@pytest.mark.connects_as(OWNER)
def test_who_may_only_read_the_tables_sees_every_page(
    rows: Rows, database_url: str, database: Database, tmp_path: Path
) -> None:
    assert rows.job(status="dead") == 1
    rows.schedule("nightly-report")
    url = database_url if database.is_sqlite else as_role(database_url, READ)
    access = by_link()
    with opened(url) as reading_only:
        browser = Browser(pages(reading_only, url, tmp_path, access)).log_in(access)
        assert {browser.get(address).status for address in PAGES} == {200}


def test_a_database_that_is_away_is_told_without_its_password(tmp_path: Path) -> None:
    url = "postgresql://ada:s3cret-canary@127.0.0.1:1/shop"
    access = by_link()
    with opened(url) as away:
        browser = Browser(pages(away, url, tmp_path, access)).log_in(access)
        for address in PAGES:
            reply = browser.get(address)
            assert reply.status == 503
            assert "s3cret-canary" not in reply.body
            assert "127.0.0.1" in reply.words


@pytest.mark.connects_as(OWNER)
def test_a_report_of_ten_thousand_runs_is_below_two_megabytes(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    connection: Any = (
        sqlite3.connect(database_url.removeprefix("sqlite:///"), isolation_level=None)
        if database.is_sqlite
        else psycopg.connect(database_url, autocommit=True)
    )
    with closing(connection):
        grown = Grown(connection, postgresql=not database.is_sqlite)
        grown.finished(10_000)
        grown.schedules(60, occurrences=160)
        grown.run("UPDATE cronjobs_jobs SET schedule = 'grown-1', last_error = 'no card' WHERE id % 3 = 0")
    application = pages(database, database_url, tmp_path)
    with database.read() as reader:
        written = report(reader, *application.current.now())
    assert len(written.encode()) < 2_000_000
    assert "grown-1" in Reader.read(written).words


def test_a_tick_keeps_the_hours_that_are_over(
    rows: Rows, database: Database, tmp_path: Path, database_url: str
) -> None:
    due = NOW - timedelta(hours=3)
    schedule = rows.schedule("s", seen_until=NOW)
    ran = {"first_for": due, "last_for": due, "outcome": "skipped", "decided_at": due}
    with database.write() as connection:
        connection.execute(insert(tables.occurrences).values(ran | {"schedule_id": schedule}))
    (tmp_path / "cronjobs.yaml").write_text(YAML.replace("@database@", database_url))
    host = Host(database, tmp_path)
    host.carry(project="shop", environment="production")
    host.tick()
    found = everything(database)["cronjobs_quarters"]
    hour = due.replace(minute=0, second=0, microsecond=0)
    to_lock, mark = (0, NEVER), (0, hour + timedelta(hours=1))
    assert {(row.schedule_id, row.hour) for row in found} == {to_lock, mark, (schedule, hour)}
