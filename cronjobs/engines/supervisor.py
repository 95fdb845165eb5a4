"""The supervisor of one executor on this host: ``python -m`` this module, started by a tick (``tick.executors``).

It is a tick's loop whose workers are a cluster: it claims jobs of the executor's types, submits them, renews their
leases together, and records how they end. It has no deadline. When the file, or the handlers' modules, are no longer
what it began with (a deploy), it takes nothing more, and the next tick starts another one; when it has been idle for a
while, it ends. Its watchdog fires before a lease ends, as a tick's does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Final

from cronjobs import events, masking
from cronjobs.clock import SYSTEM
from cronjobs.config import load
from cronjobs.config.settings import Settings
from cronjobs.database.address import parse_url
from cronjobs.database.connection import Database
from cronjobs.engines.cluster_workers import ClusterWorkers
from cronjobs.engines.code_on_disk import CodeOnDisk
from cronjobs.errors import EX_SOFTWARE, CronjobsError
from cronjobs.execution.attempt import WorkerContext
from cronjobs.host.identity import Identity
from cronjobs.jobs import job_types
from cronjobs.store.sql import database_now
from cronjobs.tick.executors import Supervision, SupervisorLock
from cronjobs.tick.listeners import Listeners
from cronjobs.tick.loop import Loop
from cronjobs.tick.result import NOTHING_DUE, NOTHING_ELSE_DUE, TickFilter
from cronjobs.tick.watchdog import Watchdog

IDLE_S: Final = 30.0  # after so long without work it ends
LOOK_S: Final = 1.0  # how often it looks for work, and whether its files have changed
NO_DEADLINE: Final = timedelta(days=62)  # twice the longest timeout
TAG: Final = "cluster-"  # prefix of the tick part of its locked_by
IDLE: Final = "it was idle"
DEPLOY: Final = "its file or its handlers have changed"


@dataclass
class Supervisor:
    """``wake`` is set by signals; ``up``: the cluster is there; ``stale``: this process is of before a deploy."""

    loop: Loop
    lock: SupervisorLock
    code: CodeOnDisk
    wake: threading.Event
    up: bool = False
    stale: bool = False

    def run(self) -> str:
        """Work until there is nothing to do for a while, or it has to stop; say why it ended."""
        idle_since = SYSTEM.monotonic()
        while True:
            claimed = self.loop.counts.claimed
            ended = self.loop.run()
            now = SYSTEM.monotonic()
            if ended not in (NOTHING_DUE, NOTHING_ELSE_DUE):
                return ended
            at_work = bool(self.loop.in_flight.held or self.loop.in_flight.without_lease)
            if self.stale and not at_work:
                return DEPLOY
            if at_work or self.loop.counts.claimed != claimed:
                idle_since = now
            elif now >= idle_since + IDLE_S:
                return IDLE
            self.wake.wait(LOOK_S)
            self.loop.pace.look_again()

    def connected(self, up: bool) -> None:
        """The cluster has come, or gone: without it nothing is claimed."""
        self.up = up
        self._open_or_close()

    def look_at_code(self) -> None:
        """In a thread: the loop waits for ends of jobs that may take days."""
        while not self.stale:
            threading.Event().wait(LOOK_S)
            if self.code.has_changed():
                self.stale = True
                self.lock.release()
                self._open_or_close()

    def _open_or_close(self) -> None:
        self.loop.pace.closed = self.stale or not self.up
        self.loop.workers.wake()


def main() -> None:
    """Exit code: 0 it ended by itself, 3 or 4 not started or not recorded."""
    supervision = Supervision.decode(sys.stdin.buffer.read())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # from the terminal that the tick was started in
    lock = SupervisorLock.take(supervision)
    if lock is None:
        os._exit(0)
    watchdog = Watchdog(SYSTEM)
    watchdog.stand_at(SYSTEM.monotonic() + 120)  # to import the handlers, and to reach the database
    try:
        settings = load.load(Path(supervision.config), environ=os.environ, database_url=supervision.database)
        masking.remember(settings.secrets)
        code = supervise(supervision, settings, lock, watchdog)
    except CronjobsError as error:
        os._exit(error.exit_code)
    os._exit(code)


def supervise(supervision: Supervision, settings: Settings, lock: SupervisorLock, watchdog: Watchdog) -> int:
    """Set it up, run it, and record what is left; return the exit code."""
    from cronjobs.engines.dask_cluster import DaskCluster  # a second, and what it imports: not for who reads this file

    listeners = Listeners(settings)
    executor = settings.executors.get(supervision.executor)
    if executor is None:
        listeners.emit(events.supervisor_ended(supervision.executor, "it is not in the file any more"))
        return 0
    watchdog.harden(settings.run.lease)
    types = job_types.load(settings)
    mine = [each for each in types.types.values() if each.executor == executor.name]
    disk = CodeOnDisk.of(settings, [each.registration for each in mine if each.registration is not None])
    database = Database(parse_url(settings.database, settings.schema), connections=4)
    identity = Identity.here()
    identity = replace(identity, tick=TAG + identity.tick)
    # No deadline: no job is too long for it.
    ours = replace(settings, run=replace(settings.run, budget=NO_DEADLINE, long_jobs=0))
    around = WorkerContext(ours, database, on_start=listeners.pings.started, on_end=listeners.pings.ended)
    wake = threading.Event()
    workers = ClusterWorkers(
        executor,
        around,
        SYSTEM,
        cluster=lambda topic, heard: DaskCluster(executor, topic, heard),
        emit=listeners.emit,
        connected=lambda up: supervisor.connected(up),
    )
    sent = SYSTEM.monotonic()
    with database.read() as connection:
        now = database_now(connection)
    loop = Loop(
        database=database,
        job_types=types,
        workers=workers,
        locked_by=str(identity),
        deadline=SYSTEM.monotonic() + NO_DEADLINE.total_seconds(),
        database_now=now,
        now_read_at=sent,
        emit=listeners.emit,
        watchdog=watchdog,
        host=identity.host,
        limits=TickFilter(queue=supervision.queue, executor=executor.name),
    )
    supervisor = Supervisor(loop, lock, disk, wake)
    supervisor.connected(False)
    _obey_signals(loop, wake)
    workers.begin()
    threading.Thread(target=supervisor.look_at_code, name="cronjobs-code", daemon=True).start()
    why = supervisor.run()
    lock.release()
    loop.finish()
    workers.leave()
    listeners.emit(events.supervisor_ended(executor.name, why))
    listeners.flush()
    if loop.outage.error is not None:
        return 4
    return EX_SOFTWARE if loop.net.error is not None else 0


def _obey_signals(loop: Loop, wake: threading.Event) -> None:
    def on_signal(number: int, _frame: FrameType | None) -> None:
        loop.stop(signal.Signals(number).name)
        wake.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)


if __name__ == "__main__":
    main()
