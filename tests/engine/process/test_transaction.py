"""``ctx.transaction()`` and ``ctx.finish()``: work and success are committed together, or neither is."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from support.commands import until
from support.targets import plain_url, users_table
from support.ticking import WITHOUT_WATCHDOG, Project, events, patched

HANDLERS = '''
from contextlib import contextmanager
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

NOW = RetryPolicy(base="1s", jitter=0)
WORK = text("INSERT INTO work (job_id, attempt) VALUES (:job_id, :attempt)")


def work(target, ctx):
    target.execute(WORK, {"job_id": ctx.job_id, "attempt": ctx.attempt})


def reach(place, at, ctx):
    """Where the first attempt does what its job was told: raises, waits for the gate, dies."""
    what = at.get(place) if ctx.attempt == 1 else None
    if what == "raise":
        raise OSError(f"raised {place}")
    if what == "result":
        ctx.result = object()
    if what == "wait":
        say(place, ctx)
        wait_for("gate")
    if what == "die":
        os.kill(os.getpid(), 9)


def in_transaction(ctx, **at):
    print("printed before")
    with ctx.transaction() as connection:
        work(connection, ctx)
        ctx.result = {"by": ctx.attempt}
        reach("inside", at, ctx)
    print("printed after")
    reach("after", at, ctx)
    if "after" in at:
        print("came to its end")


job("w.transaction", timeout="20s", retry=NOW)(in_transaction)
job("w.apart", timeout="20s", retry=NOW, isolation="process")(in_transaction)


@job("w.finish", timeout="20s", retry=NOW)
def with_finish(ctx, url, **at):
    """In a session of the user's own."""
    with Session(create_engine(url)) as session:
        work(session, ctx)
        ctx.result = {"by": ctx.attempt}
        ctx.finish(session)
        reach("finished", at, ctx)
        if "rollback" in at and ctx.attempt == 1:
            session.rollback()
        else:
            session.commit()
        reach("after", at, ctx)


@job("w.leaves", retry=NOW)
def leaves_it_open(ctx, url):
    """Returns in an open transaction of a connection that nothing refers to any more."""
    import gc
    gc.disable()  # the collector might come by in time
    if url.startswith("sqlite"):
        import sqlite3
        mine = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        mine.execute("BEGIN IMMEDIATE")
    else:
        import psycopg
        mine = psycopg.connect(url.replace("+psycopg", ""))
    mine.execute(f"INSERT INTO work (job_id, attempt) VALUES ({ctx.job_id}, {ctx.attempt})")
    ctx.finish(mine)
