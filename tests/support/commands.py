"""Real commands for tests.

They run in their own folder and are marked, so that processes that outlive a test are found.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cronjobs.clock import SYSTEM, sleep
from cronjobs.engine.execution.command import Command
from cronjobs.engine.execution.process import run_command
from cronjobs.engine.jobs.context import StopSignal
from cronjobs.engine.probe.kernel_facts import process_started
from cronjobs.model import ExitCodes, Outcome
from cronjobs.testing import FakeClock

# Signals 32 and 33, as in the masks of /proc. No program can use these signals, and posix_spawn(3) leaves them ignored.
THE_C_LIBRARYS = 0x180000000
LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="subreaper, PDEATHSIG and /proc are Linux's")


@contextmanager
def started(words: list[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process, and kill it at the end. ``with Popen(...)`` waits for it, even after an assertion has failed."""
    with subprocess.Popen(words, **options) as process:
        try:
            yield process
        finally:
            process.kill()


class Shell:
    """Runs marked commands in their own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.clock = FakeClock()
        self.stop = StopSignal()
        self.seen = ""
        self.on_output: Callable[[str], None] | None = None

    def run(
        self,
        *argv: str,
        stdin: bytes = b"{}",
        timeout: float = 30,
        grace: float = 5,
        exit_codes: ExitCodes | None = None,
        leave_running: bool = False,
        lease: Callable[[], float] | None = None,
        **env: str,
    ) -> tuple[Outcome, str | None]:
        command = Command(
            argv,
            self.folder,
            {"PATH": "/usr/bin:/bin", "MARK": self.mark, **env},
            stdin,
            timedelta(seconds=timeout),
            timedelta(seconds=grace),
            exit_codes or ExitCodes(),
            leave_running=leave_running,
            lease=lease,
            on_output=self.on_output,
        )
        return run_command(command, self.stop, clock=self.clock)

    def sh(self, script: str, **options: float) -> tuple[Outcome, str | None]:
        return self.run("sh", "-c", script, **options)  # type: ignore[arg-type]

    def when(self, text: str, act: Callable[[], object]) -> None:
        """Call *act* when *text* has been printed."""
        done: list[bool] = []

        def watch(news: str) -> None:
            self.seen += news
            if text in self.seen and not done:
                done.append(True)
                act()

        self.on_output = watch

    def alive(self) -> set[int]:
        mark, found = f"MARK={self.mark}".encode(), set()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0") and process_started(int(folder.name)):
                    found.add(int(folder.name))
            except OSError:
                continue
        return found


@contextmanager
def marked_shell(folder: Path) -> Iterator[Shell]:
    """A Shell. At the end of the test, none of its processes may be left."""
    shell = Shell(folder)
    yield shell
    left = shell.alive()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def until(condition: Callable[[], object], within_s: float = 60) -> None:
    deadline = SYSTEM.monotonic() + within_s
    while not condition():
        assert SYSTEM.monotonic() < deadline, "it did not come true in time"
        sleep(0.005)


def launcher_of(runner: int) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == runner and b"launcher.py" in (folder / "cmdline").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError("no launcher")
