"""Whatever handlers, databases and signals do, the tick exits on time, and no other runner starts its jobs before that.

Eight ways to hang, each on both databases, with real processes. Judged by the effects file: what the handler did, when,
and in which process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from support.commands import until
from support.postgres import PostgresServer
from support.ticking import Effect, Project, Tick, rivals, stop_and_go

from cronjobs.clock import SYSTEM
from cronjobs.engine.probe import timer
from cronjobs.engine.tick import deadline
from cronjobs.engine.tick.watchdog import HARD_AFTER_S

pytestmark = [pytest.mark.slow, pytest.mark.either]

BUDGET_S = 3.5
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
        print("step 1")
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


def assert_gone_on_time(tick: Tick, latest_s: float = LATEST_S) -> None:
    assert tick.took_s <= latest_s, f"gone after {tick.took_s:.2f} s of a budget of {BUDGET_S} s"


def assert_one_owner(project: Project, job_id: int, tick: Tick) -> None:
    """Nobody else began this job before the first runner was gone."""
    assert tick.gone_at is not None
    for effect in project.effects():
        if effect.job_id == job_id:
            assert effect.pid == tick.pid or effect.at >= tick.gone_at - 0.02, effect
            assert effect.pid != tick.pid or effect.attempt == 1, effect


WAYS = ["loop", "sleep", "recv", "lock", "swallow"]  # the GIL comes free, so the tick can end itself


def test_handlers_that_never_return_are_recorded_timed_out_and_never_run_twice_at_once(project: Project) -> None:
    project.configure("run: {workers: 6}\n", HANGS)
    hanging_ids = [project.add(f"hang.{way}") for way in WAYS]
    quick_id = project.add("t.quick")
    tick = project.start("--budget", BUDGET)
    until(lambda: len(project.effects("start")) == len(WAYS))
    with rivals(project) as others:
        assert tick.wait() == 0
    assert_gone_on_time(tick)
    assert others
    until(project.lease_ended, 5)  # cut to 2 s by the last transaction
    assert project.tick().wait() == 0
    for job_id in hanging_ids:
        assert_one_owner(project, job_id, tick)
        assert project.outcomes(job_id)[0] == "timed_out"
        assert project.job(job_id)["failures"] == 1
    assert project.outcomes(quick_id) == ["succeeded"]
    project.make_due()
    assert project.tick().wait() == 0
    assert project.times_ran() == dict.fromkeys([quick_id, *hanging_ids], 1)


def test_what_a_handler_printed_before_it_hung_is_kept_with_its_attempt(project: Project) -> None:
    hung_id, _ = hanging(project, "hang.sleep")
    assert project.tick("--budget", BUDGET).wait() == 0
    until(project.lease_ended, 5)
    assert project.tick().wait() == 0
    assert project.outcomes(hung_id)[0] == "timed_out"
    assert project.value(f"SELECT output FROM cronjobs_job_runs WHERE attempt = 1 AND job_id = {hung_id}") == "step 1\n"


def test_nobody_begins_a_hung_job_while_its_tick_goes_on_with_others(project: Project) -> None:
    project.configure("run: {workers: 2}\n", HANGS)
    hung_id, gated_id = project.add("hang.loop"), project.add("t.gated")
    tick = project.start("--budget", "25s")
    until(lambda: len(project.effects("start")) == 2)
    until(lambda: project.outcomes(hung_id) == ["timed_out"])
    recorded = SYSTEM.monotonic()
    with rivals(project) as others:  # for longer than the second after which it would be due again
        until(
            lambda: (
                SYSTEM.monotonic() - recorded > 4
                and sum(other.process.poll() is not None for other in list(others)) >= 3
            ),
            17,
        )
        project.open()
        assert tick.wait() == 0
    assert project.outcomes(gated_id) == ["succeeded"]
    assert_one_owner(project, hung_id, tick)


def test_a_time_out_says_where_the_handler_hangs(project: Project) -> None:
    """The tick that settles the attempt reports the line too, after the process is gone."""
    project.configure("run: {workers: 2}\n", HANGS)
    hanging_id = project.add("hang.sleep", max_attempts=1)
    assert project.start("--budget", BUDGET).wait() == 0
    stack = project.value(f"SELECT traceback FROM cronjobs_job_runs WHERE job_id = {hanging_id}")
    assert stack.startswith("Stack at the timeout (most recent call last):\n  File ")
    assert stack.endswith("in sleep\n    time.sleep(1000)\n"), stack
    assert "/cronjobs/engine/" not in stack
    until(project.lease_ended, 5)
    settling = project.tick()
    assert project.job(hanging_id)["status"] == "dead"
    assert "in sleep: time.sleep(1000)" in settling.stderr, settling.stderr


def test_a_time_out_is_in_the_history_while_its_thread_still_runs(project: Project) -> None:
    """A slot is left for others, so the tick goes on; what it wrote does not wait for its end."""
    project.configure("run: {workers: 2}\n", HANGS)
    hanging_id, gated_id = project.add("hang.sleep"), project.add("t.gated", timeout_s=10)
    tick = project.start()
    until(lambda: project.outcomes(hanging_id) == ["timed_out"])
    assert project.job(hanging_id)["status"] == "running"
    project.open()
    assert tick.wait() == 0
    assert project.outcomes(gated_id) == ["succeeded"]


def test_c_calls_that_hold_the_gil_are_ended_by_the_kernel_and_recorded_lost(project: Project) -> None:
    """Each gets a tick of its own, because in one process the first would keep the second from starting."""
    project.configure("run: {workers: 2}\n", HANGS)
    ways = {f"hang.{way}": project.add(f"hang.{way}") for way in ("gil", "regex")}
    ticks = {job_type: project.start("--budget", BUDGET, "--only", job_type) for job_type in ways}
    until(lambda: len(project.effects("start")) == 2)
    with rivals(project) as others:
        assert [tick.wait() for tick in ticks.values()] == [-signal.SIGALRM] * 2  # 142 in a shell
    assert others
    for tick in ticks.values():
        assert_gone_on_time(tick)
        assert "handlers.py" in tick.stderr  # the stacks say where it hung
    assert project.tick().wait() == 0  # what no rival has recovered yet: the first runner's death can be proven here
    for job_type, tick in ticks.items():
        job_id = ways[job_type]
        assert_one_owner(project, job_id, tick)
        assert project.outcomes(job_id) == ["lost", "succeeded"]
        assert project.job(job_id)["failures"] == 0
        assert project.times_ran()[job_id] == 1


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
    project: Project, how: Callable[[Project], AbstractContextManager[None]]
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


def test_a_database_locked_from_the_start_ends_the_tick_before_any_handler_runs(project: Project) -> None:
    job_id = project.add("t.quick")
    with write_lock(project):
        tick = project.tick("--budget", BUDGET)
    assert_gone_on_time(tick)
    assert tick.wait() == 4
    assert tick.stderr.count("\n") == 1  # one line that says who is to blame, no traceback
    assert project.effects() == []
    assert project.job(job_id)["attempts"] == 0


def test_a_server_frozen_from_the_start_ends_the_tick_before_any_handler_runs(
    postgres_server: PostgresServer, postgres_project: Project
) -> None:
    project = postgres_project
    job_id = project.add("t.quick")
    stop_and_go([postgres_server.pid], signal.SIGSTOP)  # the kernel still takes connections, and nobody answers
    try:
        tick = project.tick("--budget", BUDGET)
    finally:
        stop_and_go([postgres_server.pid], signal.SIGCONT)
    assert_gone_on_time(tick)
    assert tick.wait() in (4, -signal.SIGALRM)
    assert project.effects() == []
    assert project.job(job_id)["attempts"] == 0


# --- the tick itself is frozen ----------------------------------------------------------------------------------------


def test_a_tick_frozen_past_its_end_dies_although_it_is_stopped_and_writes_nothing(project: Project) -> None:
    """One whose handler computes, and one whose handler would have ended while it slept."""
    project.configure("run: {workers: 2}\n", HANGS.replace("0.5s", "1.5s"))
    ids = {job_type: project.add(job_type, timeout_s=1.5) for job_type in ("hang.loop", "t.gated")}
    ticks = [project.start("--budget", BUDGET, "--only", job_type) for job_type in ids]
    until(lambda: len(project.effects("start")) == 2)
    for tick in ticks:
        tick.send(signal.SIGSTOP)
    project.open()
    before = project.everything()
    assert [tick.wait() for tick in ticks] == [-signal.SIGKILL] * 2  # SIGALRM waits for whoever is stopped
    for tick in ticks:
        assert_gone_on_time(tick, LATEST_S + HARD_AFTER_S)
    assert project.everything() == before
    assert project.tick().wait() == 0  # their deaths can be proven: no lease is waited for
    for job_id, tick in zip(ids.values(), ticks, strict=True):
        assert project.outcomes(job_id) == ["lost", "succeeded"]
        assert_one_owner(project, job_id, tick)


def test_a_tick_frozen_for_a_moment_goes_on_as_if_nothing_was(project: Project) -> None:
    project.configure("run: {workers: 2}\n")
    ids = [project.add("t.gated", timeout_s=5) for _ in range(2)]
    tick = project.start()
    until(lambda: len(project.effects("start")) == 2)
    tick.send(signal.SIGSTOP)
    project.open()
    with rivals(project):
        until(lambda: len(project.ticks) > 1)
    tick.send(signal.SIGCONT)
    assert tick.wait() == 0
    assert [project.outcomes(job_id) for job_id in ids] == [["succeeded"]] * 2
    assert project.times_ran("end") == dict.fromkeys(ids, 1)


# --- the guard itself -------------------------------------------------------------------------------------------------


def test_a_full_stderr_that_nobody_reads_does_not_hold_the_tick(sqlite_project: Project) -> None:
    """The dump of the stacks blocks in the kernel; the timer strikes again."""
    job_id, _ = hanging(sqlite_project, "hang.gil")
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 65536)
    os.set_blocking(write, True)
    try:
        tick = sqlite_project.start("--budget", BUDGET, stderr=write)
        assert tick.wait() == -signal.SIGALRM
    finally:
        os.close(read)
        os.close(write)
    assert_gone_on_time(tick)
    assert sqlite_project.job(job_id)["status"] == "running"


DISARMED = """
import ctypes, resource, signal, sys

