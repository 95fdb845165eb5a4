"""The calls of ``ctx.map`` on this host: a pool of processes below the handler's own.

The launcher that is responsible for the handler's process ends these with it, whatever becomes of it. A process of the
pool makes one call after another, and is there until the attempt ends, for the next ``ctx.map``.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from cronjobs.clock import SYSTEM, sleep
from cronjobs.execution.call_worker import MODULE, CallerFacts
from cronjobs.execution.lines import Lines
from cronjobs.rules import calls
from cronjobs.rules.calls import Call, CallEnd

POLL_S: Final = 0.05  # how late a stop is noticed
GRACE_S: Final = 1.0  # from SIGTERM to SIGKILL, for calls that look whether they should stop
LEAVE_S: Final = 0.5  # for idle ones to end by themselves


class PoolProcess:
    """One process of the pool. ``busy``: the number of the call that it makes."""

    def __init__(self, caller: CallerFacts) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                argv = [sys.executable, "-P", "-u", "-m", MODULE, str(theirs.fileno())]
                self.process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=caller.request.settings.folder
                )
        except BaseException:
            ours.close()
            raise
        self.lines = Lines(ours)
        self.busy: int | None = None
        with suppress(OSError):  # it is gone, and the end of its stream says so
            self.lines.send(caller.encode())

    def begin(self, call: Call) -> None:
        self.busy = call.number
        with suppress(OSError):
            self.lines.send(call.encode())

    def read(self) -> CallEnd | None:
        """The end of its call, if that has come; the process having died is one, too."""
        found = self.lines.receive()
        if found is None:
            return self.end()
        if not found:
            return None
        self.busy = None
        return CallEnd.decode(found[0])

    def end(self) -> CallEnd | None:
        """It talks to nobody any more: the end of its call."""
        try:
            status = self.process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:  # its call has closed descriptors that are not its own
            self.process.kill()
            status = self.process.wait()
        number, self.busy = self.busy, None
        return None if number is None else died(number, status)

    @property
    def has_died(self) -> bool:
        """Whether it is gone, which its stream does not say while a forked copy of it has that open."""
        return self.busy is not None and self.process.poll() is not None

    @property
    def lives(self) -> bool:
        return self.process.returncode is None


def died(number: int, status: int) -> CallEnd:
    """The end of a call whose process ended with it, with exit *status*; negative: the signal."""
    if status >= 0:
        return calls.failed(
            number, f"exit-{status}", f"its process ended before the call did, with exit status {status}"
        )
    try:
        name = signal.Signals(-status).name
    except ValueError:  # one of the real-time signals, most of which have no name
        name = f"signal {-status}"
    hint = " (by hand, or because memory ran out)" if name == "SIGKILL" else ""
    return calls.failed(number, name, f"its process was killed by {name}{hint}")


class CallPool:
    """Processes for the calls of one attempt; *caller* is asked for its facts when the first is started."""

    def __init__(self, caller: Callable[[], CallerFacts]) -> None:
        self._caller = caller
        self._processes: list[PoolProcess] = []

    def make(
        self, these: Sequence[Call], at_once: int | None, ended: Callable[[CallEnd], None], check: Callable[[], None]
    ) -> None:
        try:
            self._make(deque(these), at_once or _cpus(), ended, check)
        except BaseException:
            self.kill()
            raise

    def _make(
        self, waiting: deque[Call], most: int, ended: Callable[[CallEnd], None], check: Callable[[], None]
    ) -> None:
        with selectors.DefaultSelector() as selector:
            for process in self._processes:
                selector.register(process.lines, selectors.EVENT_READ, process)
            while True:
                self._hand_out(waiting, most, selector)
                if not waiting and all(process.busy is None for process in self._processes):
                    return
                ready = [key.data for key, _ in selector.select(POLL_S)]
                silent = [] if ready else [one for one in self._processes if one.has_died]
                for one in (*ready, *silent):
                    end = one.end() if one in silent else one.read()
                    if not one.lives:
                        selector.unregister(one.lines)
                        one.lines.close()
                        self._processes.remove(one)
                    elif end is not None and waiting and len(self._processes) <= most:
                        one.begin(waiting.popleft())
                    if end is not None:
                        ended(end)
                check()

    def _hand_out(self, waiting: deque[Call], most: int, selector: selectors.BaseSelector) -> None:
        """Give calls to processes that have none, and start those that are missing."""
        working = sum(process.busy is not None for process in self._processes)
        idle = [process for process in self._processes if process.busy is None]
        while waiting and working < most:
            if idle:
                process = idle.pop()
            else:
                try:
                    process = PoolProcess(self._caller())
                except OSError:  # no room for another one
                    if working:
                        return
                    raise
                self._processes.append(process)
                selector.register(process.lines, selectors.EVENT_READ, process)
            process.begin(waiting.popleft())
            working += 1

    def close(self) -> None:
        """End the processes, which have no calls."""
        for process in self._processes:
            process.lines.close()
        self._wait(LEAVE_S)
        self.kill()

    def kill(self) -> None:
        """End the processes and the calls that they make; calls are asked first."""
        for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
            for process in self._processes:
                if process.process.poll() is None:
                    process.process.send_signal(number)
            self._wait(wait_s)
        for process in self._processes:
            process.lines.close()
        self._processes = []

    def _wait(self, most_s: float) -> None:
        until = SYSTEM.monotonic() + most_s
        while SYSTEM.monotonic() < until and any(process.process.poll() is None for process in self._processes):
            sleep(0.005)


def _cpus() -> int:
    """How many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
