"""Limits over real ticks on one database, judged by the times at which handlers began and ended."""

from __future__ import annotations

import signal
import subprocess
from itertools import groupby

import pytest
from support.commands import until
from support.ticking import Effect, Project, Tick, events

LIMITS = """
run: {workers: 4, budget: 30s}
limits: {"smtp:": 3, "smtp:bulk:": 1, "tenant:": {each: 1}, "one:": 1}
"""
HANDLERS = """
@job("t.work")
def work(ctx):
    say("start", ctx)
    time.sleep(0.03)
    say("end", ctx)


@job("t.stays")
def stays(ctx):
    say("start", ctx)
    wait_for("gate")
    say("end", ctx)
"""
PROCESSES = 4


@pytest.fixture
def project(project: Project) -> Project:
    return project.configure(LIMITS, HANDLERS)


def keys_of(project: Project) -> dict[int, str]:
    return {row[0]: row[1] or "" for row in project.sql("SELECT id, concurrency_key FROM cronjobs_jobs")}


def most_at_once(project: Project, prefix: str, killed: dict[int, float]) -> int:
    """How many handlers of keys with this beginning ran at the same time; a killed process ends all that it runs."""
    keys = keys_of(project)
    began: dict[tuple[int, int], Effect] = {}
    moments: list[tuple[float, int]] = []
    for effect in project.effects():
        if not keys[effect.job_id].startswith(prefix):
            continue
        attempt = effect.job_id, effect.attempt
        if effect.what == "start":
            began[attempt] = effect
            moments.append((effect.at, 1))
        else:
            del began[attempt]
            moments.append((effect.at, -1))
    moments += [(killed[effect.pid], -1) for effect in began.values()]
    running = most = 0
    for _, change in sorted(moments):
        running += change
        most = max(most, running)
    assert running == 0
    return most


@pytest.mark.slow
def test_four_ticks_one_of_them_killed_never_pass_a_limit_and_do_all(project: Project) -> None:
    for n in range(24):
        project.add("t.work", concurrency_key=f"smtp:bulk:{n % 3}", priority=0)
        project.add("t.work", concurrency_key=f"smtp:{n % 5}", priority=1)
        project.add("t.work", concurrency_key=f"tenant:{n % 4}", priority=2)
        project.add("t.work", concurrency_key="one:a", priority=5 if n % 2 else 3)
        project.add("t.work", priority=9)
    ticks = [project.start() for _ in range(PROCESSES)]
    victim = first_with_limit(project, ticks)
    victim.send(signal.SIGKILL)
    assert victim.wait() == -9
    killed = {victim.pid: victim.gone_at or 0.0}
    assert project.tick().wait() == 0  # its death is certain on this host: what it held is recovered
    for tick in ticks:
        if tick is not victim:
            assert (tick.wait(40), tick.stderr) == (0, "")
    while project.statuses().keys() != {"succeeded"}:
        assert project.tick().wait() == 0
    times = project.times_ran("end")
    assert len(times) == 24 * 5
    of_the_killed = {effect.job_id for effect in project.effects() if effect.pid == victim.pid}
    # the killed tick's ends were not recorded
    assert {job_id for job_id, count in times.items() if count > 1} <= of_the_killed
    assert most_at_once(project, "smtp:", killed) <= 3
    assert most_at_once(project, "smtp:bulk:", killed) == 1
    for n in range(4):
        assert most_at_once(project, f"tenant:{n}", killed) == 1
    assert most_at_once(project, "one:", killed) == 1
    assert most_at_once(project, "", killed) > 1  # the ticks did run jobs at the same time


def first_with_limit(project: Project, ticks: list[Tick]) -> Tick:
    """The tick that runs a job under a limit of one, while it does."""
    keys: dict[int, str] = keys_of(project)
    found: list[Tick] = []

    def running() -> bool:
        ended = {effect.job_id for effect in project.effects("end")}
        now = [e for e in project.effects("start") if e.job_id not in ended and keys[e.job_id].startswith("smtp:bulk:")]
        found[:] = [tick for tick in ticks if any(effect.pid == tick.pid for effect in now)]
        return bool(found)

    until(running, 30)
    return found[0]


def test_under_a_limit_of_one_all_ticks_together_keep_the_order(project: Project) -> None:
    for n in range(12):
        project.add("t.work", concurrency_key="one:a", priority=n * 7 % 4)
    ticks = [project.start() for _ in range(PROCESSES)]
    assert [tick.wait(40) for tick in ticks] == [0] * PROCESSES
    order = [row[0] for row in project.sql("SELECT id FROM cronjobs_jobs ORDER BY priority, run_at, id")]
    assert [job_id for job_id, _ in groupby(effect.job_id for effect in project.effects())] == order
    assert order != sorted(order)


def test_a_full_key_hides_nobody_behind_it(sqlite_project: Project) -> None:
    project = sqlite_project.configure(LIMITS, HANDLERS)
    for _ in range(12):
        project.add("t.stays", concurrency_key="smtp:a", priority=0)
    others = [project.add("t.work", priority=9, concurrency_key=key) for key in ("x", "tenant:1", "tenant:2")]
    tick = project.start()
    until(lambda: project.times_ran("end").keys() >= set(others))
    assert len(project.effects("start")) == 3 + len(others)
    project.open()
    assert tick.wait() == 0
    assert project.statuses() == {"succeeded": 15}


@pytest.mark.slow
def test_a_runner_that_is_frozen_while_it_judges_stops_nobody_else(postgres_project: Project) -> None:
    """No renewal waits for it, jobs without a limit begin; the tick stays, and takes the others once it can."""
    project = postgres_project.configure(LIMITS, HANDLERS)
    limited, free = project.add("t.work", concurrency_key="smtp:a"), project.add("t.work")
    frozen = project.connect()
    frozen.execute("BEGIN")
    frozen.execute("SELECT 1 FROM cronjobs_meta FOR NO KEY UPDATE")
    tick = project.start()
    until(lambda: project.job(free)["status"] == "succeeded")
    # Were this the end of what is due, the tick would end now.
    with pytest.raises(subprocess.TimeoutExpired):
        tick.wait(1)
    assert project.job(limited)["status"] == "queued"
    frozen.execute("ROLLBACK")
    frozen.close()
    assert tick.wait() == 0
    assert project.job(limited)["status"] == "succeeded"
    assert events(project.log(), "job.claimed")
