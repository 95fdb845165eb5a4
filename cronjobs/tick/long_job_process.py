"""One long job in its own process: ``python -m`` this module, started by ``long_jobs``.

Before any user code runs it takes over the tick's lease with a compare-and-swap of ``locked_by``, under the same
attempt; if no row matches it exits. Then it answers the tick and runs the tick's loop for one job: it renews the lease,
obeys time-out, cancel and SIGTERM, and records the result. It only supervises: the handler or command is its child, in
a session of its own, and dies with it. Its watchdog fires before the lease ends, as a tick's does.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import repeat
from pathlib import Path
from types import FrameType
from typing import Final

from sqlalchemy import Connection

from cronjobs import masking
from cronjobs.clock import SYSTEM
from cronjobs.config import load
from cronjobs.config.settings import Settings
from cronjobs.database.address import parse_url
from cronjobs.database.connection import Database
from cronjobs.database.retrying import patiently
from cronjobs.errors import EX_SOFTWARE, CronjobsError
from cronjobs.execution.attempt import PROCESS_SLACK, Attempt, WorkerContext
from cronjobs.execution.worker_threads import Workers
from cronjobs.host.identity import Identity
from cronjobs.jobs.job_types import JobType, JobTypes
from cronjobs.model import Job
from cronjobs.rules.lease import Lease
from cronjobs.store import leases
from cronjobs.store.claims import held_by
from cronjobs.store.sql import database_now
from cronjobs.tick import mail_throttle
from cronjobs.tick.counts import Counts
from cronjobs.tick.log import Log
from cronjobs.tick.long_jobs import ADOPTED, FULL, STOPPED, Handover
from cronjobs.tick.loop import Loop
from cronjobs.tick.tick_filter import TickFilter
from cronjobs.tick.watchdog import Watchdog

ADOPT_TRIES: Final = 5
PAUSE_S: Final = 0.2


@dataclass(frozen=True)
class Adopted:
    """The job we took over; ``sent``: when we sent the statement (monotonic); ``now``: the database's time then."""

    job: Job
    sent: float
    now: datetime


class Signals:
    """Asks the loop to stop, also for a signal that arrived before the loop existed, so that no signal is lost."""

    def __init__(self) -> None:
        self._came: list[str] = []
        self._loop: Loop | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # from the terminal that the tick was started in

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
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
    """Adopt, answer, run, record. Exit code: 0 it ended, 1 it ended dead, 3 or 4 not started or not recorded."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    signals = Signals()
    handover = Handover.decode(sys.stdin.buffer.read())
    watchdog = Watchdog(SYSTEM)
    try:
        settings = load.load(Path(handover.config), environ=os.environ, database_url=handover.database)
        masking.remember(settings.secrets)
        job_type = long_type(handover, settings)
        watchdog.stand_at(SYSTEM.monotonic() + settings.run.lease.total_seconds())
        database = Database(parse_url(settings.database, settings.schema), connections=2)
        adopted = None if signals.came else adopt(database, handover, settings)
    except CronjobsError as error:
        _answer(descriptor, str(error).partition("\n")[0])
        os._exit(error.exit_code)
    if adopted is None:
        # If the tick took the job back we answer FULL as well: it is no longer listening.
        _answer(descriptor, STOPPED if signals.came else FULL)
        os._exit(0)
    _answer(descriptor, ADOPTED)
    os._exit(Supervisor(settings, database, watchdog, job_type, signals).run(adopted))


def long_type(handover: Handover, settings: Settings) -> JobType:
    """The job type as the tick knew it; only a command's words are read from the file. Raises CronjobsError."""
    name = handover.job_type
    declared = settings.job_types.get(name)
    if handover.is_command and (declared is None or declared.command is None):
        raise CronjobsError(f"the command {name} is not in {handover.config} any more")
    return JobType(
        name,
        timedelta(seconds=handover.timeout_s),
        handover.retry,
        command=declared.command if declared else None,
        env=declared.env if declared else (),
        inherit_env=declared.inherit_env if declared else None,
        isolation="process",
        max_memory=handover.max_memory,
        exit_codes=handover.exit_codes,
    )


def adopt(database: Database, handover: Handover, settings: Settings) -> Adopted | None:
    """Take over the lease; None: the job is no longer the tick's, or too many long jobs already run on this host.

    If the COMMIT's reply is lost, the rows show whose lease it is. Raises DatabaseError.
    """
    identity = Identity.here()
    own = str(replace(identity, tick=leases.LONG + identity.tick))
    held = Lease(handover.job_id, handover.attempt, handover.locked_by)
    began = SYSTEM.monotonic()

    def take_over() -> Adopted | None:
        sent = SYSTEM.monotonic()
        with database.write() as connection:
            now = database_now(connection)
            job = next(iter(held_by(connection, own)), None)
            if job is not None:
                sent = began  # an earlier try succeeded, so the lease may be as old as that
            else:
                job = leases.adopt(
                    connection,
                    held,
                    locked_by=own,
                    lease=settings.run.lease,
                    host=identity.host,
                    at_most=settings.run.long_jobs,
                    policy=handover.row_policy,
                )
        return None if job is None else Adopted(job, sent, now)

    return patiently(take_over, worth=lambda _: True, pauses=repeat(PAUSE_S, ADOPT_TRIES - 1))


def _answer(descriptor: int, word: str) -> None:
    with suppress(OSError):  # the tick is gone; the job is ours all the same
        os.write(descriptor, f"{word}\n".encode())
        os.close(descriptor)


class Supervisor:
    """Runs one adopted job to its end, by the loop that ticks use."""

    def __init__(
        self, settings: Settings, database: Database, watchdog: Watchdog, job_type: JobType, signals: Signals
    ) -> None:
        self._settings, self._database, self._watchdog = settings, database, watchdog
        self._job_type, self._signals = job_type, signals
        self._log = Log(settings.log)

    def run(self, adopted: Adopted) -> int:
        counts = Counts()
        timeout = self._job_type.timeout
        lease_s = self._settings.run.lease.total_seconds()
        job = adopted.job
        loop = Loop(
            database=self._database,
            settings=self._settings,
            job_types=JobTypes({job.job_type: self._job_type}),
            workers=Workers(1, WorkerContext(self._settings, self._database), SYSTEM),
            watchdog=self._watchdog,
            clock=SYSTEM,
            locked_by=str(job.locked_by),
            # The time-out ends the job; this limit is for an end that cannot be recorded while renewals still work.
            deadline=SYSTEM.monotonic() + (timeout + PROCESS_SLACK).total_seconds() + lease_s,
            database_now=adopted.now,
            now_read_at=adopted.sent,
            emit=self._log.write,
            before_writing=_nothing,
            limits=TickFilter(jobs=1),
            counts=counts,
        )
        apart = None if self._job_type.command else True
        attempt = Attempt(job, self._job_type, timeout, apart, claimed=adopted.sent, lease_s=lease_s)
        loop.begin_adopted(attempt, adopted.sent)
        self._signals.pass_to(loop)
        loop.run()
        loop.finish(_nothing)
        if counts.dead:
            # The next tick prints it: this process has no output, and cron mails what a tick prints.
            mail_throttle.leave_word(
                self._settings.file, f"long job {job.id} {job.job_type} is dead: cronjobs jobs show {job.id}"
            )
        if loop.outage.error is not None:
            return 4
        if loop.net.error is not None:
            return EX_SOFTWARE
        return 1 if counts.dead else 0


def _nothing(_connection: Connection) -> None:
    """The supervisor of a long job has no tick row to write."""


if __name__ == "__main__":
    main()