'''


@pytest.fixture
def working(project: Project) -> Project:
    users_table(project.url, "job_id integer, attempt integer")
    return project.configure("run: {workers: 2, lease: 4s}\n", HANDLERS)


def add(project: Project, kind: str, **at: str) -> int:
    payload = dict(at, url=plain_url(project.url)) if kind == "w.finish" else dict(at)
    return project.add(kind, json.dumps(payload))


def worked(project: Project) -> list[tuple[int, int]]:
    return [tuple(row) for row in project.sql("SELECT job_id, attempt FROM work ORDER BY job_id, attempt")]


def ran(project: Project, job_id: int) -> list[tuple[Any, ...]]:
    return project.sql(
        f"SELECT outcome, error_type, error, output FROM cronjobs_job_runs WHERE job_id = {job_id} ORDER BY attempt"
    )


KINDS = ["w.transaction", "w.apart", "w.finish"]


# --- real ticks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_work_and_the_success_are_there_together(working: Project, kind: str) -> None:
    job_id = add(working, kind)
    tick = working.tick()
    assert (tick.wait(), tick.stderr) == (0, "")
    assert worked(working) == [(job_id, 1)]
    job = working.job(job_id)
    assert (job["status"], job["attempts"], job["failures"]) == ("succeeded", 1, 0)
    assert json.loads(job["result"]) if working.is_sqlite else job["result"] == {"by": 1}
    [line] = events(working.log(), "job.succeeded")
    assert f"job_id={job_id}" in line
    assert not events(working.log(), "job.lease_lost")
    [(outcome, error_type, error, output)] = ran(working, job_id)
    assert (outcome, error_type, error) == ("succeeded", None, None)
    if kind != "w.finish":
        assert output.splitlines() == ["printed before", "printed after"]


@pytest.mark.parametrize(("kind", "where"), [("w.transaction", "inside"), ("w.finish", "finished")])
def test_an_exception_in_the_transaction_takes_both_back(working: Project, kind: str, where: str) -> None:
    job_id = add(working, kind, **{where: "raise"})
    working.tick()
    assert worked(working) == []
    assert working.job(job_id)["status"] == "failed"
    assert working.job(job_id)["last_error"] == f"raised {where}"
    working.make_due()
    working.tick()
    assert worked(working) == [(job_id, 2)]
    assert working.outcomes(job_id) == ["failed", "succeeded"]


def test_a_transaction_left_open_fails_the_attempt_and_blocks_nobody(working: Project) -> None:
    job_id = working.add("w.leaves", json.dumps({"url": plain_url(working.url)}))
    other = working.add("t.quick")
    assert working.tick().wait() == 0
    assert worked(working) == []
    assert [row[:2] for row in ran(working, job_id)] == [("failed", "NotCommitted")]
    assert working.job(other)["status"] == "succeeded"


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_exception_is_recorded_and_changes_nothing(working: Project, kind: str) -> None:
    job_id = add(working, kind, after="raise")
    assert working.tick().wait() == 0
    assert worked(working) == [(job_id, 1)]
    assert (working.job(job_id)["status"], working.job(job_id)["last_error"]) == ("succeeded", None)
    [(outcome, error_type, error, _)] = ran(working, job_id)
    assert (outcome, error_type, error) == ("succeeded", "OSError", "raised after")
    [line] = events(working.log(), "job.succeeded")
    assert "the handler's transaction was committed; then this error followed: raised after" in line


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["w.transaction", "w.apart"])
def test_code_behind_the_commit_runs_on_without_a_lease(working: Project, kind: str) -> None:
    job_id = add(working, kind, after="wait")
    tick = working.start()
    until(lambda: working.effects("after"))
    assert working.job(job_id)["status"] == "succeeded"
    pass_a_lease(working)
    working.open()
    assert tick.wait() == 0
    [(_, _, _, output)] = ran(working, job_id)
    assert output.splitlines() == ["printed before", "printed after", "came to its end"]
    assert not events(working.log(), "job.lease_lost")
    assert len(events(working.log(), "job.succeeded")) == 1
    assert worked(working) == [(job_id, 1)]


def pass_a_lease(project: Project) -> None:
    """Time passes by the database's clock: more than the lease that these ticks take."""
    now = (
        "SELECT (julianday('now') - 2440587.5) * 86400.0"
        if project.is_sqlite
        else "SELECT extract(epoch FROM clock_timestamp())::float8"
    )
    start = project.value(now)
    until(lambda: project.value(now) - start > 2.2)


@pytest.mark.parametrize("kind", ["w.transaction", "w.apart"])
def test_a_result_that_is_not_json_is_not_kept_and_breaks_nothing(working: Project, kind: str) -> None:
    job_id = add(working, kind, inside="result")
    assert working.tick().wait() == 0
    assert worked(working) == [(job_id, 1)]
    assert (working.job(job_id)["status"], working.job(job_id)["result"]) == ("succeeded", None)
    [(outcome, error_type, error, output)] = ran(working, job_id)
    assert (outcome, error_type) == ("succeeded", None)
    assert "result" in error
    assert output.splitlines() == ["printed before", "printed after"]


def test_a_transaction_that_was_not_committed_is_a_failure(working: Project) -> None:
    """The handler returned, and its work is gone: that must not read "succeeded"."""
    job_id = add(working, "w.finish", rollback="yes")
    working.tick()
    assert worked(working) == []
    job = working.job(job_id)
    assert (job["status"], job["error_type"]) == ("failed", "NotCommitted")
    assert "commit it before the handler returns" in job["last_error"]
    working.make_due()
    working.tick()
    assert worked(working) == [(job_id, 2)]


@pytest.fixture
def on_postgresql(postgres_project: Project) -> Project:
    """A process that is frozen in a transaction keeps SQLite's write lock: there nobody can take its job over."""
    users_table(postgres_project.url, "job_id integer, attempt integer")
    return postgres_project.configure("run: {workers: 2, lease: 4s}\n", HANDLERS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["w.transaction", "w.apart"])
def test_a_runner_that_was_frozen_in_its_transaction_writes_nothing(on_postgresql: Project, kind: str) -> None:
    project = on_postgresql
    job_id = add(project, kind, inside="wait")
    frozen = project.start(**patched(project, WITHOUT_WATCHDOG))
    until(lambda: project.effects("inside"))
    frozen.send(signal.SIGSTOP)
    until(project.lease_ended)
    # A runner frozen amid a renewal holds the row: later ticks recover it, once the server has ended that session.
    until(lambda: project.tick().wait() == 0 and worked(project) == [(job_id, 2)])
    project.open()
    frozen.send(signal.SIGCONT)
    frozen.wait()
    assert worked(project) == [(job_id, 2)]
    assert project.job(job_id)["attempts"] == 2


@pytest.mark.slow
def test_a_transaction_that_waits_does_not_keep_its_lease_from_being_renewed(on_postgresql: Project) -> None:
    project = on_postgresql
    job_id = add(project, "w.transaction", inside="wait")
    tick = project.start()
    until(lambda: project.effects("inside"))
    pass_a_lease(project)
    assert not project.lease_ended()
    project.open()
    assert tick.wait() == 0
    assert worked(project) == [(job_id, 1)]
