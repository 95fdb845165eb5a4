"""A drill's stage: a folder, its own tables, and ticks started the way cron starts them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection

from cronjobs.clock import SYSTEM, sleep
from cronjobs.contrib.drill import statements as store
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs.enqueue import enqueue
from cronjobs.engine.probe.kernel_facts import process_started
from cronjobs.errors import CronjobsError, DatabaseBusy

T = TypeVar("T")

WORKERS: Final = 3
BUDGET_S: Final = 20
# Short, because the drill waits for leases to expire, but long enough for a busy machine to renew a lease in time.
LEASE_S: Final = 6
SHUTDOWN_GRACE_S: Final = 5

MARK_VARIABLE: Final = "CRONJOBS_DRILL"  # every process of this drill has this variable in its environment

POLL_S: Final = 0.02
PATIENCE_S: Final = 60.0  # how long to wait for what must happen even on a busy machine
AT_ONCE_S: Final = 0.5  # an operation starts within this many seconds if no lock blocks it


class StuckError(CronjobsError):
    """The drill waited in vain. This is a result of the drill, not a bug in it."""


def until(condition: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
    """Wait until *condition* is true. If that takes too long, raise StuckError, which says *what* did not happen."""
    give_up_at = SYSTEM.monotonic() + within_s
    while not condition():
        if SYSTEM.monotonic() >= give_up_at:
            raise StuckError(f"the drill tried for {within_s:g} s {what}, and gave up")
        sleep(POLL_S)


@dataclass
class StagedTick:
    """A process of ``cronjobs run-due``. ``code`` is its exit code as Python reports it: -9 for killed by signal 9."""

    process: subprocess.Popen[bytes]
    folder: Path
    name: str

    @property
    def code(self) -> int | None:
        return self.process.poll()

    @property
    def out(self) -> str:
        return (self.folder / f"{self.name}.out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.folder / f"{self.name}.err").read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        try:
            return self.process.wait(BUDGET_S + PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise StuckError(
                f"a tick is still running more than a minute after its budget of {BUDGET_S} s was used up"
            ) from None


@dataclass
class Stage:
    """The stage of a drill. The drill only reads and enqueues in ``database``; commands and ticks do the rest."""

    folder: Path
    database: Database
    schema: str | None
    env: dict[str, str]
    ticks: list[StagedTick] = field(default_factory=list)
    keep: bool = False  # whether to keep the folder and the schema at the end
    may_have_schema: bool = False  # whether the server may have a schema to drop

    @property
    def config(self) -> Path:
        return self.folder / "cronjobs.yaml"

    # --- ticks and commands -------------------------------------------------------------------------------------------

    def start(self) -> StagedTick:
        """Start a tick as cron does: with a bare environment, in another folder, without a terminal."""
        name = f"tick-{len(self.ticks) + 1}"
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
            process = subprocess.Popen(
                self._cronjobs("run-due"),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd="/",
                env=self.env,
                start_new_session=True,  # so that Ctrl-C reaches only the drill, which then ends the ticks
            )
        self.ticks.append(StagedTick(process, self.folder, name))
        return self.ticks[-1]

    def tick(self) -> StagedTick:
        tick = self.start()
        tick.wait()
        return tick

    def command(self, *words: str) -> str:
        """Run an operator's command and return its output. Raises StuckError if the command fails."""
        asked = f"cronjobs {shlex.join(words)}"
        try:
            done = subprocess.run(
                self._cronjobs(*words),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                cwd="/",
                env=self.env,
                start_new_session=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StuckError(f"{asked} has run for more than {PATIENCE_S:g} s") from None
        if done.returncode:
            raise StuckError(f"{asked} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def listed(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.command(*words, "--limit", "1000000", "--json"))
        return found

    def _cronjobs(self, *words: str) -> list[str]:
        return [sys.executable, "-P", "-m", "cronjobs", *words, "--config", str(self.config)]

    # --- the database -------------------------------------------------------------------------------------------------

    def look(self, read: Callable[[Connection], T]) -> T:
        with self.database.read() as connection:
            return read(connection)

    def enqueue_receipts(self, receipts: int) -> None:
        """Enqueue receipts as an app does: in one transaction, with keys from the business events."""
        with self.database.write() as connection:
            for receipt in range(1, receipts + 1):
                enqueue(connection, store.RECEIPT, {"receipt": receipt}, idempotency_key=("receipt", receipt))

    def enqueue(self, job_type: str, *, timeout_s: float | None = None) -> int:
        """Enqueue a job with the highest priority. If *timeout_s* is None, the job type's timeout applies."""
        with self.database.write() as connection:
            job_id = enqueue(connection, job_type, priority=0, timeout=timeout_s).id
        assert job_id is not None  # there is always an id, because the queue has no cap
        return job_id

    def held_by(self, tick: StagedTick) -> set[int]:
        holders = self.look(store.leases)
        who = {job_id: Identity.parse(locked_by) for job_id, locked_by in holders.items()}
        return {job_id for job_id, holder in who.items() if holder is not None and holder.pid == tick.process.pid}

    def freeze(self, tick: StagedTick) -> set[int]:
        """Send SIGSTOP to *tick* while the tick has jobs and holds no database lock. Return the ids of these jobs.

        A tick that stops in the middle of a transaction would block all other ticks. The drill does not test that case.
        """
        held: set[int] = set()

        def is_frozen() -> bool:
            nonlocal held
            if tick.code is not None:
                raise StuckError(f"the tick ended with {tick.code} before the drill froze it: {tick.err.strip()}")
            tick.send(signal.SIGSTOP)
            if (held := self.held_by(tick)) and self._is_free(held):
                # Read the jobs again, because the signal may have arrived after the first read.
                held = self.held_by(tick)
                return True
            tick.send(signal.SIGCONT)
            return False

        until(is_frozen, "to stop a tick that holds jobs and no lock")
        return held

    def _is_free(self, held: set[int]) -> bool:
        began = SYSTEM.monotonic()
        try:
            with self.database.write(patience=AT_ONCE_S) as connection:
                return SYSTEM.monotonic() - began < AT_ONCE_S and store.unlocked(connection, held) == len(held)
        except DatabaseBusy:
            return False

    # --- processes ----------------------------------------------------------------------------------------------------

    def processes(self) -> set[int]:
        """Find this drill's processes by their environment. Outside Linux, find none."""
        mark = f"{MARK_VARIABLE}={self.env[MARK_VARIABLE]}".encode()
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0") and process_started(int(folder.name)):
                    found.add(int(folder.name))
        return found

    def end_everything(self) -> None:
        for tick in self.ticks:
            if tick.code is None:
                tick.process.kill()  # SIGKILL works on a frozen process too
                tick.process.wait()

        def is_over() -> bool:
            left = self.processes()
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        until(is_over, "to end what the drill started")


def is_alive(pid: int) -> bool:
    if Path("/proc/self/stat").exists():
        return process_started(pid) is not None  # None for a zombie
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
