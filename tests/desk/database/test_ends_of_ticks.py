"""What a stopping tick interrupts and leaves undone, and what the next tick reports about it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from support.hosts import Host, put

from cronjobs.clock import SYSTEM
from cronjobs.desk.insight.explain_facts import AttemptFacts, JobFacts, JobLife, Now
from cronjobs.desk.insight.explain_job import explain_job
from cronjobs.engine.config.settings import RunSettings, Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs
from cronjobs.engine.database.tables import jobs as jobs_table
from cronjobs.engine.execution.attempt import Attempt, InFlight
from cronjobs.engine.execution.worker_threads import Workers
from cronjobs.engine.jobs import registry
from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.engine.store import claims
from cronjobs.engine.tick.claim_planner import ClaimPlanner
from cronjobs.engine.tick.loop import Loop
from cronjobs.engine.tick.result import TickFilter
from cronjobs.model import RetryPolicy
from cronjobs.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(SYSTEM.now())


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


@pytest.fixture
def host(database: Database, tmp_path: Path) -> Host:
    return Host(database, tmp_path)


def rows(database: Database, *columns: Any) -> list[tuple[Any, ...]]:
    with database.read() as connection:
        return [tuple(row) for row in connection.execute(select(*columns).order_by(columns[0])).all()]


# --- on_shutdown ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("moment", ["as it claims", "after the claim was committed", "before it claims"])
def test_on_shutdown_drop_cancels_all_that_was_claimed_and_not_begun_and_nothing_else(
    database: Database, host: Host, monkeypatch: pytest.MonkeyPatch, workers: int, moment: str
) -> None:
    ran: list[int] = []

    @registry.job("t.stale", on_shutdown="drop")
    def stale(ctx: Any) -> None:
        ran.append(ctx.job_id)

    @registry.job("t.kept")
    def kept(ctx: Any) -> None:
        ran.append(ctx.job_id)

    loops: list[Loop] = []
    run, claim = Loop.run, claims.claim

    def noted(loop: Loop) -> str:
        loops.append(loop)
        if moment == "before it claims":
            loop.stop("SIGTERM")
        return run(loop)

    def signalled(*args: Any, **kwargs: Any) -> Any:
        found = claim(*args, **kwargs)
        if moment == "as it claims":
            loops[0].stop("SIGTERM")
        return found

    after = Loop._after

    def signalled_after(loop: Loop, batch: Any, turn: Any) -> None:
        if moment == "after the claim was committed" and turn.claimed:
            loop.stop("SIGTERM")
        after(loop, batch, turn)

    monkeypatch.setattr(Loop, "run", noted)
    monkeypatch.setattr(claims, "claim", signalled)
    monkeypatch.setattr(Loop, "_after", signalled_after)
    host.carry(run=RunSettings(workers=workers))
    ids = [put(database, job_type=job_type) for job_type in ("t.stale", "t.kept") * 4]
    host.tick()
    assert ran == []
    found = rows(
        database,
        *(jobs_table.c[name] for name in ("id", "job_type", "attempts", "status", "last_error", "failures", "losses")),
    )
    claimed = [row for row in found if row[2]]
    assert len(found) == len(ids)
    assert bool(claimed) is (moment != "before it claims")
    for row in found:
        is_dropped = row in claimed and row[1] == "t.stale"
        assert row[3:] == (("cancelled", "dropped at shutdown") if is_dropped else ("queued", None)) + (0, 0)
    dropped = sum(row[1] == "t.stale" for row in claimed)
    assert [row[1] for row in rows(database, job_runs.c.job_id, job_runs.c.outcome)] == ["cancelled"] * dropped
    assert len(host.said("job.cancelled")) == dropped


def test_what_was_given_back_as_it_waited_too_long_is_still_run_by_the_same_tick(
    database: Database, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine no worker may come to it within a second; nothing else is due then, and nothing runs."""
    ran: list[int] = []

    @registry.job("t.quick")
    def quick(ctx: Any) -> None:
        ran.append(ctx.job_id)

    hand, handed = Workers.hand, list[int]()

    def late(workers: Workers, attempt: Attempt) -> bool:
        handed.append(attempt.job.id)
        if handed.count(attempt.job.id) > 1:
            return hand(workers, attempt)
        attempt.on_its_way = True
        attempt.taken -= 2
        workers._inbox.put(attempt)
        return True

    monkeypatch.setattr(Workers, "hand", late)
    ids = [put(database, job_type="t.quick") for _ in range(3)]
    host.carry(run=RunSettings(workers=5))
    result = host.tick()
    assert sorted(ran) == ids, (result.ended, host.said("tick.fault"))
    assert sorted(handed) == sorted(ids * 2)


