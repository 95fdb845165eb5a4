"""One attempt in one thread, to an Outcome; and the daemon threads that do it.

Workers compute, the loop writes; only ``ctx.transaction()`` and effects write from a worker's thread. The threads are
daemons and no ThreadPoolExecutor, which joins its threads at exit: a handler that never returns would hold the tick for
ever.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import queue
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from cronjobs.clock import Clock
from cronjobs.execution.output import captured
from cronjobs.execution.raised import outcome_of
from cronjobs.host.forks import EndingCopies
from cronjobs.jobs.context import Context, StopSignal, not_committed, result_of
from cronjobs.jobs.job_types import JobType
from cronjobs.jobs.registry import LONGEST_TIMEOUT
from cronjobs.masking import mask
from cronjobs.model import (
    CancelledByRequest,
    Failed,
    Finished,
    Job,
    Outcome,
    Released,
    Succeeded,
)
from cronjobs.rules.payload import payload_fault, result_json
from cronjobs.text import ERROR_LIMIT, clean, one_line

if TYPE_CHECKING:
    from cronjobs.config.settings import Settings
    from cronjobs.database.connection import Database

# An old host in mid-deploy must not kill a job of the new shape: the new code is there by then.
MISMATCH_DELAY: Final = timedelta(minutes=5)
PROCESS_GRACE: Final = timedelta(seconds=2)  # from SIGTERM to SIGKILL at the time-out of a process
TO_START: Final = timedelta(seconds=5)  # for an interpreter that a job has only because others of its type crashed
PROCESS_SLACK: Final = PROCESS_GRACE + timedelta(seconds=6)  # process.py ends it by itself: TERM, KILL, report
APART_FROM_LOSSES: Final = 2  # so many runners died holding the job: the next crash is to be its own


@dataclass(frozen=True)
class WorkerContext:
    """What all attempts of a process share. ``on_output`` is for a person who watches."""

    settings: Settings
    database: Database | None = None
    on_output: Callable[[str], None] | None = None


def lease_margin_s(lease_s: float) -> float:
    """How long before the end of a lease what runs under it must be gone."""
    return min(2.0, lease_s / 10)


def heartbeat_s(lease_s: float) -> float:
    """How often a lease is renewed: three renewals may fail before it ends."""
    return lease_s / 4


@dataclass
class Attempt:
    """A claimed job on its way through this process. Instants are of the monotonic clock; None: not yet.

    ``apart``: its handler gets a process of its own; None: if its type says so, or if too many runners died holding it.
    """

    job: Job
    job_type: JobType
    timeout: timedelta
    apart: bool | None = None
    stop: StopSignal = field(default_factory=StopSignal)
    worker: str = ""
    claimed: float = 0.0
    started: float | None = None
    lease_s: float = 0.0  # how long a lease lasts from ``leased_at`` on; 0: whoever holds it sees to that
    leased_at: float = 0.0
    on_its_way: bool = False  # to a worker or a process of its own: its end will be heard of
    handed_over: bool = False  # a process of its own is to adopt it, and to outlive the tick
    succeeded: bool = False  # by a transaction of its own: no lease is held any more, its code may still run
    begun: bool = False  # its own code may have run: from here on a failure is its own
    recorded: str | None = None  # the outcome already in its history row, while its thread still runs
    recorded_at: float = 0.0

    @property
    def is_command(self) -> bool:
        return self.job_type.command is not None

    @property
    def has_process(self) -> bool:
        """Whether it runs outside this process, which can then end it for certain."""
        if self.is_command or self.apart is not None:
            return self.is_command or bool(self.apart)
        return self.job_type.isolation == "process" or self.job.losses >= APART_FROM_LOSSES

    @property
    def to_start(self) -> timedelta:
        """What does not count against the timeout: on a busy host an interpreter needs seconds, a thread none."""
        return TO_START if self.job_type.for_crashes and self.has_process else timedelta(0)

    @property
    def safe_until(self) -> float:
        """Until when (monotonic) its code may run with nobody renewing the lease; renewals move it."""
        return self.leased_at + self.lease_s - lease_margin_s(self.lease_s) if self.lease_s else math.inf

    @property
    def overdue_at(self) -> float:
        """When its code should have ended by itself."""
        slack = PROCESS_SLACK + self.to_start if self.has_process else timedelta(0)
        return math.inf if self.started is None else self.started + (self.timeout + slack).total_seconds()


@dataclass(frozen=True)
class Ended:
    """An attempt's end as it comes back to the loop, with when (monotonic).

    ``answer``: what the process said that a long job was handed to; None: it ran here.
    """

    attempt: Attempt
    finished: Finished
    at: float
    answer: str | None = None


def run_attempt(attempt: Attempt, around: WorkerContext, clock: Clock) -> Finished:
    """Run one attempt here and now; whatever the user's code does, what comes back is an Outcome."""
    started = clock.monotonic()
    outcome, output, secrets = refusal(attempt), None, around.settings.secrets
    if outcome is None:
        if attempt.is_command:
            run = _run_command
        else:
            run = _run_apart if attempt.has_process else _run_handler
        outcome, output = run(attempt, around, clock)
    return Finished(
        job=attempt.job,
        outcome=_masked(outcome, secrets),
        duration=timedelta(seconds=clock.monotonic() - started),
        worker=attempt.worker,
        output=None if output is None else clean(mask(output, secrets)),
    )


