"""One attempt in one thread, to an Outcome; and the daemon threads that do it.

Workers compute, the loop writes: a worker never touches the database. The threads are daemons and no
ThreadPoolExecutor, which joins its threads at exit: a handler that never returns would hold the tick for ever.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

from cronjobs.clock import Clock
from cronjobs.context import Context, StopSignal
from cronjobs.errors import Cancelled, GiveUp, RetryLater, Snooze
from cronjobs.interpolate import mask
from cronjobs.jobtypes import JobType
from cronjobs.model import (
    CancelledByRequest,
    Failed,
    Finished,
    Interrupted,
    Job,
    Lost,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
    duration,
    duration_text,
)
from cronjobs.output import captured
from cronjobs.payloads import payload_fault, result_json
from cronjobs.text import ERROR_LIMIT, TRACEBACK_LIMIT, cap, clean, one_line

# An old host in mid-deploy must not kill a job of the new shape: the new code is there by then.
MISMATCH_DELAY: Final = timedelta(minutes=5)
COMMAND_GRACE: Final = timedelta(seconds=2)  # from SIGTERM to SIGKILL at a command's time-out
COMMAND_SLACK: Final = COMMAND_GRACE + timedelta(seconds=6)  # process.py ends a command by itself: TERM, KILL, report


@dataclass(frozen=True)
class Surroundings:
    """What every attempt of a tick shares. ``longest`` is the longest time-out that any tick could run."""

    folder: Path
    longest: timedelta
    secrets: frozenset[str] = frozenset()
    on_output: Callable[[str], None] | None = None  # for a person who watches


@dataclass
class Attempt:
    """A claimed job on its way through this process. Instants are of the monotonic clock; None: not yet."""

    job: Job
    job_type: JobType
    timeout: timedelta
    stop: StopSignal = field(default_factory=StopSignal)
    worker: str = ""
    claimed: float = 0.0
    started: float | None = None
    recorded: str | None = None  # the outcome already in its history row, while its thread still runs
    recorded_at: float = 0.0

    @property
    def is_command(self) -> bool:
        return self.job_type.command is not None

    @property
    def overdue_at(self) -> float:
        """When its code should have ended by itself."""
        slack = COMMAND_SLACK if self.is_command else timedelta(0)
        return math.inf if self.started is None else self.started + (self.timeout + slack).total_seconds()


@dataclass(frozen=True)
class Ended:
    """An attempt's end as it comes back to the loop, with when (monotonic)."""

    attempt: Attempt
    finished: Finished
    at: float


def run_attempt(attempt: Attempt, around: Surroundings, clock: Clock) -> Finished:
    """Run one attempt here and now; whatever the user's code does, what comes back is an Outcome."""
    started = clock.monotonic()
    outcome, output = _refusal(attempt, around), None
    if outcome is None:
        run = _run_command if attempt.is_command else _run_handler
        outcome, output = run(attempt, around, clock)
    return Finished(
        job=attempt.job,
        outcome=_masked(outcome, around.secrets),
        duration=timedelta(seconds=clock.monotonic() - started),
        worker=attempt.worker,
        output=None if output is None else clean(mask(output, around.secrets)),
    )


def _refusal(attempt: Attempt, around: Surroundings) -> Outcome | None:
    """What is wrong with the row itself; plain SQL can write anything."""
    fault = payload_fault(attempt.job.payload)
    if fault:
        return Failed(fault, "PayloadError", permanent=True)
    if attempt.timeout > around.longest:
        return Failed(
            f"timeout_s {attempt.timeout.total_seconds():g} is above run.budget ({duration_text(around.longest)}): "
            "no tick could run it",
            "TimeoutError",
            permanent=True,
        )
    registration = attempt.job_type.registration
    if registration is not None:
        fault = registration.bind(attempt.job.payload)
        if fault:
            return Failed(one_line(fault, ERROR_LIMIT), "SignatureMismatch", at_least=MISMATCH_DELAY)
    return None


def _run_handler(attempt: Attempt, around: Surroundings, clock: Clock) -> tuple[Outcome, str | None]:
    registration = attempt.job_type.registration
    assert registration is not None
    ctx = Context(attempt.job, timeout=attempt.timeout, stop=attempt.stop, clock=clock)
    arguments = (ctx,) if registration.takes_ctx else ()
    with captured(also=around.on_output) as output:
        try:
            result = registration.handler(*arguments, **attempt.job.payload)
            if inspect.isawaitable(result):
                result = asyncio.run(_await(result, attempt.timeout))
            outcome: Outcome = _succeeded(result)
        except BaseException as error:  # sys.exit() in a handler is a failed attempt, and the pool goes on
            outcome = outcome_of(error, attempt, clock)
    return outcome, output.text()


def _succeeded(result: Any) -> Succeeded:
    """The work is done, whatever its result is made of: it must not be run again for that."""
    try:
        _, note = result_json(result)
    except BaseException as error:
        note = f"the result was not kept: {_said(error)}"
    return Succeeded(None if note else result, note)


async def _await(result: Any, timeout: timedelta) -> Any:
    async with asyncio.timeout(timeout.total_seconds()):
        return await result


