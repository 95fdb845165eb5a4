"""Retry, cancel or dismiss many jobs on the pages.

A page first says what will happen, and each request does one step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import insert, select, update
from support.browsing import HOST, Browser, Reply, by_link, pages
from support.lookingrows import NOW, Rows, ago
from support.lookingrows import rows as rows

from cronjobs import masking
from cronjobs.contrib.web import bulk
from cronjobs.contrib.web.security import LinkAccess
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.testing import FakeClock

EITHER = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases
DEAD: dict[str, Any] = {
    "status": "dead",
    "error_type": "GiveUp",
    "last_error": "there is no invoice",
    "finished_at": ago(minutes=9),
}
Open = Callable[[str], Browser]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def open_as(database: Database, database_url: str, tmp_path: Path) -> Iterator[Open]:
    """A browser with the pages of a process of its own."""

    def opened(name: str) -> Browser:
        access = LinkAccess(name, [HOST], "cronjobs_8642", may_act=True)
        return Browser(pages(database, database_url, tmp_path, access)).log_in(access)

    yield opened
    masking.remember(())


@pytest.fixture
def browser(open_as: Open) -> Browser:
    return open_as("ada")


def fill(database: Database, count: int) -> None:
    dead = {"run_at": ago(hours=1), "created_at": ago(hours=1), "started_at": ago(minutes=10), **DEAD}
    values = [dead | {"job_type": f"billing.{number % 3}"} for number in range(count)]
    with database.write() as connection:
        connection.execute(insert(tables.jobs), values)


def statuses(database: Database) -> dict[int, str]:
    with database.read() as connection:
        return {row.id: row.status for row in connection.execute(select(tables.jobs.c.id, tables.jobs.c.status))}


def audit(database: Database) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(select(tables.audit).order_by(tables.audit.c.id)))


def address(verb: str, text: str, **more: str) -> str:
    return f"/bulk?{urlencode({'verb': verb, 'all': '1', 'q': text, **more})}"


def form_of(reply: Reply) -> dict[str, str]:
    """The fields of the form that acts; none: there is no such form."""
    fields: dict[str, str] = {}
    acts = False
    for tag, given in reply.elements:
        acts = str(given.get("action")).startswith("/bulk/") if tag == "form" else acts
        if acts and tag == "input":
            fields[str(given["name"])] = str(given.get("value") or "")
    return fields


def step(browser: Browser, verb: str, page: Reply, **fields: str) -> Reply:
    """Click the button of *page*, and see the page it leads to."""
    reply = browser.post(f"/bulk/{verb}", form_of(page) | fields)
    assert reply.status == 303, reply.words
    return browser.get(reply.header("Location"))


def to_the_end(browser: Browser, verb: str, page: Reply) -> Reply:
    while form_of(page):
        page = step(browser, verb, page)
    return page


# --- what is said -----------------------------------------------------------------------------------------------------


@EITHER
def test_the_page_says_what_will_happen_before_anything_does(rows: Rows, database: Database, browser: Browser) -> None:
    for _ in range(3):
        rows.job("billing.send", **DEAD)
    rows.job("mail.send", "cancelled")
    rows.job("mail.send", "succeeded")
    rows.job("exec:backup", **DEAD)
    before = statuses(database)
    page = browser.get(address("retry", ""))
    assert "Every job" in page.words
    assert "4 jobs will be retried. Each job is queued again and due now, with all its tries." in page.words
    assert sorted(tuple(row.values()) for row in page.tables["Jobs that will be retried"]) == [
        ("1", "mail.send", "cancelled"),
        ("3", "billing.send", "dead"),
    ]
    assert "There is nothing to cancel" in browser.get(address("cancel", "status:dead")).words
    assert "5 jobs will be dismissed" not in browser.get(address("dismiss", "")).words
    assert "4 jobs will be dismissed. Dismissed jobs stay dead" in browser.get(address("dismiss", "")).words
    assert (statuses(database), audit(database)) == (before, [])


@EITHER
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("status:weird", "'weird' is not one of"),
        ('error:"x', 'a " is not closed'),
        ("since:soon", "neither a duration"),
    ],
)
def test_a_search_that_cannot_be_read_does_nothing(rows: Rows, browser: Browser, text: str, says: str) -> None:
    rows.job(**DEAD)
    page = browser.get(address("retry", text))
    assert "Nothing was changed: " in page.words
    assert says in page.words
    assert form_of(page) == {}
    sent = {"csrf": browser.get("/jobs/1").csrf, "q": text, "upper": "9", "as_of": NOW.isoformat()}
    assert browser.post("/bulk/retry", sent).status == 409


@EITHER
def test_nothing_ticked_is_not_everything(rows: Rows, browser: Browser) -> None:
    rows.job(**DEAD)
    page = browser.get("/bulk?verb=retry")
    assert "Nothing was changed: select at least one job first" in page.words
    assert form_of(page) == {}
    sent = {"csrf": browser.get("/jobs/1").csrf, "upper": "9", "as_of": NOW.isoformat()}
    assert browser.post("/bulk/retry", sent).status == 400


@EITHER
def test_a_search_that_pages_do_not_repeat_as_typed_changes_nothing(rows: Rows, browser: Browser) -> None:
    """Its mask would choose other jobs than the page has counted."""
    rows.job(**DEAD)
    masking.remember(["no invoice"])
    page = browser.get(address("retry", 'error:"no invoice"'))
    assert "a secret or a control character" in page.words
    assert form_of(page) == {}


# --- what is done -----------------------------------------------------------------------------------------------------


@EITHER
def test_the_ticked_jobs_and_no_others_are_changed(rows: Rows, database: Database, browser: Browser) -> None:
    ids = [rows.job(**DEAD) for _ in range(4)]
    listed = browser.get("/jobs?status=dead")
    boxes = [given for tag, given in listed.elements if tag == "input" and given.get("type") == "checkbox"]
    assert sorted(int(str(box["value"])) for box in boxes) == ids
    assert {box["form"] for box in boxes} == {"ticked"}
    page = browser.get(f"/bulk?verb=retry&job={ids[0]}&job={ids[2]}")
    assert "2 jobs will be retried" in page.words
    page = step(browser, "retry", page, why="mended")
    assert "2 jobs retried so far" in page.words
    assert statuses(database) == dict(zip(ids, ["queued", "dead", "queued", "dead"], strict=True))
    [entry] = audit(database)
    assert (entry.action, entry.actor, entry.host, entry.why) == ("retry", "ada", "here", "mended")
    assert entry.detail["filter"]["search"] == f"{ids[0]} {ids[2]}"
    assert entry.detail["ids"] == [ids[0], ids[2]]


@EITHER
def test_running_jobs_are_asked_to_stop_once(rows: Rows, database: Database, browser: Browser) -> None:
    rows.job(status="running")
    rows.job(status="queued")
    page = step(browser, "cancel", browser.get(address("cancel", "")))
    assert "1 job cancelled so far. 1 running job was asked to stop." in page.words
    assert statuses(database) == {1: "running", 2: "cancelled"}
    assert "There is nothing to cancel" in browser.get(address("cancel", "")).words


@EITHER
def test_what_could_not_be_changed_is_said(rows: Rows, database: Database, browser: Browser) -> None:
    """Pruned but for its key, so there is nothing to run."""
    rows.job(**DEAD, meta={"cronjobs.stripped": True})
    rows.job(**DEAD)
    page = step(browser, "retry", browser.get(address("retry", "status:dead")))
    assert "1 job retried so far. 1 job was not retried: another session had locked the job" in page.words
    assert "Nothing is left to do" in page.words
    [again] = [found for found in page.addresses() if "below=2" in found]
    assert "1 job will be retried" in browser.get(again).words


@EITHER
def test_what_is_still_to_do_was_not_passed(rows: Rows, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "AT_MOST", 2)
    for stripped in (False, True, False, False):
        rows.job(**DEAD, meta={"cronjobs.stripped": True} if stripped else {})
    page = step(browser, "retry", browser.get(address("retry", "status:dead")))
    assert "2 jobs retried so far. 2 more jobs will be retried" in page.words
    assert "3 jobs retried so far. 1 job was not retried" in step(browser, "retry", page).words


@EITHER
def test_an_address_says_nothing_of_what_was_done(rows: Rows, browser: Browser) -> None:
    """Whoever sends a colleague an address cannot make the page say what the database does not."""
    rows.job(**DEAD)
    since = {"upper": "1", "as_of": NOW.isoformat(), "below": "0", "left": "7", "asked": "9", "done": "8"}
    for verb in ("retry", "cancel", "dismiss"):
        words = browser.get(address(verb, "status:dead", **since)).words
        assert not {"7", "8", "9"} & set(words.split(" so far.")[1].split("Nothing is left")[0].split()), words
        assert "0 jobs " in words.split(" so far.")[0]


@EITHER
def test_what_was_retried_and_has_failed_since_is_not_retried_again(
    rows: Rows, database: Database, browser: Browser, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "AT_MOST", 2)
    ids = [rows.job(**DEAD) for _ in range(4)]
    first = browser.get(address("retry", "status:dead"))
    going_on = step(browser, "retry", first)
    assert sorted(statuses(database).values()) == ["dead", "dead", "queued", "queued"]
    clock.advance(timedelta(seconds=5))
    with database.write() as connection:
        again = {"status": "dead", "finished_at": NOW + timedelta(seconds=4)}
        connection.execute(update(tables.jobs).where(tables.jobs.c.id == ids[3]).values(again))
    for page in (going_on, first):  # by the page that goes on, and by one that was left open
        to_the_end(browser, "retry", page)
    assert statuses(database) == dict(zip(ids, ["queued", "queued", "queued", "dead"], strict=True))
    done = Counter(id_ for row in audit(database) for id_ in row.detail["ids"])
    assert done == dict.fromkeys(ids, 1)


@pytest.mark.parametrize("verb", ["retry", "cancel", "dismiss"])
def test_what_fails_again_between_the_choice_and_the_change_is_left_as_it_is(
    rows: Rows, database: Database, browser: Browser, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Another operator has retried it, and it has run since: a second retry would run it once more."""
    before = {"status": "failed", "run_at": NOW, "last_failed_at": ago(minutes=9)} if verb == "cancel" else DEAD
    ids = [rows.job(**before) for _ in range(3)]
    page = browser.get(address(verb, ""))
    clock.advance(timedelta(seconds=5))
    change, done = bulk.CHANGES[verb]
    column = tables.jobs.c.last_failed_at if verb == "cancel" else tables.jobs.c.finished_at

    def after_a_failure(connection: Any, *given: Any) -> Any:
        failed_again = {column.name: NOW + timedelta(seconds=4)}
        connection.execute(update(tables.jobs).where(tables.jobs.c.id == ids[1]).values(failed_again))
        return change(connection, *given)

    monkeypatch.setitem(bulk.CHANGES, verb, (after_a_failure, done))
    assert f"2 jobs {done} so far" in step(browser, verb, page).words
    assert [row.detail["ids"] for row in audit(database)] == [[ids[0], ids[2]]]
    assert statuses(database)[ids[1]] == before["status"]


