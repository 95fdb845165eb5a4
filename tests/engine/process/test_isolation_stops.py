"""Handlers in a separate process that crash, change their surroundings, are asked to stop, or lose their runner."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from support.commands import LINUX_ONLY, launcher_of, until
from support.isolated import HANDLERS, KINDS, ran, run_each
from support.ticking import Project, Tick

from cronjobs.clock import SYSTEM
from cronjobs.engine.execution.launcher import descendants
from cronjobs.engine.probe.kernel_facts import process_started

pytestmark = pytest.mark.slow

# --- crashes ----------------------------------------------------------------------------------------------------------

CRASHES = (
    HANDLERS
    + r"""
@apart("crash.exit_0")
def _(): os._exit(0)

@apart("crash.exit_3")
def _():
    print("over", flush=True)
    os._exit(3)

@apart("crash.segfault")
def _(): ctypes.string_at(0)

@apart("crash.abort")
def _(): os.abort()

@apart("crash.forks_and_both_return")
def _():
    pid = os.fork()
    if pid == 0:
        raise ValueError("in the copy, and far longer than what the original returns" * 50)
    os.waitpid(pid, 0)
    return "the original"

@apart("memory.python", max_memory="200MiB")
def _():
    hoard = [bytearray(10_000_000) for _ in range(1000)]

@apart("memory.small_pieces", max_memory="200MiB")
def _():
    hoard = []
    while True: hoard.append([None] * 100)

@apart("memory.in_c", max_memory="200MiB")
def _():
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    found = libc.malloc(1_000_000_000)
    print("refused" if found is None else "given")
    libc.memset(found, 1, 1)  # what C code does that does not look

@apart("memory.enough", max_memory="200MiB")
def _(): return len(bytearray(50_000_000))

@job("t.neighbour", timeout="20s")
def _(ctx): say("ran", ctx)
"""
)
CRASHES_YAML = f"""
run: {{workers: 4}}
job_types:
  command.segfault: {{command: [sh, -c, "echo here; kill -SEGV $$"]}}
  command.exit_3: {{command: [sh, -c, "echo over; exit 3"]}}
  command.memory: {{command: ["{sys.executable}", -c, "x = bytearray(1000000000)"], max_memory: 200MiB}}
  command.memory_in_c: {{command: [sh, -c, "dd if=/dev/zero of=/dev/null bs=1G count=1"], max_memory: 200MiB}}
"""


def test_a_crash_is_its_own_jobs_failure_named_by_its_signal_and_nobody_elses(sqlite_project: Project) -> None:
    expected = {
        "crash.exit_0": ("exit-0", "the job's process ended with exit status 0 before the handler had ended"),
        "crash.exit_3": ("exit-3", "exit status 3: over"),
        "crash.segfault": ("SIGSEGV", "killed by SIGSEGV"),
        "crash.abort": ("SIGABRT", "killed by SIGABRT"),
        "memory.python": ("MemoryError", "MemoryError"),
        "memory.small_pieces": ("MemoryError", "MemoryError"),
        "memory.in_c": ("SIGSEGV", "killed by SIGSEGV"),
        "command.segfault": ("SIGSEGV", "killed by SIGSEGV: here"),
        "command.exit_3": ("exit-3", "exit status 3: over"),
        "command.memory": ("exit-1", "exit status 1: MemoryError"),
        "command.memory_in_c": ("exit-1", "exit status 1: dd: "),
    }
    good = ["memory.enough", "crash.forks_and_both_return", "t.neighbour"]
    found = run_each(sqlite_project, CRASHES, *expected, *good, yaml=CRASHES_YAML)
    for job_type, (error_type, error) in expected.items():
        run = found[job_type]
        assert (run["status"], run["failures"], run["losses"], run["outcome"]) == ("failed", 1, 0, "failed"), job_type
        assert run["error_type"] == error_type, job_type
        assert run["error"].startswith(error), job_type
    assert 'handlers.py", line' in found["crash.segfault"]["output"]  # a crash in C says where it was
    assert found["memory.in_c"]["output"].startswith("refused\n")
    assert found["memory.enough"]["result"] == 50_000_000
    assert found["crash.forks_and_both_return"]["result"] == "the original"
    assert found["t.neighbour"]["status"] == "succeeded"


# --- nobody else is touched -------------------------------------------------------------------------------------------

CHANGES = (
    HANDLERS
    + r"""
