"""The causes of deaths in status, and as a filter for operators' commands."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
import typer
from sqlalchemy import event, insert, select, update
from support.bigtables import fill, whole_table_read
from support.lookingrows import NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows
from support.postgres import OWNER

from cronjobs.desk.cli import jobs_change
from cronjobs.desk.insight import causes
from cronjobs.desk.store import causes as store
from cronjobs.desk.store import listing
from cronjobs.desk.store.listing import Filter
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.rules.causes import cause_of
from cronjobs.testing import FakeClock

INVOICE = cause_of("billing.send_invoice", "GiveUp", "there is no invoice 17").key
PROVIDER = cause_of("mail.send", "ProviderError", "503 for 9").key


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


def died(rows: Rows, error: str, at: datetime, job_type: str = "billing.send_invoice", **values: Any) -> int:
    usual: dict[str, Any] = {"status": "dead", "error_type": "GiveUp", "last_error": error, "finished_at": at}
    return rows.job(job_type, **(usual | values))


def sync(rows: Rows, file: str, at: datetime) -> None:
    rows.put(tables.audit, action="sync", subject=file, at=at)


@pytest.fixture
def night(rows: Rows) -> list[int]:
    """Four deaths of one cause, two of another; return the ids of the four."""
    at = NOW.replace(hour=0, minute=17, second=3, microsecond=0)  # 02:17:03 in Berlin
    sync(rows, "old", at - timedelta(days=9))
    sync(rows, "new", at - timedelta(hours=1))
    sync(rows, "new", at + timedelta(hours=1))  # put in force once more, and nothing was changed
    for number in range(2):
        died(rows, f"503 for {number}", at - timedelta(hours=3), "mail.send", error_type="ProviderError")
    ids = [died(rows, f"there is no invoice {n}", at + timedelta(seconds=n * 33)) for n in range(4)]
    died(rows, "there is no invoice 9", at, dismissed_at=NOW)
    died(rows, "there is no invoice 8", at, status="cancelled")
    rows.job("billing.send_invoice", "failed", last_error="there is no invoice 7", error_type="GiveUp")
    return ids


def test_status_says_why_jobs_died_the_commonest_cause_first(cronjobs: Cronjobs, night: list[int]) -> None:
    lines = cronjobs("status").out.partition("\ncauses")[2].partition("\n\n")[0].splitlines()
    said = [line.strip() for line in lines]
    assert " ".join(said) == (
        "4 × GiveUp: there is no invoice <n> - billing.send_invoice, 02:17:03 to 02:18:42 (new): "
        f'"cronjobs jobs list --cause {INVOICE}" '
        "2 × ProviderError: 503 for <n> - mail.send, 2026-06-30 23:17:03: "
        f'"cronjobs jobs list --cause {PROVIDER}"'
    )


@pytest.mark.parametrize("error_type", ["myjobs.HTTPError", "HTTPError"])
def test_the_filter_by_the_class_of_an_error_tells_capital_from_small_letters(
    cronjobs: Cronjobs, rows: Rows, error_type: str
) -> None:
    died(rows, "503", NOW, error_type=error_type.lower())
    meant = died(rows, "503", NOW, error_type=error_type)
    listed = cronjobs("jobs", "list", "--json", "--error-type", "HTTPError").json
    assert [job["id"] for job in listed] == [meant]


def test_as_json_each_cause_has_its_key_its_times_and_a_job(cronjobs: Cronjobs, night: list[int]) -> None:
    told = cronjobs("status", "--json").json
    first, second = told["causes"]
    assert first == {
        "key": INVOICE,
        "job_type": "billing.send_invoice",
        "error_type": "GiveUp",
        "message": "there is no invoice <n>",
        "jobs": 4,
        "first_died_at": "2026-07-01T00:17:03+00:00",
        "last_died_at": "2026-07-01T00:18:42+00:00",
        "first_job_id": night[0],
        "last_job_id": night[-1],
        "sample_job_id": night[-1],
        "new": True,
    }
    assert (second["key"], second["jobs"], second["new"]) == (PROVIDER, 2, False)
    assert told["causes_are_of_newest"] is None


def test_where_nothing_is_dead_status_has_no_causes(cronjobs: Cronjobs, rows: Rows) -> None:
    died(rows, "there is no invoice 9", ago(minutes=1), dismissed_at=NOW)
    assert "causes" not in cronjobs("status").out
    assert cronjobs("status", "--json").json["causes"] == []


def test_ten_causes_are_shown_and_the_others_counted(cronjobs: Cronjobs, rows: Rows) -> None:
    for number in range(12):
        died(rows, "x" * (number + 1), ago(minutes=1))
    out = cronjobs("status").out
    assert out.count("1 × GiveUp: x") == 10
    assert "… and 2 more (--all shows them)" in out
    assert cronjobs("status", "--all").out.count("1 × GiveUp: x") == 12


def test_no_more_than_so_many_deaths_are_read_and_that_is_said(
    cronjobs: Cronjobs, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        died(rows, f"no invoice {number}", ago(minutes=number))
    for most, unread in ((5, False), (3, True)):
        monkeypatch.setattr(causes, "READ", most)
        for module in ("status_lines", "status_json"):
            monkeypatch.setattr(f"cronjobs.desk.cli.{module}.READ", most)
        told = cronjobs("status", "--json").json
        assert [each["jobs"] for each in told["causes"]] == [most]
        assert told["causes"][0]["last_died_at"] == ago(minutes=0).isoformat(), "the last ones to die"
        assert told["causes_are_of_newest"] == (most if unread else None)
        assert ("causes of the 3 most recent deaths" in " ".join(cronjobs("status").out.split())) is unread


def test_what_is_written_in_an_error_does_nothing_to_a_terminal(cronjobs: Cronjobs, rows: Rows) -> None:
    died(
        rows, "a\x1b[2J\x9b31m\u202eb\r\x07 postgresql://me:hunter22@db", ago(minutes=1), "x\x1b[2J", error_type="\x1b"
    )
    for command in ("status", "status --json"):
        out = cronjobs(*command.split()).out
        assert not any(character in out for character in "\x1b\x9b\r\x07\u202e")
        assert "hunter22" not in out


# --- since when -------------------------------------------------------------------------------------------------------


def changed_at(database: Database) -> datetime | None:
    with database.read() as connection:
        return store.file_changed_at(connection)


def test_the_file_was_changed_when_another_was_in_force_before(database: Database, rows: Rows) -> None:
    assert changed_at(database) is None
    sync(rows, "a", ago(days=9))
    sync(rows, "a", ago(days=8))
    assert changed_at(database) is None, "the first file changed nothing"
    sync(rows, "b", ago(days=7))
    sync(rows, "b", ago(days=6))
    assert changed_at(database) == ago(days=7)
    sync(rows, "a", ago(days=5))
    assert changed_at(database) == ago(days=5), "a roll-back is a change"
    rows.put(tables.audit, action="sync_begun", subject="c", at=ago(days=4))
    assert changed_at(database) == ago(days=5), "it is not in force yet"


def test_a_death_that_somebody_dismissed_before_the_change_makes_a_cause_an_old_one(
    cronjobs: Cronjobs, rows: Rows
) -> None:
    sync(rows, "a", ago(days=9))
    sync(rows, "b", ago(days=1))
    died(rows, "no invoice 1", ago(minutes=1))
    assert cronjobs("status", "--json").json["causes"][0]["new"]
    died(rows, "no invoice 2", ago(days=2), dismissed_at=ago(days=2))
    [cause] = cronjobs("status", "--json").json["causes"]
    assert (cause["jobs"], cause["new"]) == (1, False)


# --- what is done about it --------------------------------------------------------------------------------------------


def statuses(database: Database) -> dict[int, str]:
    with database.read() as connection:
        return {row.id: row.status for row in connection.execute(select(tables.jobs.c.id, tables.jobs.c.status))}


def test_the_jobs_of_a_cause_are_listed(cronjobs: Cronjobs, night: list[int]) -> None:
    listed = cronjobs("jobs", "list", "--cause", INVOICE.upper(), "--json").json
    assert [job["id"] for job in listed] == night[::-1]
    assert {job["last_error"] for job in listed} == {f"there is no invoice {n}" for n in range(4)}
    assert [job["id"] for job in cronjobs("jobs", "list", "--cause", INVOICE, "--limit", "2", "--json").json] == [
        night[3],
        night[2],
    ]
    assert cronjobs("jobs", "list", "--cause", INVOICE, "--type", "mail.send", "--json").json == []
    assert len(cronjobs("jobs", "list", "--cause", INVOICE, "--status", "dead", "--json").json) == 4
    assert cronjobs("jobs", "list", "--cause", "0" * 12).err == "no job matches the filter\n"


@pytest.mark.parametrize(("verb", "status"), [("retry", "queued"), ("dismiss", "dead")])
def test_a_verb_takes_exactly_the_jobs_of_the_cause(
    cronjobs: Cronjobs, night: list[int], database: Database, verb: str, status: str
) -> None:
    before = statuses(database)
    answer = cronjobs("jobs", verb, "--cause", INVOICE, "--yes", "--why", "the invoices are back")
    assert (answer.code, answer.out) == (0, f"{jobs_change.__dict__[verb.upper()].done} 4 jobs\n")
    assert statuses(database) == before | dict.fromkeys(night, status)
    with database.read() as connection:
        [entry] = connection.execute(select(tables.audit).where(tables.audit.c.action == verb)).all()
    dead = {"dead": night} if verb == "retry" else {}  # which deaths it ended, for the history
    assert entry.detail == {"filter": {"cause": INVOICE}, "ids": night} | dead
    assert [each["key"] for each in cronjobs("status", "--json").json["causes"]] == [PROVIDER]
    assert cronjobs("jobs", verb, "--cause", INVOICE, "--yes").err == f"no such job to {verb}\n"


def test_a_retry_takes_what_it_counted_and_nothing_that_dies_meanwhile(
    cronjobs: Cronjobs, rows: Rows, night: list[int], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a later job nor an earlier one that dies only then."""
    waiting = rows.job("billing.send_invoice")
    later: list[int] = []

    def another_dies(_question: str, **_: Any) -> bool:
        later.append(died(rows, "there is no invoice 99", NOW))
        dead = {"status": "dead", "error_type": "GiveUp", "last_error": "there is no invoice 98", "finished_at": NOW}
        with database.write() as connection:
            connection.execute(update(tables.jobs).where(tables.jobs.c.id == waiting).values(dead))
        return True

    monkeypatch.setattr(jobs_change, "is_interactive", lambda: True)
    monkeypatch.setattr(jobs_change, "BATCH", 3)
    monkeypatch.setattr(typer, "confirm", another_dies)
    assert cronjobs("jobs", "retry", "--cause", INVOICE).out == "retried 4 jobs\n"
    now = statuses(database)
    assert {now[id_] for id_ in night} == {"queued"}
    assert {now[id_] for id_ in (*later, waiting)} == {"dead"}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["jobs", "cancel", "--cause", INVOICE, "--yes"], "--cause selects dead jobs"),
        (["jobs", "release", "--cause", INVOICE, "--yes"], "--cause selects dead jobs"),
        (["jobs", "retry", "--cause", INVOICE, "--status", "failed", "--yes"], "cannot go with --status retrying"),
        (["jobs", "list", "--cause", INVOICE, "--status", "queued"], "cannot go with --status queued"),
        (["jobs", "list", "--cause", INVOICE, "--group-by", "error"], "all jobs of a cause have the same error"),
        (["jobs", "retry", "17", "--cause", INVOICE], "in one of three ways"),
        (["jobs", "list", "--cause", "GiveUp"], "12 hexadecimal digits"),
        (["jobs", "list", "--cause", INVOICE[:-1]], "12 hexadecimal digits"),
    ],
)
def test_what_no_cause_can_choose_is_refused(
    cronjobs: Cronjobs, night: list[int], database: Database, arguments: list[str], why: str
) -> None:
    before = statuses(database)
    answer = cronjobs(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert why in " ".join(answer.err.replace("│", " ").split())
    assert statuses(database) == before


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.connects_as(OWNER)  # who may ANALYZE
def test_no_big_table_is_read_from_end_to_end(database: Database, rows: Rows) -> None:
    fill(database)
    sync(rows, "a", ago(days=9))
    sync(rows, "b", ago(days=1))
    some = [
        {"job_type": "t", "status": "dead", "last_error": f"no {n}", "finished_at": ago(days=2)} for n in range(500)
    ]
    with database.write() as connection:
        connection.execute(insert(tables.jobs), some)
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "cronjobs_jobs" in statement:
            sent.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    with database.read() as connection:
        assert sum(cause.jobs for cause in causes.find_causes(connection).found) == 540
        wanted = Filter(cause=cause_of("t", None, "no 1").key)
        assert len(list(listing.choose(connection, wanted))) == 500
        assert len(listing.list_jobs(connection, wanted, 20)) == 20
    event.remove(database.engine, "before_cursor_execute", note)
    assert len(sent) == 5
    bad = {statement: lines for statement, given in sent if (lines := whole_table_read(database, statement, given))}
    assert not bad
