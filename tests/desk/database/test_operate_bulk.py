"""``jobs retry``, ``cancel`` and ``release`` for many jobs: chosen by filters, confirmed, and written in batches."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import typer
from sqlalchemy import event, select, update
from support.bigtables import fill, whole_table_read
from support.lookingrows import NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows
from support.postgres import OWNER

from cronjobs.desk.cli import jobs_change, progress
from cronjobs.desk.insight.formatting import status_word
from cronjobs.desk.store import listing
from cronjobs.desk.store.listing import Filter
from cronjobs.engine.command import printing
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store import operating
from cronjobs.model import Status
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

# SQLite has no row locks: a writer is alone.
POSTGRESQL_ONLY = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_change, "BATCH", 4)
    monkeypatch.setattr(jobs_change, "LOCKED_PATIENCE_S", 0.3)


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A person who says yes, unless told otherwise; what was asked."""
    asked: list[str] = []

    def confirm(question: str, **_: Any) -> bool:
        asked.append(question)
        return True

    monkeypatch.setattr(jobs_change, "is_interactive", lambda: True)
    monkeypatch.setattr(typer, "confirm", confirm)
    return asked


def statuses(database: Database) -> dict[int, str]:
    with database.read() as connection:
        return {row.id: row.status for row in connection.execute(select(tables.jobs.c.id, tables.jobs.c.status))}


def everything(database: Database) -> Any:
    with database.read() as connection:
        return [connection.execute(select(table)).all() for table in (tables.jobs, tables.job_runs, tables.audit)]


def audit(database: Database) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(select(tables.audit).order_by(tables.audit.c.id)).all())


# --- which jobs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["retry", "cancel", "release", "dismiss"])
@pytest.mark.parametrize("choice", [[], ["1", "--type", "mail.send"], ["1", "--all"], ["--all", "--queue", "default"]])
def test_jobs_are_meant_in_exactly_one_way(
    cronjobs: Cronjobs, rows: Rows, database: Database, verb: str, choice: list[str]
) -> None:
    rows.job(status="dead")
    before = everything(database)
    answer = cronjobs("jobs", verb, *choice, "--yes")
    assert (answer.code, answer.out) == (2, "")
    assert f"cronjobs jobs {verb} 17 18" in answer.err
    assert "or with --all" in answer.err
    assert everything(database) == before


MIXED: list[dict[str, Any]] = [
    {"status": "dead", "error_type": "Timeout"},
    {"status": "dead", "job_type": "reports.nightly", "schedule": "nightly-report", "finished_at": ago(days=3)},
    {"status": "dead", "queue": "mail", "error_type": "Timeout"},
    {"status": "failed", "failures": 2, "created_at": ago(days=2), "last_failed_at": ago(days=2)},
    {"status": "cancelled", "queue": "mail"},
    {"status": "queued", "concurrency_key": "smtp:main"},
    {"status": "dead", "concurrency_key": "smtp:main"},
    {"status": "dead", "concurrency_key": "smtp:mainly"},
    {"status": "queued", "queue": "mail", "schedule": "nightly-report"},
    {"status": "running", "queue": "mail"},
    {"status": "succeeded", "error_type": "Timeout"},
]
FILTERS = [
    ["--type", "reports.nightly"],
    ["--status", "dead"],
    ["--status", "failed"],
    ["--status", "retrying"],
    ["--queue", "mail"],
    ["--schedule", "nightly-report"],
    ["--concurrency-key", "smtp:main"],
    ["--status", "queued", "--status", "retrying"],
    ["--status", "dead", "--status", "cancelled", "--since", "1h"],
    ["--status", "dead", "--status", "dead"],
    ["--since", "1h"],
    ["--error-type", "Timeout"],
    ["--queue", "mail", "--error-type", "Timeout"],
]


@pytest.mark.parametrize("filters", FILTERS, ids=" ".join)
@pytest.mark.parametrize(
    ("verb", "takes"),
    [(verb.name, verb.takes) for verb in (jobs_change.RETRY, jobs_change.CANCEL, jobs_change.DISMISS)],
)
def test_filters_choose_what_list_shows_of_the_states_that_the_verb_is_for(
    cronjobs: Cronjobs, rows: Rows, database: Database, filters: list[str], verb: str, takes: tuple[Status, ...]
) -> None:
    for row in MIXED:
        rows.job(**row)
    listed = cronjobs("jobs", "list", "--json", *filters).json
    meant = {job["id"] for job in listed if job["status"] in takes}
    given = [
        word.replace("retrying", "failed")
        for option, word in zip(filters[::2], filters[1::2], strict=True)
        if option == "--status"
    ]
    if not set(given) <= {*takes}:
        assert cronjobs("jobs", verb, "--yes", *filters).code == 2
        return
    answer = cronjobs("jobs", verb, "--yes", "--json", *filters)
    assert (answer.code, answer.json["chosen"], answer.json["changed"]) == (0, len(meant), len(meant))
    recorded = [row for row in audit(database) if row.subject == "jobs"]
    named = {int(row.subject.removeprefix("job ")) for row in audit(database) if row.subject != "jobs"}
    assert {job_id for row in recorded for job_id in row.detail["ids"]} | named == meant