@job("t.disarms", timeout="0.5s")
def disarms(ctx, way):
    say("start", ctx)
    # The tick sets its timer again whenever it gets the GIL. From here on it gets the GIL only if this thread gives it
    # up, and the sleep serves those who have waited for it with the old interval.
    sys.setswitchinterval(1000)
    time.sleep(0.2)
    match way:
        case "timer":
            signal.alarm(0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        case "signal":
            ctypes.CDLL(None).signal(signal.SIGALRM, 1)  # SIG_IGN, from a thread
            resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))
        case "descriptors":
            signal.alarm(0)
            os.closerange(0, 4096)
        case "stopped":
            signal.alarm(0)
            os.kill(os.getpid(), signal.SIGSTOP)
    ctypes.PyDLL(None).sleep(1000)  # keeps the GIL
"""


def test_no_handler_takes_the_time_limit_away(sqlite_project: Project) -> None:
    """Behind SIGALRM, which is within its reach, stands a timer of the kernel's that is not, with SIGKILL."""
    sqlite_project.configure("run: {workers: 2}\n", DISARMED)
    ways = ("timer", "signal", "descriptors", "stopped")
    for way in ways:
        sqlite_project.add("t.disarms", json.dumps({"way": way}))
    ticks = [sqlite_project.start("--budget", BUDGET, "--limit", "1") for _ in ways]
    assert [tick.wait() for tick in ticks] == [-signal.SIGKILL] * len(ways)  # 137 in a shell
    for tick in ticks:
        assert_gone_on_time(tick, LATEST_S + HARD_AFTER_S)
    assert len(sqlite_project.effects("start")) == len(ways)
    assert sqlite_project.tick("--only", "t.quick").wait() == 0
    assert [sqlite_project.outcomes(job_id + 1) for job_id in range(len(ways))] == [["lost"]] * len(ways)


