"""Run a supervisor (a tick's loop whose workers are a cluster) until it is idle, stale or asked to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from types import FrameType
from typing import Final

from cronjobs import events
from cronjobs.clock import SYSTEM
from cronjobs.contrib.dask.cluster_workers import IDLE_S, ClusterWorkers
from cronjobs.contrib.dask.dask_cluster import DaskCluster
from cronjobs.engine.config.settings import ExecutorSettings, Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.execution.attempt import WorkerContext
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.probe.repeated_signals import RepeatedSignals
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.tick.extras import LAST_S, RunSummary, extras_of_job
from cronjobs.engine.tick.log import Log, start_reporter
from cronjobs.engine.tick.loop import Loop
from cronjobs.engine.tick.mail_throttle import leave_death
from cronjobs.engine.tick.pacing import NO_SLOT
from cronjobs.engine.tick.result import NOTHING_DUE, NOTHING_ELSE_DUE, TickFilter
from cronjobs.engine.tick.unreported import Unreported
from cronjobs.engine.tick.watchdog import PAST_DEADLINE_S, Watchdog

LOOK_S: Final = 1.0  # seconds between looks for work and for changed files
NO_DEADLINE: Final = timedelta(days=62)  # more than twice the longest timeout
IDLE: Final = "the supervisor was idle"
DEPLOY: Final = "the configuration or its handlers have changed"


@dataclass
class Supervisor:
    """A running supervisor.

    ``has_changed`` returns whether the configuration file or the handlers have changed on disk.

    The signal handlers set ``wake`` to end the wait between two looks. ``up`` is true while we are connected to the
    cluster. ``stale`` is true once a deploy has replaced our code.
    """

    loop: Loop
    release_lock: Callable[[], None]
    has_changed: Callable[[], bool]
    wake: threading.Event
    up: bool = False
    stale: bool = False

    def run(self) -> str:
        """Work until the supervisor has been idle for IDLE_S seconds, is stale, or is asked to stop.

        Return why the work ended.
        """
        idle_since = SYSTEM.monotonic()
        while True:
            claimed = self.loop.counts.claimed
            ended = self.loop.run()
            now = SYSTEM.monotonic()
            if ended not in (NOTHING_DUE, NOTHING_ELSE_DUE, NO_SLOT):
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
        """Note that the connection to the cluster was made or lost.

        Without a connection, the supervisor claims no jobs.
        """
        self.up = up
        self._open_or_close()

    def look_at_code(self) -> None:
        """Watch for a deploy.

        This method runs in a separate thread, because the loop blocks on jobs that may take days.
        """
        while not self.stale:
            threading.Event().wait(LOOK_S)
            if self.has_changed():
                self.stale = True
                self.release_lock()
                self._open_or_close()

    def _open_or_close(self) -> None:
        self.loop.pace.closed = self.stale or not self.up
        self.loop.workers.wake()


def supervise(
    settings: Settings,
    executor: ExecutorSettings,
    *,
    queue: str | None,
    types: JobTypes,
    locked_by: str,
    has_changed: Callable[[], bool],
    database: Database,
    release_lock: Callable[[], None],
    watchdog: Watchdog,
) -> Loop:
    """Run one supervisor to its end, record the remaining outcomes, and return the loop.

    *has_changed* returns whether the configuration file or the handlers have changed on disk.
    """
    log = Log(settings.log).write
    extras = extras_of_job(settings, database, log)
    to_log = extras.forwarding(log)

    def emit(event: events.Event) -> None:
        to_log(event)
        leave_death(settings.file, f"a job of executor {executor.name}", event)

    unreported = Unreported(settings.file, locked_by)
    unreported.begin()
    # A supervisor has no deadline, so no job is too long for it. So it starts no processes for long jobs.
    ours = replace(settings, run=replace(settings.run, budget=NO_DEADLINE, long_jobs=0))
    workers = ClusterWorkers(
        executor,
        WorkerContext(ours, database, on_start=start_reporter(log, extras), on_end=extras.ended),
        SYSTEM,
        cluster=lambda topic, heard: DaskCluster(executor, topic, heard),
        emit=emit,
        connected=lambda up: supervisor.connected(up),
    )
    sent = SYSTEM.monotonic()
    with database.read() as connection:
        now = database_now(connection)
    loop = Loop(
        database=database,
        job_types=types,
        workers=workers,
        locked_by=locked_by,
        deadline=sent + NO_DEADLINE.total_seconds(),
        database_now=now,
        now_read_at=sent,
        emit=emit,
        watchdog=watchdog,
        host=locked_by.partition(":")[0],
        limits=TickFilter(queue=queue, executor=executor.name),
    )
    wake = threading.Event()
    supervisor = Supervisor(loop, release_lock, has_changed, wake)
    supervisor.connected(False)
    _obey_signals(loop, wake)
    workers.begin()
    threading.Thread(target=supervisor.look_at_code, name="cronjobs-code", daemon=True).start()
    why = supervisor.run()
    release_lock()
    loop.finish()
    unreported.end()
    workers.leave()
    log(events.supervisor_ended(executor.name, why))
    extras.end(RunSummary(min(SYSTEM.monotonic() + LAST_S, loop.gone_by - PAST_DEADLINE_S)))
    return loop


def _obey_signals(loop: Loop, wake: threading.Event) -> None:
    repeated = RepeatedSignals(SYSTEM.monotonic)

    def on_signal(number: int, _frame: FrameType | None) -> None:
        # A tick that waits for this process passes its signals on. This process may have received them directly, too.
        if repeated.again(number):
            return
        loop.stop(signal.Signals(number).name)
        wake.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
