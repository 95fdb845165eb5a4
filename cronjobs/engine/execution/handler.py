"""Run an attempt of a handler, in this thread or in its own process, or of a command. Mask secrets in its output.

``run_attempt`` is the entry point.
"""

from __future__ import annotations

import inspect
import json
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, timedelta
from functools import partial
from typing import Any

from cronjobs.clock import Clock
from cronjobs.engine.execution.attempt import MISMATCH_DELAY, Attempt, WorkerContext, mismatch
from cronjobs.engine.execution.command import Command
from cronjobs.engine.execution.output import captured
from cronjobs.engine.execution.raised import outcome_of
from cronjobs.engine.host.forks import EndingCopies
from cronjobs.engine.jobs.around import HOOKS, CommandFailed, Surroundings, surrounded
from cronjobs.engine.jobs.context import Context, not_committed, result_of
from cronjobs.engine.jobs.job_types import PROCESS_GRACE
from cronjobs.engine.rules.payload import result_json
from cronjobs.masking import mask
from cronjobs.model import Failed, Finished, Outcome, Succeeded
from cronjobs.text import CappedText, clean


def run_attempt(attempt: Attempt, around: WorkerContext, clock: Clock) -> Finished:
    """Run one attempt in this thread. Always returns a Finished, whatever the user's code does."""
    started = clock.monotonic()
    outcome, output, secrets = attempt.refusal(), None, around.settings.secrets_of(attempt.job)
    if outcome is None:
        if attempt.is_command:
            run = _run_command
        else:
            run = _run_apart if attempt.has_process else _run_handler
        if around.on_start is not None:
            around.on_start(attempt)
        outcome, output = run(attempt, around, clock)
    finished = Finished(
        job=attempt.job,
        outcome=masked(outcome, secrets),
        duration=timedelta(seconds=clock.monotonic() - started),
        worker=attempt.worker,
        output=as_stored(output, secrets),
    )
    if around.on_end is not None:
        around.on_end(finished)
    return finished


def as_stored(output: str | None, secrets: frozenset[str]) -> str | None:
    return None if output is None else clean(mask(output, secrets))


def _run_handler(attempt: Attempt, around: WorkerContext, clock: Clock) -> tuple[Outcome, str | None]:
    with captured(also=around.on_output) as output:
        # In a foreground run, ``reporting.output`` is already set, because another object collects the output.
        attempt.reporting.output = attempt.reporting.output or output
        outcome = call_handler(attempt, around, clock)
    return outcome, output.text()


def call_handler(attempt: Attempt, around: WorkerContext, clock: Clock) -> Outcome:
    """Call the user's function in this thread, and turn its result or exception into an Outcome."""
    registration = attempt.job_type.registration
    assert registration is not None
    ctx = _context(attempt, around, clock) if registration.takes_ctx else None
    handler = _surrounded(registration.handler, ctx, attempt, around, clock)
    attempt.begun, attempt.thread = True, threading.get_ident()
    try:
        with EndingCopies():
            # Decoding runs code of the user's classes, so it may raise anything.
            arguments, misfits = registration.decoded(attempt.job.payload)
            if fault := registration.type_fault(misfits):
                # The handler has not run, so this failure must not use up a try.
                attempt.begun = False
                return mismatch(fault)
            result = handler(*(() if ctx is None else (ctx,)), **arguments)
            if result is not None and inspect.isawaitable(result):
                result = _awaited(result, attempt, around)
        if ctx is None:
            return _succeeded(result)
        return not_committed(ctx) or _succeeded(result_of(ctx, result))
    # Catch even SystemExit: sys.exit() in a handler fails the attempt, but must not end the worker.
    except BaseException as error:
        return outcome_of(error, attempt, clock)
    finally:
        attempt.thread = None