def facts():
    return {
        "cwd": os.getcwd(), "env": dict(os.environ), "locale": locale.setlocale(locale.LC_ALL),
        "sigusr1": str(signal.getsignal(signal.SIGUSR1)), "mask": str(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "umask": os.umask(0o022), "path": list(sys.path), "timer": signal.getitimer(signal.ITIMER_REAL)[0] > 100,
        "threads": threading.active_count(), "recursion": sys.getrecursionlimit(),
    }

@apart("change.looks")
def _(): return facts()

@job("change.looks_in_a_thread", timeout="20s")
def _():
    return {name: value for name, value in facts().items() if name not in ("timer", "threads")}

@apart("change.everything")
def _(ctx):
    os.chdir("/")
    os.environ["SHOP"] = "changed"
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 1000)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.umask(0o777)
    sys.path.insert(0, "/changed")
    sys.setrecursionlimit(5000)
    threading.Thread(target=time.sleep, args=(1000,)).start()
    os.close(1), os.close(2)
    say("ran", ctx)
"""
)


def test_what_a_process_changes_about_itself_is_nobody_elses(sqlite_project: Project) -> None:
    """There is one worker, so the same thread of the tick starts all the processes."""
    project = sqlite_project.configure("run: {workers: 1}\n", CHANGES)
    looks = ["change.looks", "change.looks_in_a_thread"]
    ids = [project.add(job_type) for job_type in (*looks, "change.everything", *looks)]
    assert project.tick("--workers", "1").wait() == 0
    before, before_thread, _, after, after_thread = (ran(project, job_id)["result"] for job_id in ids)
    assert project.times_ran() == {ids[2]: 1}
    marks = {look["env"].pop("CRONJOBS_PROCESS") for look in (before, after)}
    assert len(marks) == 2  # each process has one of its own
    assert after == before
    assert after_thread == before_thread
    assert before["cwd"] == str(project.folder)
    assert not before["timer"]  # the tick's own guard is not inherited


# --- being told to stop -----------------------------------------------------------------------------------------------

STOPS = (
    HANDLERS
    + r"""
from cronjobs import Cancelled

@both("stop.checks")
def _(ctx):
    say("start", ctx)
    try:
        while True:
            ctx.check()
            time.sleep(0.01)
    except Cancelled as error:
        say(f"told_{error.reason}", ctx)
        raise

@both("stop.returns")
def _(ctx):
    say("start", ctx)
    while not ctx.cancelled and ctx.remaining_s:
        time.sleep(0.01)
    return "what there was"

@both("stop.waits")
async def _(ctx):
    say("start", ctx)
    try:
        await asyncio.sleep(1000)
    finally:
        say("cleaned", ctx)

@apart("process.stop.leaves")
def _(ctx):
    left = subprocess.Popen(["sleep", "1000"])
    say("start", ctx)
    while not ctx.cancelled:
        time.sleep(0.01)
    assert left.poll() is None  # it is ours to end, and may be needed for the rest
    return left.pid

@apart("process.stop.hangs_at_exit")
def _(ctx):
    say("start", ctx)
    atexit.register(time.sleep, 1000)
    return "done before"

@apart("process.stop.raises_and_hangs_at_exit")
def _(ctx):
    say("start", ctx)
    atexit.register(time.sleep, 1000)
    raise CardDeclined("no money")

