"""One job here and now, in the main thread of a terminal's process: pdb works, output is seen and recorded.

It is an attempt like any other: claimed with a lease, which a small thread renews, and finished past the fence. There
is no time limit (somebody may be in a debugger) but for declared commands. What was begun by hand by its type or
schedule has one try, and a tick never picks it up again: not after a failure, not after Ctrl-C (cancelled), not after a
kill -9 (its history row is written at the start, and the next tick reads it there). A job that was named by its id goes
back to where it was.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from types import FrameType
from typing import Final, NoReturn

from cronjobs import events
from cronjobs.clock import Clock, sleep
from cronjobs.config.settings import Settings
from cronjobs.database.connection import Database
from cronjobs.errors import BadValue, DatabaseError
from cronjobs.execution.attempt import Attempt, WorkerContext, heartbeat_s, lease_margin_s
from cronjobs.execution.foreground_claim import NO_LIMIT, WORKER, CannotRun
from cronjobs.execution.handler import run_attempt
from cronjobs.execution.live_output import Streams
from cronjobs.jobs.context import StopSignal
from cronjobs.jobs.job_types import JobType
from cronjobs.masking import mask
from cronjobs.model import (
    CancelledByRequest,
    Failed,
    Finished,
    Interrupted,
    Job,
    Lost,
    Outcome,
    Released,
    Status,
    Succeeded,
    Transition,
)
from cronjobs.rules.ending import (
    Decided,
    called_off,
    decide_end,
    lease_of,
    succeeded_itself,
    without_texts,
)
from cronjobs.rules.lease import Lease
from cronjobs.store import leases
from cronjobs.store.leases import settle
from cronjobs.store.sql import database_now
from cronjobs.text import clean

RETRY_S: Final = 1.0  # between tries, while the database is in trouble
QUIT: Final = ("KeyboardInterrupt", "bdb.BdbQuit")  # how a person leaves a handler or the debugger


# --- the lease --------------------------------------------------------------------------------------------------------


class Heartbeat:
    """Renews one lease every quarter of it from a thread of its own; ``lost`` when there is nothing left to renew."""

    def __init__(
        self, database: Database, lease: Lease, span: timedelta, stop: StopSignal, clock: Clock, streams: Streams
    ) -> None:
        self.lost = False
        self._database, self._lease, self._span = database, lease, span
        self._stop, self._clock, self._streams = stop, clock, streams
        self._until = clock.monotonic() + span.total_seconds()
        self._over = threading.Event()
        self._in_trouble = False
        self._thread = threading.Thread(target=self._beat, name="cronjobs-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to renew. Raises RuntimeError where no thread can be started."""
        self._thread.start()

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=5)  # it may be waiting for the database; what it finds out then counts no more

    def _beat(self) -> None:
        interval_s = heartbeat_s(self._span.total_seconds())
        wait_s = interval_s
        while not self.lost and not self._over.wait(wait_s):
            wait_s = interval_s if self._renew() else min(interval_s, RETRY_S)

    def _renew(self) -> bool:
        sent = self._clock.monotonic()
        try:
            with self._database.write(patience=heartbeat_s(self._span.total_seconds())) as connection:
                renewal = leases.renew(connection, [self._lease], self._span)
        except DatabaseError as error:
            self._trouble(str(error))
            return False
        if self._lease.job_id in renewal.lost:
            self._lose("the lease was taken over, or somebody else ended this attempt")
            return False
        if self._lease.job_id in renewal.succeeded:  # by a transaction of its own: nothing is left to renew
            self._over.set()
            return True
        if self._lease.job_id in renewal.cancel_requested and self._stop.reason is None:
            self._streams.say("cancel was requested: the job is being told")
            self._stop.set("cancelled")
        if self._lease.job_id not in renewal.renewed:
            self._trouble("somebody's transaction holds the job's row")
            return False
        self._until, self._in_trouble = sent + self._span.total_seconds(), False
        return True

    def _trouble(self, why: str) -> None:
        if not self._in_trouble and not self._over.is_set():
            self._streams.say(f"the lease cannot be renewed just now: {why}")
        self._in_trouble = True
        margin_s = lease_margin_s(self._span.total_seconds())
        if self._clock.monotonic() >= self._until - margin_s:
            self._lose("the lease ran out before it could be renewed")

    def _lose(self, why: str) -> None:
        if self._over.is_set():
            return
        self.lost = True
        self._stop.set("lease lost")
        self._streams.say(f"stopping, and nothing of this attempt will be recorded: {why}")
        ident = threading.main_thread().ident
        if ident is not None:  # to this thread: only there does it end a sleep or a read
            signal.pthread_kill(ident, signal.SIGINT)


