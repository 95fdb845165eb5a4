"""What can run here: the handlers that the file's imports register, and its declared commands, with their limits."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from cronjobs.interpolate import mask
from cronjobs.jobs import Registration, registered
from cronjobs.model import RetryPolicy, duration_text
from cronjobs.settings import Settings
from cronjobs.text import one_line


@dataclass(frozen=True)
class JobType:
    """A job type as it runs here: exactly one of ``registration`` and ``command`` is set."""

    name: str
    timeout: timedelta
    retry: RetryPolicy
    registration: Registration | None = None
    command: tuple[str, ...] | None = None
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Fault:
    """Something of the user's that cannot be used here: ``where`` is a module or job type, ``what`` one line."""

    where: str
    what: str
    traceback: str | None = None


@dataclass(frozen=True)
class JobTypes:
    """The job types that this host can run, and what could not be loaded. Others wait, no attempt spent."""

    types: Mapping[str, JobType] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def policy(self, job_type: str, settings: Settings) -> RetryPolicy:
        """The retry policy of *job_type*, the defaults' when it is not known here."""
        known = self.types.get(job_type)
        return known.retry if known else settings.retry.apply(RetryPolicy())

    def fitting(self, remaining: timedelta) -> list[str]:
        return [name for name, job_type in self.types.items() if job_type.timeout <= remaining]


def load(settings: Settings) -> JobTypes:
    """Import the handlers' modules and put every job type together. A module that fails stops only its own types.

    Precedence, first wins: ``job_types:``, ``@job``, ``defaults:`` (a row and a schedule are held against it later).
    """
    faults = _import_handlers(settings)
    types: dict[str, JobType] = {}
    for name in registered().keys() | {name for name, declared in settings.job_types.items() if declared.command}:
        try:
            types[name] = _job_type(settings, name)
        except ValueError as error:  # the file's cap below the base that the code says
            faults.append(Fault(name, f"its retry: in the file does not go with the one in the code: {error}"))
    for name, job_type in list(types.items()):
        if name in settings.disabled_job_types:
            del types[name]
        elif job_type.timeout > settings.run.budget:
            del types[name]
            faults.append(
                Fault(
                    name,
                    f"timeout {duration_text(job_type.timeout)} is above run.budget "
                    f"({duration_text(settings.run.budget)}): shorten it, or raise the budget",
                )
            )
    return JobTypes(types, tuple(faults))


def _job_type(settings: Settings, name: str) -> JobType:
    declared, registration = settings.job_types.get(name), registered().get(name)
    command = declared.command if declared else None
    if command is not None:
        registration = None
    retry = registration.retry if registration and registration.retry else settings.retry.apply(RetryPolicy())
    timeout = registration.timeout if registration else None
    if declared is not None:
        retry = declared.retry.apply(retry)
        timeout = declared.timeout or timeout
    return JobType(
        name,
        timeout or settings.run.default_timeout,
        retry,
        registration,
        command,
        declared.env if declared else (),
    )


def _import_handlers(settings: Settings) -> list[Fault]:
    for name, value in settings.env:
        os.environ[name] = value  # settings has left out what real variables win over; cron itself sets PATH
    for folder in (*reversed(settings.python_path), settings.folder):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    faults: list[Fault] = []
    if settings.setup is not None:
        module, _, function = settings.setup.rpartition(".")
        fault = _guarded(
            f"setup {settings.setup}", lambda: getattr(importlib.import_module(module), function)(), settings.secrets
        )
        if fault:
            return [fault]  # without it the imports would fail one by one, and hide why
    for module in settings.imports:
        fault = _guarded(f"module {module}", partial(importlib.import_module, module), settings.secrets)
        if fault:
            faults.append(fault)
    return faults


def _guarded(where: str, call: Callable[[], object], secrets: frozenset[str]) -> Fault | None:
    try:
        call()
    except BaseException as error:  # a module may even call sys.exit; KeyboardInterrupt is ours
        if isinstance(error, KeyboardInterrupt):
            raise
        said = one_line(f"{type(error).__name__}: {error}", 500)
        # An import error may hold a URL with its password.
        trace = mask("".join(traceback.format_exception(error)), secrets)
        return Fault(where, f"cannot be imported: {mask(said, secrets)}", trace)
    return None
