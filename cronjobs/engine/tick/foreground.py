"""Run one job now, in the main thread of a process at a terminal. pdb works, and output is shown and recorded.

The run is an attempt like any other. A loop like a tick's runs in a second thread, for this one job. The loop renews
the lease, sees cancel requests, and records the end. A handler has no time limit here, because a person may be using a
debugger. Only declared commands have a time limit.

A job that was started by its type or schedule has one try, and no tick ever claims it again. After a failure the job is
dead. After Ctrl-C it is cancelled. Even after kill -9 it does not run again, because its claim writes ``on_lost: dead``
to the job's row. A job that was started by its id and then interrupted keeps its due time.
"""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Final

from cronjobs import events
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.execution.attempt import Attempt, Ended, WorkerContext, timeout_of
from cronjobs.engine.execution.foreground_claim import NO_LIMIT, WORKER, CannotRun
from cronjobs.engine.execution.handler import as_stored, run_attempt
from cronjobs.engine.execution.live_output import Streams
from cronjobs.engine.execution.worker_threads import Workers
from cronjobs.engine.jobs.context import StopSignal
from cronjobs.engine.jobs.job_types import JobType
from cronjobs.engine.rules.ending import Decided, in_words
from cronjobs.engine.rules.misfits import is_misfit
from cronjobs.engine.tick.loop import Loop
from cronjobs.errors import TransientTrouble
from cronjobs.model import (
    CancelledByRequest,
    Failed,
    Finished,
    Interrupted,
    Job,
    Lost,
    Outcome,
    Released,
    Succeeded,
)

# If the end is not recorded after this many seconds, a message says so.
SLOW_S: Final = 2.0
PROGRESS_S: Final = 0.25  # minimum seconds between two progress lines
LOCKED: Final = "another transaction holds the job's row"
HAND_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the signals with which a person ends a run


@dataclass(frozen=True)
class RunResult:
    """The end of a run.

    If ``decided`` is None, the lease was lost and nothing was recorded. If a person stopped the run with a signal,
    ``signal`` is the number of that signal. Otherwise it is None.
    """

    job: Job
    decided: Decided | None
    signal: int | None = None

    @property
    def outcome(self) -> Outcome:
        return Lost() if self.decided is None else self.decided.finished.outcome

    @property
    def succeeded(self) -> bool:
        return isinstance(self.outcome, Succeeded)


class _MainThread(Workers):
    """A pool whose one worker is the main thread, which already has the job."""

    def hand(self, attempt: Attempt) -> bool:
        attempt.on_its_way = True
        return True


class _ReportedStop(StopSignal):
    """A stop signal that calls *on_request* before the handler sees the stop."""

    def __init__(self, on_request: Callable[[str], None]) -> None:
        super().__init__()
        self._on_request = on_request

    def set(self, reason: str) -> None:
        self._on_request(reason)
        super().set(reason)


class _LeaseIsLost(BaseException):
    """Raised to end the handler. A debugger would catch a KeyboardInterrupt and continue."""


class Terminated(BaseException):
    """Raised to end the handler on SIGTERM and SIGHUP. Like ``_LeaseIsLost``, it is not a KeyboardInterrupt."""


# The exceptions that mean that a person left the handler or the debugger, by the names that an outcome uses.
QUIT: Final = ("KeyboardInterrupt", "bdb.BdbQuit", f"{Terminated.__module__}.{Terminated.__qualname__}")


