"""The job types of this host, for commands that show what a tick here would do."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

from cronjobs.config.settings import Settings
from cronjobs.jobs import job_types
from cronjobs.jobs.job_types import JobTypes
from cronjobs.model import RetryPolicy


def known_types(settings: Settings) -> JobTypes:
    """The job types of this host. What the user's modules print as they are imported is no data: it goes to stderr."""
    with redirect_stdout(sys.stderr):
        return job_types.load(settings)


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