def test_a_status_that_the_verb_is_not_for_is_a_usage_error(cronjobs: Cronjobs, rows: Rows) -> None:
    answer = cronjobs("jobs", "retry", "--status", "succeeded", "--yes")
    assert (answer.code, answer.err) == (
        2,
        "jobs retry is for dead, cancelled and retrying jobs, not for succeeded ones\n",
    )


def test_nothing_to_do_is_said_and_no_error(cronjobs: Cronjobs, rows: Rows) -> None:
    answer = cronjobs("jobs", "retry", "--type", "nobody")
    assert (answer.code, answer.out, answer.err) == (0, "", "no such job to retry\n")


# --- asking -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_without_a_terminal_and_without_yes_nothing_is_changed(
    cronjobs: Cronjobs, rows: Rows, database: Database, option: list[str]
) -> None:
    for _ in range(3):
        rows.job(status="dead")
    before = everything(database)
    answer = cronjobs("jobs", "retry", "--all", *option)
    assert (answer.code, answer.out) == (2, "")
    assert "this would retry 3 jobs" in answer.err
    assert "--yes" in answer.err
    assert everything(database) == before


def test_a_person_is_told_how_many_of_what_and_asked(
    cronjobs: Cronjobs, rows: Rows, database: Database, at_a_terminal: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        rows.job(status="dead")
    rows.job("reports.nightly", "cancelled")
    before = everything(database)
    monkeypatch.setattr(typer, "confirm", lambda question, **_: at_a_terminal.append(question))
    answer = cronjobs("jobs", "retry", "--all")
    assert answer.code == 1
    assert answer.err.splitlines() == [
        "This would retry 4 jobs:",
        "  jobs  type             status",
        "     3  mail.send        dead",
        "     1  reports.nightly  cancelled",
        "nothing was changed",
    ]
    assert at_a_terminal == ["Go on?"]
    assert everything(database) == before


def test_jobs_that_are_named_are_not_asked_about(
    cronjobs: Cronjobs, rows: Rows, database: Database, at_a_terminal: list[str]
) -> None:
    ids = [rows.job(status="dead") for _ in range(6)]
    answer = cronjobs("jobs", "retry", *map(str, ids), str(ids[0]))
    assert answer.code == 0
    assert answer.out.splitlines() == [f"job {job_id} is queued again, due now" for job_id in ids]
    assert at_a_terminal == []
    assert [row.subject for row in audit(database)] == [f"job {job_id}" for job_id in ids]


# --- writing ----------------------------------------------------------------------------------------------------------


def test_many_are_written_in_short_batches_each_with_its_audit_row(
    cronjobs: Cronjobs, rows: Rows, database: Database, at_a_terminal: list[str]
) -> None:
    ids = [rows.job(status="dead", attempts=7, failures=7, losses=2, interruptions=1) for _ in range(10)]
    other = rows.job(status="succeeded")
    answer = cronjobs("jobs", "retry", "--type", "mail.send", "--since", "24h", "--why", "mended")
    assert (answer.code, answer.out) == (0, "retried 10 jobs\n")
    written = audit(database)
    assert [len(row.detail["ids"]) for row in written] == [4, 4, 2]
    assert sorted(job_id for row in written for job_id in row.detail["ids"]) == ids
    assert {(row.action, row.subject, row.why) for row in written} == {("retry", "jobs", "mended")}
    assert all(row.detail["filter"] == {"job_type": "mail.send", "since": "24h"} for row in written)
    assert all(row.actor and row.host for row in written)
    with database.read() as connection:
        for job in connection.execute(select(tables.jobs).where(tables.jobs.c.id.in_(ids))):
            assert (job.status, job.attempts, job.finished_at) == ("queued", 7, None)
            assert abs(job.run_at - NOW) < timedelta(minutes=1)
            assert (job.failures, job.losses, job.interruptions) == (0, 0, 0)
    assert statuses(database)[other] == "succeeded"


def test_no_transaction_writes_more_than_a_batch(
    cronjobs: Cronjobs, rows: Rows, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(10):
        rows.job(status="dead")
    sizes: list[int] = []
    record = operating.record_act

    def counted(connection: Any, act: Any, ids: Any, **more: Any) -> None:
        sizes.append(len(ids))
        record(connection, act, ids, **more)

    monkeypatch.setattr(operating, "record_act", counted)
    assert cronjobs("jobs", "retry", "--all", "--yes").code == 0
    assert sizes == [4, 4, 2]


def test_running_jobs_are_asked_to_stop_and_each_has_an_audit_row_that_says_who(
    cronjobs: Cronjobs, rows: Rows, database: Database
) -> None:
    waiting = [rows.job(), rows.job(status="failed")]
    running = rows.job(status="running")
    answer = cronjobs("jobs", "cancel", "--all", "--yes", "--why", "wrong month")
    assert (answer.code, answer.out) == (0, "cancelled 3 jobs, 1 of them running and asked to stop\n")
    assert statuses(database) == dict.fromkeys(waiting, "cancelled") | {running: "running"}
    assert {row.subject: (row.why, (row.detail or {}).get("ids")) for row in audit(database)} == {
        "jobs": ("wrong month", waiting),
        f"job {running}": ("wrong month", None),
    }
    with database.read() as connection:
        said = connection.execute(select(tables.jobs.c.last_error).where(tables.jobs.c.id.in_(waiting))).scalars()
        assert {error.partition(":")[2] for error in said} == {" wrong month"}


def test_a_cancel_that_a_job_ends_under_changes_nothing_of_it_and_says_so(
    cronjobs: Cronjobs, rows: Rows, database: Database, at_a_terminal: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job finishes between the count and the operator's answer."""
    first, second = rows.job(status="running"), rows.job()

    def finish_first(_question: str, **_: Any) -> bool:
        with database.write() as connection:
            ended = {"status": "succeeded", "finished_at": NOW, "locked_by": None, "locked_until": None}
            connection.execute(tables.jobs.update().where(tables.jobs.c.id == first).values(ended))
        return True

    monkeypatch.setattr(typer, "confirm", finish_first)
    answer = cronjobs("jobs", "cancel", "--all")
    assert (answer.code, answer.out) == (1, "cancelled 1 of 2 jobs\n")
    assert answer.err.endswith(f"job {first} is succeeded: nothing to cancel\n")
    assert statuses(database) == {first: "succeeded", second: "cancelled"}
    with database.read() as connection:
        row = connection.execute(select(tables.jobs).where(tables.jobs.c.id == first)).one()
    assert (row.cancel_requested_at, row.last_error) == (None, None)


def test_json_is_one_object_that_counts_and_names_what_was_left(cronjobs: Cronjobs, rows: Rows) -> None:
    dead, queued = rows.job(status="dead"), rows.job()
    answer = cronjobs("jobs", "retry", str(dead), str(queued), "999", "--json")
    assert answer.code == 1
    assert answer.json == {
        "action": "retry",
        "chosen": 3,
        "changed": 1,
        "asked_to_stop": 0,
        "unchanged": [
            {"id": queued, "why": f'is already waiting: to run it here and now, type "cronjobs run {queued}"'},
            {"id": 999, "why": "does not exist"},
        ],
        "stopped_early": False,
    }


def test_ctrl_c_comes_between_two_batches_and_leaves_what_is_done(
    cronjobs: Cronjobs, rows: Rows, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(10):
        rows.job(status="dead")
    monkeypatch.setattr(progress.Progress, "say", lambda _, text: os.kill(os.getpid(), signal.SIGINT) if text else None)
    answer = cronjobs("jobs", "retry", "--all", "--yes")
    assert answer.code == 130
    assert "stopped: retried 4 of 10 jobs; those changes stay" in answer.err
    assert sorted(statuses(database).values()) == ["dead"] * 6 + ["queued"] * 4
    assert [len(row.detail["ids"]) for row in audit(database)] == [4]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@POSTGRESQL_ONLY
def test_nobody_waits_for_a_row_that_another_session_holds(
    cronjobs: Cronjobs, rows: Rows, database: Database, database_url: str
) -> None:
    ids = [rows.job(status="dead") for _ in range(6)]
    with psycopg.connect(database_url) as psql:
        psql.execute("SELECT 1 FROM cronjobs_jobs WHERE id = %s FOR UPDATE", [ids[1]])
        answer = cronjobs("jobs", "retry", "--all", "--yes")
        assert (answer.code, answer.out) == (1, "retried 5 of 6 jobs\n")
        assert answer.err == f"job {ids[1]} is locked by another transaction: try again\n"
    assert cronjobs("jobs", "retry", "--all", "--yes").out == "retried 1 job\n"


@POSTGRESQL_ONLY
def test_a_row_that_comes_free_while_we_are_at_it_is_done_too(
    cronjobs: Cronjobs, rows: Rows, database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [rows.job(status="dead") for _ in range(3)]
    psql = psycopg.connect(database_url)
    psql.execute("SELECT 1 FROM cronjobs_jobs WHERE id = %s FOR UPDATE", [ids[1]])
    monkeypatch.setattr(jobs_change, "sleep", lambda _: psql.rollback())
    answer = cronjobs("jobs", "retry", "--all", "--yes")
    psql.close()
    assert (answer.code, answer.out, answer.err) == (0, "retried 3 jobs\n", "")


@pytest.mark.parametrize(("verb", "status"), [("cancel", "queued"), ("dismiss", "dead")])
def test_after_jobs_that_need_no_handler_any_more_nothing_is_read_about_their_types(
    cronjobs: Cronjobs, rows: Rows, monkeypatch: pytest.MonkeyPatch, verb: str, status: str
) -> None:
    rows.job(status=status)
    begun: list[str] = []

    def note(kind: str) -> None:
        begin = getattr(Database, kind)

        def noted(database: Database, **how: Any) -> Any:
            begun.append(kind)
            return begin(database, **how)

        monkeypatch.setattr(Database, kind, noted)

    note("read")
    note("write")
    assert cronjobs("jobs", verb, "--all", "--yes").out.endswith(" 1 job\n")
    assert begun[begun.index("write") :] == ["write", "read"], "only the unknown effects of these jobs are read"


def test_what_was_done_to_a_batch_is_told_of_each_of_its_jobs(cronjobs: Cronjobs, rows: Rows) -> None:
    first, _ = rows.job(), rows.job()
    rows.job("reports.nightly")
    cronjobs("jobs", "cancel", "--type", "mail.send", "--yes", "--why", "wrong month")
    assert "wrong month" in cronjobs("explain", str(first)).out


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sent(database: Database) -> Iterator[list[tuple[str, Any]]]:
    statements: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "cronjobs_" in statement:
            statements.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    yield statements
    event.remove(database.engine, "before_cursor_execute", note)


@pytest.mark.connects_as(OWNER)  # who may ANALYZE
def test_choosing_and_changing_read_no_big_table_from_end_to_end(
    database: Database, rows: Rows, sent: list[tuple[str, Any]]
) -> None:
    fill(database)
    for status in ("queued", "failed", "running"):
        rows.job(status=status)
    sent.clear()
    act = operating.OperatorAction("cancel", "ada", "web1", None, {"all": "true"})
    with database.write() as connection:
        for verb in (jobs_change.RETRY, jobs_change.CANCEL, jobs_change.RELEASE):
            list(listing.choose(connection, Filter(statuses=verb.takes)))
        list(listing.error_groups(connection, Filter(statuses=(Status.FAILED, Status.DEAD)), 20_000))
        listing.unfinished_of(connection, ["nightly", "hourly"])
        operating.retry(connection, [500, 1000], act)
        operating.cancel(connection, [500, 20_001, 20_003], act)
        operating.states(connection, [1, 2])
        operating.held(connection, [1, 2])
    assert len(sent) >= 9
    queries = [(statement, given) for statement, given in sent if "INSERT" not in statement]
    bad = {statement: lines for statement, given in queries if (lines := whole_table_read(database, statement, given))}
    assert not bad


def test_a_dismissed_job_stays_dead_and_counts_again_when_it_dies_again(
    cronjobs: Cronjobs, rows: Rows, database: Database
) -> None:
    job_id = rows.job(status="dead", error_type="Timeout")
    answer = cronjobs("jobs", "dismiss", str(job_id), "--why", "the customer is gone")
    assert (answer.code, answer.out) == (0, f"job {job_id} is dismissed: it stays dead\n")
    [entry] = audit(database)
    assert (entry.action, entry.subject, entry.why) == ("dismiss", f"job {job_id}", "the customer is gone")
    assert "dismissed" in cronjobs("jobs", "list").out
    assert "and dismissed" in cronjobs("history").out
    again = cronjobs("jobs", "dismiss", str(job_id))
    assert (again.code, again.err) == (1, f"job {job_id} is already dismissed, nothing to do\n")
    assert cronjobs("jobs", "dismiss", "--all", "--yes").err == "no such job to dismiss\n"
    died_again = {"finished_at": NOW + timedelta(minutes=1), "dismissed_at": NOW}
    with database.write() as connection:  # plain SQL revived it, and it died again
        connection.execute(update(tables.jobs).where(tables.jobs.c.id == job_id).values(died_again))
    assert cronjobs("jobs", "dismiss", "--type", "mail.send", "--yes", "--json").json["changed"] == 1
    assert cronjobs("jobs", "retry", str(job_id)).code == 0
    assert cronjobs("jobs", "show", str(job_id), "--json").json["dismissed_at"] is None


def test_a_dead_job_cannot_be_cancelled_and_dismiss_is_named(cronjobs: Cronjobs, rows: Rows) -> None:
    dead = rows.job(status="dead", finished_at=NOW)
    answer = cronjobs("jobs", "cancel", str(dead))
    assert answer.code == 1
    assert f'job {dead} is dead: to acknowledge its death, type "cronjobs jobs dismiss {dead}"' in answer.err


def test_a_key_that_was_given_back_is_shown_explained_and_taken_back_if_it_is_free(
    cronjobs: Cronjobs, rows: Rows, database: Database
) -> None:
    first = rows.job(idempotency_key="reminder:7")
    assert cronjobs("jobs", "cancel", str(first), "--why", "paid").code == 0
    shown = cronjobs("jobs", "show", str(first)).out
    assert "key        reminder:7 (released: the job was cancelled before it started)" in shown
    told = " ".join(cronjobs("explain", "--key", "reminder:7").out.split())
    assert f"Job {first} " in told
    assert "before its first attempt. The cancellation released its key: another job can use that key" in told

    second = rows.job(idempotency_key="reminder:7")
    assert f"Job {second} " in cronjobs("explain", "--key", "reminder:7").out
    told = " ".join(cronjobs("explain", str(first)).out.split())
    assert f"The cancellation released its key: job {second} uses that key now. Job {first} does not run again:" in told
    assert f'"cronjobs jobs retry {first}" is refused while job {second} has the key.' in told
    shown = " ".join(cronjobs("jobs", "show", str(first)).out.split())
    assert f'"cronjobs jobs retry {first}" is refused while job {second} has the key.' in shown
    refused = cronjobs("jobs", "retry", str(first))
    assert refused.code == 1
    assert refused.err == f"job {first} released its key when it was cancelled, and job {second} has the key now\n"
    dead = rows.job(status="dead")
    act = operating.OperatorAction("retry", "ada", "web1", None, None)
    with database.write() as connection:
        assert operating.retry(connection, [first, dead], act).done == {dead}, "it holds up no other"
    cronjobs("jobs", "cancel", str(second))
    assert cronjobs("jobs", "retry", str(first)).code == 0
    assert "key        reminder:7\n" in cronjobs("jobs", "show", str(first)).out


def test_many_refusals_of_one_kind_are_one_line(cronjobs: Cronjobs, rows: Rows) -> None:
    pairs = []
    for key in ("a", "b", "c"):
        first = rows.job(idempotency_key=key)
        assert cronjobs("jobs", "cancel", str(first)).code == 0
        pairs.append((first, rows.job(idempotency_key=key)))
    refused = cronjobs("jobs", "retry", "--status", "cancelled", "--yes")
    assert refused.code == 1
    assert refused.err == (
        f"job {pairs[0][0]} released its key when it was cancelled, and job {pairs[0][1]} has the key now; "
        "2 more like it (--json lists them)\n"
    )


def test_only_what_is_dead_can_be_dismissed(cronjobs: Cronjobs, rows: Rows) -> None:
    for status in ("queued", "running", "failed", "succeeded", "cancelled"):
        job_id = rows.job(status=status)
        answer = cronjobs("jobs", "dismiss", str(job_id))
        assert (answer.code, answer.err) == (1, f"job {job_id} is {status_word(status)}: nothing to dismiss\n")
    assert cronjobs("jobs", "dismiss", "99").err == "job 99 does not exist\n"


def test_what_a_person_is_asked_about_is_a_table_in_colours_and_nothing_in_it_acts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs_change, "is_interactive", lambda: True)
    monkeypatch.setattr(printing, "is_terminal", lambda *_: True)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    jobs_change._ask(jobs_change.DISMISS, Counter({("pay.\x1b[2J", "dead"): 3}), 3)
    told = capsys.readouterr().err
    assert "\x1b[31mdead\x1b[0m" in told
    assert "\\x1b[31m" not in told
    assert "\x1b[2J" not in told