@both("stop.saves")
async def _(ctx):
    say("start", ctx)
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        return "saved"
"""
)
WAYS = ("checks", "returns", "waits", "saves")
SHUTDOWN_GRACE_S = 6.0


def begin_all(project: Project, timeout_s: int = 20) -> tuple[Tick, dict[str, int]]:
    """A tick in which a job of each way runs, in a thread and in a process."""
    project.configure(f"run: {{workers: 8, lease: 8s, shutdown_grace: {SHUTDOWN_GRACE_S:g}s}}\n", STOPS)
    ids = {f"{kind}.{way}": project.add(f"{kind}.stop.{way}", timeout_s=timeout_s) for kind in KINDS for way in WAYS}
    tick = project.start()
    until(lambda: len(project.effects("start")) == len(ids), 30)
    return tick, ids


def assert_stopped(project: Project, ids: dict[str, int], reason: str, outcome: str, status: str) -> None:
    for kind in KINDS:
        for way in ("checks", "waits"):
            found = ran(project, ids[f"{kind}.{way}"])
            assert (found["outcome"], found["status"]) == (outcome, status), f"{kind}.{way}"
        # A result that came counts, also when it came after the word to stop.
        for way, result in (("returns", "what there was"), ("saves", "saved")):
            found = ran(project, ids[f"{kind}.{way}"])
            assert (found["outcome"], found["result"]) == ("succeeded", result), f"{kind}.{way}"
    assert project.times_ran(f"told_{reason}") == {ids[f"{kind}.checks"]: 1 for kind in KINDS}
    assert project.times_ran("cleaned") == {ids[f"{kind}.waits"]: 1 for kind in KINDS}


def test_a_cancel_reaches_threads_and_processes_and_their_coroutines(sqlite_project: Project) -> None:
    tick, ids = begin_all(sqlite_project)
    sqlite_project.sql("UPDATE cronjobs_jobs SET cancel_requested_at = locked_until")
    assert tick.wait() == 0
    assert_stopped(sqlite_project, ids, "cancelled", "cancelled", "cancelled")


def test_a_shutdown_reaches_threads_and_processes_and_coroutines_after_half_the_grace(sqlite_project: Project) -> None:
    tick, ids = begin_all(sqlite_project)
    sent = SYSTEM.monotonic()
    tick.send(signal.SIGTERM)
    assert tick.wait() == 128 + signal.SIGTERM
    assert_stopped(sqlite_project, ids, "shutdown", "interrupted", "queued")
    cleaned = {effect.job_id: effect.at - sent for effect in sqlite_project.effects("cleaned")}
    assert SHUTDOWN_GRACE_S / 2 <= cleaned[ids["thread.waits"]] < SHUTDOWN_GRACE_S
    # A process is given less: its end is to be recorded within the grace of the tick.
    assert 1 <= cleaned[ids["process.waits"]] < SHUTDOWN_GRACE_S
    for told in sqlite_project.effects("told_shutdown"):
        assert told.at - sent < 1


BEING_IMPORTED = """
if os.environ.get("SECOND") is None:
    os.environ["SECOND"] = "yes"  # what the process inherits
else:
    import signal
    told = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *of: (told(*of), open(os.path.join(HERE, "told"), "w").close()))
    open(os.path.join(HERE, "importing"), "w").close()
    wait_for("told")

@job("stop.early", timeout="20s", isolation="process")
def _(ctx): say("ran", ctx)
"""


def test_a_handler_that_is_to_stop_before_its_module_is_imported_is_not_begun(sqlite_project: Project) -> None:
    project = sqlite_project.configure("run: {workers: 1}\n", BEING_IMPORTED)
    job_id = project.add("stop.early")
    tick = project.start()
    until((project.folder / "importing").exists, 30)
    tick.send(signal.SIGTERM)
    assert tick.wait() == 128 + signal.SIGTERM
    assert (project.folder / "told").exists()
    assert (project.outcomes(job_id), project.job(job_id)["status"]) == (["interrupted"], "queued")
    assert project.effects() == []


def test_a_result_that_came_before_its_process_was_stopped_counts(sqlite_project: Project) -> None:
    project = sqlite_project.configure("run: {workers: 1}\n", STOPS)
    job_id = project.add("process.stop.hangs_at_exit", timeout_s=5)
    assert project.tick().wait() == 0
    found = ran(project, job_id)
    assert (found["outcome"], found["result"]) == ("succeeded", "done before")


def test_an_exit_callback_that_hangs_does_not_hold_an_outcome_back(sqlite_project: Project) -> None:
    """By its timeout the tick's time is up, so an outcome that waited for it would be lost, and the job run again."""
    project = sqlite_project.configure("run: {workers: 2, budget: 30s}\n", STOPS)
    returned = project.add("process.stop.hangs_at_exit", timeout_s=25)
    raised = project.add("process.stop.raises_and_hangs_at_exit", timeout_s=25)
    assert project.tick().wait() == 0
    found = ran(project, returned)
    assert (found["outcome"], found["result"]) == ("succeeded", "done before")
    assert "killed, because the process did not exit" in found["output"]
    found = ran(project, raised)
    assert (found["outcome"], found["error"], found["failures"]) == ("failed", "no money", 1)
    assert project.times_ran("start") == {returned: 1, raised: 1}