def test_a_handler_that_uses_the_alarm_clock_itself_does_not_take_the_guard_away(sqlite_project: Project) -> None:
    sqlite_project.configure(
        "run: {workers: 2}\n",
        HANGS
        + """
import signal

@job("t.alarm", timeout="0.5s")
def alarm(ctx):
    signal.setitimer(signal.ITIMER_REAL, 0)
    say("ran", ctx)
""",
    )
    alarm_id = sqlite_project.add("t.alarm")
    sqlite_project.add("hang.gil", priority=6)
    tick = sqlite_project.start("--budget", BUDGET, "--workers", "1")
    assert tick.wait() in (-signal.SIGALRM, -signal.SIGKILL)  # KILL: no turn came between the two
    assert_gone_on_time(tick, LATEST_S + HARD_AFTER_S)
    assert sqlite_project.outcomes(alarm_id) == ["succeeded"]


@pytest.mark.parametrize(
    ("age", "waited", "left"),
    [
        (3.0, True, 52.0),
        (600.0, True, 55.0),
        (11.0, False, 44.0),
        (50.0, False, 5.0),
        (58.5, False, 0.5),  # too little to start anything: it must end before the next minute's tick needs its place
        (70.0, False, 45.0),  # in the next minute
    ],
)
def test_a_slow_start_counts_unless_the_process_was_something_else_before(
    monkeypatch: pytest.MonkeyPatch, age: float, waited: bool, left: float
) -> None:
    """``sleep 600; exec cronjobs run-due``: to the kernel it is one process, and a tick of 55 s would be over.

    A process that did nothing else was starved or frozen. It must not overlap the next minute's tick.
    """
    alarms: list[float] = []
    monkeypatch.setattr(deadline, "_armed", None)
    monkeypatch.setattr(timer, "_found", None)
    monkeypatch.setattr(timer, "process_age", lambda: age)
    monkeypatch.setattr(timer, "waited_for_a_child", lambda: waited)
    monkeypatch.setattr(deadline, "Watchdog", lambda _: SimpleNamespace(stand_at=alarms.append))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(deadline, "deadline", lambda **given: given["started"] + given["budget_s"])
    deadline.arm()
    assert alarms == [pytest.approx(SYSTEM.monotonic() + left + 1, abs=1)]


