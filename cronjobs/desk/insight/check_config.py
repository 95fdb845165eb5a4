"""``cronjobs check``: find mistakes in names, payloads, commands, limits and files.

Nothing here needs a database. A finding is a mistake to fix. A note is about a valid setting whose effect may surprise.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from cronjobs.desk.insight import check_notes
from cronjobs.engine.config import trust
from cronjobs.engine.config.django_project import other_module
from cronjobs.engine.config.import_path import MODULE
from cronjobs.engine.config.settings import START_UP as BUSY_START_UP
from cronjobs.engine.config.settings import JobTypeSettings, RunSettings, ScheduleSettings, Settings
from cronjobs.engine.crontime.timing import CronTiming, clock_changes, timing
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.host.files import why_unwritable
from cronjobs.engine.jobs.job_types import Fault, JobType, JobTypes
from cronjobs.engine.jobs.registry import Registration
from cronjobs.errors import CronjobsError, Problem
from cronjobs.masking import mask
from cronjobs.model import duration_text
from cronjobs.text import nearest, one_line

CRON_PATH: Final = "/usr/bin:/bin"  # cron's default PATH, see crontab(5) of Debian
AHEAD: Final = timedelta(days=366)  # how far ahead to look for clock changes
TRACEBACK_LINES: Final = 8
START_UP: Final = timedelta(seconds=1)  # how long a tick needs before its first job can start


@dataclass(frozen=True)
class ConfigFinding:
    """A mistake to fix. ``detail``: lines to print below the problem, such as the end of a traceback."""

    problem: Problem
    detail: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked:
    """The result of ``check``. ``job_types`` and ``schedules`` are the numbers of usable job types and schedules."""

    findings: tuple[ConfigFinding, ...]
    notes: tuple[Problem, ...]
    job_types: int
    schedules: int


def check(
    settings: Settings, known: JobTypes | None, *, file: str, environ: Mapping[str, str], now: datetime
) -> Checked:
    """Check a parsed configuration. *known* is None if the handlers were not imported. Then handlers are not checked.

    *file* is the file name to print. *environ* is this shell's environment, and shows what cron's environment lacks. In
    the result, problems from reading the file come first.
    """
    place = _Place(settings, file)
    findings = [ConfigFinding(problem) for problem in settings.problems]
    me = os.geteuid()
    others = trust.look(settings, {**environ, "PATH": CRON_PATH}, me)
    problems: list[Problem] = []
    names = [] if known is None else list(_names(place, known))
    timeouts = [] if known is None else list(_timed(settings.schedules, known))
    if known is not None:
        findings += [_fault(place, fault) for fault in known.faults]
    problems += [each.problem for each in names if not each.by_fault]
    problems += [each.problem for each in _too_long(place, settings.run, timeouts)]
    problems += [*_commands(place, environ), *_files(place)]
    if said := other_module(settings, environ.get(MODULE)):
        problems.append(place.problem(said, f"env.{MODULE}", "env"))
    refused = [found for found in others if found.refused]
    if me == 0:
        problems += [place.problem(said, "") for said in trust.refusals(refused)]
    else:
        problems += [_written_by_others(place, found) for found in refused]
    return Checked(
        (*findings, *map(ConfigFinding, problems)),
        (
            *_limits(place, settings.run),
            *_stored_secrets(place, settings.schedules),
            *(each.problem for each in names if each.by_fault),
            *(_written_by_others(place, found) for found in others if not found.refused),
            *_long_jobs(place, settings.run, timeouts),
            *_tight(place, settings.run.budget, timeouts),
            *(place.problem(text, *paths) for text, paths in check_notes.notes(settings, known)),
            *_clock_changes(place, settings.schedules, now),
        ),
        len(known.types) if known is not None else sum(bool(entry.command) for entry in settings.job_types.values()),
        len(settings.schedules),
    )


def wrong_names(settings: Settings, known: JobTypes) -> list[Problem]:
    """Return a problem for each job name and each payload that no handler accepts."""
    return [each.problem for each in _names(_Place(settings, settings.file.name), known)]


def misfits(settings: Settings, known: JobTypes) -> list[tuple[str, Problem]]:
    """Return the job type and the problem for each schedule payload that the handler here does not accept."""
    place = _Place(settings, settings.file.name)
    handlers = {name: found.registration for name, found in known.types.items()}
    return [
        (schedule.job, problem)
        for name, schedule in settings.schedules.items()
        if (registration := handlers.get(schedule.job)) is not None
        for problem in _payload(place, registration, schedule.payload, f"schedules.{name}")
    ]


class TimeoutTooLong(NamedTuple):
    """A timeout that fits no tick, and the job type that has it."""

    job_type: str
    problem: Problem


def never_begin(settings: Settings, known: JobTypes) -> list[TimeoutTooLong]:
    """Return the job types whose jobs never start, since their timeouts fit no tick."""
    return list(_too_long(_Place(settings, settings.file.name), settings.run, _timed(settings.schedules, known)))


def log_problem(settings: Settings) -> Problem | None:
    """Return why this user cannot write the log, or None."""
    return _log_problem(_Place(settings, settings.file.name))


@dataclass(frozen=True)
class _Place:
    """Makes problems that name a position in the file.

    The position is that of the first given dotted path that the file contains.
    """

    settings: Settings
    file: str

    def problem(self, message: str, *paths: str) -> Problem:
        message = one_line(mask(message, self.settings.secrets), 1000)
        for path in paths:
            if path in self.settings.positions:
                return Problem(self.file, *self.settings.positions[path], path, message)
        return Problem(self.file, 0, 0, paths[-1], message)


def _written_by_others(place: _Place, found: trust.TrustFinding) -> Problem:
    cure = " and ".join(f"{each} {found.path}" for each in found.cures)
    return place.problem(f"{found.path} {found.what}, who can thus change what runs here: {cure}", "")


def _stored_secrets(place: _Place, schedules: Mapping[str, ScheduleSettings]) -> Iterator[Problem]:
    """Report secrets in payloads. Payloads are stored unmasked, so every role that reads jobs sees the secrets."""
    for name, schedule in schedules.items():
        text = json.dumps(schedule.payload)
        if mask(text, place.settings.secrets) != text:
            said = "a secret in a payload is stored in the database in clear text: read it in the handler instead"
            yield place.problem(said, f"schedules.{name}.payload", f"schedules.{name}")


# --- handlers ---------------------------------------------------------------------------------------------------------


def _fault(place: _Place, fault: Fault) -> ConfigFinding:
    settings = place.settings
    kind, _, module = fault.where.partition(" ")
    if kind == "setup":
        problem = place.problem(f"{module} {fault.what}", "setup")
    elif kind == "around" and module in settings.around:
        problem = place.problem(f"{module} {fault.what}", f"around[{settings.around.index(module)}]", "around")
    elif kind == "module" and module in settings.imports:
        problem = place.problem(f"{module} {fault.what}", f"imports[{settings.imports.index(module)}]", "imports")
    else:
        name = fault.where
        problem = place.problem(fault.what, f"job_types.{name}", f"schedules.{name}", "imports")
        if not any(f"{section}.{name}" in settings.positions for section in ("job_types", "schedules")):
            problem = place.problem(f"{name}: {fault.what}", "imports")
    return ConfigFinding(problem, _last_lines(settings.secrets, fault.traceback))


def _last_lines(secrets: frozenset[str], traceback: str | None) -> tuple[str, ...]:
    """Return a traceback's last lines, without the import machinery. The error itself is reported elsewhere."""
    frames: list[list[str]] = []
    for line in mask(traceback or "", secrets).splitlines():
        if line.startswith("  File "):
            frames.append([line])
        elif frames and line.startswith("    "):
            frames[-1].append(line)
    own = [frame for frame in frames if "importlib" not in frame[0] and not frame[0].startswith(_OUR_FRAMES)]
    lines = [line for frame in own for line in frame if line.strip(" ^~")]
    return tuple(one_line(line, 300) for line in lines[-TRACEBACK_LINES:])