class _LeaseIsLost(BaseException):
    """Ends the handler: not a KeyboardInterrupt, after which a debugger goes on."""


# --- the run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunResult:
    """How it ended. ``decided`` None: the lease was lost, and nothing was recorded. ``signal``: what a person sent."""

    job: Job
    outcome: Outcome
    decided: Decided | None
    signal: int | None = None


class Foreground:
    """Runs one claimed job in the main thread. ``by_hand``: it was made for this run; see the module's docstring."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        job: Job,
        job_type: JobType,
        *,
        by_hand: bool,
        clock: Clock,
        streams: Streams,
        emit: Callable[[events.Event], None],
    ) -> None:
        self._database, self._settings, self._job, self._job_type = database, settings, job, job_type
        self._by_hand, self._clock, self._streams, self._emit = by_hand, clock, streams, emit
        declared = job_type.timeout if job.timeout_s is None else timedelta(seconds=job.timeout_s)
        timeout = declared if job_type.command is not None else NO_LIMIT
        self._attempt = Attempt(job, job_type, timeout, apart=False, worker=WORKER, started=clock.monotonic())
        self._signal: int | None = None
        self._running = False
        self._heartbeat: Heartbeat | None = None

    def run(self) -> RunResult:
        """Run it and record what came of it. Raises DatabaseError if that could not be recorded."""
        self._emit(events.job_claimed(self._job))
        with self._signals():
            stop = self._attempt.stop
            heartbeat = Heartbeat(
                self._database, lease_of(self._job), self._settings.run.lease, stop, self._clock, self._streams
            )
            try:
                heartbeat.start()
            except RuntimeError as error:
                self._give_back(f"no thread could be started: {error}")
            with heartbeat as self._heartbeat:
                finished = self._finished()
            ended_at = self._clock.monotonic()
            if self._heartbeat.lost:
                self._emit(events.lease_lost(self._job, WORKER))
                return RunResult(self._job, Lost(), None, self._signal)
            decided = self._record(finished, ended_at)
        if decided is None:
            self._streams.say("the lease was taken over meanwhile: nothing of this attempt was recorded")
            self._emit(events.lease_lost(self._job, WORKER))
            return RunResult(self._job, Lost(), None, self._signal)
        self._emit(events.job_ended(decided.finished, decided.transition, self._job_type.retry))
        return RunResult(self._job, decided.finished.outcome, decided, self._signal)

    def _give_back(self, why: str) -> NoReturn:
        """Nothing has begun: the job waits as before, or is cancelled if it was made for this run. Raises CannotRun."""
        self._record(Finished(self._job, self._unbegun(why)), self._clock.monotonic())
        raise CannotRun(f"job {self._job.id} was not begun: {why}")

    def _unbegun(self, why: str) -> Outcome:
        return CancelledByRequest(f"{why}; begun by hand, so it is not run again") if self._by_hand else Released(why)

    def _finished(self) -> Finished:
        settings, clock = self._settings, self._clock
        around = WorkerContext(settings, self._database, self._streams.out.show)
        began = clock.monotonic()
        with self._streams.recorded() as output:
            try:
                self._running = True
                finished = run_attempt(self._attempt, around, clock)
            except (KeyboardInterrupt, _LeaseIsLost):  # between two lines of ours, or in a command's second Ctrl-C
                ran = timedelta(seconds=clock.monotonic() - began)
                finished = Finished(self._job, Interrupted(), ran, WORKER)
            finally:
                self._running = False
        text = finished.output or output.text()
        finished = replace(finished, output=None if text is None else clean(mask(text, settings.secrets)))
        outcome = finished.outcome
        if (isinstance(outcome, Failed) and outcome.error_type in QUIT) or (
            self._signal is not None and isinstance(outcome, Failed | Interrupted)
        ):
            outcome = Interrupted(f"interrupted by hand ({self._why()})")
        if isinstance(outcome, Released):
            outcome = self._unbegun(outcome.error or "it could not be begun")
        if self._by_hand and isinstance(outcome, Interrupted):
            outcome = CancelledByRequest(f"{outcome.error}; begun by hand, so it is not run again")
        return replace(finished, outcome=outcome)

    def _why(self) -> str:
        return "Ctrl-C or the debugger's q" if self._signal in (None, signal.SIGINT) else _name(self._signal)

    # --- recording ----------------------------------------------------------------------------------------------------

    def _record(self, finished: Finished, ended_at: float) -> Decided | None:
        """Write the end past the fence; None: the lease was taken over. Tries for as long as a lease is."""
        give_up_at = ended_at + self._settings.run.lease.total_seconds()
        plain, said = False, False
        while True:
            why = "somebody's transaction holds the job's row"
            try:
                decided, written = self._write(finished, ended_at, plain)
                if self._job.id in written.written:
                    return decided
                if self._job.id in written.lost:
                    return None
            except BadValue as error:
                if plain:
                    raise
                plain, why = True, str(error)
                continue
            except DatabaseError as error:
                if self._clock.monotonic() >= give_up_at or (self._signal is not None and said):
                    raise
                why = str(error)
            if not said:
                self._streams.say(f"the end cannot be recorded just now, trying again: {why}")
                said = True
            sleep(min(RETRY_S, 0.2))

    def _write(self, finished: Finished, ended_at: float, plain: bool) -> tuple[Decided, leases.Written]:
        with self._database.write() as connection:
            decided = decide_end(
                finished,
                self._job_type.retry,
                database_now(connection),
                ended_ago=timedelta(seconds=max(0.0, self._clock.monotonic() - ended_at)),
                max_losses=self._settings.run.max_losses,
                every=self._settings.run.every,
            )
            if isinstance(finished.outcome, Interrupted):
                decided = self._put_back(decided)
            finish = without_texts(decided.finish) if plain else decided.finish
            written = settle(connection, [finish], leases.finish(connection, [finish]))
        if self._job.id in written.called_off:
            decided = called_off(decided, written.called_off[self._job.id])
        elif self._job.id in written.succeeded:
            decided = succeeded_itself(decided)
        return decided, written

    def _put_back(self, decided: Decided) -> Decided:
        """A person's Ctrl-C proves nothing against the job: it is due when it was, and nothing is charged."""
        job = self._job
        transition = Transition(Status.QUEUED, job.failures, job.losses, job.interruptions)
        finish = replace(
            decided.finish,
            status=Status.QUEUED,
            failures=job.failures,
            interruptions=job.interruptions,
            run_at=None,
        )
        return replace(decided, transition=transition, finish=finish)

    # --- signals ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C, a closed terminal and SIGTERM end the job and are recorded; a command has its grace, the first time.

        What was ignored when we began (nohup, a script's "&") stays ignored; SIGINT is also how a lost lease is told.
        """

        def on_signal(number: int, _frame: FrameType | None) -> None:
            if self._heartbeat is not None and self._heartbeat.lost:
                if self._running and not self._attempt.is_command:
                    raise _LeaseIsLost
                return
            again = self._signal is not None
            self._signal = number
            self._attempt.stop.set("shutdown")
            if self._running and (again or not self._attempt.is_command):
                raise KeyboardInterrupt

        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        taken = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, on_signal) for number in taken}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _name(number: int | None) -> str:
    return signal.Signals(number).name if number is not None else "stopped"


def succeeded(done: RunResult) -> bool:
    return isinstance(done.outcome, Succeeded) and done.decided is not None
