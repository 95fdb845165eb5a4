"""The calls of ``ctx.map`` on a worker of a cluster: made in reusable processes of their own.

The processes are an attempt's: they end with it. Its guard says so, on whichever worker; where it cannot, this worker
finds out itself. Every quarter of a lease it asks the database whether the attempt goes on, and what it has not heard
for a lease is killed, by the kernel's timer in the launcher if need be.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Final

from cronjobs.clock import SYSTEM
from cronjobs.engines.travelling import Spec, versions
from cronjobs.engines.worker_home import this_worker, token_database
from cronjobs.errors import CronjobsError, DatabaseError
from cronjobs.execution.attempt import PROCESS_GRACE
from cronjobs.execution.call_worker import MODULE, CallerFacts
from cronjobs.execution.command import Command
from cronjobs.execution.lines import Lines
from cronjobs.execution.process import run_command
from cronjobs.jobs.context import StopSignal
from cronjobs.model import Failed, Outcome
from cronjobs.rules import calls
from cronjobs.rules.calls import Call, CallEnd
from cronjobs.rules.clusters import difference
from cronjobs.rules.lease import heartbeat_s, lease_margin_s
from cronjobs.store import tokens

HOLDER: Final = "calls"  # by which nobody holds a token
AGAIN_S: Final = 1.0  # after an error of the database
OVER: Final = "the attempt that asked for it is over"

_lock: Final = threading.Lock()
_pools: dict[str, FarPool] = {}  # by the attempt's token
_by_spec: dict[str, FarPool] = {}  # the one that was asked for last, since reading a Spec takes a tenth of a ms
_over: deque[str] = deque(maxlen=1000)  # tokens of attempts whose calls may still be on their way here


class AttemptOver(CronjobsError):
    """No call of the attempt is to be made any more."""


def run(texts: list[str], spec_text: str) -> list[str]:
    """Make these calls, one after another, for the attempt of *spec_text*; return their ends. A task of the cluster."""
    return [_ended(Call.decode(text), spec_text).encode() for text in texts]


def _ended(call: Call, spec_text: str) -> CallEnd:
    try:
        return _pool(spec_text).make(call)
    except CronjobsError as error:
        return calls.failed(call.number, type(error).__name__, f"worker {this_worker()}: {error}")


def end(token: str, forever: bool) -> None:
    """End the processes of an attempt, and with *forever* begin no others; its guard calls it on every worker."""
    if forever:
        _over.append(token)
    with _lock:
        pool = _pools.pop(token, None)
    if pool is not None:
        pool.end("cancelled")


def _pool(spec_text: str) -> FarPool:
    with _lock:
        found = _by_spec.get(spec_text)
    if found is not None and found.stop.reason is None:
        return found
    spec = Spec.decode(spec_text)
    if (why := difference(spec.versions, versions())) is not None:
        raise CronjobsError(why)
    with _lock:
        if spec.key.token in _over:
            raise AttemptOver(OVER)
        found = _pools.get(spec.key.token)
        if found is None or found.stop.reason is not None:
            found = _pools[spec.key.token] = FarPool(spec)
        _by_spec.clear()  # what is not here any more is found by its token
        _by_spec[spec_text] = found
        return found


class FarPool:
    """The processes of one attempt on this worker: as many as it makes calls at a time."""

    def __init__(self, spec: Spec) -> None:
        self.stop = StopSignal()
        self._spec = spec
        settings, self._database = token_database(spec.request.settings)
        began = SYSTEM.monotonic()
        self._until = began + spec.request.timeout_s
        self._request = spec.starting_at(began, this_worker(), settings)
        self._safe_until = began
        self._idle: list[FarProcess] = []
        self._ended = threading.Event()
        self._beginning = threading.Lock()
        self._watched = False

    def _begin(self) -> None:
        """Make sure that the attempt goes on, once. Raises AttemptOver and DatabaseError."""
        with self._beginning:
            if self._watched:
                return
            if not self._goes_on():
                raise AttemptOver(OVER)
            self._watched = True
            threading.Thread(target=self._watch, name="cronjobs-calls", daemon=True).start()

    def make(self, call: Call) -> CallEnd:
        self._begin()
        with _lock:
            process = self._idle.pop() if self._idle else None
        if process is None:
            process = FarProcess(self)
        end = process.make(call)
        if process.lives:
            with _lock:
                self._idle.append(process)
            if self.stop.reason is not None:
                process.lines.close()
        return end

    def end(self, reason: str) -> None:
        self.stop.set(reason)
        self._ended.set()
        for process in self._idle:
            process.lines.close()

    def command(self, descriptor: int) -> Command:
        return Command(
            argv=(sys.executable, "-P", "-u", "-m", MODULE, str(descriptor)),
            folder=self._request.settings.folder,
            env=os.environ,
            stdin=b"",
            timeout=timedelta(seconds=max(0.0, self._until - SYSTEM.monotonic())),
            grace=PROCESS_GRACE,
            max_memory=self._spec.max_memory,
            keep_open=(descriptor,),
            lease=lambda: self._safe_until,
        )

    def caller(self) -> CallerFacts:
        return CallerFacts.of(self._request, keeps_output=True)

    def _goes_on(self) -> bool:
        """Ask the database. Raises DatabaseError."""
        sent = SYSTEM.monotonic()
        with self._database.write() as connection:
            # The guard has the token, so that this takes nothing.
            answer = tokens.take(connection, self._spec.key, HOLDER).answer
        self._safe_until = sent + self._spec.lease_s - lease_margin_s(self._spec.lease_s)
        return answer == "taken"

    def _watch(self) -> None:
        pause_s = heartbeat_s(self._spec.lease_s)
        while not self._ended.wait(pause_s):
            pause_s = heartbeat_s(self._spec.lease_s)
            try:
                goes_on = self._goes_on()
            except DatabaseError:
                pause_s = min(AGAIN_S, pause_s)
                goes_on = SYSTEM.monotonic() < self._safe_until
            if not goes_on:
                with _lock:
                    if _pools.get(self._spec.key.token) is self:
                        del _pools[self._spec.key.token]
                self.end("lease lost")


class FarProcess:
    """One process, below a launcher of its own; a thread attends to it."""

    def __init__(self, pool: FarPool) -> None:
        self._pool = pool
        ours, self._theirs = socket.socketpair()
        self.lines = Lines(ours)
        self.lives = True
        self._outcome: Outcome | None = None
        threading.Thread(target=self._attend, name="cronjobs-call", daemon=True).start()
        with suppress(OSError):  # it has ended already, as its call will say
            self.lines.send(pool.caller().encode())

    def make(self, call: Call) -> CallEnd:
        found: list[bytes] | None = []
        with suppress(OSError):  # closed by the attempt's end
            self.lines.send(call.encode())
            while found == []:
                found = self.lines.receive()
        if found:
            return CallEnd.decode(found[0])
        self.lives = False
        self.lines.close()
        return self._died(call.number)

    def _attend(self) -> None:
        try:
            self._outcome = run_command(self._pool.command(self._theirs.fileno()), self._pool.stop, clock=SYSTEM)[0]
        finally:
            self._theirs.close()  # now nothing has that end any more, and who waits for an answer learns it

    def _died(self, number: int) -> CallEnd:
        outcome = self._outcome
        if isinstance(outcome, Failed):
            return calls.failed(number, outcome.error_type, f"its process ended before the call did: {outcome.error}")
        if self._pool.stop.reason is not None:
            return calls.failed(number, "AttemptOver", OVER)
        why = getattr(outcome, "error", None) or "nobody knows why"
        return calls.failed(number, type(outcome).__name__, f"its process ended before the call did: {why}")
