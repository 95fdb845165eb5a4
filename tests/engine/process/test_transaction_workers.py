"""Four workers in ``ctx.transaction()`` in each of two ticks: leases hold, ticks end on time, stop requests work."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import until
from support.targets import users_table
from support.ticking import Project, Tick, events

import cronjobs

HANDLERS = """
from cronjobs import Cancelled
from sqlalchemy import text

NOW = RetryPolicy(base="1s", jitter=0)


@job("w.busy", timeout="20s", retry=NOW)
def busy(ctx, seconds):
    with ctx.transaction() as connection:
        connection.execute(text("INSERT INTO work VALUES (:id, :attempt)"), {"id": ctx.job_id, "attempt": ctx.attempt})
        say("inside", ctx)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.01)
            if ctx.cancelled:
                say("told", ctx)
                ctx.check()
    say("committed", ctx)
"""


@pytest.fixture
def working(project: Project) -> Project:
    users_table(project.url, "job_id integer, attempt integer")
    lease = "10s" if project.is_sqlite else "4s"  # shorter than the longest job, and no busy machine misses a renewal
    return project.configure(f"run: {{workers: 4, lease: {lease}, shutdown_grace: 3s}}\n", HANDLERS)


def two_ticks(project: Project) -> tuple[Tick, Tick]:
    return project.start(), project.start()


@pytest.mark.slow
@pytest.mark.either
def test_no_lease_is_lost_and_everything_is_done_once(working: Project) -> None:
    seconds = [0.5, 0.75, 1.0] if working.is_sqlite else [1.0, 3.0, 6.0]
    jobs = [working.add("w.busy", json.dumps({"seconds": seconds[n % 3]})) for n in range(12)]
    if working.is_sqlite:
        too_long = working.add("w.busy", '{"seconds": 3.0}', priority="0", max_attempts="1")
    ticks = two_ticks(working)
    assert [tick.wait(50) for tick in ticks] in ([0, 0], [1, 0], [0, 1])
    for tick in ticks:
        assert tick.took_s < 55
    assert "locked" not in working.log() + ticks[0].stderr + ticks[1].stderr
    assert not events(working.log(), "job.lease_lost")
    assert not events(working.log(), "database.trouble")
    assert working.sql("SELECT job_id, attempt FROM work ORDER BY job_id") == [(job_id, 1) for job_id in jobs]
    assert {working.job(job_id)["status"] for job_id in jobs} == {"succeeded"}
    if working.is_sqlite:
        assert working.job(too_long)["error_type"] == "cronjobs.errors.TransactionTooLong"
        [began] = [effect for effect in working.effects("inside") if effect.job_id == too_long]
        # empty if all came before that
        later = [effect.at for effect in working.effects("inside") if effect.at > began.at]
        assert not later or 1.9 < min(later) - began.at < 2.9  # at 2 s the next begins, while that handler still works


@pytest.mark.slow
def test_when_told_to_stop_the_contexts_say_so_inside_their_transactions(working: Project) -> None:
    for _ in range(8):
        working.add("w.busy", '{"seconds": %s}' % (1.5 if working.is_sqlite else 15))
    ticks = two_ticks(working)
    until(lambda: working.value("SELECT count(*) FROM cronjobs_ticks") == 2, within_s=30)  # both are at work
    at_once = 1 if working.is_sqlite else 8  # how many can be inside of their transactions
    until(lambda: len(working.effects("inside")) >= at_once)
    before = len(working.effects("committed"))
    for tick in ticks:
        tick.send(signal.SIGTERM)
    assert [tick.wait(60) for tick in ticks] == [143, 143]
    # A handler that is not told in time commits (on PostgreSQL 15 s later, past the grace of 3 s, it never does).
    assert len(working.effects("told")) >= at_once - (len(working.effects("committed")) - before)
    assert len(working.sql("SELECT * FROM work")) == len(working.effects("committed"))
    assert working.value("SELECT count(*) FROM cronjobs_jobs WHERE status = 'running'") == 0
    assert not events(working.log(), "job.lease_lost")


def test_statements_at_the_limit_and_the_thread_that_ends_them_never_wait_for_each_other(tmp_path: Path) -> None:
    """A callback of SQLite's, which needs the GIL while it has the connection's mutex, froze the whole process."""
    program = f"""
import time
from sqlalchemy import text
from cronjobs.engine.database import connection
from cronjobs.engine.database.address import parse_url
from cronjobs.errors import TransactionTooLong

connection.HANDLER_LIMIT_S = 0.002
database = connection.Database(parse_url("sqlite:///{tmp_path}/jobs.db"))
numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) SELECT count(*) FROM n"
for _ in range(400):
    try:
        with database.handler_transaction(5) as (opened, end):
            while True:
                opened.execute(text(numbers))
    except TransactionTooLong:
        pass
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    source = "".join(file.read_text() for file in Path(cronjobs.__file__).parent.rglob("*.py"))
    assert not re.search(r"\.set_(authorizer|progress_handler|trace_callback)\(|\.create_function\(", source)
