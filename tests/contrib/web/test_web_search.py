"""The search of the jobs page finds the right jobs, reports how many it read, and keeps the typed text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import event
from support.bigtables import fill, whole_table_read
from support.browsing import Browser, by_link, pages
from support.browsing import acting_browser as acting_browser
from support.browsing import clock as clock
from support.lookingrows import NOW, Rows, ago
from support.lookingrows import rows as rows
from support.postgres import OWNER

from cronjobs import masking
from cronjobs.contrib.web import bounded_search
from cronjobs.contrib.web.bounded_search import Bulk
from cronjobs.desk.insight.formatting import Times
from cronjobs.desk.insight.searching import search
from cronjobs.engine.database.connection import Database
from cronjobs.engine.rules.causes import cause_of

EITHER = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases


@pytest.fixture
def some(rows: Rows) -> Rows:
    """Ids 1 to 8."""
    rows.job("billing.send", "dead", error_type="GiveUp", last_error="There is no invoice 1", finished_at=ago(hours=3))
    rows.job("billing.send", "dead", error_type="GiveUp", last_error="there is no invoice 2", finished_at=ago(hours=1))
    rows.job("billing.check", "failed", error_type="Timeout", last_error="100%_\\ full", last_failed_at=ago(hours=2))
    rows.job("mail.send", "queued", queue="mail", idempotency_key="invoice:42", run_at=ago(hours=9))
    rows.job("mail.send", "running")
    rows.job("reports.nightly", "succeeded", schedule="nightly", finished_at=ago(minutes=5))
    rows.job("exec:backup", "cancelled", finished_at=ago(minutes=7))
    rows.job("mail.Äpfel", "queued", queue="a b")
    return rows


def found(browser: Browser, text: str, **more: str) -> list[int]:
    reply = browser.get(f"/jobs?{urlencode({'q': text, **more})}")
    assert reply.status == 200
    return [int(row["id"]) for row in reply.tables.get("Jobs", [])]


CAUSE = cause_of("billing.send", "GiveUp", "there is no invoice 2").key


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", [8, 7, 6, 5, 4, 3, 2, 1]),
        ("billing", [3, 2, 1]),
        ("BILLING", [3, 2, 1]),
        ("äpfel", [8]),
        ("type:send status:dead", [2, 1]),
        ('error:"no invoice"', [2, 1]),
        ("error:giveup", [2, 1]),
        ("error:%_\\", [3]),
        ("error:%", [3]),
        ("type:_", []),
        ("status:retrying", [3]),
        ("status:queued", [8, 4]),
        ("status:running", [5]),
        ("status:succeeded", [6]),
        ("queue:mail", [4]),
        ('queue:"a b"', [8]),
        ("schedule:nightly", [6]),
        ("key:invoice:42", [4]),
        ("key:invoice:42 status:dead", []),
        ("key:other", []),
        ("4", [4]),
        ("4 1 99", [4, 1]),
        ("id:4,1 mail", [4]),
        ("exec:backup", [7]),
        (f"cause:{CAUSE}", [2]),
        ("status:dead since:2h", [2]),
        ("since:15m", [8, 7, 6, 5, 4, 3, 2, 1]),
    ],
)
def test_a_search_finds_what_it_says(some: Rows, browser: Browser, text: str, ids: list[int]) -> None:
    if text == "since:15m":
        ids = [7, 6, 5]  # created 20 minutes ago, and since then begun or ended
    elif text == f"cause:{CAUSE}":
        ids = [2, 1] if cause_of("billing.send", "GiveUp", "There is no invoice 1").key == CAUSE else [2]
    assert found(browser, text) == ids


@pytest.mark.parametrize(
    ("text", "sort", "ids"),
    [
        ("", "id", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("status:dead", "ended", [1, 2]),
        ("status:queued", "due", [4, 8]),
        ("status:queued", "-due", [8, 4]),
        ("status:dead", "due", [2, 1]),
        ("", "nonsense", [8, 7, 6, 5, 4, 3, 2, 1]),
    ],
)
def test_jobs_are_sorted_by_what_an_index_serves(
    some: Rows, browser: Browser, text: str, sort: str, ids: list[int]
) -> None:
    assert found(browser, text, sort=sort) == ids


@pytest.mark.parametrize(
    ("text", "sort"),
    [("", "-id"), ("", "id"), ("status:dead", "-ended"), ("status:dead", "ended"), ("status:queued", "due")],
)
def test_page_after_page_has_each_job_once(rows: Rows, browser: Browser, text: str, sort: str) -> None:
    for number in range(12):
        at = ago(minutes=number // 5)
        ended: dict[str, Any] = {"finished_at": at} if "dead" in text else {"run_at": at}
        rows.job(status="dead" if "dead" in text else "queued", **ended)
    whole = found(browser, text, sort=sort)
    assert sorted(whole) == list(range(1, 13))
    address, seen = f"/jobs?{urlencode({'q': text, 'sort': sort, 'limit': '5'})}", []
    for _ in range(3):
        reply = browser.get(address)
        seen += [int(row["id"]) for row in reply.tables["Jobs"]]
        address = next((each for each in reply.addresses() if "after=" in each), "")
    assert (seen, address) == (whole, "")


@EITHER
def test_no_more_jobs_than_so_many_are_looked_at_and_the_page_says_how_far(
    rows: Rows, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_search, "READ", 4)
    rare = rows.job("rare.one")
    for _ in range(6):
        rows.job("mail.send")
    reply = browser.get("/jobs?q=rare")
    assert reply.tables.get("Jobs", []) == []
    assert "Searched 4 jobs, newest first; there are more. Search further" in reply.words
    [further] = [each for each in reply.addresses() if "after=" in each]
    reply = browser.get(further)
    assert [int(row["id"]) for row in reply.tables["Jobs"]] == [rare]
    assert "there are more" not in reply.words


@EITHER
@pytest.mark.parametrize("text", ["status:weird", 'error:"no invoice', "typ:x", "since:soon", "cause:1 status:queued"])
def test_a_search_that_cannot_be_read_is_said_beside_the_field_and_loses_nothing(
    some: Rows, browser: Browser, text: str
) -> None:
    reply = browser.get(f"/jobs?{urlencode({'q': text})}")
    [field] = [given for tag, given in reply.elements if tag == "input" and given.get("name") == "q"]
    assert field["value"] == text
    assert field["aria-invalid"] == "true"
    assert 'role="alert"' in reply.body
    assert reply.tables == {}


@EITHER
def test_an_address_with_single_words_is_the_search_of_these(some: Rows, browser: Browser) -> None:
    reply = browser.get(f"/jobs?{urlencode({'status': 'failed', 'error': '100%', 'type': 'billing'})}")
    [field] = [given for tag, given in reply.elements if tag == "input" and given.get("name") == "q"]
    assert field["value"] == "type:billing status:failed error:100%"
    assert [row["id"] for row in reply.tables["Jobs"]] == ["3"]


@EITHER
def test_a_secret_is_not_found_by_its_letters(rows: Rows, browser: Browser) -> None:
    job = rows.job(status="dead", last_error="login with hunter2hunter2 failed", error_type="Denied")
    masking.remember(["hunter2hunter2"])
    assert found(browser, "error:login") == [job]
    for part in ("hunt", "hunter2", "hunter2hunter2", '"with h"'):
        assert found(browser, f"error:{part}") == [], part
    assert found(browser, 'error:"with ***"') == [job]


@EITHER
def test_who_may_only_look_has_no_boxes(some: Rows, database: Database, database_url: str, tmp_path: Path) -> None:
    access = by_link()
    browser = Browser(pages(database, database_url, tmp_path, access)).log_in(access)
    reply = browser.get("/jobs")
    assert "tick" not in reply.tables["Jobs"][0]
    assert not [each for each in reply.addresses() if each.startswith("/bulk")]


@pytest.mark.connects_as(OWNER)  # who may ANALYZE
def test_no_search_and_no_change_of_many_reads_a_big_table_from_end_to_end(database: Database, rows: Rows) -> None:
    fill(database)
    sent: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        if statement.startswith("SELECT"):
            sent.append((statement, parameters))

    texts = ["", "mail", "status:dead", "status:dead error:x", "status:queued", "since:2h", "17 18", "key:x", "queue:x"]
    event.listen(database.engine, "before_cursor_execute", note)
    with database.read() as connection:
        times = Times(NOW, "UTC")
        for text in texts:
            wanted = search(text).wanted(times)
            for sort in bounded_search.sorts_of(wanted):
                bounded_search.look(connection, wanted, sort, None, 20)
            for verb in ("retry", "cancel", "dismiss"):
                bulk = Bulk(verb, wanted, 20_000, NOW)
                bounded_search.kinds(connection, bulk, 20_000)
                assert len(bounded_search.choose_some(connection, bulk, 20_000, 7).ids) <= 7
                bounded_search.done_so_far(connection, bulk, {})
        bounded_search.newest_id(connection)
    event.remove(database.engine, "before_cursor_execute", note)
    assert len(sent) > 60
    bad = {statement: lines for statement, given in sent if (lines := whole_table_read(database, statement, given))}
    # Without a status, the newest first: the primary key, of which LIMIT leaves the beginning.
    bad = {
        statement: lines for statement, lines in bad.items() if not re.search(r"ORDER BY cronjobs_jobs\.id", statement)
    }
    assert not bad