@contextmanager
def signals_wait() -> Iterator[None]:
    """Hold back Ctrl-C, SIGTERM and SIGHUP until ``Foreground`` handles them, so that no claimed job is abandoned."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HAND_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Foreground:
    """Runs one claimed job in the main thread.

    *by_hand* is True if the job was created for this run (the module's docstring says what that means for the job).
    *claimed* is when the claim was sent, on the monotonic clock.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        job: Job,
        job_type: JobType,
        *,
        by_hand: bool,
        claimed: float,
        streams: Streams,
        emit: Callable[[events.Event], None],
        on_progress: Callable[..., None] | None = None,
        on_start: Callable[[Attempt], None] | None = None,
        on_end: Callable[[Finished], None] | None = None,
    ) -> None:
        self._secrets, self._lease_s = settings.secrets_of(job), settings.run.lease.total_seconds()
        self._job, self._clock = job, database.clock
        self._by_hand, self._streams, self._emit = by_hand, streams, emit
        self._around = WorkerContext(settings, database, streams.out.show, on_start, on_end)
        self._attempt = Attempt(
            job,
            job_type,
            timeout_of(job, job_type) if job_type.command is not None else NO_LIMIT,
            in_child_process=False,
            stop=_ReportedStop(self._on_request),
            worker=WORKER,
            claimed=claimed,
            started=self._clock.monotonic(),
        )
        self._attempt.reporting.listener = self._on_progress = on_progress
        self._main = threading.get_ident()
        self._signal: int | None = None
        self._was_stopped = False  # True if a person stopped the run
        self._running = False  # True while the job's own code is running
        self._lost = False
        self._ended = False  # True once the loop has received the job's end
        # No watchdog: a person may suspend this process with Ctrl-Z, and a handler may set alarms.
        self._loop = Loop.for_one_job(
            self._attempt,
            database,
            _MainThread(1, self._around, self._clock),
            deadline=claimed + 2 * NO_LIMIT.total_seconds(),
            database_now=job.started_at or self._clock.now(),
            emit=self._on_event,
        )
        if on_progress is not None:
            self._loop.say_progress_s = PROGRESS_S

    def run(self) -> RunResult:
        """Run the job and record its outcome. Raises DatabaseError if the outcome could not be recorded."""
        self._emit(events.job_claimed(self._job))
        beside = threading.Thread(target=self._keep, name="cronjobs-loop", daemon=True)
        with self._signals():
            self._loop.begin_adopted(self._attempt)
            try:
                beside.start()
            except RuntimeError as error:
                why = f"cannot start a thread: {error}"
                self._hand_back(Finished(self._job, self._by_a_person(Released(why))))
                self._keep()
                raise CannotRun(f"job {self._job.id} was not started: {why}") from None
            finished = self._finished()
            if not self._lost:
                self._hand_back(finished)
                self._wait_for(beside)
        decided = self._loop.ends.last
        if decided is None and not self._lost:
            self._streams.say(f"the job ended, but its outcome could not be recorded: {in_words(finished.outcome)}")
            raise self._loop.outage.error or TransientTrouble(f"the outcome could not be recorded: {LOCKED}")
        return RunResult(self._job, decided, self._signal if self._was_stopped else None)

    def _keep(self) -> None:
        """Renew the job's lease until the job has ended, and then record its end. This runs in the second thread."""
        self._loop.run()
        if self._ended:
            self._loop.finish()
        elif not self._lost:
            # The loop has ended before the job, so nothing renews the lease any more.
            self._attempt.stop.set("lease lost")

    def _hand_back(self, finished: Finished) -> None:
        """Give the job's end to the loop, which tries to record it for at least the length of a lease."""
        self._allow_time()
        self._loop.workers.ended.put(Ended(self._attempt, finished, self._clock.monotonic()))
        self._ended = True

    def _wait_for(self, beside: threading.Thread) -> None:
        beside.join(SLOW_S)
        if beside.is_alive():
            why = self._loop.outage.error or LOCKED
            self._streams.say(f"the outcome cannot be recorded yet, retrying: {why}")
        while beside.is_alive():
            # If there is no error, another transaction has locked the job's row. Keep waiting for as long as our user
            # does.
            if self._loop.outage.error is None:
                self._allow_time()
            beside.join(SLOW_S)

    def _allow_time(self) -> None:
        # ``_wait_for`` extends the deadline only every SLOW_S seconds, so the deadline must be further away than that.
        self._loop.deadline = self._clock.monotonic() + max(self._lease_s, 2 * SLOW_S)

    # --- the job ------------------------------------------------------------------------------------------------------

    def _finished(self) -> Finished:
        began = self._clock.monotonic()
        with self._streams.recorded() as output:
            self._attempt.reporting.output = output
            try:
                self._running = True
                if self._signal is not None:
                    raise KeyboardInterrupt
                finished = run_attempt(self._attempt, self._around, self._clock)
            # Either a signal arrived before the job started, or this is the second Ctrl-C for a command.
            except (KeyboardInterrupt, Terminated, _LeaseIsLost):
                ran = timedelta(seconds=self._clock.monotonic() - began)
                finished = Finished(self._job, Interrupted(), ran, WORKER)
            finally:
                self._running = False
        text = as_stored(finished.output or output.text(), self._secrets)
        return finished._replace(outcome=self._by_a_person(finished.outcome), output=text)

    def _by_a_person(self, outcome: Outcome) -> Outcome:
        """Return the outcome to record for a run that ended with *outcome*, and that a person may have stopped."""
        self._was_stopped = self._is_stop(outcome)
        if self._was_stopped:
            number = signal.Signals(self._signal or signal.SIGINT)
            why = "Ctrl-C or the debugger's q" if number == signal.SIGINT else number.name
            outcome = Interrupted(f"interrupted by hand ({why})", by_hand=True)
        if isinstance(outcome, Released):
            outcome = Released(outcome.error or "the attempt could not be started")
        if self._by_hand and isinstance(outcome, Failed) and is_misfit(outcome):
            return dataclasses.replace(outcome, permanent=True)
        if self._by_hand and isinstance(outcome, Interrupted | Released):
            return CancelledByRequest(f"{outcome.error}; started by hand, so it is not retried")
        return outcome

    def _is_stop(self, outcome: Outcome) -> bool:
        """Return whether a person stopped the job.

        If the debugger caught the Ctrl-C, a later failure is a failure of the job itself.
        """
        if isinstance(outcome, Interrupted):
            return self._signal is not None
        if not isinstance(outcome, Failed):
            return False
        said = f"{outcome.error_type} {outcome.traceback or ''}"
        return outcome.error_type in QUIT or (
            self._signal is not None and (self._attempt.is_command or any(name in said for name in QUIT))
        )

    # --- what the loop reports, from its thread -----------------------------------------------------------------------

    def _on_event(self, event: events.Event) -> None:
        if event.name == "job.progress":
            how_far = self._attempt.reporting.progress
            if self._on_progress is not None and how_far is not None:
                self._on_progress(how_far)
            return
        if event.name == "database.trouble" and not self._ended:
            self._streams.say(f"the lease cannot be renewed yet: {event.facts['error']}")
        elif event.name == "job.lease_lost" and not self._lost:
            self._streams.say("another runner took over the lease: this attempt recorded nothing")
            self._lost = True
        self._emit(event)

    def _on_request(self, reason: str) -> None:
        if reason == "cancelled" and self._attempt.stop.reason is None:
            self._streams.say("cancel was requested: stopping the job")
        elif reason == "lease lost":
            trouble = self._loop.outage.error
            why = f"expired: {trouble}" if trouble else "was taken over or expired"
            self._streams.say(f"stopping the job; this attempt will record nothing, because the lease {why}")
            self._lost = True
            # Only a signal to the main thread interrupts a sleep or a read in that thread.
            signal.pthread_kill(self._main, signal.SIGINT)

    # --- signals ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Make Ctrl-C, a closed terminal or SIGTERM end the job, and make sure that the job's end is recorded.

        A command first gets its grace period.

        Signals that were ignored before (nohup, a script's "&") stay ignored. We also send SIGINT to ourselves when the
        lease is lost. If a signal arrives while the loop is recording the job's end, it tries only once more.
        """

        def on_signal(number: int, _frame: FrameType | None) -> None:
            if self._lost:
                if self._running and not self._attempt.is_command:
                    raise _LeaseIsLost
                return
            again = self._signal is not None
            self._signal = number
            self._attempt.stop.set("shutdown")
            if self._ended:
                for _ in range(2):
                    self._loop.stop(signal.Signals(number).name)
            elif self._running and (again or not self._attempt.is_command):
                raise KeyboardInterrupt if number == signal.SIGINT else Terminated

        taken = [number for number in HAND_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, on_signal) for number in taken}
        # The signals that were sent since the claim, and were blocked until now, arrive here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HAND_SIGNALS)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
