"""Turn the target of ``cronjobs run``, a job type or a schedule, into the job to create."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cronjobs.clock import SYSTEM
from cronjobs.desk.cli.known_types import misfit
from cronjobs.desk.cli.project_database import operator
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.checking import new_job
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.schedules.decide import job_for
from cronjobs.engine.store.enqueue import NewJob
from cronjobs.errors import UsageError
from cronjobs.text import nearest, one_line


class NoRunnableTarget(UsageError):
    """There is no such target, or its type cannot run, perhaps because a handler failed to import."""


def job_of(
    settings: Settings, known: JobTypes, target: str, arguments: dict[str, Any] | None, schedule: bool
) -> tuple[NewJob, bool]:
    """Return the job for *target*, and whether no other job of its schedule may run at the same time.

    Raises NoRunnableTarget.
    """
    by = f"cli:{operator()}"
    found = settings.schedules.get(target)
    # An inline command's job type has the same name as its schedule. That name means the schedule here, since only the
    # schedule has the payload and the scheduled time.
    inline = found is not None and f"schedules.{target}.command" in settings.positions
    if target in known.types and not schedule and not inline:
        _check_payload(known, target, arguments or {})
        return replace(new_job(target, arguments or {}), enqueued_by=by), False
    if found is None:
        raise NoRunnableTarget(_unknown(settings, known, target, schedule))
    if found.job not in known.types:
        raise NoRunnableTarget(
            f'schedule {target} names the job type "{one_line(found.job, 100)}", which cannot run here'
        )
    # begin_new() replaces this time with the database's time.
    new = job_for(found, SYSTEM.now())
    if arguments is not None:
        new = replace(new, payload=arguments)
    _check_payload(known, found.job, new.payload)
    return replace(new, run_at=None, enqueued_by=by), found.overlap != "allow"


def _check_payload(known: JobTypes, job_type: str, arguments: dict[str, Any]) -> None:
    if fault := misfit(known, job_type, arguments):
        raise UsageError(one_line(fault, 1000))


def _unknown(settings: Settings, known: JobTypes, target: str, schedule: bool) -> str:
    names = {*settings.schedules} | (set() if schedule else {*known.types})
    what = "schedule" if schedule else "job type or schedule"
    disabled = settings.disabled_schedules | (frozenset() if schedule else settings.disabled_job_types)
    if target in disabled:
        return f'the entry of "{one_line(target, 100)}" in the configuration is invalid: see "cronjobs check"'
    meant = nearest(target, names)
    listed = ", ".join(sorted(names)[:20]) or "none"
    guess = f'did you mean "{meant}"?' if meant else f"there are: {listed}"
    return f'no {what} "{one_line(target, 100)}" is known here; {guess}'
