"""Handlers that block, in a separate process and in a thread: the processes are gone by the promised time.

The tests look from outside: handlers write the pids of all processes that they start, and /proc shows which are alive.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

import pytest
from support.commands import LINUX_ONLY, until
from support.ticking import Project, Tick, events

from cronjobs.clock import SYSTEM
from cronjobs.engine.probe.kernel_facts import process_started

pytestmark = pytest.mark.slow

HANDLERS = r'''
import ctypes, re, signal, socket, sqlite3, subprocess

libc = ctypes.CDLL(None)
SOON = RetryPolicy(base="1s", jitter=0)

def way(function):
    """Registered as thread.block.NAME and process.block.NAME."""
    def block(ctx):
        born(ctx, os.getpid())
        say("start", ctx)
        function(ctx)
    block.__qualname__ = function.__name__
    for kind in ("thread", "process"):
        job(f"{kind}.block.{function.__name__}", timeout=TIMEOUT, isolation=kind, retry=SOON)(block)
    return function

def born(ctx, pid):
    os.write(_effects, f"{time.monotonic():.6f} born {ctx.job_id} {ctx.attempt} {pid}\n".encode())

@way
def busy_loop(ctx):
    while True: pass

@way
def sleeps(ctx):
    time.sleep(1000)

@way
def waits_for_a_socket(ctx):
    ours, theirs = socket.socketpair()
    ours.recv(1)

@way
def takes_a_lock_twice(ctx):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

@way
def runs_a_command(ctx):
    told = f"echo 0 born {ctx.job_id} {ctx.attempt} $$ >> {HERE}/effects"
    subprocess.run(["sh", "-c", f"{told}; exec sleep 1000"])

@way
def queries_postgresql(ctx):
    import psycopg
    with psycopg.connect(URL) as connection:
        connection.execute("SELECT pg_sleep(1000)")

@way
def queries_sqlite(ctx):
    count = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    sqlite3.connect(":memory:").execute(count).fetchall()

@way
def waits_for_a_sqlite_lock(ctx):
    file = os.path.join(HERE, f"locked-{ctx.job_id}.db")
    first = sqlite3.connect(file, isolation_level=None)
    first.execute("BEGIN EXCLUSIVE")
    sqlite3.connect(file, isolation_level=None, timeout=1000).execute("BEGIN EXCLUSIVE")

@way
def ignores_sigterm(ctx):
    libc.signal(signal.SIGTERM, 1)  # SIG_IGN; signal.signal works in main threads only
    say("deaf", ctx)
    time.sleep(1000)

@way
def swallows_what_stops_it(ctx):
    while True:
        try:
            ctx.check()
            time.sleep(0.01)
        except BaseException:
            time.sleep(0.01)

@way
def forks(ctx):
    if os.fork() == 0:
        born(ctx, os.getpid())
        libc.signal(signal.SIGTERM, 1)
        while True: time.sleep(1)
    time.sleep(1000)

@way
def daemonises(ctx):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            born(ctx, os.getpid())
            while True: time.sleep(1)
        os._exit(0)
    time.sleep(1000)

# A call by PyDLL keeps the GIL, and so does a regular expression: nothing else in this process gets to run.

@way
def holds_the_gil_in_c(ctx):
    while True: ctypes.PyDLL(None).sleep(1000)

@way
def holds_the_gil_in_a_pattern(ctx):
    re.match("(a*)*b", "a" * 60)
'''

WAYS = re.findall(r"^@way\ndef (\w+)", HANDLERS, re.MULTILINE)
HOLD_THE_GIL = [name for name in WAYS if name.startswith("holds_the_gil")]
START_OTHERS = ["runs_a_command", "forks", "daemonises"]


@dataclass
class Blocked:
    """A tick in which a job of each way blocks, beside a neighbour that does not; ``ids`` by way."""

    project: Project
    tick: Tick
    ids: dict[str, int]
    neighbour_id: int
    last_seen: dict[int, datetime] = field(default_factory=dict)  # alive, by pid

    def pids(self, way: str) -> set[int]:
        """Everybody that this way is made of, as its handler and they themselves told."""
        return {effect.pid for effect in self.project.effects("born") if effect.job_id == self.ids[way]}

    def alive(self) -> set[int]:
        return {effect.pid for effect in self.project.effects("born") if process_started(effect.pid)}

    def watch_until_the_tick_ends(self, within_s: float) -> None:
        def look() -> bool:
            self.last_seen |= dict.fromkeys(self.alive(), SYSTEM.now())
            return self.tick.process.poll() is not None

        until(look, within_s)


@contextmanager
def blocked(project: Project, kind: str, ways: list[str], *, timeout_s: int, budget_s: int) -> Iterator[Blocked]:
    """Begin; nobody is left after the block."""
    constants = f"TIMEOUT, URL = {timeout_s}, {project.url!r}\n"
    project.configure(f"run: {{workers: {len(ways) + 1}, budget: {budget_s}s}}\n", constants + HANDLERS)
    ids = {way: project.add(f"{kind}.block.{way}") for way in ways}
    neighbour_id = project.add("t.quick", priority=6)
    begun = Blocked(project, project.start(), ids, neighbour_id)
    try:
        until(lambda: len(project.effects("born")) == len(ways) + len(START_OTHERS), timeout_s)
        yield begun
    finally:
        for pid in begun.alive() - {begun.tick.pid}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@LINUX_ONLY
def test_in_a_process_each_is_gone_by_its_timeout_and_grace_and_a_second(postgres_project: Project) -> None:
    """With all that it started, wherever that went; a neighbour in a thread does not notice."""
    project, timeout_s, grace_s = postgres_project, 15, 2
    with blocked(project, "process", WAYS, timeout_s=timeout_s, budget_s=30) as begun:
        assert project.outcomes(begun.neighbour_id) == ["succeeded"]
        begun.watch_until_the_tick_ends(timeout_s + grace_s + 10)
        assert begun.tick.wait() == 0
        left = begun.alive()
    for way, job_id in begun.ids.items():
        assert not begun.pids(way) & left, way
        assert project.outcomes(job_id) == ["timed_out"], way
        assert (project.job(job_id)["status"], project.job(job_id)["failures"]) == ("failed", 1), way
        [(error, started_at)] = project.sql(f"SELECT error, started_at FROM cronjobs_job_runs WHERE job_id = {job_id}")
        assert error.startswith("timed out after 15s"), way
        assert "could not be killed" not in error, way
        last_seen = max(begun.last_seen[pid] for pid in begun.pids(way))
        assert timeout_s <= (last_seen - started_at).total_seconds() <= timeout_s + grace_s + 1, way
    assert not events(project.log(), "tick.left_behind")


@LINUX_ONLY
def test_in_a_thread_each_is_gone_with_its_tick_and_what_it_left_behind_is_named(postgres_project: Project) -> None:
    project, budget_s = postgres_project, 15
    ways = [way for way in WAYS if way not in HOLD_THE_GIL]  # those are in test_time_limit
    with blocked(project, "thread", ways, timeout_s=8, budget_s=budget_s) as begun:
        until(lambda: project.effects("deaf"))
        begun.tick.send(signal.SIGTERM)
        assert begun.tick.wait() == 0
        assert begun.tick.took_s <= budget_s + 1
        left = begun.alive()
    for way, job_id in begun.ids.items():
        others = begun.pids(way) - {begun.tick.pid}
        assert len(others) == (way in START_OTHERS), way
        assert others <= left, way  # told, not hunted
        assert project.outcomes(job_id) == ["timed_out"], way
    assert begun.tick.pid not in left
    [said] = events(project.log(), "tick.left_behind")
    assert {int(pid) for pid in re.findall(r"pid ([0-9]+)", said)} == left
    assert project.outcomes(begun.neighbour_id) == ["succeeded"]
