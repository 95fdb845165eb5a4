"""The job types of this host, for commands that show what a tick here would do."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, redirect_stdout

from cronjobs.config.settings import Settings
from cronjobs.jobs import job_types
from cronjobs.jobs.job_types import JobTypes
from cronjobs.model import RetryPolicy


def known_types(settings: Settings) -> JobTypes:
    """The job types of this host."""
    with users_code():
        return job_types.load(settings)


def users_code() -> AbstractContextManager[object]:
    """A block in which code of the user's may run, on import or while a payload is read: what it prints is no data."""
    return redirect_stdout(sys.stderr)


def most_tries(job_type: str, max_attempts: int | None, settings: Settings, types: JobTypes | None) -> int | None:
    """How often the job may fail; None where only code that was not imported could say it.

    Precedence as a tick has it: the row, ``job_types:``, ``@job``, ``defaults:``.
    """
    if max_attempts is not None:
        return max_attempts
    if types is not None and job_type in types.types:
        return types.types[job_type].retry.max_attempts
    declared = settings.job_types.get(job_type)
    if declared is not None and (declared.command or "max_attempts" in dict(declared.retry.changes)):
        return declared.retry.apply(settings.retry.apply(RetryPolicy())).max_attempts
    return None
