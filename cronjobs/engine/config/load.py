"""Read cronjobs.yaml into frozen Settings. Report all problems at once, each as file:line:column: path: message.

The tables of ``keys`` define what a file may contain. ``load`` lists a bad entry in ``Settings.problems``, and disables
only that entry. It raises ConfigError, so that nothing runs, if the file cannot be parsed or names no database. It also
does so if continuing could do harm: if the database, the project, the environment, the schedules or the job types are
not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from cronjobs.engine.config import django_project, fields
from cronjobs.engine.config.fields import NAME, NAME_RULE
from cronjobs.engine.config.keys import DEFAULTS, FILE, Defaults
from cronjobs.engine.config.keys_of_jobs import JOB_TYPE, QUEUE, SCHEDULE, UNREADABLE_LIMITS
from cronjobs.engine.config.reader import FieldError, Fields, Reading, ReportedError, shown
from cronjobs.engine.config.settings import (
    ExecutorSettings,
    JobTypeSettings,
    RunSettings,
    ScheduleSettings,
    Settings,
    unknown_executor,
)
from cronjobs.engine.config.sources import DJANGOS, database_of, is_shadowed, read_env, read_file, salvaged
from cronjobs.engine.config.variables import Variables
from cronjobs.engine.config.yaml_nodes import Mapping as YamlMapping
from cronjobs.engine.config.yaml_nodes import Node, Scalar, with_defaults
from cronjobs.engine.rules.capacity import Cap
from cronjobs.errors import ConfigError
from cronjobs.masking import is_public_url, keys_holding, long_enough, named_secrets
from cronjobs.reserved import EXEC_PREFIX

# A mistake in one of these keys is fatal. If we continued, we might use the wrong database, run another project's jobs,
# or retire every schedule.
FATAL: Final = frozenset({"project", "environment", "env_file", "database", "schema", "job_types", "schedules"})
# The problem of an entry begins with this text if only a bad key elsewhere disables the entry.
DISABLED: Final = "disabled, because "
# For a command that only reads the database, only mistakes in these keys are fatal.
FATAL_TO_READERS: Final = frozenset({"env_file", "database", "schema"})


def load(
    file: Path | None,
    *,
    environ: Mapping[str, str],
    database_url: str | None = None,
    need_database: bool = True,
    only_database: bool = False,
) -> Settings:
    """Read the configuration *file*. If *file* is None, read $CRONJOBS_CONFIG, else ./cronjobs.yaml.

    The database is *database_url*, else $CRONJOBS_DATABASE_URL, else the one in the file. A relative SQLite path starts
    from the folder of the configuration file, wherever the URL comes from. If *need_database* is False, an unset
    ``${…}`` in the URL is accepted, and ``database`` is "".

    *only_database* is for commands that only read the database. Such a command continues after mistakes that cannot
    lead to the wrong database. Even if the file is not valid YAML, it continues if the URL comes from elsewhere, or if
    the line with the URL can be read by itself. Raises ConfigError.
    """
    given = file or Path(environ.get("CRONJOBS_CONFIG") or "cronjobs.yaml")
    folder = given.absolute().parent
    reading = Reading(str(given), folder, Variables(environ, folder))
    override = ("CRONJOBS_DATABASE_URL", environ.get("CRONJOBS_DATABASE_URL"))
    if database_url is not None:
        override = ("--database-url", database_url)
    in_django = django_project.is_host()
    if in_django and file is None and not environ.get("CRONJOBS_CONFIG") and not given.exists():
        tree, flaws = django_project.instead_of_file()
    else:
        tree, flaws = read_file(given, reading.variables.files)
    reading.problems += flaws
    if in_django and override[1] is None and tree is not None and "database" not in tree.entries:
        override = ("DATABASES", DJANGOS)
    if tree is None:
        tree = salvaged(reading.variables.files.get(given.absolute()))
        if not only_database or (override[1] is None and "database" not in tree.entries):
            raise ConfigError(reading.masked_problems())

    from_env_file = read_env(reading, tree)
    reading.variables = replace(reading.variables, environ={**(from_env_file or {}), **environ})
    reading.extras = "extras" in tree.entries
    values, bad = reading.fields(tree, "", FILE)
    database = database_of(reading, values.get("database"), override, need=need_database and "database" not in bad)
    if "limits" in bad:
        values["limits"] = UNREADABLE_LIMITS
    named = _named_entries(reading, values, bad)
    shadowed = is_shadowed(reading, tree, values.get("python_path", ()))
    broken = bool(flaws or bad & FATAL or from_env_file is None or shadowed)
    if only_database:
        # If the database's URL does not come from the file, the schema is the only key that could lead to the wrong
        # tables.
        fatal = FATAL_TO_READERS if override[1] is None else frozenset({"schema"})
        refused = bool(bad & fatal) or (from_env_file is None and override[1] is None)
    else:
        refused = broken
    if refused or database is None:
        raise ConfigError(reading.masked_problems())
    from_env_file = from_env_file or {}

    env = {name: from_env_file[name] for name in from_env_file if name not in environ} | dict(values.get("env", ()))
    read_later = {"env_file", "database", "queues", "job_types", "schedules", "defaults", "env"}
    settings = Settings(
        file=given.absolute(),
        folder=folder,
        env_file=fields.path_beside_file(reading, values["env_file"], "env_file") if "env_file" in values else None,
        contents=reading.variables.files,
        variables=tuple(sorted(reading.variables.names)),
        database=database,
        database_unset=reading.database_unset,
        broken=broken,
        env=tuple(env.items()),
        retry=values.get("defaults", Defaults()).retry,
        problems=tuple(reading.masked_problems()),
        positions=reading.positions,
        secrets=_secrets(reading, from_env_file, {**environ, **env, "": database}, values),
        **{key: value for key, value in values.items() if key not in read_later},
        **named,
    )
    # The handlers of a Django project need Django even if the URL comes from elsewhere, as in a long job's process.
    in_file = values.get("database")
    if in_django or database == DJANGOS or (isinstance(in_file, Scalar) and in_file.text == DJANGOS):
        settings = replace(settings, setup=settings.setup or django_project.SETUP)
    if database == DJANGOS:
        return django_project.with_its_database(settings, str(given), environ, need=need_database)
    return settings


def _secrets(
    reading: Reading, env_file: Mapping[str, str], variables: Mapping[str, str], values: Mapping[str, Any]
) -> frozenset[str]:
    """Return the values to mask.

    These are all values that come from an env_file or a ``${…}``, and all variables whose names suggest a secret.
    """
    found = reading.secrets | long_enough(env_file.values()) | named_secrets(variables)
    # Tables and messages show the values of these keys, so the values are not masked.
    public = {str(values.get(key)) for key in ("project", "environment", "timezone", "schema", "log")}
    if is_public_url(variables[""]):
        # This URL contains no secret, and messages name the database by it, so do not mask it.
        public.add(variables[""])
    return frozenset(found - public)


# --- job types and schedules ------------------------------------------------------------------------------------------


def _named_entries(reading: Reading, values: dict[str, Any], bad: set[str]) -> dict[str, Any]:
    """Return the named entries as arguments for Settings. If a section is not a mapping, its key is added to *bad*."""
    defaults = values.get("defaults", Defaults(bad=frozenset(DEFAULTS) if "defaults" in bad else frozenset()))
    command = partial(_job_type, executors=values.get("executors", {}), defaults=defaults)
    job_types, bad_job_types = _entries(reading, values, bad, "job_types", command)
    queues, bad_queues = _entries(reading, values, bad, "queues", _queue)
    taken = job_types.keys() | bad_job_types
    timezone = None if "timezone" in bad else values.get("timezone", "UTC")
    lingers = values.get("run", RunSettings()).linger is not None
    read = partial(
        _schedule, timezone_of_file=timezone, taken=taken, lingers=lingers, defaults=defaults, read_command=command
    )
    schedules, bad_schedules = _entries(reading, values, bad, "schedules", read)
    commands = {name: command for name, (_, command) in schedules.items() if command is not None}
    bad_commands = {name for name in bad_schedules if f"schedules.{name}.command" in reading.positions}
    found = {name: schedule for name, (schedule, _) in schedules.items()}
    # If a renamed schedule's new entry is bad, the schedule's row under the old name also stays as it is.
    own = found.keys() | bad_schedules
    renames = {old: new for old, new in _renames(values.get("schedules"), bad_schedules).items() if old not in own}
    here = values.get("environment", "")
    elsewhere = {
        name for name, schedule in found.items() if schedule.environments and here not in schedule.environments
    }
    return {
        "queues": None if "queues" in bad else queues,
        "disabled_queues": frozenset(bad_queues),
        "job_types": job_types | commands,
        "schedules": {name: schedule for name, schedule in found.items() if name not in elsewhere},
        "elsewhere": frozenset(elsewhere),
        "disabled_job_types": frozenset(bad_job_types | (bad_commands - taken)),
        "disabled_schedules": frozenset(bad_schedules | renames.keys()),
        "disabled_renames": renames,
    }


def _renames(section: object, bad: Set[str]) -> dict[str, str]:
    """Map the previous names of schedules with *bad* entries to their new names."""
    found: dict[str, str] = {}
    if not isinstance(section, YamlMapping):
        return found
    for name in sorted(bad & section.entries.keys()):
        entry = section.entries[name][1]
        before = entry.entries.get("renamed_from") if isinstance(entry, YamlMapping) else None
        if before is not None and isinstance(before[1], Scalar):
            found[before[1].text] = name
    return found


def _entries(
    reading: Reading,
    values: dict[str, Any],
    bad: set[str],
    section: str,
    read: Callable[[Reading, Scalar, Node, str], Any],
) -> Fields:
    """Read a section of named entries. Report a bad entry and leave it out."""
    node = values.get(section)
    if node is None:
        return Fields({}, set())

    def entry(key: Scalar, value: Node, path: str) -> Any:
        reading.positions[path] = (key.line, key.column)
        if not NAME.fullmatch(key.text):
            raise FieldError(f"{shown(key)} is not {NAME_RULE}")
        if key.text.startswith(EXEC_PREFIX):
            raise FieldError(f'names that begin with "{EXEC_PREFIX}" are reserved for "cronjobs exec": choose another')
        return read(reading, key, value, path)

    try:
        return reading.entries(node, section, entry)
    except FieldError as error:
        reading.report(node, section, str(error))
        bad.add(section)
        return Fields({}, set())


def _queue(reading: Reading, key: Scalar, node: Node, path: str) -> Cap:
    values, bad = reading.fields(node, path, QUEUE)
    if "max_waiting" not in values and "max_waiting" not in bad:
        raise FieldError('this entry needs the key "max_waiting"; for example, write "max_waiting: 10000"')
    if bad:
        raise ReportedError
    return Cap(key.text, **values)


def _job_type(
    reading: Reading,
    key: Scalar,
    node: Node,
    path: str,
    *,
    executors: Mapping[str, ExecutorSettings],
    defaults: Defaults,
) -> JobTypeSettings:
    is_command = isinstance(node, YamlMapping) and "command" in node.entries
    if is_command:
        node = with_defaults(node, defaults.commands)
    values, bad = reading.fields(node, path, JOB_TYPE)
    if "folder" in values:
        values["run_in"] = values.pop("folder")
    entry = JobTypeSettings(key.text, **values)
    clashes = _clashes(entry, executors) if "command" not in bad else {}
    for name, message in clashes.items():
        if name not in bad and isinstance(node, YamlMapping):
            reading.report(node.entries[name][1], f"{path}.{name}", message)
    if bad or clashes:
        raise ReportedError
    if is_command and "commands" in defaults.bad:
        raise FieldError(f"{DISABLED}defaults.commands cannot be read: correct it")
    return entry


def _clashes(entry: JobTypeSettings, executors: Mapping[str, ExecutorSettings]) -> dict[str, str]:
    """Return the keys of *entry* that conflict with its other keys, each with a message that says what to write."""
    found: dict[str, str] = {}
    if entry.executor is not None and entry.command is not None:
        found["executor"] = 'a command runs on the host that claimed its job: delete "executor", or write a handler'
    elif entry.executor is not None and entry.executor not in executors:
        found["executor"] = unknown_executor(entry.executor, executors)
    elif entry.executor is not None and entry.isolation == "thread":
        found["isolation"] = 'on a cluster a handler always has a process of its own: delete "isolation"'
    if entry.command is not None and entry.isolation is not None:
        found["isolation"] = 'a command always has a process of its own: delete "isolation"'
    if entry.command is None:
        if entry.inherit_env is not None:
            found["inherit_env"] = "this key is for an entry with a command: a handler has the environment of the tick"
        for name in ("success_exit_codes", "retry_exit_codes"):
            if getattr(entry, name):
                found[name] = "exit codes are for an entry with a command: a handler raises GiveUp or RetryLater"
        if entry.stdin is not None:
            found["stdin"] = '"stdin" needs a command: a handler reads its payload'
        if entry.run_in is not None:
            found["folder"] = '"folder" needs a command: a handler runs in the tick\'s folder'
        if entry.leftovers != "end":
            found["leftovers"] = '"leftovers" needs a command: a handler must end its own processes'
        if entry.max_memory is not None and entry.isolation == "thread":
            found["max_memory"] = 'a thread cannot have a memory limit of its own; write "isolation: process"'
    elif both := sorted({*(entry.success_exit_codes or (0,))} & {*entry.retry_exit_codes}):
        found.setdefault(
            "retry_exit_codes",
            f"exit code {both[0]} means success: delete it here, or write success_exit_codes without it",
        )
    return found


def _schedule(
    reading: Reading,
    key: Scalar,
    node: Node,
    path: str,
    *,
    timezone_of_file: str | None,
    taken: Set[str],
    lingers: bool,
    defaults: Defaults,
    read_command: Callable[[Reading, Scalar, Node, str], JobTypeSettings],
) -> tuple[ScheduleSettings, JobTypeSettings | None]:
    """Read one entry of ``schedules``.

    Return the schedule, and the job type of its inline command, which has the schedule's name. Without an inline
    command, the job type is None.

    *timezone_of_file* is None if the file's time zone is bad. In that case a schedule with ``cron`` needs its own time
    zone. *taken* contains the names of all entries under job_types. *lingers* is True if ticks keep running until their
    budget is used. *read_command* reads an entry of job_types.
    """
    node = with_defaults(node, defaults.schedules)
    values, bad = reading.fields(node, path, SCHEDULE)
    written = (set(node.entries) if isinstance(node, YamlMapping) else set()) | bad
    # A bad ping does not disable the schedule.
    good = not bad - {"ping"}
    no_time = 'this schedule has no time: add the key "cron" (such as "15 2 * * *") or the key "every" (such as 10m)'
    nothing = 'this schedule runs nothing: write "job: billing.send_invoice" or "command: [backup, --all]"'
    for one, other, missing in (("cron", "every", no_time), ("job", "command", nothing)):
        if len(written & {one, other}) != 1:
            both = f'"{one}" and "{other}" cannot be combined: delete one'
            reading.report(key, path, both if one in written else missing)
            good = False
    if "every" in values and values["every"] < timedelta(minutes=1) and not lingers:
        message = "cron starts a tick once a minute: write 1m or more, or keep ticks running (run.linger)"
        node_of = node.entries["every"][1] if isinstance(node, YamlMapping) else key
        reading.report(node_of, f"{path}.every", message)
        good = False
    if "command" in written and key.text in taken:
        reading.report(
            key, path, 'job_types has an entry of the same name: rename the schedule, or write "job", not "command"'
        )
        good = False
    if not good:
        raise ReportedError
    if "schedules" in defaults.bad:
        raise FieldError(f"{DISABLED}defaults.schedules cannot be read: correct it")
    timezone = values.pop("timezone", timezone_of_file)
    if timezone is None and "cron" in written:
        raise FieldError(f"{DISABLED}the file's timezone cannot be read: correct it, or add the key timezone here")
    command = None
    if values.pop("command", None) and isinstance(node, YamlMapping):
        alone = replace(node, entries={"command": node.entries["command"]}, duplicates=[])
        command = read_command(reading, key, alone, path)
        command = replace(command, timeout=values.get("timeout", command.timeout))
    secret_keys = sorted(keys_holding(values.get("payload"), reading.secrets)) or None
    values = {"job": key.text, "timezone": timezone or "UTC", "secret_keys": secret_keys} | values
    return ScheduleSettings(key.text, **values), command
