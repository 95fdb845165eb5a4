"""Handlers that fork or change signals and timers. A forked copy of the tick does none of the tick's work.

Each case is a small program for one handler: what it does to signals, how it forks, what the copy does, whether it is
waited for. Many of them run in one tick beside healthy jobs. The judge is always the same: every healthy job and every
program ran exactly once, the tick ended in time and by itself, nothing held cron's pipe, and what was left is named.

``CRONJOBS_TESTS_FORKS=30 pytest tests/engine/process/test_forks.py -k random``: so many rounds, of twenty programs a
database.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.commands import until
from support.ticking import Project, Tick, events

from cronjobs.engine.command import leaving

ROUNDS = int(os.environ.get("CRONJOBS_TESTS_FORKS", "1"))
PROGRAMS = 20
HEALTHY = 150
BUDGET_S = 25

HANDLERS = r'''
import asyncio, ctypes, faulthandler, multiprocessing, pty, resource, signal, subprocess
from contextlib import suppress

FORK = multiprocessing.get_context("fork")

def tamper(how):
    match how:
        case "alarm": signal.alarm(0)
        case "itimer": signal.setitimer(signal.ITIMER_REAL, 0)
        case "later": signal.alarm(3000)
        case "mask": signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        case "signal":
            with suppress(ValueError): signal.signal(signal.SIGALRM, signal.SIG_IGN)
        case "libc": ctypes.CDLL(None).signal(signal.SIGALRM, 1)  # SIG_IGN
        case "faulthandler": faulthandler.unregister(signal.SIGALRM)
        case "sigpending": resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))
        case "core": faulthandler.disable()

def copy(ctx, way):
    """What the copy does; its way out is out of the handler, or its own."""
    match way:
        case "return": return
        case "exit0": sys.exit(0)
        case "exit3": sys.exit(3)
        case "exit_text": sys.exit("a last word")
        case "raise": raise ValueError("in the copy")
        case "interrupt": raise KeyboardInterrupt
        case "_exit": os._exit(5)
        case "term": os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)
        case "kill": os.kill(os.getpid(), signal.SIGKILL)
        case "exec": os.execv("/bin/true", ["true"])
        case "thread":
            thread = threading.Thread(target=lambda: print("in a thread"))
            thread.start(); thread.join()
        case "hung_thread": threading.Thread(target=time.sleep, args=(300,)).start()
        case "effect":
            with ctx.effect(f"of-a-copy-{ctx.job_id}"): say("copied", ctx)
        case "transaction":
            with ctx.transaction(): say("copied", ctx)
        case "asyncio": asyncio.run(asyncio.sleep(0))
        case "fork":
            child = os.fork()
            if child: os.waitpid(child, 0)
        case "linger": time.sleep(60)
        case "leave": return  # through the end of the transaction, which is a COMMIT

STATUS = {"leave": 1, "exit3": 3, "exit_text": 1, "raise": 1, "interrupt": 1, "_exit": 5, "term": -15, "kill": -9,
          "effect": 1, "transaction": 1}

def ended(pid, way):
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == STATUS.get(way, 0), (way, code)

def fork(ctx, how, way, wait):
    match how:
        case "none": return
        case "fork" | "helper" | "async" | "in_transaction":
            pid = os.fork()
        case "pty":
            pid, terminal = pty.fork()
        case "daemon":
            pid = os.fork()
            if pid == 0:
                os.setsid()
                if os.fork(): os._exit(0)
                copy(ctx, way)
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            return
        case "multiprocessing":
            process = FORK.Process(target=copy, args=(ctx, way))
            process.start()
            if wait: process.join(); assert process.exitcode == STATUS.get(way, 0), (way, process.exitcode)
            return
        case "pool":
            with FORK.Pool(2) as pool: assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
            return
        case "preexec":
            subprocess.run(["/bin/true"], preexec_fn=os.getpid, check=True)
            return
    if pid == 0:
        copy(ctx, way)
        if way == "leave": return
        raise Out
    if wait: ended(pid, way)

class Out(SystemExit):
    """Takes the copy out through everything that the handler is in."""
    code = 0

def program(ctx, tampering, how, way, wait):
    tamper(tampering)
    match how:
        case "helper":
            def begin():
                with suppress(Out): fork(ctx, how, way, wait)
            thread = threading.Thread(target=begin)
            thread.start(); thread.join()
        case "in_transaction":
            with ctx.transaction():
                fork(ctx, how, way, wait)
        case _: fork(ctx, how, way, wait)

@job("t.program", timeout="8s")
def run_program(ctx, **steps):
    me = os.getpid()
    try:
        program(ctx, **steps)
    finally:
        if os.getpid() == me: say("ran", ctx)

@job("t.async", timeout="8s")
async def run_async(ctx, **steps):
    await asyncio.sleep(0)
    me = os.getpid()
    try:
        program(ctx, **steps)
        await asyncio.sleep(0.01)
    finally:
        if os.getpid() == me: say("ran", ctx)
'''

TAMPERING = ["none", "alarm", "itimer", "later", "mask", "signal", "libc", "faulthandler", "sigpending", "core"]
FORKS = ["none", "fork", "fork", "helper", "async", "in_transaction", "pty", "daemon", "multiprocessing"]
ALONE = ["pool", "preexec"]
WAYS = ["return", "exit0", "exit3", "exit_text", "raise", "interrupt", "_exit", "term", "kill", "exec", "thread"]
WAYS += ["hung_thread", "effect", "transaction", "asyncio", "fork", "linger"]

# In every round, whatever chance says.
ALWAYS: list[dict[str, Any]] = [
    {"tampering": "alarm", "how": "multiprocessing", "way": "linger", "wait": False},
    {"tampering": "none", "how": "in_transaction", "way": "leave", "wait": True},
    {"tampering": "none", "how": "in_transaction", "way": "exit0", "wait": True},
    {"tampering": "none", "how": "multiprocessing", "way": "term", "wait": True},
    {"tampering": "none", "how": "fork", "way": "exit0", "wait": False},
]


def a_program(chance: random.Random) -> dict[str, Any]:
    how = chance.choice(FORKS + ALONE[: chance.random() < 0.5])
    ways = WAYS
    if how == "helper":  # an exception there only ends its thread
        ways = ["return", "_exit", "term", "kill", "exec", "thread", "asyncio", "fork", "linger"]
    if how == "multiprocessing":  # multiprocessing joins its threads itself
        ways = [way for way in WAYS if way != "hung_thread"]
    if how == "in_transaction":  # its way out is through the transaction's end
        ways = ["exit0", "exit3", "raise", "_exit", "kill", "exec", "linger", "leave"]
    if how == "pty":  # its terminal is hung up when nobody reads it
        ways = ["return", "exit0", "_exit", "exec"]
    way = chance.choice(ways)
    return {
        "tampering": chance.choice(TAMPERING),
        "how": how,
        "way": way,
        "wait": way not in ("linger", "hung_thread") and chance.random() < 0.8,
    }


def tick_into_a_pipe(project: Project, *options: str) -> tuple[Tick, float]:
    """A tick as cron runs it, which waits until nobody holds the pipe any more; how long that took after its end."""
    read, write = os.pipe()
    tick = project.start(*options, stdout=write, stderr=write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        tick.wait(BUDGET_S + 5)
        began = time.monotonic()
        (project.folder / f"{tick.name}.err").write_bytes(pipe.read())
    return tick, time.monotonic() - began


def copies_of(project: Project) -> list[int]:
    """Processes that have the file of effects open still: what handlers forked."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and str(project.folder / "effects") in map(os.readlink, (entry / "fd").iterdir()):
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("number", range(ROUNDS))
def test_random_forks_and_tampering_disturb_nothing(project: Project, number: int) -> None:
    chance = random.Random(number)
    project.configure("run: {workers: 4}\n", HANDLERS)
    programs = ALWAYS + [a_program(chance) for _ in range(PROGRAMS - len(ALWAYS))]
    ids = {}
    for count, program in enumerate(programs):
        project.add_many("t.quick", HEALTHY // PROGRAMS)
        job_type = "t.async" if program["how"] == "async" or count % 7 == 6 else "t.program"
        ids[project.add(job_type, json.dumps(program))] = program
    try:
        tick, held_s = tick_into_a_pipe(project, "--budget", f"{BUDGET_S}s")
        left = copies_of(project)
    finally:
        for pid in copies_of(project):
            os.kill(pid, signal.SIGKILL)
    assert tick.process.returncode == 0, (tick.stderr, project.log()[-3000:])
    assert tick.took_s < BUDGET_S
    assert held_s < 1
    assert {job_id: count for job_id, count in project.times_ran().items() if count != 1} == {}
    wrong = {job_id: project.job(job_id) for job_id in ids if project.job(job_id)["status"] != "succeeded"}
    assert wrong == {}, [ids[job_id] for job_id in wrong]
    assert project.statuses() == {"succeeded": HEALTHY // PROGRAMS * PROGRAMS + PROGRAMS}
    assert project.effects("copied") == []
    named = "".join(events(project.log(), "tick.left_behind"))
    assert [pid for pid in left if f"(pid {pid})" not in named] == []


def test_a_copy_has_no_connection_to_the_database(project: Project) -> None:
    """Neither the one that its transaction began on, nor a new one in the tick's name."""
    project.configure("run: {workers: 1}\n", HANDLERS)
    ways = [("in_transaction", "leave"), ("fork", "effect"), ("fork", "transaction")]
    for how, way in ways:
        project.add("t.program", json.dumps({"tampering": "none", "how": how, "way": way, "wait": True}))
    assert project.tick().process.returncode == 0
    assert project.statuses() == {"succeeded": len(ways)}
    assert project.effects("copied") == []


def test_a_handlers_signal_mask_is_not_the_next_ones(sqlite_project: Project) -> None:
    sqlite_project.configure("run: {workers: 1}\n", HANDLERS)
    sqlite_project.add("t.program", json.dumps({"tampering": "mask", "how": "none", "way": "return", "wait": True}))
    steps = {"tampering": "none", "how": "fork", "way": "term", "wait": True}  # the child inherits a signal mask
    job_id = sqlite_project.add("t.program", json.dumps(steps), priority=6)
    assert sqlite_project.tick().process.returncode == 0
    assert sqlite_project.outcomes(job_id) == ["succeeded"]


def test_a_copy_keeps_nobody_from_writing_when_its_tick_was_killed(project: Project) -> None:
    """SQLite's turn is an flock, and a session of PostgreSQL a socket: both are there while anybody holds them open."""
    project.configure(
        "",
        """
import multiprocessing

@job("t.forks", timeout="30s")
def forks(ctx):
    with ctx.transaction():
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,)).start()
        say("forked", ctx)
        time.sleep(30)
""",
    )
    project.add("t.forks")
    try:
        tick = project.start()
        until(lambda: project.effects("forked"))
        tick.process.kill()
        tick.process.wait()
        quick_id = project.add("t.quick")
        assert len(copies_of(project)) == 1
        assert project.tick("--only", "t.quick").process.returncode == 0
        assert project.outcomes(quick_id) == ["succeeded"]
        assert project.ticks[-1].took_s < 15  # not the 30 s of the copy, nor of a server's patience
        if not project.is_sqlite:
            sessions = (
                "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%' AND datname = current_database()"
            )
            assert project.value(sessions) == 0
    finally:
        for pid in copies_of(project):
            os.kill(pid, signal.SIGKILL)


def test_a_module_that_forks_when_it_is_imported_makes_no_second_tick(sqlite_project: Project) -> None:
    sqlite_project.configure("", "os.fork()\n")
    job_id = sqlite_project.add("t.quick")
    tick, _ = tick_into_a_pipe(sqlite_project)
    assert tick.process.returncode == 0, tick.stderr
    assert sqlite_project.times_ran() == {job_id: 1}
    assert sqlite_project.value("SELECT count(*) FROM cronjobs_ticks") == 1


@pytest.mark.slow
def test_what_a_handler_leaves_to_exit_callbacks_is_done_and_hangs_nothing(sqlite_project: Project) -> None:
    """Also what the interpreter's own way out would have waited for: a pool, a thread, a callback that never ends."""
    sqlite_project.configure(
        "",
        """
import atexit, concurrent.futures

pool = concurrent.futures.ThreadPoolExecutor()
unflushed = open(os.path.join(HERE, "unflushed"), "w")

@job("t.leaves")
def leaves(ctx):
    atexit.register(time.sleep, 300)
    atexit.register(lambda: say("at_exit", ctx))
    pool.submit(time.sleep, 300)
    threading.Thread(target=time.sleep, args=(300,)).start()
    unflushed.write("written")
""",
    )
    sqlite_project.add("t.leaves")
    tick, _ = tick_into_a_pipe(sqlite_project)
    assert tick.process.returncode == 0, tick.stderr
    assert tick.took_s < 9
    assert len(sqlite_project.effects("at_exit")) == 1


def test_multiprocessing_waits_at_exit_only_for_what_ends() -> None:
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,))
    process.start()
    try:
        assert process in multiprocessing.active_children()
        leaving.forget_children()
        assert process not in multiprocessing.active_children()
    finally:
        process.kill()
        process.join()
