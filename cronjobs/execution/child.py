"""One handler in an interpreter of its own: ``python -m`` this module, the other end of ``child_protocol``.

Started below ``launcher`` by ``process.run_handler``, for ``isolation: process``, for long jobs, and for a job whose
runners keep dying. It reads its request, imports the user's modules, runs the handler in its main thread and writes how
that ended. SIGTERM only tells the handler's context why it is to stop (an async handler is cancelled through its loop):
an exception thrown from a signal handler lands in ``finally`` blocks. What does not stop is killed from outside.
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
from types import FrameType

from cronjobs.clock import SYSTEM
from cronjobs.database.address import parse_url
from cronjobs.database.connection import Database
from cronjobs.execution.attempt import Attempt, WorkerContext
from cronjobs.execution.child_protocol import Request, read_reason, write_outcome
from cronjobs.execution.handler import MISMATCH_DELAY, call_handler, refusal
from cronjobs.jobs import job_types
from cronjobs.jobs.context import StopSignal
from cronjobs.jobs.registry import registered
from cronjobs.model import Interrupted, Outcome, Released, RetryPolicy
from cronjobs.text import one_line


def main() -> None:
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # what the handler starts has no business with it
    stop = StopSignal()

    def on_sigterm(_number: int, _frame: FrameType | None) -> None:
        # Without a reason it was not our runner: somebody stops the whole service, and the runner hears of it too.
        stop.set(read_reason(descriptor) or "shutdown")

    signal.signal(signal.SIGTERM, on_sigterm)
    faulthandler.enable()  # a crash in C says in the output where it was
    request = Request.decode(sys.stdin.buffer.read())
    _open_streams()
    write_outcome(descriptor, run(request, stop))
    _leave()


def run(request: Request, stop: StopSignal) -> Outcome:
    """Import the user's modules and run the handler; whatever it does, what comes back is an Outcome."""
    settings = request.settings()
    faults = job_types.import_handlers(settings)
    registration = registered().get(request.job.job_type)
    if registration is None:
        why = f": {faults[0].where} {faults[0].what}" if faults else ""
        said = f"no handler is registered for {request.job.job_type} in a process of its own{why}"
        return Released(one_line(said, 1000), after=MISMATCH_DELAY)
    database = Database(parse_url(request.database, request.schema), connections=1)
    now = SYSTEM.monotonic()
    left = timedelta(seconds=max(0.0, min(request.timeout_s, request.ends_at - now)))
    job_type = job_types.JobType(request.job.job_type, left, RetryPolicy(), registration)
    attempt = Attempt(request.job, job_type, left, apart=False, stop=stop, worker=request.worker, started=now)
    if stop.reason is not None:  # it came while modules were imported; the runner knows what it means
        return Interrupted()
    try:
        return refusal(attempt) or call_handler(attempt, WorkerContext(settings, database), SYSTEM)
    finally:
        database.close()


def _open_streams() -> None:
    """Give the handler an empty standard input, and streams and logging that go to the attempt's output."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    root = logging.getLogger()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def _leave() -> None:
    """End now: threads that the handler left running must not keep the job, but what is to be flushed is."""
    with suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