_OUR_FRAMES: Final = f'  File "{Path(__file__).parents[2]}{os.sep}'


class _WrongName(NamedTuple):
    """A name or payload that does not fit.

    ``by_fault``: whether the only known reason is a module that cannot be imported.
    """

    problem: Problem
    by_fault: bool = False


def _names(place: _Place, known: JobTypes) -> Iterator[_WrongName]:
    """Check that the job types named by schedules exist, and that their handlers accept the schedules' payloads."""
    settings = place.settings
    unusable = {*settings.disabled_job_types, *(fault.where for fault in known.faults)}
    broken = any(fault.where.startswith(("module ", "setup ")) for fault in known.faults)
    perhaps = " The handler may be in a module that cannot be imported." if broken else ""
    for name, schedule in settings.schedules.items():
        path = f"schedules.{name}"
        found = known.types.get(schedule.job)
        if found is None:
            if schedule.job not in unusable:
                meant = nearest(schedule.job, known.types)
                guess = f', did you mean "{meant}"?' if meant else "."
                text = f'no handler or command is registered under "{schedule.job}"{guess}{perhaps}'
                yield _WrongName(place.problem(text, f"{path}.job", path), broken and not meant)
        elif found.registration is not None:
            yield from map(_WrongName, _payload(place, found.registration, schedule.payload, path))
    for name, entry in settings.job_types.items():
        if name not in known.types and name not in unusable and entry.command is None:
            meant = nearest(name, known.types)
            guess = f', did you mean "{meant}"?' if meant else ', and the entry has no "command" key.'
            text = f"no handler is registered under this name{guess}{perhaps}"
            yield _WrongName(place.problem(text, f"job_types.{name}"), broken and not meant)


