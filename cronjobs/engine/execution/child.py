"""Runs one handler in its own interpreter.

``process.run_handler`` starts this program with ``python -m``, under ``launcher``, and talks to it over
``child_protocol``. It is for ``isolation: process``, for long jobs, and for jobs whose runners keep dying.

The program reads its request, imports the user's modules, runs the handler in the main thread, and writes the outcome.
SIGTERM only sets the stop reason of the handler's context, because an exception in a signal handler could interrupt a
``finally`` block. (An async handler is also cancelled, through its event loop.) If a handler does not stop, the
runner has it killed.
"""

from __future__ import annotations

import atexit
import faulthandler
import io
import logging
import os
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from itertools import count
from types import FrameType

from cronjobs.clock import SYSTEM
from cronjobs.engine.config.trust import UntrustedFiles
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.execution.attempt import MISMATCH_DELAY, Attempt, WorkerContext
from cronjobs.engine.execution.child_protocol import Request, outcome_text, read_reason, write_outcome, write_progress
from cronjobs.engine.execution.handler import call_handler
from cronjobs.engine.execution.output import log_to
from cronjobs.engine.execution.raised import rehearse
from cronjobs.engine.jobs import job_types
from cronjobs.engine.jobs.context import StopSignal
from cronjobs.engine.jobs.registry import registered
from cronjobs.model import Interrupted, Outcome, Released, RetryPolicy
from cronjobs.text import one_line


def main() -> None:
    descriptor, progress_file = int(sys.argv[1]), int(sys.argv[2])
    for each in (descriptor, progress_file):
        # Processes that the handler starts must not inherit these descriptors.
        os.set_inheritable(each, False)
    stop = StopSignal()

    def on_sigterm(_number: int, _frame: FrameType | None) -> None:
        # Our runner writes a reason before it sends the signal. Without a reason, somebody is stopping the whole
        # service.
        stop.set(read_reason(descriptor) or "shutdown")

    signal.signal(signal.SIGTERM, on_sigterm)
    # If C code crashes, faulthandler prints the stack to the attempt's output.
    faulthandler.enable()
    request = Request.decode(sys.stdin.buffer.read())
    _open_streams()
    write_outcome(descriptor, run(request, stop, progress_file))
    _leave()


def run(request: Request, stop: StopSignal, progress_file: int) -> Outcome:
    """Import the user's modules and run the handler. Never raises; always returns an Outcome.

    *progress_file* is the descriptor of the file for the handler's progress.
    """
    try:
        faults = job_types.import_handlers(request.settings)
    # The files have changed since the runner checked them, or this is a cluster worker, where nobody has checked them.
    except UntrustedFiles as error:
        return Released(one_line(str(error), 1000), after=MISMATCH_DELAY)
    registration = registered().get(request.job.job_type)
    if registration is None:
        why = f": {faults[0].where} {faults[0].what}" if faults else ""
        said = f"no handler is registered for {request.job.job_type} in the job's own process{why}"
        return Released(one_line(said, 1000), after=MISMATCH_DELAY)
    if request.source not in (None, registration.source):
        said = (
            f"the source code of {request.job.job_type} here differs from the code of the runner that claimed the job, "
            "perhaps because of a deploy"
        )
        return Released(said, after=MISMATCH_DELAY)
    # The URL is "" on a cluster worker that has no database.
    url = request.settings.database
    database = Database(parse_url(url, request.settings.schema), connections=1) if url else None
    now = SYSTEM.monotonic()
    left = timedelta(seconds=max(0.0, min(request.timeout_s, request.ends_at - now)))
    job_type = job_types.JobType(request.job.job_type, left, RetryPolicy(), registration)
    attempt = Attempt(
        request.job, job_type, left, in_child_process=False, stop=stop, worker=request.worker, started=now
    )
    numbers = count(1)
    attempt.reporting.listener = lambda progress: write_progress(progress_file, next(numbers), progress)
    # The runner asked us to stop during the imports. It knows why, and records the right outcome instead of this one.
    if stop.reason is not None:
        return Interrupted()
    try:
        around = WorkerContext(request.settings, database)
        outcome_text(rehearse(attempt, SYSTEM))
        return attempt.refusal() or call_handler(attempt, around, SYSTEM)
    finally:
        if database is not None:
            database.close()


def _open_streams() -> None:
    """Give the handler an empty standard input. Send its output streams and its logs to the attempt's output."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    log_to(logging.StreamHandler(sys.stderr))


def _leave() -> None:
    """Flush the buffers and exit, without waiting for threads that the handler left running."""
    with suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
