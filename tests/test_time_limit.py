"""The tick is gone on time whatever handlers, databases and signals do, and no second owner starts before it is.

Eight ways to hang, each on both databases, with real processes. Judged by the effects file: what the handler did, when,
and in which process.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from commands import until
from ticking import Effect, Project, Tick, rivals, stop_and_go

from cronjobs.clock import SYSTEM

BUDGET_S = 2.5
BUDGET = f"{BUDGET_S}s"
LATEST_S = BUDGET_S + 1.5

HANGS = '''
def first_try(ctx):
    """The first attempt hangs; those after it prove that the job comes back."""
    say("start" if ctx.attempt == 1 else "ran", ctx)
    return ctx.attempt == 1

SOON = RetryPolicy(base="1s", jitter=0)

@job("hang.loop", timeout="0.5s", retry=SOON)
def loop(ctx):
    if first_try(ctx):
        while True:
            say("beat", ctx)
            for _ in range(20_000):
                pass

@job("hang.sleep", timeout="0.5s", retry=SOON)
def sleep(ctx):
    if first_try(ctx):
        time.sleep(1000)

@job("hang.recv", timeout="0.5s", retry=SOON)
def recv(ctx):
    import socket
    if first_try(ctx):
        ours, theirs = socket.socketpair()
        ours.recv(1)

@job("hang.lock", timeout="0.5s", retry=SOON)
def lock(ctx):
    if first_try(ctx):
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

@job("hang.gil", timeout="0.5s", retry=SOON)
def gil(ctx):
    import ctypes
    if first_try(ctx):
        ctypes.PyDLL(None).sleep(1000)  # a PyDLL call keeps the GIL: no other Python code runs in this process

@job("hang.regex", timeout="0.5s", retry=SOON)
def regex(ctx):
    import re
    if first_try(ctx):
        re.match("(a*)*b", "a" * 60)  # the user's own way to hold the GIL, no C of his needed

@job("hang.swallow", timeout="0.5s", retry=SOON)
def swallow(ctx):
    if first_try(ctx):
        while True:
            try:
                ctx.check()
                time.sleep(0.01)
            except BaseException:
                say("swallowed", ctx)
                time.sleep(0.05)
'''


def hanging(project: Project, job_type: str) -> tuple[int, int]:
    """A project with one job that hangs and one beside it that does not; their ids."""
    project.configure("run: {workers: 2}\n", HANGS)
    return project.add(job_type), project.add("t.quick")


def started(project: Project, what: str = "start") -> Callable[[], list[Effect]]:
    return lambda: project.effects(what)


def assert_gone_on_time(tick: Tick) -> None:
    assert tick.took_s <= LATEST_S, f"gone after {tick.took_s:.2f} s of a budget of {BUDGET_S} s"


def assert_one_owner(project: Project, job_id: int, tick: Tick) -> None:
    """Nobody else began this job before the first runner was gone."""
    assert tick.gone_at is not None
    for effect in project.effects():
        if effect.job_id == job_id:
            assert effect.pid == tick.pid or effect.at >= tick.gone_at - 0.02, effect
            assert effect.pid != tick.pid or effect.attempt == 1, effect


@pytest.mark.parametrize("way", ["loop", "sleep", "recv", "lock", "swallow"])
def test_a_handler_that_never_returns_is_recorded_timed_out_and_never_runs_twice_at_once(
    project: Project, way: str
) -> None:
    hanging_id, quick_id = hanging(project, f"hang.{way}")
    tick = project.start("--budget", BUDGET)
    until(started(project))
    with rivals(project) as others:
        assert tick.wait() == 0
    assert_gone_on_time(tick)
    assert others
    # Its row is leased for as long as the code could run, and its history says what happened, before any other tick.
    until(project.lease_ended, 5)
    after = project.tick()
    assert after.wait() == 0
    assert_one_owner(project, hanging_id, tick)
    assert project.outcomes(hanging_id)[0] == "timed_out"
    assert project.job(hanging_id)["failures"] == 1
    assert project.outcomes(quick_id) == ["succeeded"]
    project.make_due()
    until(lambda: project.tick() and project.job(hanging_id)["status"] == "succeeded")
    assert project.times_ran() == {quick_id: 1, hanging_id: 1}


@pytest.mark.parametrize("way", ["gil", "regex"])
def test_a_c_call_that_holds_the_gil_is_ended_by_the_kernel_and_recorded_lost(project: Project, way: str) -> None:
    hanging_id, quick_id = hanging(project, f"hang.{way}")
    tick = project.start("--budget", BUDGET)
    until(started(project))
    with rivals(project) as others:
        assert tick.wait() == -signal.SIGALRM  # 142 in a shell
    assert_gone_on_time(tick)
    assert others
    assert "handlers.py" in tick.stderr  # the stacks say where it hung
    assert project.job(hanging_id)["status"] == "running"  # leased on: the next runner waits for the lease
    project.let_leases_end()
    assert project.tick().wait() == 0
    assert_one_owner(project, hanging_id, tick)
    assert project.outcomes(hanging_id) == ["lost", "succeeded"]
    assert project.job(hanging_id)["failures"] == 0
    assert project.times_ran()[hanging_id] == 1
    assert project.outcomes(quick_id)[-1] == "succeeded"


# --- the database hangs -----------------------------------------------------------------------------------------------


@contextmanager
def write_lock(project: Project) -> Iterator[None]:
    """Someone else's open transaction that lets nobody write."""
    connection = project.connect()
    connection.execute("BEGIN IMMEDIATE" if project.is_sqlite else "BEGIN")
    if not project.is_sqlite:
        connection.execute("LOCK TABLE cronjobs_jobs IN ACCESS EXCLUSIVE MODE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


HOLDER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
time.sleep(1000)
"""


@contextmanager
def frozen_server(project: Project) -> Iterator[None]:
    """PostgreSQL's backends stopped in mid-conversation; for SQLite a stopped process that holds the write lock."""
    if project.is_sqlite:
        with subprocess.Popen([sys.executable, "-c", HOLDER, project.file], stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline()
            holder.send_signal(signal.SIGSTOP)
            try:
                yield
            finally:
                holder.kill()
        return
    with psycopg.connect(project.url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'cronjobs'"
        )
        pids = [row[0] for row in found.fetchall()]
    assert pids
    stop_and_go(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        stop_and_go(pids, signal.SIGCONT)


@pytest.mark.parametrize("how", [write_lock, frozen_server])
def test_a_database_that_hangs_in_mid_tick_does_not_hold_the_tick(
    project: Project, how: Callable[[Project], contextmanager[None]]
) -> None:
    project.configure("run: {workers: 2}\n")
    job_id = project.add("t.gated", timeout_s=1)
    tick = project.start("--budget", BUDGET)
    until(started(project))
    with how(project):
        project.open()  # the work is done, and its result cannot be written
        code = tick.wait()
    assert_gone_on_time(tick)
    assert code in (4, -signal.SIGALRM)
    assert len(project.effects("end")) == 1
    assert project.job(job_id)["status"] == "running"
    assert project.outcomes(job_id) == []
    project.let_leases_end()
    assert project.tick().wait() == 0
    assert project.outcomes(job_id) == ["lost", "succeeded"]
    assert_one_owner(project, job_id, tick)


@pytest.mark.parametrize("how", [write_lock, frozen_server])
def test_a_database_that_hangs_from_the_start_ends_the_tick_before_any_handler_runs(
    project: Project, how: Callable[[Project], contextmanager[None]]
) -> None:
    job_id = project.add("t.quick")
    if how is frozen_server and not project.is_sqlite:
        with psycopg.connect(project.url, application_name="cronjobs"), frozen_server(project):
            pass  # nothing of the tick's is there to be frozen; the next test freezes the postmaster
    with write_lock(project):
        tick = project.tick("--budget", BUDGET)
    assert_gone_on_time(tick)
    assert tick.wait() in (4, -signal.SIGALRM)
    assert project.effects() == []
    assert project.job(job_id)["attempts"] == 0


def test_a_frozen_postmaster_ends_the_tick_with_exit_4_or_the_kernel(postgres_migrated: str, tmp_path: object) -> None:
    raise AssertionError