def _payload(place: _Place, registration: Registration, payload: dict[str, Any], path: str) -> Iterator[Problem]:
    """Report each value that does not fit the handler, at the value's position in the file."""
    if fault := registration.bind_names(payload):
        yield place.problem(fault, f"{path}.payload", path)
        return
    for misfit in registration.decoded(payload)[1].found:
        where = f"{path}.{misfit.where}"
        if where in place.settings.positions:
            yield place.problem(f"{misfit.what} ({registration.name})", where)
        else:
            yield place.problem(f"payload does not fit {registration.name}: {misfit}", f"{path}.payload", path)


@dataclass(frozen=True)
class _Timed:
    """The timeout of a job type or of a schedule, and the paths under which the file may set it."""

    job_type: JobType
    timeout: timedelta
    places: tuple[str, ...]


def _timed(schedules: Mapping[str, ScheduleSettings], known: JobTypes) -> Iterator[_Timed]:
    for name, job_type in known.types.items():
        # The job type of an inline command has its schedule's name.
        inline = f"schedules.{name}.timeout"
        yield _Timed(
            job_type, job_type.timeout, (f"job_types.{name}.timeout", inline, f"job_types.{name}", "imports", "")
        )
    for name, schedule in schedules.items():
        given = known.types.get(schedule.job)
        if given is not None and schedule.timeout is not None and schedule.timeout != given.timeout:
            yield _Timed(given, schedule.timeout, (f"schedules.{name}.timeout",))


def _too_long(place: _Place, run: RunSettings, timeouts: Iterable[_Timed]) -> Iterator[TimeoutTooLong]:
    """Find timeouts that fit no tick.

    A tick starts a job only if the job can end within run.budget. The tick itself needs START_UP of that budget.
    """
    for timed in timeouts:
        if timed.job_type.executor is not None:
            # The supervisor of an executor's jobs has no deadline, so every timeout fits.
            continue
        name, limit = timed.job_type.name, duration_text(timed.timeout)
        grace = timed.job_type.stop_grace
        if timed.timeout > run.longest_in_tick:
            if run.long_jobs == 0:
                text = (
                    f"{name}: timeout {limit} is longer than run.budget ({duration_text(run.budget)}), and "
                    "run.long_jobs is 0: the job would never start. Raise long_jobs, shorten the timeout, or raise "
                    "the budget"
                )
                yield TimeoutTooLong(name, place.problem(text, *timed.places))
        elif timed.timeout + grace + START_UP > run.budget:
            more = f", with {duration_text(grace)} to stop its process," if grace else ""
            own = (
                f", or to more than {duration_text(run.longest_in_tick)}, so that the job gets a process of its own"
                if run.long_jobs
                else ""
            )
            text = (
                f"{name}: timeout {limit}{more} leaves no room in run.budget ({duration_text(run.budget)}) for the "
                "tick's start, so the job would never run. Set the timeout to at most "
                f"{duration_text(run.budget - grace - START_UP)}{own}"
            )
            yield TimeoutTooLong(name, place.problem(text, *timed.places))


def _long_jobs(place: _Place, run: RunSettings, timeouts: Iterable[_Timed]) -> Iterator[Problem]:
    """List all long jobs in one note. A timeout above the budget is no mistake, but changes how the job runs."""
    of_ticks = [timed for timed in timeouts if timed.job_type.executor is None]
    long = [timed for timed in of_ticks if timed.timeout > run.longest_in_tick]
    if long and run.long_jobs:
        names = ", ".join(f"{timed.job_type.name} ({duration_text(timed.timeout)})" for timed in long)
        yield place.problem(
            f"these job types run as long jobs, because their timeouts are over {duration_text(run.longest_in_tick)}, "
            f"the most that a tick allows: {names}. A host runs at most {run.long_jobs} long jobs at once "
            "(run.long_jobs)",
            *long[0].places,
        )


def _tight(place: _Place, budget: timedelta, timeouts: Iterable[_Timed]) -> Iterator[Problem]:
    """Report timeouts that fit a tick only if nothing delays the tick's start."""
    for timed in timeouts:
        left = budget - timed.timeout - timed.job_type.stop_grace
        if timed.job_type.executor is None and START_UP <= left <= min(BUSY_START_UP, budget / 3):
            yield place.problem(
                f"{timed.job_type.name}: timeout {duration_text(timed.timeout)} leaves {duration_text(left)} of "
                f"run.budget ({duration_text(budget)}): a tick that needs longer to start does not run the job",
                *timed.places,
            )