def _surrounded(
    handler: Callable[..., Any], ctx: Context | None, attempt: Attempt, around: WorkerContext, clock: Clock
) -> Callable[..., Any]:
    """Return a function that calls *handler* inside the hooks, which are inside the file's ``around:`` entries.

    An async handler is also awaited inside the hooks and entries.
    """
    entries = around.settings.around
    if not (entries or HOOKS):
        return handler
    of_attempt = ctx or _context(attempt, around, clock)

    def call(*given: Any, **payload: Any) -> Any:
        def finish() -> Any:
            hooks = Surroundings(of_attempt)

            def run() -> Any:
                result = handler(*given, **payload)
                return _awaited(result, attempt, around, hooks) if inspect.isawaitable(result) else result

            return hooks.call(run)

        if not entries:
            return finish()
        return surrounded(entries, of_attempt, finish, lambda said: print(said, file=sys.stderr))  # noqa: T201

    return call


def _context(attempt: Attempt, around: WorkerContext, clock: Clock) -> Context:
    return Context(
        attempt.job,
        timeout=attempt.timeout,
        stop=attempt.stop,
        clock=clock,
        database=around.database,
        worker=attempt.worker,
        report=attempt.reporting.say,
    )


def _run_apart(attempt: Attempt, around: WorkerContext, clock: Clock) -> tuple[Outcome, str | None]:
    from cronjobs.engine.execution.child_protocol import Request
    from cronjobs.engine.execution.process import run_handler

    started = clock.monotonic() if attempt.started is None else attempt.started
    request = Request(
        attempt.job,
        replace(around.settings, run=replace(around.settings.run, shutdown_grace=_shutdown_grace(around))),
        ends_at=started + (attempt.timeout + attempt.to_start).total_seconds(),
        timeout_s=attempt.timeout.total_seconds(),
        worker=attempt.worker,
    )
    attempt.reporting.output = CappedText()
    command = _command(
        attempt, around, around.environ, request.encode(), timeout=attempt.timeout + attempt.to_start, clock=clock
    )
    attempt.begun = True
    return run_handler(command, attempt.stop, clock=clock, report=attempt.reporting.say)


def _command(
    attempt: Attempt, around: WorkerContext, env: Mapping[str, str], stdin: bytes, *, timeout: timedelta, clock: Clock
) -> Command:
    return Command(
        argv=attempt.job_type.command or (),
        folder=attempt.job_type.run_in or around.settings.folder,
        env=env,
        stdin=stdin,
        timeout=timeout,
        grace=PROCESS_GRACE,
        exit_codes=attempt.job_type.exit_codes,
        shutdown_grace=_shutdown_grace(around),
        max_memory=attempt.job_type.max_memory,
        leave_running=attempt.job_type.leftovers == "leave",
        # ``safe_until`` moves with each renewal of the lease, so pass a function.
        lease=(lambda: attempt.safe_until) if attempt.lease_s else None,
        on_output=_on_output(attempt, around, clock),
        output=attempt.reporting.output,
    )


def _on_output(attempt: Attempt, around: WorkerContext, clock: Clock) -> Callable[[str], None] | None:
    """Return the callback for a process's output. For a command, the callback also looks for progress lines."""
    if not attempt.is_command:
        return around.on_output

    def read_output(text: str) -> None:
        attempt.reporting.read(text, clock.monotonic())
        if around.on_output is not None:
            around.on_output(text)

    return read_output


def _shutdown_grace(around: WorkerContext) -> timedelta:
    """Return the time from SIGTERM to SIGKILL at shutdown. The runner gets longer, to record the end of the attempt."""
    return max(PROCESS_GRACE, around.settings.run.shutdown_grace - PROCESS_GRACE)


def _succeeded(result: Any) -> Outcome:
    """Return the outcome of a handler that returned *result*.

    Even a result that cannot be stored counts as success, because the work must not be done again. The outcome contains
    only plain JSON. Otherwise the thread that renews the leases might run code of the handler's objects.
    """
    if result is None:
        return Succeeded(None)
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        what = "a generator" if inspect.isgenerator(result) else "an async generator"
        text = (
            f"the handler returned {what}: the generator's body did not run, so the work is not done; run the "
            "generator inside the handler and return a value"
        )
        return Failed(text, "UsageError", at_least=MISMATCH_DELAY)
    written, note = result_json(result)
    return Succeeded(None if written is None else json.loads(written), note)