def refusal(attempt: Attempt) -> Outcome | None:
    """What is wrong with the row itself; plain SQL can write anything."""
    fault = payload_fault(attempt.job.payload)
    if fault:
        return Failed(fault, "PayloadError", permanent=True)
    if attempt.timeout > LONGEST_TIMEOUT:
        return Failed(
            f"timeout_s {attempt.timeout.total_seconds():g} is more than the longest timeout, 30 days",
            "TimeoutError",
            permanent=True,
        )
    registration = attempt.job_type.registration
    if registration is not None:
        fault = registration.bind(attempt.job.payload)
        if fault:
            return Failed(one_line(fault, ERROR_LIMIT), "SignatureMismatch", at_least=MISMATCH_DELAY)
    return None


def _run_handler(attempt: Attempt, around: WorkerContext, clock: Clock) -> tuple[Outcome, str | None]:
    with captured(also=around.on_output) as output:
        outcome = call_handler(attempt, around, clock)
    return outcome, output.text()


def call_handler(attempt: Attempt, around: WorkerContext, clock: Clock) -> Outcome:
    """Call the user's function in this thread, and classify whatever comes of it."""
    registration = attempt.job_type.registration
    assert registration is not None
    ctx = Context(
        attempt.job,
        timeout=attempt.timeout,
        stop=attempt.stop,
        clock=clock,
        database=around.database,
        worker=attempt.worker,
    )
    arguments = (ctx,) if registration.takes_ctx else ()
    attempt.begun = True
    try:
        with EndingCopies():
            result = registration.handler(*arguments, **attempt.job.payload)
            if inspect.isawaitable(result):
                result = asyncio.run(_await(result, attempt, around.settings.run.shutdown_grace))
        return not_committed(ctx) or _succeeded(result_of(ctx, result))
    except BaseException as error:  # sys.exit() in a handler is a failed attempt, and the pool goes on
        return outcome_of(error, attempt, clock)


def _run_apart(attempt: Attempt, around: WorkerContext, clock: Clock) -> tuple[Outcome, str | None]:
    from cronjobs.execution.child_protocol import Request
    from cronjobs.execution.process import run_handler

    started = clock.monotonic() if attempt.started is None else attempt.started
    request = Request.of(
        around.settings,
        attempt.job,
        ends_at=started + (attempt.timeout + attempt.to_start).total_seconds(),
        timeout=attempt.timeout,
        grace=_shutdown_grace(around),
        worker=attempt.worker,
    )
    attempt.begun = True
    return run_handler(
        request,
        attempt.stop,
        env=os.environ,
        timeout=attempt.timeout + attempt.to_start,
        grace=PROCESS_GRACE,
        max_memory=attempt.job_type.max_memory,
        clock=clock,
        lease=lease_of_process(attempt),
        on_output=around.on_output,
    )


def lease_of_process(attempt: Attempt) -> Callable[[], float] | None:
    """Until when (monotonic) a process may run although its runner is silent, frozen perhaps; renewals move that."""
    return (lambda: attempt.safe_until) if attempt.lease_s else None


def _shutdown_grace(around: WorkerContext) -> timedelta:
    """What a process has from SIGTERM to SIGKILL at shutdown, so that its end is still recorded within the grace."""
    return max(PROCESS_GRACE, around.settings.run.shutdown_grace - PROCESS_GRACE)


def _succeeded(result: Any) -> Outcome:
    """The work is done, whatever its result is made of: it must not be run again for that.

    What goes on is plain JSON: nothing of the handler's is looked at a second time, by the thread that has the leases.
    """
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        what = "a generator" if inspect.isgenerator(result) else "an async generator"
        text = (
            f"the handler returned {what}: its body has not run, so the work is not done; call it, and return a value"
        )
        return Failed(text, "UsageError", at_least=MISMATCH_DELAY)
    written, note = result_json(result)
    return Succeeded(None if written is None else json.loads(written), note)


