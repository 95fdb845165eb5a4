"""Random handlers: whatever they raise, return, print or request, the jobs beside them are not affected.

The long form is CRONJOBS_HOSTILE_CASES=10000, from CRONJOBS_HOSTILE_SEED on.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select
from support import hostile
from support.hosts import Host
from support.ticking import Project

from cronjobs.clock import SYSTEM
from cronjobs.engine.config.settings import RunSettings, Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import job_runs
from cronjobs.engine.database.tables import jobs as jobs_table
from cronjobs.engine.execution.attempt import Attempt, WorkerContext
from cronjobs.engine.execution.child_protocol import read_outcome, write_outcome
from cronjobs.engine.execution.handler import run_attempt
from cronjobs.engine.execution.output import follow_threads
from cronjobs.engine.jobs import registry
from cronjobs.engine.jobs.job_types import JobType
from cronjobs.engine.tick.loop import Loop
from cronjobs.model import Job, Outcome, RetryPolicy, TimedOut
from cronjobs.testing import FakeClock

ROOT = Path(__file__).resolve().parents[3]
CASES = int(os.environ.get("CRONJOBS_HOSTILE_CASES", "240"))
FIRST_SEED = int(os.environ.get("CRONJOBS_HOSTILE_SEED", "1"))
BATCH, HEALTHY = 40, 20
TICK_S = 40.0
MEMORY_MIB = 300  # how much more than before, at most


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(SYSTEM.now())


@pytest.fixture
def good(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[int]]:
    """How often each healthy job ran."""
    seen: Counter[int] = Counter()
    lock, before, loops = threading.Lock(), dict(registry._registered), list[Loop]()
    run = Loop.run

    def noted(loop: Loop) -> str:
        loops[:] = [loop]
        return run(loop)

    def stop(job_id: int, reason: str) -> None:
        attempt = loops[0].in_flight.held.get(job_id)
        if attempt is not None:
            attempt.stop.set(reason)

    monkeypatch.setattr(Loop, "run", noted)

    @registry.job("h.good", timeout="5s")
    def healthy(ctx: Any) -> str:
        with lock:
            seen[ctx.job_id] += 1
        return "done"

    registry.job("h.hostile", timeout="10s", retry=RetryPolicy(max_attempts=3, base="1h", cap="1h"))(
        hostile.handler_of(stop)
    )
    follow_threads()
    yield seen
    registry._registered.clear()
    registry._registered.update(before)


def put_batch(database: Database, seeds: range) -> tuple[dict[int, int], list[int]]:
    """Hostile jobs by id, with their seeds; and healthy ones among them."""
    now = database.clock.now()
    common = {"run_at": now, "created_at": now, "queue": "default"}
    rows = [{"job_type": "h.hostile", "payload": {"seed": seed}, "priority": seed % 10} | common for seed in seeds]
    rows += [{"job_type": "h.good", "payload": {}, "priority": n % 10} | common for n in range(HEALTHY)]
    with database.write() as connection:
        made = connection.execute(insert(jobs_table).returning(jobs_table.c.id, sort_by_parameter_order=True), rows)
        ids = [int(job_id) for job_id in made.scalars()]
    return dict(zip(ids, seeds, strict=False)), ids[len(seeds) :]


def found(database: Database, *columns: Any) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(select(*columns)).all())


def run_alone(test: str) -> None:
    """Run *test* in a pytest of its own: what hostile handlers do to their process ends xdist's workers."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "1 passed" in done.stdout