def _awaited(result: Any, attempt: Attempt, around: WorkerContext, hooks: Surroundings | None = None) -> Any:
    # Imported only for async handlers, because this import takes as long as starting Python itself.
    import asyncio

    waiting = partial(_await, result, attempt, around.settings.run.shutdown_grace)
    try:
        return (around.run_async or asyncio.run)(waiting() if hooks is None else hooks.awaited(waiting))
    finally:
        if inspect.iscoroutine(result):
            # Without this, a coroutine that never began, because a hook raised an exception, would cause a warning.
            result.close()


async def _await(result: Any, attempt: Attempt, shutdown_grace: timedelta) -> Any:
    """Await an async handler. At its timeout, or when it has to stop, cancel the handler through its event loop.

    At shutdown, the handler's context reports the stop at once. The handler is cancelled only after half the grace
    period, so that it can finish by itself. Once the handler has ended, its task is not cancelled any more, because the
    hooks around it must clean up.
    """
    import asyncio

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    ended = False

    def cancel() -> None:
        if not ended:
            task.cancel()

    # The tick's main thread or a signal handler calls this function.
    def stopped(reason: str) -> None:
        wait_s = shutdown_grace.total_seconds() / 2 if reason == "shutdown" else 0.0
        # A RuntimeError means that the loop has ended.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: loop.call_later(wait_s, cancel))

    attempt.stop.when_set(stopped)
    try:
        async with asyncio.timeout(attempt.timeout.total_seconds()):
            # A process that the handler forks must not close its copy of our event loop, because the copy shares our
            # epoll object.
            with EndingCopies():
                return await result
    finally:
        ended = True


def _run_command(attempt: Attempt, around: WorkerContext, clock: Clock) -> tuple[Outcome, str | None]:
    from cronjobs.engine.execution.process import command_environment, run_command

    job, declared = attempt.job, attempt.job_type
    ends_at = clock.now() + attempt.timeout
    job = job._replace(idempotency_key=job.idempotency_key or f"cronjobs-job-{job.id}")
    inherited = {
        name: value
        for name, value in around.environ.items()
        if declared.inherit_env is None or name in declared.inherit_env
    }
    env = command_environment(inherited | dict(declared.env), job, ends_at.astimezone(UTC))
    attempt.reporting.output = CappedText()
    stdin = (json.dumps(job.payload) if declared.stdin is None else declared.stdin).encode()
    command = _command(attempt, around, env, stdin, timeout=attempt.timeout, clock=clock)
    attempt.begun = True
    if around.settings.around:
        return _surrounded_command(
            lambda: run_command(command, attempt.stop, clock=clock),
            _context(attempt, around, clock),
            around.settings.around,
            around.settings.secrets_of(attempt.job),
        )
    return run_command(command, attempt.stop, clock=clock)


def _surrounded_command(
    run: Callable[[], tuple[Outcome, str | None]], ctx: Context, entries: tuple[str, ...], secrets: frozenset[str]
) -> tuple[Outcome, str | None]:
    def failure(ended: tuple[Outcome, str | None]) -> CommandFailed | None:
        error = getattr(ended[0], "error", None)
        return None if error is None else CommandFailed(mask(error, secrets))

    said: list[str] = []
    outcome, output = surrounded(entries, ctx, run, said.append, failure)
    return outcome, "\n".join([*([] if output is None else [output.rstrip("\n")]), *said]) if said else output


def masked(outcome: Outcome, secrets: frozenset[str]) -> Outcome:
    error = getattr(outcome, "error", None)
    if error is None:
        return outcome
    changes: dict[str, Any] = {"error": mask(error, secrets)}
    trace = getattr(outcome, "traceback", None)
    if trace is not None:
        changes["traceback"] = mask(trace, secrets)
    return replace(outcome, **changes)