# --- commands ---------------------------------------------------------------------------------------------------------


def _commands(place: _Place, environ: Mapping[str, str]) -> Iterator[Problem]:
    """Check that cron finds the programs that your shell finds."""
    for name, entry in place.settings.job_types.items():
        if entry.command is not None and (fault := _command_fault(place.settings, entry, environ)):
            yield place.problem(
                fault,
                f"job_types.{name}.command",
                f"schedules.{name}.command",
                f"job_types.{name}",
                f"schedules.{name}",
            )


# These commands are shell builtins, not programs, so only a shell can run them.
_OF_THE_SHELL: Final = frozenset(
    {"cd", "export", "source", ".", "exec", "set", "eval", "alias", "ulimit", "umask", "wait"}
)


def _command_fault(settings: Settings, entry: JobTypeSettings, environ: Mapping[str, str]) -> str | None:
    assert entry.command is not None
    program = entry.command[0]
    if "/" in program:
        file = settings.folder / program
        if not file.exists():
            return f"command not found: {file}"
        if file.is_dir() or not os.access(file, os.X_OK):
            return f"command not executable: {file}" + ("" if file.is_dir() else "; chmod +x it")
        return None
    path = (dict(settings.env) | dict(entry.env)).get("PATH", CRON_PATH)
    if shutil.which(program, path=path):
        return None
    if program in _OF_THE_SHELL:
        return f"command not found: {program} is a shell builtin: run the line in a shell, with [sh, -c, …]"
    if (settings.folder / program).is_file():
        return f"command not found: {program} is not on PATH={path}; for the file in this folder write ./{program}"
    mine = shutil.which(program, path=environ.get("PATH", ""))
    if mine:
        return f"command not found under cron, whose PATH is {path}: write {mine}, or set PATH under the key env"
    return f"command not found: {program} is not on PATH={path}; write its full path, or set PATH under the key env"


# --- files ------------------------------------------------------------------------------------------------------------


def _files(place: _Place) -> Iterator[Problem]:
    settings = place.settings
    if (problem := _log_problem(place)) is not None:
        yield problem
    if not settings.database:
        if settings.database_unset:
            yield place.problem(settings.database_unset, "database")
        elif "database" not in settings.positions:
            text = 'no database is set: add "database: sqlite:///cronjobs.db" or "database: ${DATABASE_URL}"'
            yield place.problem(text, "database")
        return
    try:
        address = parse_url(settings.database, settings.schema)
    except CronjobsError as error:
        yield place.problem(str(error), "database")
        return
    if address.is_sqlite and (fault := why_unwritable(Path(str(address.url.database)), beside=True)):
        yield place.problem(fault, "database")
    if not address.is_sqlite and find_spec("psycopg") is None:
        yield place.problem("this needs the PostgreSQL driver: pip install 'cronjobs[postgres]'", "database")


def _log_problem(place: _Place) -> Problem | None:
    log = place.settings.log
    fault = None if log is None else why_unwritable(log)
    return None if fault is None else place.problem(fault, "log")


# --- notes ------------------------------------------------------------------------------------------------------------


def _limits(place: _Place, run: RunSettings) -> Iterator[Problem]:
    if run.lease < run.budget + timedelta(seconds=5):
        yield place.problem(
            f"lease {duration_text(run.lease)} is shorter than run.budget + 5s ({duration_text(run.budget)} + 5s): "
            f"cronjobs ends a tick that cannot reach the database for {duration_text(run.lease)}, and other ticks "
            "start its jobs again",
            "run.lease",
            "run",
        )
    if run.budget >= run.every:
        every = duration_text(run.every)
        yield place.problem(
            f"budget {duration_text(run.budget)} is not shorter than run.every ({every}): each tick ends 2s before "
            f"cron starts the next tick, so a timeout must fit into less than {every}",
            "run.budget",
            "run",
        )


def _clock_changes(place: _Place, schedules: Mapping[str, ScheduleSettings], now: datetime) -> Iterator[Problem]:
    for name, schedule in schedules.items():
        when = timing(schedule.cron, schedule.every, schedule.timezone)
        # A schedule that runs in every real hour is not affected by a clock change.
        if not isinstance(when, CronTiming) or (len(when.expression.hours) == 24 and not when.expression.fixed_time):
            continue
        for _, said in clock_changes(when, now, now + AHEAD):
            yield place.problem(said, f"schedules.{name}.cron", f"schedules.{name}")
