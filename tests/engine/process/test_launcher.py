"""A launcher that starts its command late, or is frozen meanwhile: nothing begins after the end of the lease."""

from __future__ import annotations

import errno
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.commands import LINUX_ONLY, Shell, marked_shell, until
from support.longjobs import state

from cronjobs.clock import SYSTEM
from cronjobs.engine.execution.launcher import descendants
from cronjobs.model import CancelledByRequest, Released, Succeeded

pytestmark = LINUX_ONLY
# Runs the launcher. It, or its forked child, stops before the system call named in the first argument.
PROGRAM = """
import os, signal, sys
from cronjobs.engine.execution import launcher

def stop_before(call):
    def stopping(*given):
        os.kill(os.getpid(), signal.SIGSTOP)
        return call(*given)
    return stopping

where, timers = sys.argv.pop(1), sys.argv.pop(1)
if where:
    setattr(os, where, stop_before(getattr(os, where)))
if not timers:
    launcher.kill_at = lambda instant: None
print("ready", flush=True)
launcher.main()
"""
LATE = [f"failed\tlate\t{errno.ETIME}"]
SOON_S = 0.5  # the launcher gets from its request to the fork in milliseconds
PAY = ": > paid"


class Launched:
    """A launcher, and the runner's end of its channel."""

    def __init__(self, process: subprocess.Popen[str], channel: socket.socket, folder: Path) -> None:
        self.process, self.channel, self.folder = process, channel, folder

    def ask(self, script: str, then: bytes = b"", *, leased_s: float = 60, limit_s: float = 60) -> float:
        """Order a command, and send the orders *then*. Return when its lease ends, or its time limit if earlier."""
        now = SYSTEM.monotonic()
        env, folder = {b"PATH": b"/usr/bin:/bin"}, os.fsencode(self.folder)
        argv = [b"sh", b"-c", script.encode()]
        spec = marshal.dumps((argv, env, folder, now + limit_s, 0, now + leased_s, False))
        self.channel.sendall(len(spec).to_bytes(8, "big") + spec + then)
        return now + min(leased_s, limit_s)

    def reports(self) -> list[str]:
        """Return all reports of the launcher, which then has ended."""
        with self.channel.makefile() as lines:
            return lines.read().splitlines()

    @property
    def paid(self) -> bool:
        return (self.folder / "paid").exists()


