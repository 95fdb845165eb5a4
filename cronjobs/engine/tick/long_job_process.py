"""Runs one long job in its own process. ``long_jobs`` starts this module with ``python -m``.

Before any user code runs, this process takes over the tick's lease with a compare-and-swap of ``locked_by``, under the
same attempt. If no row matches, the process exits. Otherwise it answers the tick, and runs a loop like the tick's for
this one job. The loop renews the lease, obeys the timeout, cancel requests and SIGTERM, and records the result. This
process only supervises the job. The handler or command runs in a child process, in a separate session, and dies if this
process dies. As in a tick, the watchdog ends this process before the lease ends.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Final

from cronjobs import events, masking
from cronjobs.clock import SYSTEM
from cronjobs.engine.config import load, trust
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.execution.attempt import PROCESS_SLACK, Attempt, WorkerContext
from cronjobs.engine.execution.worker_threads import Workers
from cronjobs.engine.probe.repeated_signals import RepeatedSignals
from cronjobs.engine.tick import mail_throttle
from cronjobs.engine.tick.extras import RunSummary, extras_of_job
from cronjobs.engine.tick.log import Log, start_reporter
from cronjobs.engine.tick.long_jobs import ADOPTED, FULL, STOPPED, Adopted, Handover, adopt
from cronjobs.engine.tick.loop import Loop
from cronjobs.engine.tick.unreported import Unreported
from cronjobs.engine.tick.watchdog import PAST_DEADLINE_S, Watchdog
from cronjobs.errors import EX_SOFTWARE, CronjobsError

# When the job has ended, extras get this much time to look for findings and to send alerts.
REPORT_S: Final = 30.0


class Signals:
    """Asks the loop to stop when a signal arrives, or as soon as the loop exists, so that no signal is lost."""

    def __init__(self) -> None:
        self._came: list[str] = []
        self._loop: Loop | None = None
        self._repeated = RepeatedSignals(SYSTEM.monotonic)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        # Ignore SIGHUP, so that the job keeps running when the tick's terminal is closed.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # A tick that waits for this process passes its signals on. This process may have received them directly, too.
        if self._repeated.again(number):
            return
        self._came.append(signal.Signals(number).name)
        if self._loop is not None:
            self._loop.stop(self._came[-1])

    @property
    def came(self) -> bool:
        return bool(self._came)

    def pass_to(self, loop: Loop) -> None:
        self._loop = loop
        for name in self._came:
            loop.stop(name)


def main() -> None:
    """Adopt the job, answer the tick, run the job and record its end.

    The exit code is 0 if the job ended, 1 if the job is dead, and 3 or 4 if the job was not started or its end was not
    recorded.
    """
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    signals = Signals()
    handover = Handover.decode(sys.stdin.buffer.read())
    watchdog = Watchdog(SYSTEM)
    try:
        settings = load.load(Path(handover.config), environ=os.environ, database_url=handover.database)
        settings = replace(settings, setup=settings.setup or handover.setup)
        masking.remember(settings.secrets)
        trust.require(settings, os.environ, programs=True)
        job_type = handover.as_type(settings.job_types)
        watchdog.stand_at(SYSTEM.monotonic() + settings.run.lease.total_seconds())
        database = Database(parse_url(settings.database, settings.schema), connections=2)
        adopted = None if signals.came else adopt(database, handover, settings.run)
    except CronjobsError as error:
        _answer(descriptor, str(error).partition("\n")[0])
        os._exit(error.exit_code)
    if adopted is None:
        # Answer FULL even if the tick has taken the job back, because in that case the tick no longer listens.
        _answer(descriptor, STOPPED if signals.came else FULL)
        os._exit(0)
    _answer(descriptor, ADOPTED)
    apart = None if job_type.command else True
    lease_s = settings.run.lease.total_seconds()
    attempt = Attempt(adopted.job, job_type, job_type.timeout, apart, claimed=adopted.sent, lease_s=lease_s)
    os._exit(supervise(attempt, adopted, WorkerContext(settings, database), watchdog, signals))


def _answer(descriptor: int, word: str) -> None:
    # If writing fails, the tick is gone. The job is still ours.
    with suppress(OSError):
        os.write(descriptor, f"{word}\n".encode())
        os.close(descriptor)


def supervise(attempt: Attempt, adopted: Adopted, around: WorkerContext, watchdog: Watchdog, signals: Signals) -> int:
    """Run one adopted job to its end with a tick's loop, and return the exit code."""
    settings, database = around.settings, around.database
    assert database is not None
    log = Log(settings.log).write
    extras = extras_of_job(settings, database, log)
    to_log = extras.forwarding(log)

    def emit(event: events.Event) -> None:
        to_log(event)
        # Nobody reads the output of this process, so leave a death to the next tick: cron mails what a tick prints.
        mail_throttle.leave_end(settings, event)

    unreported = Unreported(settings.file, attempt.job.locked_by or "")
    unreported.begin()
    around = replace(around, on_start=start_reporter(log, extras), on_end=extras.ended)
    loop = Loop.for_one_job(
        attempt,
        database,
        Workers(1, around, SYSTEM),
        # The job's own timeout ends the job. This deadline ends the loop if renewals work, but the job's end cannot be
        # recorded.
        deadline=SYSTEM.monotonic() + (attempt.timeout + PROCESS_SLACK).total_seconds() + attempt.lease_s,
        database_now=adopted.now,
        emit=emit,
        watchdog=watchdog,
    )
    loop.begin_adopted(attempt)
    signals.pass_to(loop)
    loop.run()
    loop.finish()
    unreported.end()
    until = min(SYSTEM.monotonic() + REPORT_S, loop.gone_by - PAST_DEADLINE_S)
    watchdog.stand_at(until + PAST_DEADLINE_S)
    extras.end(RunSummary(until, news=bool(loop.counts.dead) and not signals.came))
    if loop.outage.error is not None:
        return 4
    if loop.net.error is not None:
        return EX_SOFTWARE
    return 1 if loop.counts.dead else 0


if __name__ == "__main__":
    main()