async def _await(result: Any, attempt: Attempt, shutdown_grace: timedelta) -> Any:
    """Await a handler, cancelled through its loop at its time-out and when it is to stop.

    At shutdown it has half the grace to end by itself, since its context says so at once.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def stopped(reason: str) -> None:  # from the tick's main thread, or a signal handler
        wait_s = shutdown_grace.total_seconds() / 2 if reason == "shutdown" else 0.0
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(lambda: loop.call_later(wait_s, task.cancel))

    attempt.stop.when_set(stopped)
    async with asyncio.timeout(attempt.timeout.total_seconds()):
        with EndingCopies():  # before a copy's loop is closed, whose epoll is the same as ours
            return await result


def _run_command(attempt: Attempt, around: WorkerContext, clock: Clock) -> tuple[Outcome, str | None]:
    from cronjobs.execution.command import Command
    from cronjobs.execution.process import command_environment, run_command

    job, declared = attempt.job, attempt.job_type
    assert declared.command is not None
    ends_at = clock.now() + attempt.timeout
    job = replace(job, idempotency_key=job.idempotency_key or f"cronjobs-job-{job.id}")
    inherited = {
        name: value
        for name, value in os.environ.items()
        if declared.inherit_env is None or name in declared.inherit_env
    }
    env = command_environment(
        inherited | dict(declared.env), job, deadline=ends_at.astimezone(UTC), timezone=ZoneInfo(job.timezone)
    )
    command = Command(
        argv=declared.command,
        folder=around.settings.folder,
        env=env,
        stdin=json.dumps(job.payload).encode(),
        timeout=attempt.timeout,
        grace=PROCESS_GRACE,
        exit_codes=declared.exit_codes,
        shutdown_grace=_shutdown_grace(around),
        max_memory=declared.max_memory,
    )
    attempt.begun = True
    return run_command(command, attempt.stop, clock=clock, lease=lease_of_process(attempt), on_output=around.on_output)


DROPPED: Final = "dropped at shutdown"


def unbegun(attempt: Attempt) -> Outcome | None:
    """What becomes of an attempt that was asked to stop before any worker took it; None: begin it."""
    match attempt.stop.reason:
        case None:
            return None
        case "cancelled":
            return CancelledByRequest()
        case "shutdown" if attempt.job_type.on_shutdown == "drop":
            return CancelledByRequest(DROPPED)
        case _:
            return Released()


def _masked(outcome: Outcome, secrets: frozenset[str]) -> Outcome:
    error = getattr(outcome, "error", None)
    if not secrets or error is None:
        return outcome
    changes: dict[str, Any] = {"error": mask(error, secrets)}
    trace = getattr(outcome, "traceback", None)
    if trace is not None:
        changes["traceback"] = mask(trace, secrets)
    return replace(outcome, **changes)


class Workers:
    """Daemon threads, up to ``count``. ``hand`` gives them an attempt, ``ended`` is where ends come back.

    ``fault``: why there are fewer than were asked for; ``count`` is then how many there are.
    """

    def __init__(self, count: int, around: WorkerContext, clock: Clock) -> None:
        self.count = count
        self.fault: str | None = None
        self.ended: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._around = around
        self._clock = clock
        self._threads: list[threading.Thread] = []

    def hand(self, attempt: Attempt) -> bool:
        """Give *attempt* to a worker; False: there is none, and none can be started."""
        if len(self._threads) < self.count:
            self._start_one()
        if not self._threads:
            return False
        attempt.on_its_way = True
        self._inbox.put(attempt)
        return True

    def _start_one(self) -> None:
        name = str(len(self._threads) + 1)
        thread = threading.Thread(target=self._work, args=(name,), name=f"cronjobs-worker-{name}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # a limit on processes, or on memory: those that run go on
            self.count, self.fault = len(self._threads), one_line(str(error), 200)
        else:
            self._threads.append(thread)

    def take_back(self) -> list[Attempt]:
        """The attempts that no worker has begun; they are given back untouched."""
        unbegun: list[Attempt] = []
        while True:
            try:
                attempt = self._inbox.get_nowait()
            except queue.Empty:
                return unbegun
            if attempt is not None:
                unbegun.append(attempt)

    def dismiss(self) -> None:
        """Let the threads end, each after what it runs: for a process that lives on."""
        for _ in self._threads:
            self._inbox.put(None)

    def wake(self) -> None:
        """Let the loop's wait end now; safe to call from a signal handler."""
        self.ended.put(None)

    def _work(self, name: str) -> None:
        while True:
            attempt = self._inbox.get()
            if attempt is None:
                return
            stopped = unbegun(attempt)
            if stopped is None and self._clock.monotonic() >= attempt.safe_until:
                stopped = Released()  # this process was frozen since the claim: another runner may have the job by now
            if stopped is not None:
                self.ended.put(Ended(attempt, Finished(attempt.job, stopped), self._clock.monotonic()))
                continue
            attempt.worker = name
            attempt.started = self._clock.monotonic()
            try:
                finished = run_attempt(attempt, self._around, self._clock)
            except BaseException as error:  # ours, not the user's; the slot must not be lost for it
                finished = Finished(attempt.job, self._outcome_of(error, attempt), worker=name)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the next handler's, and of whatever that starts
            self.ended.put(Ended(attempt, finished, self._clock.monotonic()))

    def _outcome_of(self, error: BaseException, attempt: Attempt) -> Outcome:
        """What an exception of ours means for *attempt*: nothing, if its code had not begun."""
        if attempt.begun:
            return outcome_of(error, attempt, self._clock)
        return Released(one_line(f"it could not be begun: {type(error).__name__}: {error}", ERROR_LIMIT // 4))