@contextmanager
def launched(folder: Path, *, stops_before: str = "", timers: bool = True, parent: int = 0) -> Iterator[Launched]:
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "cwd": Path(__file__).parents[3]}
    argv = [sys.executable, "-W", "ignore", "-c", PROGRAM, stops_before, "yes" if timers else ""]
    argv += [str(theirs.fileno()), str(parent or os.getpid())]
    with ours, theirs, subprocess.Popen(argv, pass_fds=[theirs.fileno()], **options) as process:
        theirs.close()
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield Launched(process, ours, folder)
        finally:
            for pid in [pid for pid, _, _ in descendants(process.pid)] + [process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def past(instant: float) -> None:
    until(lambda: SYSTEM.monotonic() > instant)


# --- before the fork --------------------------------------------------------------------------------------------------


def test_a_launcher_in_time_starts_its_command(tmp_path: Path) -> None:
    with launched(tmp_path) as launcher:
        launcher.ask(PAY)
        started, exited = launcher.reports()
        assert started.startswith("started\t")
        assert exited == "exited\t0\t0"
        assert launcher.paid


@pytest.mark.parametrize(("leased_s", "limit_s"), [(0.01, 60), (60, 0.01)])
def test_a_launcher_that_wakes_after_the_end_of_the_lease_or_the_limit_starts_nothing(
    tmp_path: Path, leased_s: float, limit_s: float
) -> None:
    with launched(tmp_path) as launcher:
        launcher.process.send_signal(signal.SIGSTOP)
        past(launcher.ask(PAY, leased_s=leased_s, limit_s=limit_s))
        launcher.process.send_signal(signal.SIGCONT)
        assert launcher.reports() == LATE
        assert not launcher.paid


def test_a_launcher_whose_runner_has_closed_the_channel_starts_nothing(tmp_path: Path) -> None:
    with launched(tmp_path) as launcher:
        launcher.process.send_signal(signal.SIGSTOP)
        launcher.ask(PAY, then=renewed(SYSTEM.monotonic() + 60) * 20)
        launcher.channel.shutdown(socket.SHUT_WR)
        launcher.process.send_signal(signal.SIGCONT)
        assert launcher.reports() == LATE


def test_a_launcher_whose_runner_is_dead_starts_nothing_although_a_copy_holds_the_channel(tmp_path: Path) -> None:
    with launched(tmp_path, parent=1) as launcher:
        launcher.ask(PAY)
        assert launcher.reports() == LATE


@pytest.mark.parametrize("order", [b"C", b"T", b"K"])
def test_an_order_to_stop_that_comes_before_the_start_prevents_the_start(tmp_path: Path, order: bytes) -> None:
    with launched(tmp_path) as launcher:
        launcher.process.send_signal(signal.SIGSTOP)
        launcher.ask(PAY, then=order)
        launcher.process.send_signal(signal.SIGCONT)
        assert launcher.reports() == LATE


def renewed(until_instant: float) -> bytes:
    return b"R" + int(until_instant * 1000).to_bytes(8, "big")


def test_a_late_launcher_starts_its_command_if_the_lease_was_renewed(tmp_path: Path) -> None:
    with launched(tmp_path) as launcher:
        launcher.process.send_signal(signal.SIGSTOP)
        past(launcher.ask(PAY, leased_s=0.01, then=renewed(SYSTEM.monotonic() + 60)))
        launcher.process.send_signal(signal.SIGCONT)
        assert launcher.reports()[-1] == "exited\t0\t0"
        assert launcher.paid


def test_a_renewal_that_is_read_late_does_not_keep_the_command_alive(tmp_path: Path) -> None:
    with launched(tmp_path) as launcher:
        launcher.ask("exec sleep 1000", limit_s=1000)
        assert launcher.channel.recv(7) == b"started"
        launcher.channel.sendall(renewed(SYSTEM.monotonic()))
        assert launcher.reports()[-1] == "exited\t-9\t1"


# --- at the fork and between fork and exec ----------------------------------------------------------------------------


def test_a_launcher_that_is_frozen_after_its_last_look_starts_nothing(tmp_path: Path) -> None:
    with launched(tmp_path, stops_before="fork") as launcher:
        lease_ends = launcher.ask(PAY, leased_s=SOON_S)
        until(lambda: state(launcher.process.pid) in ("T", "Z"))
        past(lease_ends)
        launcher.process.send_signal(signal.SIGCONT)
        launcher.reports()
        assert not launcher.paid


@pytest.mark.parametrize(("stops_before", "timers"), [("chdir", True), ("setsid", True), ("setsid", False)], ids=str)
def test_a_child_that_is_frozen_before_exec_does_not_become_the_command(
    tmp_path: Path, stops_before: str, timers: bool
) -> None:
    """Before setsid, the child has not looked at the clock. Before chdir it has, and only its timer can end it."""
    with launched(tmp_path, stops_before=stops_before, timers=timers) as launcher:
        lease_ends = launcher.ask(PAY, leased_s=SOON_S)
        until(lambda: children(launcher.process.pid))
        [child] = children(launcher.process.pid)
        until(lambda: state(child) in ("T", "Z", ""))
        launcher.process.send_signal(signal.SIGSTOP)  # it cannot end what its child becomes
        past(lease_ends)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)
        until(lambda: state(child) in ("Z", ""))
        assert not launcher.paid
        launcher.process.send_signal(signal.SIGCONT)
        assert launcher.reports()[-1] in (*LATE, "exited\t-9\t1")


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# --- what the runner sends and records --------------------------------------------------------------------------------


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with marked_shell(tmp_path) as shell:
        shell.clock.advance(3600)  # the launcher reads another clock
        yield shell


@pytest.mark.parametrize("reason", [None, "cancelled"])
def test_a_command_whose_launcher_was_too_late_is_released_unless_it_was_stopped(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, reason: str | None
) -> None:
    popen, lease_ends = subprocess.Popen, shell.clock.monotonic() + 0.05
    launchers: list[subprocess.Popen[bytes]] = []

    def stopped(*given: Any, **named: Any) -> Any:
        launchers.append(popen(*given, **named))
        launchers[0].send_signal(signal.SIGSTOP)
        shell.stop.reason = reason
        return launchers[0]

    def lease() -> float:
        if shell.clock.monotonic() > lease_ends and launchers:
            launchers[0].send_signal(signal.SIGCONT)
        return lease_ends

    monkeypatch.setattr(subprocess, "Popen", stopped)
    outcome, _ = shell.run("touch", "paid", lease=lease)
    assert not (shell.folder / "paid").exists()
    if reason is not None:
        assert isinstance(outcome, CancelledByRequest)
        return
    assert isinstance(outcome, Released)
    assert "the lease or the time limit ended before the process could start" in str(outcome.error)


@pytest.mark.slow
def test_a_command_outlives_its_first_lease_if_that_is_renewed(shell: Shell) -> None:
    """Exec removes the timer that ended the start, and the runner sends the new end in the launcher's time."""
    first_ends = shell.clock.monotonic() + 3

    def lease() -> float:
        if shell.clock.monotonic() > first_ends:
            (shell.folder / "go").touch()
        return first_ends + 60 if "ready" in shell.seen else first_ends

    shell.when("ready", lambda: None)
    outcome, _ = shell.run("sh", "-c", "echo ready; while ! [ -e go ]; do sleep 0.01; done", lease=lease)
    assert outcome == Succeeded()