@pytest.mark.slow
def test_healthy_jobs_beside_hostile_ones_succeed_once_and_the_tick_ends_in_time(
    database: Database, tmp_path: Path, good: Counter[int], request: pytest.FixtureRequest
) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        run_alone(request.node.nodeid)
        return
    host = Host(database, tmp_path)
    host.carry(run=RunSettings(workers=4))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cases = CASES if database.is_sqlite else max(BATCH, CASES // 10)
    for first in range(FIRST_SEED, FIRST_SEED + cases, BATCH):
        seeds, healthy_ids = put_batch(database, range(first, min(first + BATCH, FIRST_SEED + cases)))
        good.clear()
        host.events.clear()
        began = SYSTEM.monotonic()
        result = host.tick(budget_s=50)
        assert SYSTEM.monotonic() - began < TICK_S, first
        assert (result.fault, result.trouble, result.stuck) == (None, None, False), first
        assert good == dict.fromkeys(healthy_ids, 1), (first, result.ended, result.did())
        told = {event.facts.get("job_id") for event in host.events if event.name.startswith("job.")}
        claims = {event.facts["job_id"] for event in host.said("job.claimed")}
        ends = Counter(event.facts.get("job_id") for event in host.events if event.name in ENDS)
        assert claims == {*seeds, *healthy_ids}
        assert told == claims
        given_back = Counter(event.facts["job_id"] for event in host.said("job.released"))
        names = ("id", "status", "failures", "losses", "locked_by", "last_error", "attempts", "run_at")
        for row in found(database, *(jobs_table.c[name] for name in names)):
            seed = seeds.get(row.id, "healthy")
            assert row.locked_by is None, seed
            assert row.losses == 0, seed
            assert row.run_at < database.clock.now() + timedelta(days=3700), seed
            assert ends[row.id] + given_back[row.id] == row.attempts, seed
            assert (row.status in ("failed", "dead")) <= bool(row.last_error), seed
            assert (row.status == "succeeded") or seed != "healthy"
        runs = Counter(row.job_id for row in found(database, job_runs.c.job_id))
        assert runs == ends
        with database.write() as connection:
            connection.execute(job_runs.delete())
            connection.execute(jobs_table.delete())
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    assert grown_mib < MEMORY_MIB


ENDS = {"job.succeeded", "job.retried", "job.dead", "job.cancelled", "job.interrupted", "job.snoozed"}


@pytest.mark.slow
def test_what_a_process_writes_of_a_hostile_handler_is_what_its_runner_reads(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The way of ``isolation: process`` without the process: the outcome goes through the file."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        run_alone(request.node.nodeid)
        return
    registration = registry.Registration("h", hostile.handler_of(lambda *_: None))
    job_type = JobType("h", timedelta(seconds=20), RetryPolicy(), registration)
    surroundings = WorkerContext(Settings(tmp_path / "cronjobs.yaml", tmp_path))
    begun_at = datetime(2026, 3, 1, tzinfo=UTC)
    seen: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + CASES):
        attempt = Attempt(
            Job(seed, "h", {"seed": seed}, started_at=begun_at, locked_by="t"), job_type, job_type.timeout
        )
        attempt.started = SYSTEM.monotonic()
        ended: list[Outcome] = []
        thread = threading.Thread(
            target=lambda attempt=attempt, ended=ended: ended.append(run_attempt(attempt, surroundings, SYSTEM).outcome)
        )
        thread.start()
        thread.join(20)
        [outcome] = ended
        with tempfile.TemporaryFile() as answer:
            write_outcome(answer.fileno(), outcome)
            assert read_outcome(answer.fileno()) == outcome, seed
        json.dumps(getattr(outcome, "result", None), allow_nan=False)
        assert not isinstance(outcome, TimedOut), seed
        seen[type(outcome).__name__] += 1
    assert {"Failed", "Succeeded", "Snoozed"} <= seen.keys()


# --- in processes of their own ----------------------------------------------------------------------------------------

PROCESSES = int(os.environ.get("CRONJOBS_HOSTILE_PROCESSES", "5"))

LEAVING = r"""
import random, signal

def act(seed):
    dice = random.Random(seed)
    match dice.randrange(7):
        case 0: os._exit(dice.randrange(256))
        case 1: os.kill(os.getpid(), dice.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGUSR1)))
        case 2: os.kill(os.getppid(), signal.SIGKILL)
        case 3: os.closerange(0, 64)
        case 4: raise dice.choice((SystemExit(0), SystemExit("x"), KeyboardInterrupt(), GeneratorExit()))
        case 5:
            if os.fork() == 0 and dice.random() < 0.5: time.sleep(60)
        case _:
            for number in (signal.SIGTERM, signal.SIGALRM): signal.signal(number, signal.SIG_IGN)
            print("x" * 200_000)

@job("h.leaving", isolation="process", timeout="8s", retry=RetryPolicy(base="30m", max_attempts=3))
def leaving(ctx, seed):
    say("hostile", ctx)
    act(seed)
"""


@pytest.mark.slow
def test_however_a_handlers_process_ends_its_job_has_an_end_and_the_others_do_not_notice(
    sqlite_project: Project,
) -> None:
    project = sqlite_project.configure("run: {workers: 4}\n", LEAVING)
    for first in range(FIRST_SEED, FIRST_SEED + PROCESSES, 12):
        seeds = range(first, min(first + 12, FIRST_SEED + PROCESSES))
        hostile_ids = {project.add("h.leaving", json.dumps({"seed": seed})): seed for seed in seeds}
        quick_ids = [project.add("t.quick", priority=n) for n in (0, 5, 9)]
        tick = project.tick(within_s=80)
        assert tick.wait() in (0, 1), (first, tick.stderr)
        assert tick.took_s < 60
        for job_id in quick_ids:
            assert project.outcomes(job_id) == ["succeeded"]
        assert {job_id: project.times_ran()[job_id] for job_id in quick_ids} == dict.fromkeys(quick_ids, 1)
        for job_id, seed in hostile_ids.items():
            job = project.job(job_id)
            assert (job["status"] in ("succeeded", "failed"), job["losses"], job["locked_by"]) == (True, 0, None), seed
            assert job["status"] == "succeeded" or job["last_error"], seed
            assert project.times_ran("hostile")[job_id] == 1, seed
