"""Declared commands end with all that they started: at a timeout, a stop, their end, or the runner's death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support.commands import LINUX_ONLY, Shell, launcher_of, marked_shell, until

from cronjobs.engine.probe.kernel_facts import process_started
from cronjobs.model import CancelledByRequest, Interrupted, Lost, Outcome, Succeeded, TimedOut


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with marked_shell(tmp_path) as shell:
        yield shell


# --- being stopped ----------------------------------------------------------------------------------------------------


def test_a_timeout_is_sigterm_and_what_it_prints_then_is_kept(shell: Shell) -> None:
    shell.when("ready", lambda: shell.clock.advance(timedelta(hours=1)))
    outcome, output = shell.sh(
        "trap 'echo cleaning up; exit 0' TERM; echo ready; while :; do sleep 0.01; done", timeout=3600, grace=7200
    )
    assert outcome == TimedOut("timed out after 1h: cleaning up")  # exit 0 after a SIGTERM proves nothing
    assert output is not None
    assert output.endswith("cleaning up\n")


def test_a_command_that_ignores_sigterm_is_killed_after_its_grace(shell: Shell) -> None:
    shell.when("ready", lambda: shell.clock.advance(timedelta(hours=1)))
    outcome, _ = shell.sh("trap '' TERM; echo ready; while :; do sleep 0.01; done", timeout=3600, grace=0.2)
    assert outcome == TimedOut("timed out after 1h, and was killed after a grace of 200ms: ready")


def test_a_stopped_process_still_gets_its_sigterm(shell: Shell) -> None:
    shell.when("ready", lambda: setattr(shell.stop, "reason", "shutdown"))
    assert shell.sh("trap 'echo bye; exit' TERM; echo ready; kill -STOP $$") == (Interrupted(), "ready\nbye\n")


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("cancelled", CancelledByRequest()),
        ("shutdown", Interrupted()),
        ("timeout", TimedOut("timed out after 30s: ready")),
        ("lease lost", Lost("the runner lost the lease, so it killed the command")),
    ],
)
def test_a_stop_ends_everything_and_says_why(shell: Shell, reason: str, outcome: Outcome) -> None:
    shell.when("ready", lambda: setattr(shell.stop, "reason", reason))
    assert shell.sh("sleep 1000 & setsid sleep 1001 & echo ready; wait") == (outcome, "ready\n")
    assert not shell.alive()


def test_a_lost_lease_leaves_no_grace(shell: Shell) -> None:
    shell.when("ready", lambda: setattr(shell.stop, "reason", "lease lost"))
    outcome, _ = shell.sh("trap '' TERM; echo ready; while :; do sleep 0.01; done", grace=1e6, timeout=1e6)
    assert isinstance(outcome, Lost)


def test_a_command_is_not_begun_when_the_stop_came_first(shell: Shell) -> None:
    shell.stop.reason = "cancelled"
    assert shell.run("touch", "x") == (CancelledByRequest(), None)
    assert not (shell.folder / "x").exists()


def test_a_result_that_arrived_before_the_stop_counts(shell: Shell) -> None:
    def stop_once_it_ended() -> None:
        until(lambda: (shell.folder / "pid").exists() and (shell.folder / "pid").read_text().endswith("\n"))
        until(lambda: process_started(int((shell.folder / "pid").read_text())) is None)
        shell.stop.reason = "cancelled"

    shell.when("ready", stop_once_it_ended)
    outcome, output = shell.sh("echo ready; sleep 1000 & echo $$ > pid")
    assert outcome == Succeeded()
    assert "ended processes that the command left running: s" in (output or "")


# --- what it starts ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@LINUX_ONLY
@pytest.mark.parametrize(
    "left_running",
    [
        "sleep 1000 &",  # holds stdout
        "(trap '' TERM HUP; while :; do sleep 0.01; done) &",
        "setsid sleep 1000 &",
        "setsid sh -c 'setsid sleep 1000 & setsid sleep 1001 &' &",  # a daemon's double fork
        "env -i sleep 1000 >/dev/null 2>&1 &",
    ],
)
def test_what_a_command_leaves_running_is_ended_and_named(shell: Shell, left_running: str) -> None:
    outcome, output = shell.sh(f"{left_running} echo done")
    assert outcome == Succeeded()
    assert output is not None
    assert output.startswith("done\n\n[cronjobs] ended processes that the command left running: s")
    assert "(pid " in output
    assert not shell.alive()


@LINUX_ONLY
def test_what_it_leaves_running_goes_on_where_that_is_wanted(shell: Shell) -> None:
    wait = "until [ -e gate ]; do sleep 0.01; done; echo late >>got"
    assert shell.sh(f"({wait}) & setsid sh -c '{wait}' & echo done", leave_running=True) == (Succeeded(), "done\n")
    assert len(shell.alive()) >= 2
    (shell.folder / "gate").touch()
    until(lambda: not shell.alive())
    assert (shell.folder / "got").read_text() == "late\nlate\n"


def test_what_runs_when_the_command_is_stopped_is_ended_also_where_leftovers_go_on(shell: Shell) -> None:
    shell.when("begun", lambda: setattr(shell.stop, "reason", "cancelled"))
    stubborn = "(trap '' TERM; echo begun; while :; do sleep 0.01; done) & wait"
    outcome, _ = shell.sh(stubborn, leave_running=True, grace=0.2)
    assert isinstance(outcome, CancelledByRequest)
    assert not shell.alive()


def test_what_is_about_to_end_by_itself_may(shell: Shell) -> None:
    assert shell.sh("(while kill -0 $$ 2>/dev/null; do sleep 0.01; done; echo late) & echo done; exit 0") == (
        Succeeded(),
        "done\nlate\n",
    )


@LINUX_ONLY
@pytest.mark.parametrize("forked", [False, True], ids=["alone", "with a forked copy that holds its sockets"])
def test_a_killed_runner_takes_everything_with_it(shell: Shell, forked: bool) -> None:
    runner = start_runner(shell, "sleep 1000 & (setsid sleep 1001 &) ; wait", forks=forked)
    until(lambda: len(shell.alive()) == 3)
    (shell.folder / "fork").touch()
    until(lambda: not forked or (shell.folder / "forked").exists())
    launcher = launcher_of(runner.pid)
    runner.kill()
    until(lambda: not shell.alive())
    until(lambda: process_started(launcher) is None)
    (shell.folder / "over").touch()
    runner.communicate()


@LINUX_ONLY
def test_a_killed_launcher_takes_the_command_and_its_group_with_it(shell: Shell) -> None:
    runner = start_runner(shell, "sleep 1000 & echo busy; wait")
    until(lambda: len(shell.alive()) == 2)
    os.kill(launcher_of(runner.pid), signal.SIGKILL)
    told, _ = runner.communicate(timeout=60)
    assert "LauncherDied" in told
    until(lambda: not shell.alive())


@LINUX_ONLY
def test_a_killed_launcher_leaves_nothing_that_went_into_a_session_of_its_own(shell: Shell) -> None:
    runner = start_runner(shell, "setsid sleep 1000 & (setsid sh -c 'sleep 1001; :' &) ; echo busy; wait")
    until(lambda: len(shell.alive()) == 4)
    os.kill(launcher_of(runner.pid), signal.SIGKILL)
    told, _ = runner.communicate(timeout=60)
    assert "LauncherDied" in told
    assert shell.alive() == set(), "before its end is told"


@LINUX_ONLY
def test_a_command_whose_runner_and_launcher_are_killed_at_once_dies(shell: Shell) -> None:
    runner = start_runner(shell, "exec sleep 1000")
    until(shell.alive)
    launcher = launcher_of(runner.pid)
    os.kill(launcher, signal.SIGSTOP)
    runner.kill()
    os.kill(launcher, signal.SIGKILL)
    until(lambda: not shell.alive())
    runner.communicate()


@pytest.mark.slow
@LINUX_ONLY
def test_a_frozen_runner_does_not_keep_its_command_alive(shell: Shell) -> None:
    runner = start_runner(shell, "trap '' TERM; sleep 1000", timeout=0.5, grace=0.1)
    until(shell.alive)
    os.kill(runner.pid, signal.SIGSTOP)
    until(lambda: not shell.alive())
    os.kill(runner.pid, signal.SIGCONT)
    told, _ = runner.communicate(timeout=60)
    assert "TimedOut" in told


def start_runner(
    shell: Shell, script: str, *, timeout: float = 60, grace: float = 5, forks: bool = False
) -> subprocess.Popen[str]:
    """A process of its own that runs *script* as a command and prints the outcome."""
    program = f"""
import os, threading
from datetime import timedelta
from pathlib import Path
from cronjobs.clock import SYSTEM, sleep
from cronjobs.engine.execution.process import Command, run_command
from cronjobs.engine.jobs.context import StopSignal

def run():
    command = Command(
        ("sh", "-c", {script!r}), Path("/"), {{"PATH": "/usr/bin:/bin", "MARK": {shell.mark!r}}}, b"",
        timedelta(seconds={timeout}), timedelta(seconds={grace}),
    )
    print(run_command(command, StopSignal(), clock=SYSTEM), flush=True)

thread = threading.Thread(target=run)
thread.start()
if {forks}:
    while not Path({str(shell.folder / "fork")!r}).exists():
        sleep(0.01)
    if os.fork() == 0:
        Path({str(shell.folder / "forked")!r}).touch()
        while not Path({str(shell.folder / "over")!r}).exists():
            sleep(0.01)
        os._exit(0)
thread.join()
"""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
