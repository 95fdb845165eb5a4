"""Progress, which a renewal also writes. It belongs to the attempt with the lease, and no progress costs nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select
from support.counted import Counted, counted
from support.hosts import Host, put

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.execution.reporting import Reporting
from cronjobs.engine.jobs import registry
from cronjobs.engine.rules.lease import Finish, Lease, Report, lease_of
from cronjobs.engine.rules.progress import HowFar, Reported, progress, reported_of, row_value, time_left
from cronjobs.engine.store import claims, leases
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.engine.store.shown_columns import one_job
from cronjobs.errors import BadValue
from cronjobs.model import Job, Status
from cronjobs.testing import FakeClock
from cronjobs.testing.clocks import StillClock
from cronjobs.text import CappedText

LEASE = timedelta(minutes=1)
START = datetime(2026, 3, 2, 8, 0, 30, tzinfo=UTC)
ANY = ClaimFilter(known=["t"], fitting=["t"], remaining_s=50)


def running(database: Database, count: int = 1) -> list[Job]:
    with database.write() as connection:
        connection.execute(insert(jobs), [{"job_type": "t", "run_at": START} for _ in range(count)])
        return claims.claim(connection, limit=count, locked_by="a", lease=LEASE, admission=ANY).jobs


def report(lease: Lease, done: float = 3, note: str | None = None, output: str | None = "said") -> Report:
    return Report(lease, Reported(HowFar(done, 10, note), 1.0, done, 1.0, 4), output)


def renew(database: Database, held: list[Lease], *reports: Report) -> leases.Renewal:
    with database.write() as connection:
        return leases.renew(connection, held, LEASE, {each.lease.job_id: each for each in reports})


def end(database: Database, lease: Lease, status: Status) -> None:
    last = Finish(lease, status, 0, 0, 0, None)
    with database.write() as connection:
        assert leases.finish(connection, [last]).written == {lease.job_id}


def told(database: Database, job_id: int) -> tuple[Any, Any]:
    with database.read() as connection:
        row = one_job(connection, job_id)
        assert row is not None
        return reported_of(row.progress), row.live_output


def test_only_the_attempt_that_has_the_lease_reports(database: Database) -> None:
    [job] = running(database)
    mine = lease_of(job)
    for stale in (mine._replace(attempt=0), mine._replace(locked_by="b")):
        assert not renew(database, [stale], report(stale, 9)).renewed
    assert told(database, job.id) == (None, None)
    assert renew(database, [mine], report(mine)).renewed
    assert told(database, job.id)[0].progress == HowFar(3, 10)


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.QUEUED, Status.DEAD])
def test_it_is_gone_when_the_attempt_ends(database: Database, status: Status) -> None:
    [job] = running(database)
    renew(database, [lease_of(job)], report(lease_of(job)))
    end(database, lease_of(job), status)
    with database.read() as connection:
        assert connection.execute(select(jobs.c.progress, jobs.c.live_output)).one() == (None, None)


def test_one_renewal_writes_what_some_report_and_keeps_what_others_did(database: Database) -> None:
    first, second, third = (lease_of(job) for job in running(database, 3))
    renew(database, [first, second, third], report(first, 1), report(second, 2))
    renew(database, [first, second, third], report(second, 4, output=None), report(third, 9))
    assert [told(database, each.job_id)[0].progress.done for each in (first, second, third)] == [1, 4, 9]
    assert told(database, second.job_id)[1] == "said"


HOSTILE = "nul \0, surrogate \ud800, snowman ☃, 𝄞, \x1b[2J, '; DROP TABLE", "\x85\u2028", '{"a":1}\\u0000'


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_can_be_a_note_and_an_output(database: Database, text: str) -> None:
    [job] = running(database)
    reporting = Reporting()
    reporting.output = CappedText()
    reporting.output.write(text + "\n")
    reporting.say(progress(1, 2, text), 1.0)
    news = reporting.news(lease_of(job), 0.0, frozenset())
    assert news is not None
    assert renew(database, [lease_of(job)], news).renewed
    found, output = told(database, job.id)
    assert found == news.reported
    assert output == news.live_output


HANDED_IN: tuple[Any, ...] = (
    *(None, 1, "x", [], {}, {"done": "many", "of": [], "note": 7}),
    *({"done": True}, {"done": -1}, {"done": 1e300, "output_end": -5}),
)


@pytest.mark.parametrize("value", HANDED_IN)
def test_whatever_plain_sql_writes_there_is_read_as_nothing(value: Any) -> None:
    found = reported_of(value)
    assert found is None or found == Reported()


def test_what_the_row_keeps_is_read_again() -> None:
    reported = Reported(HowFar(37, 120.5, "Berlin"), 12.5, 3, 0.5, 77)
    assert reported_of(json.loads(row_value(reported))) == reported


# --- in a tick --------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def handlers() -> Iterator[None]:
    before = dict(registry._registered)

    @registry.job("t.chatty")
    def chatty(ctx: Any) -> None:
        for number in range(10_000):
            ctx.progress(number, of=10_000, note="all the time")

    @registry.job("t.quiet")
    def quiet(ctx: Any) -> None:
        pass

    yield
    registry._registered.clear()
    registry._registered.update(before)


@pytest.mark.usefixtures("handlers")
def test_ten_thousand_reports_cost_no_statement(database: Database, tmp_path: Path) -> None:
    host = Host(database, tmp_path)
    host.clock = StillClock(START)  # a loop that sees seconds pass looks for jobs again
    host.tick()
    sent: dict[str, Counted] = {}
    for name in ("quiet", "chatty"):
        put(database, job_type=f"t.{name}", run_at=START)
        with counted(database) as found:
            host.tick()
        sent[name] = found
    assert [e.sql for e in sent["quiet"].statements] == [e.sql for e in sent["chatty"].statements]


def test_a_renewal_with_reports_is_as_many_statements_and_without_them_the_same_as_ever(database: Database) -> None:
    held = [lease_of(job) for job in running(database, 5)]
    with counted(database) as plain:
        renew(database, held)
    with counted(database) as more:
        renew(database, held, report(held[2]))
    assert len(plain.statements) == len(more.statements)
    assert not any("progress" in each.sql or "live_output" in each.sql for each in plain.statements)


def test_a_report_that_the_database_refuses_costs_no_lease(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal is sent again without it."""
    before = dict(registry._registered)
    given, renewed = [], []
    whole = leases.renew

    def refusing(connection: Any, held: Any, lease: Any, reports: Any = leases.NO_REPORTS) -> leases.Renewal:
        given.append(len(reports))
        if reports:
            raise BadValue("no")
        found = whole(connection, held, lease)
        renewed.append(found.renewed)
        return found

    @registry.job("t.long")
    def long(ctx: Any) -> None:
        ctx.progress(1)
        while len(renewed) < 2:
            ctx.check()

    monkeypatch.setattr(leases, "renew", refusing)
    host = Host(database, tmp_path)
    host.carry(run=replace(host.settings.run, lease=timedelta(seconds=2)))
    job_id = put(database, job_type="t.long", run_at=START)
    host.tick()
    registry._registered.clear()
    registry._registered.update(before)
    assert given[0] == 1
    assert sum(given) == 1
    assert renewed[:2] == [{job_id}, {job_id}]


# --- when an estimate is honest ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "age_s", "left_s"),
    [
        (Reported(HowFar(50, 100), 60.0, 0, 0.0), 60, 60),
        (Reported(HowFar(50, 100), 60.0, 0, 0.0), 70, 50),  # what went by since it was said
        (Reported(HowFar(550, 1000), 60.0, 500, 0.0), 60, 540),  # this attempt went on where another one stopped
        (Reported(HowFar(501, 1000), 60.0, 500, 0.0), 60, None),  # too early
        (Reported(HowFar(50, 100), 10.0, 0, 0.0), 10, None),
        (Reported(HowFar(50), 60.0, 0, 0.0), 60, None),
        (Reported(HowFar(100, 100), 60.0, 0, 0.0), 60, None),
        (Reported(HowFar(50, 100), 60.0, 0, 0.0), 500, None),  # the handler reports nothing any more
        (Reported(), 60, None),
    ],
)
def test_an_estimate_needs_a_total_a_pace_and_a_fresh_word(told: Reported, age_s: float, left_s: float | None) -> None:
    left = time_left(told, START, START + timedelta(seconds=age_s))
    assert left == (None if left_s is None else timedelta(seconds=left_s))
