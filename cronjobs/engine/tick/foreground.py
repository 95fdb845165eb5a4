"""One job here and now, in the main thread of a terminal's process: pdb works, output is seen and recorded.

It is an attempt like any other. A tick's loop runs in a thread beside it, with this one job: it renews the lease, hears
of a cancel request, and records the end. There is no time limit (somebody may be in a debugger) but for declared
commands. What was begun by hand by its type or schedule has one try, and a tick never picks it up again: not after a
failure, not after Ctrl-C (cancelled), not after a kill -9 (its history row is written at the start, and the next tick
reads it there). A job that was named by its id goes back to where it was.
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

SLOW_S: Final = 2.0  # an end that is not recorded by then is worth a line
PROGRESS_S: Final = 0.25  # what was told too soon after another word is shown by then
LOCKED: Final = "another transaction holds the job's row"
HAND_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # by which a person ends a run


@dataclass(frozen=True)
class RunResult:
    """The end of a run.

    If ``decided`` is None, the lease was lost and nothing was recorded. ``signal``: the signal that a person sent.
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
    """The one worker is the main thread, which has the job already."""

    def hand(self, attempt: Attempt) -> bool:
        attempt.on_its_way = True
        return True


class _HeardStop(StopSignal):
    """Lets *hear* know of each request before the job does."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        super().__init__()
        self._hear = hear

    def set(self, reason: str) -> None:
        self._hear(reason)
        super().set(reason)


class _LeaseIsLost(BaseException):
    """Ends the handler: not a KeyboardInterrupt, after which a debugger goes on."""


class Terminated(BaseException):
    """Ends the handler on SIGTERM and SIGHUP: likewise."""


# How a person leaves a handler or the debugger, as the outcome names it.
QUIT: Final = ("KeyboardInterrupt", "bdb.BdbQuit", f"{Terminated.__module__}.{Terminated.__qualname__}")


@contextmanager
def signals_wait() -> Iterator[None]:
    """Ctrl-C and the like wait until ``Foreground`` hears them: a job that is claimed is never left behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HAND_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Foreground:
    """Runs one claimed job in the main thread. ``by_hand``: it was made for this run; see the module's docstring.

    ``claimed``: when the claim was sent, on the monotonic clock.
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
            stop=_HeardStop(self._hear),
            worker=WORKER,
            claimed=claimed,
            started=self._clock.monotonic(),
        )
        self._attempt.reporting.listener = self._on_progress = on_progress
        self._main = threading.get_ident()
        self._signal: int | None = None
        self._was_stopped = False  # by a person
        self._running = False  # the job's own code
        self._lost = False
        self._ended = False  # and the loop knows it
        # Without a watchdog: a person may stop this process (Ctrl-Z), and a handler have alarms of its own.
        self._loop = Loop.of_one(
            self._attempt,
            database,
            _MainThread(1, self._around, self._clock),
            deadline=claimed + 2 * NO_LIMIT.total_seconds(),
            database_now=job.started_at or self._clock.now(),
            emit=self._tell,
        )
        if on_progress is not None:
            self._loop.say_progress_s = PROGRESS_S

    def run(self) -> RunResult:
        """Run it and record what came of it. Raises DatabaseError if that could not be recorded."""
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
            self._streams.say(f"the job ended, but this could not be recorded: {in_words(finished.outcome)}")
            raise self._loop.outage.error or TransientTrouble(f"the outcome could not be recorded: {LOCKED}")
        return RunResult(self._job, decided, self._signal if self._was_stopped else None)

    def _keep(self) -> None:
        """Run in the thread beside the job: keep its lease until it has ended, and record the end."""
        self._loop.run()
        if self._ended:
            self._loop.finish()
        elif not self._lost:
            self._attempt.stop.set("lease lost")  # the loop gave up

    def _hand_back(self, finished: Finished) -> None:
        """The end is the loop's to record, which it tries for as long as a lease is, at least."""
        self._allow_time()
        self._loop.workers.ended.put(Ended(self._attempt, finished, self._clock.monotonic()))
        self._ended = True

    def _wait_for(self, beside: threading.Thread) -> None:
        beside.join(SLOW_S)
        if beside.is_alive():
            why = self._loop.outage.error or LOCKED
            self._streams.say(f"the outcome cannot be recorded yet, retrying: {why}")
        while beside.is_alive():
            if self._loop.outage.error is None:  # somebody's psql: for as long as the person has patience
                self._allow_time()
            beside.join(SLOW_S)

    def _allow_time(self) -> None:
        # Longer than until the next look at it: a lease may be as short as that.
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
            except (KeyboardInterrupt, Terminated, _LeaseIsLost):  # before it, or in a command's second Ctrl-C
                ran = timedelta(seconds=self._clock.monotonic() - began)
                finished = Finished(self._job, Interrupted(), ran, WORKER)
            finally:
                self._running = False
        text = as_stored(finished.output or output.text(), self._secrets)
        return finished._replace(outcome=self._by_a_person(finished.outcome), output=text)

    def _by_a_person(self, outcome: Outcome) -> Outcome:
        """Return the outcome to record in place of *outcome*: a person watches this run, and may have stopped it."""
        self._was_stopped = self._is_stop(outcome)
        if self._was_stopped:
            number = signal.Signals(self._signal or signal.SIGINT)
            why = "Ctrl-C or the debugger's q" if number == signal.SIGINT else number.name
            outcome = Interrupted(f"interrupted by hand ({why})", by_hand=True)
        if isinstance(outcome, Released):
            outcome = Released(outcome.error or "it could not be begun")
        if self._by_hand and isinstance(outcome, Failed) and is_misfit(outcome):
            return dataclasses.replace(outcome, permanent=True)
        if self._by_hand and isinstance(outcome, Interrupted | Released):
            return CancelledByRequest(f"{outcome.error}; started by hand, so it is not retried")
        return outcome

    def _is_stop(self, outcome: Outcome) -> bool:
        """Whether a person ended it. A failure after a Ctrl-C that only the debugger heard is one of the job's own."""
        if isinstance(outcome, Interrupted):
            return self._signal is not None
        if not isinstance(outcome, Failed):
            return False
        said = f"{outcome.error_type} {outcome.traceback or ''}"
        return outcome.error_type in QUIT or (
            self._signal is not None and (self._attempt.is_command or any(name in said for name in QUIT))
        )

    # --- what the loop says, from its thread --------------------------------------------------------------------------

    def _tell(self, event: events.Event) -> None:
        if event.name == "job.progress":
            told = self._attempt.reporting.progress
            if self._on_progress is not None and told is not None:
                self._on_progress(told)
            return
        if event.name == "database.trouble" and not self._ended:
            self._streams.say(f"the lease cannot be renewed yet: {event.facts['error']}")
        elif event.name == "job.lease_lost" and not self._lost:
            self._streams.say("the lease was taken over: this attempt recorded nothing")
            self._lost = True
        self._emit(event)

    def _hear(self, reason: str) -> None:
        if reason == "cancelled" and self._attempt.stop.reason is None:
            self._streams.say("cancel was requested: stopping the job")
        elif reason == "lease lost":
            trouble = self._loop.outage.error
            why = f"ran out: {trouble}" if trouble else "was taken over or ran out"
            self._streams.say(f"stopping; this attempt will record nothing: the lease {why}")
            self._lost = True
            signal.pthread_kill(self._main, signal.SIGINT)  # only in that thread does it end a sleep or a read

    # --- signals ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C, a closed terminal and SIGTERM end the job and are recorded; a command has its grace, the first time.

        What was ignored when we began (nohup, a script's "&") stays ignored; SIGINT is also how a lost lease is told.
        While the end is being recorded they end that, after one more try.
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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HAND_SIGNALS)  # what came since the claim comes now
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
