"""Is the holder of a lease gone? Tests with real processes. The answer is never yes if that cannot be proven."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import LINUX_ONLY, until

from cronjobs.engine.host import identity
from cronjobs.engine.host.identity import Identity, is_gone
from cronjobs.engine.probe.kernel_facts import process_started

pytestmark = LINUX_ONLY

WAITS = """
import sys
from cronjobs.engine.host.identity import Identity
print(Identity.here(), flush=True)
sys.stdin.read()
"""

RUNS_A_COMMAND = """
import sys
from datetime import timedelta
from pathlib import Path
from cronjobs.clock import SYSTEM
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.execution.process import Command, run_command
from cronjobs.engine.jobs.context import StopSignal
print(Identity.here(), flush=True)
hour = timedelta(hours=1)
argv = ("sh", "-c", "echo begun; exec sleep 1000")
show = lambda text: print(text, end="", flush=True)
command = Command(argv, Path("/"), {"PATH": "/usr/bin:/bin"}, b"", hour, hour, on_output=show)
run_command(command, StopSignal(), clock=SYSTEM)
"""


@contextmanager
def runner(script: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that says by which name it would hold leases."""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def launchers_of(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            if any(word.endswith(b"launcher.py") for word in arguments) and str(pid).encode() in arguments:
                found.append(int(folder.name))
    return found


def test_a_name_is_read_back_as_it_was_written() -> None:
    here = Identity.here()
    assert Identity.parse(str(here)) == here


@pytest.mark.parametrize(
    "name", ["", "someone", "a:b:c:d:e:f", "a:b:c:1:2", "a:b:c:1:2:d:e", "a:b:c:-1:2:d", "a:b:c:²:2:d"]
)
def test_a_name_that_is_none_of_ours_proves_nothing(name: str) -> None:
    assert Identity.parse(name) is None
    assert is_gone(name, Identity.here()) is None


def test_a_living_process_is_not_gone_and_a_zombie_is() -> None:
    here = Identity.here()
    assert is_gone(str(here), here) is False
    with runner(WAITS) as (process, name):
        assert is_gone(name, here) is False
        process.send_signal(signal.SIGSTOP)  # frozen is not dead: it may come back
        assert is_gone(name, here) is False
        process.kill()
        until(lambda: process_started(process.pid) is None)  # nobody has reaped it yet
        assert Path(f"/proc/{process.pid}").exists()
        until(lambda: is_gone(name, here))
        process.wait()
        assert is_gone(name, here) is True


def test_a_pid_that_is_used_again_is_somebody_else() -> None:
    here = Identity.here()
    assert is_gone(str(replace(here, started="1", tick="before")), here) is True


@pytest.mark.parametrize("elsewhere", [{"host": "web9"}, {"boot_id": "another-boot"}, {"pid_namespace": "4026530000"}])
def test_death_is_not_proven_on_another_host_after_a_boot_or_across_containers(elsewhere: dict[str, str]) -> None:
    here = Identity.here()
    dead = replace(here, started="1")
    assert is_gone(str(replace(dead, **elsewhere)), here) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("unknown", [{"boot_id": "-"}, {"pid_namespace": "-"}, {"started": "0"}])
def test_what_the_system_does_not_tell_proves_nothing(unknown: dict[str, str]) -> None:
    here = replace(Identity.here(), **unknown)  # type: ignore[arg-type]
    assert is_gone(str(replace(here, pid=2**22 + 1)), here) is None


@pytest.mark.parametrize("pid", [os.getpid(), 2**22 + 1], ids=["it is there", "its launchers could be"])
def test_what_is_hidden_from_us_is_not_taken_for_dead(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the mount option hidepid=2 (see proc(5)), /proc does not show the processes of other users."""
    here = Identity.here()
    hidden = [f"/proc/{pid}/stat"] if pid == os.getpid() else ["/proc/1/stat"]
    read = identity._read
    monkeypatch.setattr(identity, "process_started", lambda _: None)
    monkeypatch.setattr(identity, "_read", lambda path: "-" if path in hidden else read(path))
    assert is_gone(str(replace(here, pid=pid, started="1")), here) is None


def test_it_is_not_gone_while_a_launcher_of_its_runs() -> None:
    here = Identity.here()
    with runner(RUNS_A_COMMAND) as (process, name):
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        [launcher] = launchers_of(process.pid)
        os.kill(launcher, signal.SIGSTOP)  # it cannot kill what it answers for
        try:
            process.kill()
            process.wait()
            assert is_gone(name, here) is False
        finally:
            os.kill(launcher, signal.SIGCONT)
        until(lambda: is_gone(name, here))
        until(lambda: process_started(launcher) is None)


def test_the_launcher_of_whoever_has_the_pid_now_proves_nothing_about_who_had_it() -> None:
    here = Identity.here()
    with runner(RUNS_A_COMMAND) as (process, name):
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        before = Identity.parse(name)
        assert before is not None
        assert is_gone(name, here) is False
        assert is_gone(str(replace(before, started="1")), here) is True