def test_a_time_out_reaches_threads_and_processes_and_their_coroutines(sqlite_project: Project) -> None:
    _, ids = begin_all(sqlite_project, timeout_s=8)
    assert sqlite_project.ticks[-1].wait() == 0
    assert_stopped(sqlite_project, ids, "timeout", "timed_out", "failed")
    errors = {ran(sqlite_project, ids[f"process.{way}"])["error"] for way in ("checks", "waits")}
    assert errors == {"timed out after 8s"}


@LINUX_ONLY
def test_what_a_handler_leaves_running_is_ended_as_soon_as_it_has_used_its_grace(sqlite_project: Project) -> None:
    project = sqlite_project.configure("run: {workers: 1, shutdown_grace: 30s}\n", STOPS)
    job_id = project.add("process.stop.leaves", timeout_s=40)
    tick = project.start()
    until(lambda: project.effects("start"), 30)
    sent = SYSTEM.monotonic()
    tick.send(signal.SIGTERM)
    assert tick.wait() == 128 + signal.SIGTERM
    assert SYSTEM.monotonic() - sent < 25  # the grace is 30 s
    found = ran(project, job_id)
    assert found["outcome"] == "succeeded"
    assert process_started(found["result"]) is None


# --- who dies with whom -----------------------------------------------------------------------------------------------

STARTS_OTHERS = (
    HANDLERS
    + r"""
@apart("starts.others", timeout="8s")
def _(ctx):
    if ctx.attempt > 1:
        return say("ran", ctx)
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1001"], start_new_session=True)
    subprocess.run(["sh", "-c", "setsid sh -c 'sleep 1002 & sleep 1003 & exit' &"])
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    say("start", ctx)
    time.sleep(1000)
"""
)


def family(launcher: int) -> set[int]:
    """Everyone below a launcher, and itself."""
    return {launcher} | {pid for pid, _, _ in descendants(launcher)}


def begin_family(project: Project) -> tuple[Tick, int, int, set[int]]:
    """A tick whose job has started five others; the job's id, its launcher, and everyone's pids."""
    project.configure("run: {workers: 2}\n", STARTS_OTHERS)
    job_id = project.add("starts.others")
    tick = project.start()
    until(lambda: project.effects("start"), 30)
    launcher = launcher_of(tick.pid)
    until(lambda: len(family(launcher)) == 7)  # the launcher, the handler's process and its five
    return tick, job_id, launcher, family(launcher)


def all_gone(pids: set[int]) -> bool:
    return not any(process_started(pid) for pid in pids)


@LINUX_ONLY
def test_a_tick_killed_takes_the_process_and_all_it_started_with_it_within_a_second(project: Project) -> None:
    """The next tick also runs the job at once, because the lease's holder is known to be dead."""
    tick, job_id, _, pids = begin_family(project)
    tick.send(signal.SIGKILL)
    until(lambda: all_gone(pids), 1)
    assert tick.wait() == -signal.SIGKILL
    assert project.tick().wait() == 0
    assert project.outcomes(job_id) == ["lost", "succeeded"]
    assert project.job(job_id)["losses"] == 1
    assert project.times_ran() == {job_id: 1}


@LINUX_ONLY
def test_a_killed_launcher_takes_the_process_and_its_group_with_it_and_is_a_failure(sqlite_project: Project) -> None:
    tick, job_id, launcher, pids = begin_family(sqlite_project)
    group = {pid for pid in pids if pid == launcher or os.getpgid(pid) == sqlite_project.effects("start")[0].pid}
    os.kill(launcher, signal.SIGKILL)
    until(lambda: all_gone(group), 1)
    for pid in pids - group:  # nobody answers for them any more
        os.kill(pid, signal.SIGKILL)
    assert tick.wait() == 0
    found = ran(sqlite_project, job_id)
    assert (found["status"], found["failures"], found["error_type"]) == ("failed", 1, "LauncherDied")
    assert found["error"].startswith("the handler's process was lost: its launcher died without reporting")


@LINUX_ONLY
def test_a_frozen_process_is_ended_at_its_timeout_with_all_it_started(sqlite_project: Project) -> None:
    tick, job_id, _, pids = begin_family(sqlite_project)
    os.kill(sqlite_project.effects("start")[0].pid, signal.SIGSTOP)
    assert tick.wait() == 0
    assert all_gone(pids)
    assert ran(sqlite_project, job_id)["outcome"] == "timed_out"
