"""The job types that can run here: handlers registered by the file's ``imports:``, and declared commands."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from cronjobs import starting
from cronjobs.engine.config import django_project
from cronjobs.engine.config.import_path import RefusingExit, prepare_imports
from cronjobs.engine.config.settings import (
    JobTypeSettings,
    Leftovers,
    RetryChanges,
    RunSettings,
    Settings,
    unknown_executor,
)
from cronjobs.engine.host.forks import EndingCopies
from cronjobs.engine.jobs.around import around_attempts, hook
from cronjobs.engine.jobs.registry import Registration, half_imported, refused, registered
from cronjobs.engine.rules.recovery_policy import RUNNER_SLACK, AttemptPolicy
from cronjobs.installed import if_installed
from cronjobs.loading import Loading
from cronjobs.masking import mask
from cronjobs.model import Durable, ExitCodes, Isolation, JobOptions, OnLost, OnShutdown, RetryPolicy
from cronjobs.text import error_text, one_line

# The time between SIGTERM and SIGKILL when a process times out.
PROCESS_GRACE: Final = timedelta(seconds=2)
NOT_IMPORTED: Final = "cannot be imported: "


@dataclass(frozen=True)
class JobType:
    """A job type as it runs on this host. Exactly one of ``registration`` and ``command`` is set."""

    name: str
    timeout: timedelta
    retry: RetryPolicy
    registration: Registration | None = None
    command: tuple[str, ...] | None = None
    env: tuple[tuple[str, str], ...] = ()
    # The tick's environment variables that a command inherits. None means all variables.
    inherit_env: tuple[str, ...] | None = None
    # A command's input. None means the payload as JSON, and "" means no input.
    stdin: str | None = None
    # The folder in which a command runs. None means the folder of the configuration file.
    run_in: Path | None = None
    leftovers: Leftovers = "end"  # what happens to processes that a command leaves running
    isolation: Isolation = "thread"  # "process" for every command
    max_memory: int | None = None  # in bytes; only for a process
    on_shutdown: OnShutdown = "release"
    on_lost: OnLost = "retry"
    # With "each", the loop commits each outcome before the worker starts another job.
    durable: Durable = "group"
    exit_codes: ExitCodes = field(default_factory=ExitCodes)  # for commands
    # If False, nobody chose the timeout: it is the default, and does not show how long the work takes.
    timeout_declared: bool = True
    executor: str | None = None  # the cluster that runs the handler, or None for this host
    # True if the type's jobs run in a process because their runners crashed, and not because of its settings.
    for_crashes: bool = False

    @property
    def starts_at_once(self) -> bool:
        """Whether a job of this type is claimed only when a worker is free to start it.

        A job that must not be lost must not wait here behind other jobs, because this process may die meanwhile. A job
        for a cluster must not wait here either, because it would look as if the job waited for a worker of the cluster.
        """
        return self.on_lost == "dead" or self.executor is not None

    @property
    def stop_grace(self) -> timedelta:
        """How long it takes to stop the process of a job that has timed out.

        A type that is isolated only because its runners crashed gets no grace. With a grace, a job whose timeout just
        fits into a tick could not start while its type is isolated.
        """
        return PROCESS_GRACE if self.isolation == "process" and not self.for_crashes else timedelta(0)

    def is_long(self, longest_in_tick: timedelta) -> bool:
        """Return whether an attempt may take longer than a tick has time for. Its process then outlives the tick."""
        return self.timeout > longest_in_tick


@dataclass(frozen=True)
class Fault:
    """A part of the user's code or of the configuration file that cannot be used.

    ``where`` names a module or job type. ``what`` describes the fault in one line.
    """

    where: str
    what: str
    traceback: str | None = None


@dataclass(frozen=True)
class JobTypes:
    """The job types that this host can run, and the faults that were found while loading them.

    Jobs of all other types wait, without using up their tries.
    """

    types: Mapping[str, JobType] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    elsewhere: frozenset[str] | None = None  # types that only other hosts can run, or None if unknown

    @property
    def runnable(self) -> frozenset[str] | None:
        """The types that at least one host can run, or None if the other hosts' types are unknown."""
        return None if self.elsewhere is None else self.elsewhere | self.types.keys()

    def policy(self, job_type: str, defaults: RetryChanges) -> RetryPolicy:
        """Return the retry policy of *job_type*, or the policy with *defaults* if the type is not known here."""
        known = self.types.get(job_type)
        return known.retry if known else defaults.apply(RetryPolicy())

    def isolating(self, names: Collection[str]) -> JobTypes:
        """Return a copy in which the handlers with these *names* run in processes of their own."""
        types = {
            name: replace(job_type, isolation="process", for_crashes=True) if name in names else job_type
            for name, job_type in self.types.items()
        }
        return replace(self, types=types)


def load(settings: Settings) -> JobTypes:
    """Import the handlers' modules and assemble all job types. A module that fails disables only its own types.

    An option is read from the first of these places that sets it: ``job_types:``, ``@job``, ``defaults:``. A job's row
    or a schedule may override some of the options later.
    """
    return assembled(settings, import_handlers(settings))