# --- long jobs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget_s", "long_jobs", "longest_s"),
    [(55, 4, 50), (15, 4, 10), (9, 4, 6), (6, 1, 4), (55, 0, 55), (3600, 1, 3595)],
)
def test_a_declared_timeout_above_what_a_started_tick_has_makes_a_long_job(
    tmp_path: Path, budget_s: int, long_jobs: int, longest_s: int
) -> None:
    run = RunSettings(budget=timedelta(seconds=budget_s), long_jobs=long_jobs)
    assert run.longest_in_tick == timedelta(seconds=longest_s)
    assert run.default_timeout <= run.longest_in_tick  # undeclared, it is never a long job
    types = {
        name: JobType(name, timedelta(seconds=timeout_s), RetryPolicy())
        for name, timeout_s in (("fits", longest_s), ("long", longest_s + 0.001))
    }
    settings = replace(Settings(tmp_path / "cronjobs.yaml", tmp_path), run=run)
    intake = ClaimPlanner(settings, JobTypes(types), TickFilter(), 4)
    ordinary = intake.admission(timedelta(seconds=budget_s), InFlight())
    assert list(ordinary.fitting) == ["fits"]
    assert ordinary.remaining_s == longest_s
    long = intake.long_admission()
    if long_jobs:
        assert long is not None
        assert (list(long.fitting), long.longest_s) == (["long"], longest_s)
    else:
        assert long is None


# --- what the next tick says ------------------------------------------------------------------------------------------


def test_a_timeout_that_the_next_tick_settles_began_when_its_handler_did(
    database: Database, host: Host, clock: FakeClock
) -> None:
    opened = threading.Event()

    @registry.job("t.hang", timeout="0.2s", retry=RetryPolicy(max_attempts=1))
    def hang() -> None:
        opened.wait(20)

    job_id = put(database, job_type="t.hang")
    host.carry(run=RunSettings(workers=1))
    assert host.tick().stuck
    [(_, began)] = rows(database, job_runs.c.job_id, job_runs.c.started_at)
    clock.advance(timedelta(seconds=90))
    host.tick()
    opened.set()
    [(_, status, started_at)] = rows(database, jobs_table.c.id, jobs_table.c.status, jobs_table.c.started_at)
    assert (job_id, status, started_at) == (job_id, "dead", began)


def life(job: JobFacts) -> tuple[str, ...]:
    around = Now(now=job.run_at + timedelta(minutes=5), quiet_after=timedelta(hours=1))
    return explain_job(JobLife(job.id, "UTC", around, job)).sentences


@pytest.mark.parametrize(
    ("outcome", "status", "says_begun"),
    [
        ("interrupted", "queued", False),
        ("snoozed", "queued", False),
        ("cancelled", "queued", False),  # cancelled, and then retried by a person
        ("succeeded", "queued", False),
        ("snoozed", "running", False),
        ("interrupted", "cancelled", False),
        ("succeeded", "succeeded", True),
        ("cancelled", "cancelled", True),
    ],
)
def test_a_run_at_that_was_moved_is_not_held_against_the_first_attempt(
    outcome: str, status: str, says_begun: bool
) -> None:
    now = SYSTEM.now()
    attempt = AttemptFacts(1, outcome, now, now + timedelta(seconds=3), "alpha")
    due = now - timedelta(seconds=10) if says_begun else now + timedelta(minutes=10)
    told = " ".join(
        life(JobFacts(1, "t.x", status, "default", due, now, attempt=1, started_at=now, attempts=(attempt,)))
    )
    assert "before it was due" not in told
    assert ("It was due at" in told) is says_begun