def test_the_start_of_a_tick_is_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a tick gets its whole time again if its imports take long on a starved host."""
    ages = iter((9.0, 12.0))
    monkeypatch.setattr(timer, "_found", None)
    monkeypatch.setattr(timer, "process_age", lambda: next(ages))
    assert timer.began() == timer.began() == pytest.approx(SYSTEM.monotonic() - 9, abs=1)


@pytest.mark.parametrize(("before", "waited"), [("", False), ("/bin/true; ", True)])
def test_a_shell_that_waited_before_it_execed_us_is_told_from_a_slow_start(before: str, waited: bool) -> None:
    code = "from cronjobs.engine.probe.kernel_facts import waited_for_a_child as w; print(w())"
    found = subprocess.run(
        ["sh", "-c", f"{before}exec {sys.executable} -c '{code}'"], capture_output=True, text=True, check=True
    )
    assert found.stdout == f"{waited}\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_never_taken_by_a_file(tmp_path: Path, closed: str) -> None:
    """Otherwise the database becomes descriptor 1 or 2, and whoever prints writes into it."""
    (tmp_path / "look.py").write_text(
        "import os\nfrom cronjobs.engine.tick import deadline as guard\nguard.arm()\n"
        "found = [os.readlink(f'/proc/self/fd/{n}') for n in range(3)]\n"
        "open('found', 'w').write(' '.join(found))\n"
    )
    script = f"exec {sys.executable} look.py {closed}"
    subprocess.run(["sh", "-c", script], cwd=tmp_path, stdin=subprocess.PIPE, capture_output=True, check=True)
    found = (tmp_path / "found").read_text().split()
    assert len(found) == 3
    assert all(target == "/dev/null" or target.startswith("pipe:") for target in found)
    assert found.count("/dev/null") == closed.count("&-")