def assembled(settings: Settings, faults: list[Fault]) -> JobTypes:
    """Assemble the job types of the file and of the modules imported so far.

    *faults* lists the faults of these imports. This function appends to the list.
    """
    types: dict[str, JobType] = {}
    commands = {name for name, declared in settings.job_types.items() if declared.command}
    for name in sorted(registered().keys() | commands):
        try:
            types[name] = _job_type(settings, name)
        # The options conflict, for example if the file's ``cap`` is below the code's ``base``.
        except ValueError as error:
            faults.append(Fault(name, f'"retry" in the file conflicts with the retry policy in the code: {error}'))
        # A fault in one type must not disable the other types.
        except Exception as error:
            faults.append(Fault(name, f"this type cannot be used: {error_text(error, 500)}"))
    # A name that two functions use is also in ``refused()``, although the first function is registered.
    for name, what in refused().items():
        if name not in commands:
            types.pop(name, None)
            faults.append(Fault(one_line(name, 200), one_line(what, 500)))
    unfinished = half_imported()
    for name, job_type in list(types.items()):
        if name in settings.disabled_job_types:
            del types[name]
        elif job_type.registration is not None and name in unfinished:
            del types[name]
            # If a module could not be imported, the fault with its traceback already says why.
            if not any(fault.traceback for fault in faults):
                faults.append(Fault(name, f"the import of its module {unfinished[name]} did not finish"))
        elif job_type.registration is not None and (fault := job_type.registration.fault) is not None:
            del types[name]
            faults.append(Fault(name, fault))
        elif job_type.max_memory is not None and job_type.isolation == "thread":
            del types[name]
            faults.append(Fault(name, 'max_memory works only for a job in its own process: add "isolation: process"'))
        elif job_type.executor is not None and job_type.executor not in settings.executors:
            del types[name]
            faults.append(Fault(name, unknown_executor(job_type.executor, settings.executors)))
    return JobTypes(types, tuple(faults))


def _job_type(settings: Settings, name: str) -> JobType:
    declared = settings.job_types.get(name) or JobTypeSettings(name)
    registration = registered().get(name) if declared.command is None else None
    code = registration.options if registration else JobOptions()
    retry = (registration.retry if registration else None) or settings.retry.apply(RetryPolicy())
    timeout = declared.timeout or code.timeout
    executor = None if declared.command else declared.executor or code.executor
    return JobType(
        name,
        timeout or settings.run.default_timeout,
        declared.retry.apply(retry),
        registration,
        declared.command,
        declared.env,
        declared.inherit_env,
        declared.stdin,
        declared.run_in,
        declared.leftovers,
        isolation="process" if declared.command or executor else declared.isolation or code.isolation or "thread",
        max_memory=declared.max_memory or code.max_memory,
        on_shutdown=declared.on_shutdown or code.on_shutdown or "release",
        on_lost=declared.on_lost or code.on_lost or "retry",
        durable=declared.durable or code.durable or "group",
        exit_codes=_exit_codes(declared),
        timeout_declared=timeout is not None,
        executor=executor,
    )


def _exit_codes(declared: JobTypeSettings) -> ExitCodes:
    usual = ExitCodes()
    return ExitCodes(
        frozenset(declared.success_exit_codes) or usual.success, usual.permanent - {*declared.retry_exit_codes}
    )


def import_handlers(settings: Settings) -> list[Fault]:
    starting.end()
    prepare_imports(settings)
    faults: list[Fault] = []
    if settings.setup is not None:
        module, _, function = settings.setup.rpartition(".")
        fault = _guarded(
            f"setup {settings.setup}", lambda: getattr(importlib.import_module(module), function)(), settings.secrets
        )
        if fault:
            # Without the setup, every import would fail, and those faults would hide the cause.
            return [fault]
    for name in settings.around:
        fault = _guarded(f"around {name}", partial(hook, name), settings.secrets)
        if fault:
            faults.append(fault)
    for module in dict.fromkeys((*settings.imports, *_found())):
        fault = _guarded(f"module {module}", partial(importlib.import_module, module), settings.secrets)
        if fault and module.endswith(".py"):
            fault = replace(fault, what=f"{fault.what}; write {module.removesuffix('.py')}, without .py")
        if fault:
            faults.append(fault)
    # Django may have been set up by ``setup:`` or by one of the user's modules.
    uses_django = django_project.settings_of_django() is not None
    if uses_django and if_installed(django_project.APP) is not None:
        fault = _guarded("Django's connections", lambda: around_attempts(hook(django_project.CLEAN)), settings.secrets)
        if fault:
            faults.append(fault)
    return faults


_finders: list[Callable[[], Iterable[str]]] = []


def also_import(modules: Callable[[], Iterable[str]]) -> None:
    """Call *modules* whenever handlers are imported, and import the modules that it names.

    Integrations of frameworks such as Django call this function.
    """
    if modules not in _finders:
        _finders.append(modules)


def _found() -> Iterator[str]:
    for finder in _finders:
        yield from finder()


def _guarded(where: str, call: Callable[[], object], secrets: frozenset[str]) -> Fault | None:
    try:
        with EndingCopies(), RefusingExit(), Loading():
            call()
    # Catch everything, because a module may call sys.exit.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        # An import error may contain a URL with its password.
        trace = mask("".join(traceback.format_exception(error)), secrets)
        return Fault(where, f"{NOT_IMPORTED}{mask(error_text(error, 500), secrets)}", trace)
    return None


def policy_of(job_type: JobType, run: RunSettings, *, runner: timedelta | None) -> AttemptPolicy:
    """Return the policy for an attempt of *job_type* that starts now.

    *runner* is the longest time that the attempt's process can run. None means that the process's time is not limited.
    """
    return AttemptPolicy(
        job_type.retry,
        on_lost=job_type.on_lost,
        max_losses=run.max_losses,
        in_thread=job_type.isolation == "thread" and not job_type.is_long(run.longest_in_tick),
        runner_s=None if runner is None else round((runner + RUNNER_SLACK).total_seconds(), 1),
        lease_s=run.lease.total_seconds(),
    )