class Killed(BaseException):
    """As by kill -9: nothing of the request goes on."""


def test_a_retry_of_5000_goes_on_after_a_kill_and_beside_a_second_operator(
    rows: Rows, database: Database, open_as: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database, 5_000)
    ada = open_as("ada")
    page = ada.get(address("retry", "status:dead type:billing"))
    assert "5,000 jobs will be retried" in page.words
    fill(database, 7)  # later
    meant = set(range(1, 5_001))

    after = step(ada, "retry", page)
    assert "2,000 jobs retried so far" in after.words
    assert sum(status == "queued" for status in statuses(database).values()) == 2_000

    retry, calls = bulk.CHANGES["retry"][0], iter(range(9))

    def killed(*given: Any) -> Any:
        if next(calls) == 1:
            raise Killed
        return retry(*given)

    with monkeypatch.context() as patch:
        patch.setitem(bulk.CHANGES, "retry", (killed, "retried"))
        with pytest.raises(Killed):
            step(ada, "retry", after)
    assert sum(status == "queued" for status in statuses(database).values()) == 2_500

    # Ada goes on from the page before the kill, while Grace opens its address, and Linus makes a change of his own.
    grace, linus = open_as("grace"), open_as("linus")
    opened = [(ada, after), (grace, grace.get(address("retry", **as_query(after))))]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda each: to_the_end(each[0], "retry", each[1]), opened))
    assert {id_ for id_, status in statuses(database).items() if status == "queued"} == meant
    words = ada.get(address("retry", **as_query(after) | {"below": "0"})).words
    assert "5,000 jobs retried so far" in words
    assert "7 jobs will be retried" in linus.get(address("retry", "status:dead type:billing")).words
    entries = audit(database)
    assert Counter(id_ for row in entries for id_ in row.detail["ids"]) == dict.fromkeys(meant, 1)
    assert {row.actor for row in entries} <= {"ada", "grace"}
    assert all(row.action == "retry" and len(row.detail["ids"]) <= 500 for row in entries)


