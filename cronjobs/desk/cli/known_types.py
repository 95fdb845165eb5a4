"""The job types of this host, for commands that show what a tick here would do."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from datetime import timedelta
from types import FrameType
from typing import Any, Final, NoReturn

from cronjobs.engine.command.printing import complain, is_terminal
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.config.trust import UntrustedFiles
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs import job_types
from cronjobs.engine.jobs.job_types import NOT_IMPORTED, Fault, JobTypes
from cronjobs.engine.store.job_types import remembered, runnable_types
from cronjobs.errors import UsageError
from cronjobs.model import RetryPolicy, duration_text
from cronjobs.text import nearest, one_line

# After this many seconds of importing, a message on the terminal says why the command has not answered yet.
SLOW_IMPORT_S: Final = 5.0


class ImportTimeout(BaseException):
    """Raised to end an import that hangs. It is not an Exception, because modules may catch those and try again."""


def known_types(settings: Settings) -> JobTypes:
    """Return the job types registered on this host.

    If an import takes longer than run.budget, this function stops it, and records a fault, as for an import that fails.
    """
    with users_code():
        try:
            with _limited(settings.run.budget):
                return job_types.load(settings)
        except ImportTimeout as error:  # between two modules
            return job_types.assembled(settings, [Fault("imports", f"{NOT_IMPORTED}{error}")])


@contextmanager
def _limited(budget: timedelta) -> Iterator[None]:
    """Raise ImportTimeout in the block when *budget* is over, and once a second after that."""
    # A tick has a limit of its own, and only the main thread receives signals.
    if threading.current_thread() is not threading.main_thread() or any(signal.getitimer(signal.ITIMER_REAL)):
        yield
        return

    def give_up(_: int, frame: FrameType | None) -> NoReturn:
        raise ImportTimeout(f"the import did not end within {duration_text(budget)} (run.budget){_place_of(frame)}")

    def report(_: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, max(0.1, budget.total_seconds() - SLOW_IMPORT_S), 1.0)
        if is_terminal("stderr"):
            with suppress(RuntimeError):  # the module was printing at this moment
                complain(
                    f"still importing the handlers, for at most {duration_text(budget)} (run.budget); Ctrl-C ends this "
                    f"command{_place_of(frame)}"
                )

    before = signal.signal(signal.SIGALRM, report)
    signal.setitimer(signal.ITIMER_REAL, SLOW_IMPORT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _place_of(frame: FrameType | None) -> str:
    """Return text about the innermost module that is still being imported, to append to a sentence, or ""."""
    while frame is not None and frame.f_code is not known_types.__code__:
        if frame.f_code.co_name == "<module>":
            return one_line(f"; the import is at {frame.f_code.co_filename}, line {frame.f_lineno}", 500)
        frame = frame.f_back
    return ""


def users_code() -> AbstractContextManager[object]:
    """Redirect what user code prints (in imports, payload checks) to stderr, since stdout is for data."""
    return redirect_stdout(sys.stderr)


def warn_if_unfit(settings: Settings, job_type: str, payload: Mapping[str, Any], waits: str, undo: str) -> None:
    """Warn if no handler on this host fits the jobs just enqueued. Another host may have a handler that fits.

    *waits* is a phrase such as "Job 17 waits". *undo* is the command that cancels the jobs.
    """
    try:
        known = known_types(settings)
    except UntrustedFiles as error:
        for line in error.lines:
            complain(line)
        return
    if job_type in known.types:
        if fault := misfit(known, job_type, payload):
            complain(one_line(fault, 1000))
            complain(f"if the payload is wrong: {undo}")
        return
    meant = nearest(job_type, known.types)
    guess = f'. Did you mean "{meant}"?' if meant else "."
    complain(
        f'jobs of type "{one_line(job_type, 200)}" cannot run here{guess} {waits} until some host knows the type. If '
        f"the type is a mistake: {undo}"
    )
    for import_fault in known.faults:
        complain(one_line(f"{import_fault.where}: {import_fault.what}", 1000))
    if job_type in settings.disabled_job_types:
        complain(f'the entry of {one_line(job_type, 200)} in the configuration is invalid: see "cronjobs check"')


def misfit(known: JobTypes, job_type: str, payload: Mapping[str, Any]) -> str | None:
    """Return why the handler here does not take *payload*, or None if it takes *payload* or there is no handler."""
    found = known.types.get(job_type)
    with users_code():
        return found.registration.bind(payload) if found is not None and found.registration else None


def refuse_unfit(settings: Settings, job_type: str, payload: Mapping[str, Any]) -> None:
    """Raise UsageError if the handler here does not take *payload*. A command takes any payload."""
    if job_type in settings.job_types and settings.job_types[job_type].command:
        return
    try:
        fault = misfit(known_types(settings), job_type, payload)
    except UntrustedFiles:
        return
    if fault:
        raise UsageError(
            f"{one_line(fault, 1000)}: nothing was written; to enqueue the job for a version of the handler that "
            "takes this payload, add --force"
        )


def unknown_types(settings: Settings, database: Database, job_types: Collection[str]) -> tuple[list[str], set[str]]:
    """Return the *job_types* without a handler here or on a host that ticked recently, and all types with a handler.

    If a module here failed to import, the module may define any type, so no type counts as unknown. The function
    imports the handlers only if a type is neither in the file nor in a recent tick's list.
    """
    left = set(job_types) - settings.job_types.keys() - settings.disabled_job_types
    if not left:
        return [], set()
    with database.read() as connection:
        elsewhere = runnable_types(connection, remembered(settings.run.every)) or frozenset()
    if not left - elsewhere:
        return [], set()
    known = known_types(settings)
    if any(fault.where.startswith(("module ", "setup ")) for fault in known.faults):
        return [], set()
    registered = {*known.types, *elsewhere}
    return sorted(left - registered), registered


def refuse_unknown(settings: Settings, database: Database, job_type: str) -> None:
    unknown, registered = unknown_types(settings, database, [job_type])
    if not unknown:
        return
    meant = nearest(job_type, registered)
    guess = f' Did you mean "{meant}"?' if meant else ""
    raise UsageError(
        f'no handler has the job type "{one_line(job_type, 200)}", here or on a host that ticked lately.{guess} '
        "Nothing was written; to enqueue the job for a future handler, add --force"
    )


def most_tries(job_type: str, max_attempts: int | None, settings: Settings, types: JobTypes | None) -> int | None:
    """Return how many tries the job has, or None if only the handler sets the number, and it was not imported.

    The precedence is the same as in a tick: the job's row, ``job_types:``, ``@job``, ``defaults:``.
    """
    if max_attempts is not None:
        return max_attempts
    if types is not None and job_type in types.types:
        return types.types[job_type].retry.max_attempts
    declared = settings.job_types.get(job_type)
    if declared is not None and (declared.command or "max_attempts" in dict(declared.retry.changes)):
        return declared.retry.apply(settings.retry.apply(RetryPolicy())).max_attempts
    return None
