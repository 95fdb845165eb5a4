"""The daemon threads that run attempts.

Only the loop writes to the database, except that ``ctx.transaction()`` and effects write to it in a worker's thread. A
ThreadPoolExecutor would not do: it joins its threads at exit, so a handler that never returns would keep the tick alive
forever.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # ``signal`` makes enums of each answer and takes ten times as long
import queue
import threading
from contextvars import Context
from typing import Final

from cronjobs.clock import Clock, sleep
from cronjobs.engine.execution.attempt import Attempt, Ended, WorkerContext
from cronjobs.engine.execution.handler import run_attempt
from cronjobs.engine.execution.raised import outcome_of, rehearse
from cronjobs.model import CancelledByRequest, Finished, Outcome, Released
from cronjobs.text import ERROR_LIMIT, one_line

# Sleep this long, so that the new worker thread can get the GIL and begin.
LET_IT_BEGIN_S: Final = 0.001
DROPPED: Final = "dropped at shutdown"


def unbegun(attempt: Attempt) -> Outcome | None:
    """Return the outcome of an attempt that was asked to stop before a worker took it, or None if it may start."""
    match attempt.stop.reason:
        case None:
            return None
        case "cancelled":
            return CancelledByRequest()
        case "shutdown" if attempt.job_type.on_shutdown == "drop":
            return CancelledByRequest(DROPPED)
        case _:
            return Released()


class Workers:
    """Up to ``count`` daemon threads. ``hand`` gives an attempt to a thread, which puts its end on ``ended``.

    If a thread could not be started, ``fault`` says why, and ``count`` is the number of threads that exist.
    """

    def __init__(self, count: int, around: WorkerContext, clock: Clock) -> None:
        self.count = count
        self.fault: str | None = None
        self.ended: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self.around = around
        self.clock = clock
        self._threads: list[threading.Thread] = []

    def hand(self, attempt: Attempt) -> bool:
        """Give *attempt* to a worker. Return False if there is no worker and none can be started."""
        is_first = not self._threads
        if len(self._threads) < self.count:
            self._start_one()
        if not self._threads:
            return False
        attempt.on_its_way = True
        self._inbox.put(attempt)
        if is_first:
            sleep(LET_IT_BEGIN_S)
            # Rehearse while the attempt runs in its thread, so that the rehearsal costs no time.
            rehearse(attempt, self.clock)
        return True

    def _start_one(self) -> None:
        name = str(len(self._threads) + 1)
        thread = threading.Thread(target=self._work, args=(name,), name=f"cronjobs-worker-{name}", daemon=True)
        try:
            thread.start()
        # The limit on threads or on memory is reached. The existing threads continue to work.
        except (RuntimeError, MemoryError) as error:
            self.count, self.fault = len(self._threads), one_line(str(error), 200)
        else:
            self._threads.append(thread)

    def take_back(self) -> list[Attempt]:
        """Take back the attempts that no worker has started, and return them, so that their jobs can be released."""
        waiting: list[Attempt] = []
        while True:
            try:
                attempt = self._inbox.get_nowait()
            except queue.Empty:
                return waiting
            if attempt is not None:
                waiting.append(attempt)

    def dismiss(self) -> None:
        """Let each thread end after its current attempt. Only processes that keep running need this."""
        for _ in self._threads:
            self._inbox.put(None)

    def wake(self) -> None:
        """Make the loop stop waiting at once. A signal handler may call this."""
        self.ended.put(None)

    def _work(self, name: str) -> None:
        while True:
            attempt = self._inbox.get()
            if attempt is None:
                return
            stopped = unbegun(attempt)
            if stopped is None and self.clock.monotonic() >= attempt.safe_until:
                # This process has been frozen since the claim, so another runner may already have the job.
                stopped = Released()
            if stopped is not None:
                self.ended.put(Ended(attempt, Finished(attempt.job, stopped), self.clock.monotonic()))
                continue
            attempt.worker = name
            attempt.started = self.clock.monotonic()
            try:
                # In a fresh context, variables that a handler sets, such as a tenant or log fields, do not affect the
                # next job.
                finished = Context().run(run_attempt, attempt, self.around, self.clock)
            # The error is in our own code, not in the user's. The worker thread must survive it.
            except BaseException as error:
                finished = Finished(attempt.job, self._outcome_of(error, attempt), worker=name)
            # Unblock the signals that the handler may have blocked.
            _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
            self.ended.put(Ended(attempt, finished, self.clock.monotonic()))
            if attempt.let_go is not None:
                attempt.let_go.wait()

    def _outcome_of(self, error: BaseException, attempt: Attempt) -> Outcome:
        """Return the outcome after an error in our own code. Release a job whose own code had not started."""
        if attempt.begun:
            return outcome_of(error, attempt, self.clock)
        return Released(
            one_line(f"the attempt could not be started: {type(error).__name__}: {error}", ERROR_LIMIT // 4)
        )