def as_query(page: Reply) -> dict[str, str]:
    fields = form_of(page)
    return {"text": fields.pop("q"), **{name: value for name, value in fields.items() if name != "csrf"}}


# --- who may ----------------------------------------------------------------------------------------------------------


@EITHER
def test_nothing_changes_many_but_a_form_of_ours_by_somebody_who_may(
    rows: Rows, database: Database, database_url: str, tmp_path: Path, browser: Browser, open_as: Open
) -> None:
    rows.job(**DEAD)
    form = form_of(browser.get(address("retry", "status:dead")))
    post, bare = browser.post, {name: value for name, value in form.items() if name != "csrf"}
    access = by_link()
    looks = Browser(pages(database, database_url, tmp_path, access)).log_in(access)
    theirs = looks.get(address("retry", "status:dead"))
    assert form_of(theirs) == {}
    action = "/bulk/retry"
    refused = {
        "no csrf": post(action, bare),
        "wrong csrf": post(action, bare | {"csrf": "0" * 64}),
        "csrf in the address": post(f"{action}?csrf={form['csrf']}", bare),
        "another session's": open_as("grace").post(action, form),
        "no cookie": Browser(browser.application).post(action, form),
        "may only look": looks.post(action, bare | {"csrf": looks.get("/jobs/1").csrf}),
        "another origin": post(action, form, origin="http://evil.example"),
        "a sandboxed frame": post(action, form, origin="null"),
        "cross-site": post(action, form, sec_fetch_site="cross-site"),
        "same-site": post(action, form, sec_fetch_site="same-site"),
        "as text": post(action, form, CONTENT_TYPE="text/plain"),
        "by get": browser.get(f"{action}?{urlencode(form)}"),
        "huge": post(action, form | {"why": "x" * 20_000}),
        "another verb": post("/bulk/release", form),
        "no instant": post(action, form | {"as_of": "yesterday"}),
        "no zone": post(action, form | {"as_of": "2026-07-01T12:00:00"}),
        "an instant to come": post(action, form | {"as_of": "2036-07-01T12:00:00Z"}),
        "no upper id": post(action, form | {"upper": ""}),
        "a negative id": post(action, form | {"below": "-1"}),
        "no number": post(action, form | {"below": "²"}),
        "too large": post(action, form | {"upper": "9" * 30}),
    }
    assert {name: reply.status for name, reply in refused.items() if not 400 <= reply.status < 500} == {}
    assert (statuses(database), audit(database)) == ({1: "dead"}, [])
    assert post(action, form, origin="null", sec_fetch_site="same-origin").status == 303
    assert statuses(database) == {1: "queued"}


@EITHER
def test_jobs_of_another_project_are_left_alone(rows: Rows, database: Database, browser: Browser) -> None:
    rows.job(**DEAD)
    form = form_of(browser.get(address("retry", "status:dead")))
    rows.belongs_to("bank", "production")
    assert browser.post("/bulk/retry", form).status == 409
    assert statuses(database) == {1: "dead"}
