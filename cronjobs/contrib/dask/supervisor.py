"""The supervisor of one executor on this host. A tick starts this module with ``python -m`` (``tick.executors``).

A supervisor is a tick's loop whose workers are a cluster. It claims jobs of the executor's types, submits them to the
cluster, renews their leases together, and records their outcomes. It has no deadline, and exits after a while without
work. After a deploy (the file or the handlers' modules have changed), it claims nothing more, and the next tick starts
another supervisor. As in a tick, the watchdog fires before a lease ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Final

from cronjobs import events, masking
from cronjobs.clock import SYSTEM, sleep
from cronjobs.contrib.dask.cluster_workers import IDLE_S, ClusterWorkers
from cronjobs.contrib.dask.code_on_disk import changes_from_now
from cronjobs.contrib.dask.dask_cluster import DaskCluster
from cronjobs.engine.config import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.execution.attempt import WorkerContext
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs import job_types
from cronjobs.engine.probe.repeated_signals import RepeatedSignals
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.tick import mail_throttle
from cronjobs.engine.tick.executors import Supervision, SupervisorLock
from cronjobs.engine.tick.extras import LAST_S, RunSummary, extras_of_job
from cronjobs.engine.tick.log import Log, start_reporter
from cronjobs.engine.tick.loop import Loop
from cronjobs.engine.tick.pacing import NO_SLOT
from cronjobs.engine.tick.result import NOTHING_DUE, NOTHING_ELSE_DUE, TickFilter
from cronjobs.engine.tick.trouble import place
from cronjobs.engine.tick.unreported import Unreported
from cronjobs.engine.tick.watchdog import PAST_DEADLINE_S, Watchdog
from cronjobs.errors import EX_SOFTWARE, CronjobsError
from cronjobs.text import one_line

TAG: Final = "cluster-"  # the prefix of the tick's part in a supervisor's locked_by
START_UP_S: Final = 120.0  # seconds allowed to import the handlers and reach the database
LOOK_S: Final = 1.0  # seconds between looks for work and for changed files
NO_DEADLINE: Final = timedelta(days=62)  # more than twice the longest timeout
IDLE: Final = "the supervisor was idle"
DEPLOY: Final = "the configuration or its handlers have changed"


def main() -> None:
    """Run the supervisor and exit.

    The exit code is 0 after a normal end, 4 if the database could not be reached, else the code of the error.
    """
    supervision = Supervision.decode(sys.stdin.buffer.read())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closing terminal sends SIGHUP
    lock = SupervisorLock.take(supervision)
    if lock is None:
        os._exit(0)
    watchdog = Watchdog(SYSTEM)
    watchdog.stand_at(SYSTEM.monotonic() + START_UP_S)
    config = Path(supervision.config)
    try:
        settings = settings_of(supervision)
        masking.remember(settings.secrets)
        os._exit(_supervise(supervision, settings, lock, watchdog))
    except Exception as error:
        _leave_error(config, supervision.executor, error)
        os._exit(error.exit_code if isinstance(error, CronjobsError) else EX_SOFTWARE)


def settings_of(supervision: Supervision) -> Settings:
    """Read the file as the tick that started this supervisor did. Raises CronjobsError."""
    settings = load.load(Path(supervision.config), environ=os.environ, database_url=supervision.database)
    return replace(settings, setup=settings.setup or supervision.setup)


def _supervise(supervision: Supervision, settings: Settings, lock: SupervisorLock, watchdog: Watchdog) -> int:
    """Run the supervisor to its end, and record the remaining outcomes. Return the exit code."""
    executor = settings.executors.get(supervision.executor)
    if executor is None:
        raise CronjobsError("the file no longer has this executor")
    watchdog.harden(settings.run.lease)
    types, identity = job_types.load(settings), Identity.here()
    mine = [each.registration for each in types.types.values() if each.executor == executor.name]
    has_changed = changes_from_now(settings.contents, [each for each in mine if each is not None])
    database = Database(parse_url(settings.database, settings.schema), connections=4)
    log = Log(settings.log).write
    extras = extras_of_job(settings, database, log)
    to_log = extras.forwarding(log)

    def emit(event: events.Event) -> None:
        to_log(event)
        mail_throttle.leave_end(settings, event)

    locked_by = str(replace(identity, tick=TAG + identity.tick))
    unreported = Unreported(settings.file, locked_by)
    unreported.begin()
    # A supervisor has no deadline, so no job is too long for it, and it needs no processes for long jobs.
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
        host=identity.host,
        limits=TickFilter(queue=supervision.queue, executor=executor.name),
    )
    wake = threading.Event()
    supervisor = Supervisor(loop, lock.release, has_changed, wake)
    supervisor.connected(False)
    _obey_signals(loop, wake)
    workers.begin()
    threading.Thread(target=supervisor.look_at_code, name="cronjobs-code", daemon=True).start()
    why = supervisor.run()
    lock.release()
    loop.finish()
    unreported.end()
    workers.leave()
    log(events.supervisor_ended(executor.name, why))
    extras.end(RunSummary(min(SYSTEM.monotonic() + LAST_S, loop.gone_by - PAST_DEADLINE_S)))
    if loop.outage.error is not None:
        return 4
    return EX_SOFTWARE if loop.net.error is not None else 0


@dataclass
class Supervisor:
    """A running supervisor. ``has_changed`` tells whether the file or the handlers have changed on disk.

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
        """Work until idle for IDLE_S seconds, stale, or asked to stop. Return which of these ended the work."""
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
        """Note that the connection to the cluster was made or lost. Without it, the supervisor claims no jobs."""
        self.up = up
        self._open_or_close()

    def look_at_code(self) -> None:
        """Watch for a deploy, in a thread of its own, because the loop blocks on jobs that may take days."""
        while not self.stale:
            sleep(LOOK_S)
            if self.has_changed():
                self.stale = True
                self.release_lock()
                self._open_or_close()

    def _open_or_close(self) -> None:
        self.loop.pace.closed = self.stale or not self.up
        self.loop.workers.wake()


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


def _leave_error(config: Path, executor: str, error: Exception) -> None:
    """Leave the error for the next tick to print: cron mails what ticks print, but not what supervisors print."""
    why = str(error).partition("\n")[0]
    if not isinstance(error, CronjobsError):
        why = f"an internal error in cronjobs, {type(error).__name__}: {why} ({place(error)})"
    word = one_line(masking.mask_urls(f"the supervisor of executor {executor} exited: {why}"), 1000)
    mail_throttle.leave_message(config, word)


if __name__ == "__main__":
    main()