def outcome_of(error: BaseException, attempt: Attempt, clock: Clock) -> Outcome:
    """Classify what a handler raised. What nobody classified is retried by the policy."""
    asked = _in_chain(error, Cancelled)
    if isinstance(asked, Cancelled):
        return _stopped(asked.reason, attempt, error)
    match error:
        case GiveUp():
            return Failed(_said(error), "GiveUp", _trace(error), permanent=True)
        case RetryLater(after=after):
            try:
                wait = None if after is None else duration(after)  # type: ignore[arg-type]
            except ValueError:
                wait = None
            return Failed(_said(error), "RetryLater", None, retry_after=wait)
        case Snooze(until=until):
            return _snoozed(until, attempt, clock)
        case TimeoutError() if _is_async_timeout(error, attempt, clock):
            return TimedOut(f"timed out after {duration_text(attempt.timeout)}", _trace(error))
    return Failed(_said(error), _name(type(error)), _trace(error))


def _is_async_timeout(error: BaseException, attempt: Attempt, clock: Clock) -> bool:
    over = attempt.started is not None and clock.monotonic() - attempt.started >= attempt.timeout.total_seconds()
    return over and isinstance(error.__cause__ or error.__context__, asyncio.CancelledError)


def _stopped(reason: str, attempt: Attempt, error: BaseException | None = None) -> Outcome:
    match reason:
        case "shutdown":
            return Interrupted()
        case "timeout":
            return TimedOut(f"timed out after {duration_text(attempt.timeout)}", _trace(error) if error else None)
        case "cancelled":
            return CancelledByRequest()
        case _:
            return Lost()


def _snoozed(until: object, attempt: Attempt, clock: Clock) -> Outcome:
    if isinstance(until, datetime) and until.tzinfo is not None:
        return Snoozed(until)
    try:
        return Snoozed(clock.now() + duration(until))  # type: ignore[arg-type]
    except (ValueError, TypeError, AttributeError):
        return Failed(f"Snooze({until!r}) needs an aware datetime or a delay such as '10m'", "UsageError")


def _in_chain(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    seen = 0
    while error is not None and seen < 20:
        if isinstance(error, kind):
            return error
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None


def _name(kind: type) -> str:
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def _said(error: BaseException) -> str:
    try:
        said = str(error)
    except BaseException:  # a broken __str__ must not lose the outcome
        said = "(its message could not be read)"
    if not isinstance(error, Exception):  # sys.exit(3) would read "3"
        said = f"{_name(type(error))}: {said}"
    return one_line(said or _name(type(error)), ERROR_LIMIT // 2)


def _trace(error: BaseException) -> str | None:
    try:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next  # begin with the user's code
        return cap("".join(traceback.format_exception(type(error), error, frames)), TRACEBACK_LIMIT)
    except BaseException:
        return None


def _run_command(attempt: Attempt, around: Surroundings, clock: Clock) -> tuple[Outcome, str | None]:
    from cronjobs.process import Command, command_environment, run_command

    job, declared = attempt.job, attempt.job_type
    assert declared.command is not None
    ends_at = clock.now() + attempt.timeout
    job = replace(job, idempotency_key=job.idempotency_key or f"cronjobs-job-{job.id}")
    env = command_environment(
        os.environ | dict(declared.env), job, deadline=ends_at.astimezone(UTC), timezone=ZoneInfo(job.timezone)
    )
    command = Command(
        argv=declared.command,
        folder=around.folder,
        env=env,
        stdin=json.dumps(job.payload).encode(),
        timeout=attempt.timeout,
        grace=COMMAND_GRACE,
    )
    return run_command(command, attempt.stop, clock=clock, on_output=around.on_output)


def _unbegun(attempt: Attempt) -> Finished | None:
    """What becomes of an attempt that was asked to stop before any worker took it; None: begin it."""
    match attempt.stop.reason:
        case None:
            return None
        case "cancelled":
            return Finished(attempt.job, CancelledByRequest())
        case _:
            return Finished(attempt.job, Released())


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
    """A fixed number of daemon threads. ``hand`` gives them an attempt, ``ended`` is where ends come back."""

    def __init__(self, count: int, around: Surroundings, clock: Clock) -> None:
        self.count = count
        self.ended: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[Attempt] = queue.SimpleQueue()
        self._around = around
        self._clock = clock
        self._threads: list[threading.Thread] = []

    def hand(self, attempt: Attempt) -> None:
        if len(self._threads) < self.count:
            name = str(len(self._threads) + 1)
            thread = threading.Thread(target=self._work, args=(name,), name=f"cronjobs-worker-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._inbox.put(attempt)

    def take_back(self) -> list[Attempt]:
        """The attempts that no worker has begun; they are given back untouched."""
        unbegun: list[Attempt] = []
        while True:
            try:
                unbegun.append(self._inbox.get_nowait())
            except queue.Empty:
                return unbegun

    def wake(self) -> None:
        """Let the loop's wait end now; safe to call from a signal handler."""
        self.ended.put(None)

    def _work(self, name: str) -> None:
        while True:
            attempt = self._inbox.get()
            unbegun = _unbegun(attempt)
            if unbegun is not None:
                self.ended.put(Ended(attempt, unbegun, self._clock.monotonic()))
                continue
            attempt.worker = name
            attempt.started = self._clock.monotonic()
            try:
                finished = run_attempt(attempt, self._around, self._clock)
            except BaseException as error:  # ours, not the user's; the slot must not be lost for it
                finished = Finished(attempt.job, outcome_of(error, attempt, self._clock), worker=name)
            self.ended.put(Ended(attempt, finished, self._clock.monotonic()))
