"""The guard: the function that a cluster's worker calls to run one attempt, which no other worker may run.

The guard takes the attempt's token in the database, starts the handler in a child process of the launcher, and holds a
permit. If the database does not confirm the permit in time, the child process is killed before the lease ends. A
cluster reruns a task whose worker it lost, so it may call the guard twice for one attempt. If another call has taken
the token, the guard does nothing.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from cronjobs import masking
from cronjobs.clock import SYSTEM
from cronjobs.contrib.dask.messages import GuardReport, Spec, versions
from cronjobs.contrib.dask.permit import HeldPermit
from cronjobs.contrib.dask.rules import difference
from cronjobs.contrib.dask.worker_home import this_worker, token_database
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.execution.command import Command
from cronjobs.engine.execution.handler import as_stored, masked
from cronjobs.engine.execution.process import run_handler
from cronjobs.engine.jobs.context import StopSignal
from cronjobs.engine.jobs.job_types import PROCESS_GRACE
from cronjobs.engine.rules.progress import HowFar
from cronjobs.errors import CronjobsError, DatabaseError
from cronjobs.text import CappedText

TELL_S: Final = 1.0  # minimum seconds between progress messages

_running: dict[tuple[int, int], StopSignal] = {}  # (job, attempt) → the attempt's stop signal


def run(text: str) -> str:
    """Run the attempt in *text* (a ``Spec``), if no other worker has taken it. Return a ``GuardReport`` as text."""
    spec = Spec.decode(text)
    if (why := difference(spec.versions, versions())) is not None:
        return GuardReport("differs", f"worker {this_worker()}: {why}").encode()
    try:
        settings, database = token_database(spec.request.settings)
    except CronjobsError as error:
        return GuardReport("differs", f"worker {this_worker()}: {error}").encode()
    stop = StopSignal()
    holder = f"{this_worker()} {os.getpid()}-{secrets.token_hex(4)}"
    permit = HeldPermit(database, spec.key, holder, spec.lease_s, SYSTEM, stop)
    try:
        answer = permit.take().answer
    except DatabaseError as error:
        return GuardReport("cannot", f"worker {this_worker()}: {error}").encode()
    if answer != "yours":
        return GuardReport("over" if answer == "done" else answer).encode()
    place = (spec.key.job_id, spec.key.attempt)
    _running[place] = stop
    try:
        report = _run(spec, settings, permit).encode()
    finally:  # stop renewing the permit even after an error, or it would hold the attempt forever
        permit.confirm_no_more()
        _running.pop(place, None)
    permit.end(report)
    return report


def stop(job_id: int, attempt: int, reason: str) -> bool:
    """Stop an attempt if it runs in this process. Return whether it did. The supervisor calls this on the worker."""
    found = _running.get((job_id, attempt))
    if found is not None:
        found.set(reason)
    return found is not None


def _run(spec: Spec, settings: Settings, permit: HeldPermit) -> GuardReport:
    tell = _reporter(spec)
    tell("begun", this_worker())
    permit.watch()
    began = SYSTEM.monotonic()
    timeout = timedelta(seconds=spec.request.timeout_s)
    request = spec.starting_at(began, this_worker(), settings)
    secrets_ = settings.secrets_of(request.job)  # this worker's secrets; the supervisor does not know them
    command = Command(
        argv=(),
        folder=settings.folder,
        env=os.environ,
        stdin=request.encode(),
        timeout=timeout,
        grace=PROCESS_GRACE,
        shutdown_grace=max(PROCESS_GRACE, request.settings.run.shutdown_grace - PROCESS_GRACE),
        max_memory=spec.max_memory,
        lease=lambda: permit.safe_until,
        output=CappedText(),
    )
    told_at = 0.0

    def progressed(how_far: HowFar, at: float) -> None:
        nonlocal told_at
        if at >= told_at + TELL_S:
            told_at = at
            tell(
                "progress",
                how_far.done,
                how_far.of,
                None if how_far.note is None else masking.mask(how_far.note, secrets_),
            )

    outcome, output = run_handler(command, permit.stop, clock=SYSTEM, report=progressed)
    took = timedelta(seconds=SYSTEM.monotonic() - began)
    return GuardReport("ended", outcome=masked(outcome, secrets_), output=as_stored(output, secrets_), took=took)


def _reporter(spec: Spec) -> Any:
    """Return a function that sends messages to the supervisor through the scheduler. A message may get lost."""

    def tell(kind: str, *facts: Any) -> None:
        with suppress(Exception):  # a lost message is harmless
            from distributed import get_worker

            worker = get_worker()
            said = [kind, spec.key.job_id, spec.key.attempt, *facts]
            worker.loop.add_callback(worker.log_event, spec.topic, said)

    return tell


def examine() -> Mapping[str, Any]:
    """Return a worker's versions, and whether it can take tokens, for ``check --live``."""
    here, fault = versions(), None
    try:
        _, database = token_database(Settings(file=Path(), folder=Path()))
        with database.read() as connection:
            connection.exec_driver_sql("SELECT 1")
    except CronjobsError as error:
        fault = str(error)
    return {"cronjobs": here.cronjobs, "python": here.python, "fault": fault}
