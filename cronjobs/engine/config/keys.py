"""All keys of cronjobs.yaml, in tables.

Each key has a reader, an example and one sentence that describes it. Keys are defined only in these tables, in the
tables of ``keys_of_jobs``, and in the ``keys`` modules of extras. They are the source for reading the file, for
suggesting the right key in place of an unknown one, and for ``cronjobs schema``, ``cronjobs config show`` and
docs/reference/configuration.md.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final, NamedTuple

from cronjobs.engine.config import fields, schema_parts
from cronjobs.engine.config.keys_of_jobs import (
    OF_ALL_COMMANDS,
    OF_ALL_SCHEDULES,
    job_type,
    limits,
    queue,
    retry,
    schedule,
)
from cronjobs.engine.config.reader import (
    ConfigKey,
    Keys,
    Reader,
    ReaderOfExtra,
    Reading,
    ReportedError,
    taken_as,
)
from cronjobs.engine.config.settings import (
    MetricsSettings,
    Retention,
    RetryChanges,
    RunSettings,
    ScheduleSettings,
    Settings,
    Trust,
)
from cronjobs.engine.config.yaml_nodes import Mapping, Node, Scalar

# The reference shows this as the default of a key whose value is a mapping, because the mapping's keys have their own
# defaults.
AS_BELOW: Final = "as below"

# --- run --------------------------------------------------------------------------------------------------------------


@taken_as("true, false, or duration, 100ms–30s", schema_parts.FLAG_OR_DURATION)
def _linger(reading: Reading, node: Node, path: str) -> timedelta | None:
    if reading.text(node) in ("true", "false"):
        return timedelta(seconds=1) if fields.flag(reading, node, path) else None
    every: timedelta = fields.span("100ms", "30s")(reading, node, path)
    return every


_USERS: Final = fields.list_of(fields.user)


@taken_as(f"true, false, or {_USERS.words}", {"anyOf": [schema_parts.FLAG, _USERS.schema]})
def _trust(reading: Reading, node: Node, path: str) -> Trust:
    if isinstance(node, Scalar):
        return True if fields.flag(reading, node, path) else ()
    users: tuple[str, ...] = _USERS(reading, node, path)
    return users


RUN: Final[Keys] = {
    "workers": ConfigKey(
        fields.integer(1, 64),
        "8",
        "How many jobs a tick runs at once; 1 runs them one after another, in order.",
    ),
    "budget": ConfigKey(
        fields.span("5s", "1h"),
        "50s",
        "How long a tick may take. Keep it below run.every, so that each tick ends before the next one starts.",
    ),
    "lease": ConfigKey(
        fields.span("2s", "1d"),
        "2m",
        (
            "How long a job stays claimed after its runner dies. A live runner renews the lease after every quarter of "
            "that time."
        ),
        "the longer of 60s and budget + 5s",
    ),
    "shutdown_grace": ConfigKey(
        fields.span("0s", "10m"),
        "20s",
        "How much time running jobs get to finish after SIGTERM before they return to the queue.",
    ),
    "every": ConfigKey(fields.span("1m", "1d"), "5m", "How often cron starts a tick; must match the crontab."),
    "linger": ConfigKey(
        _linger,
        "true",
        "Keep each tick running until its budget is used, and poll for work every second, or at the interval given.",
        "false",
    ),
    "ping": ConfigKey(
        fields.web_address,
        "https://hc-ping.com/1234abcd",
        "The URL of a dead man's switch. Each tick pings the URL when the tick starts and when it ends.",
        "none",
    ),
    "trust_files": ConfigKey(
        _trust,
        "[deploy]",
        "A tick that runs as root may also use the files of these users. The value true stands for all users.",
        "false",
    ),
    "long_jobs": ConfigKey(
        fields.integer(0, 1000),
        "2",
        "How many long jobs a host runs at once. With 0 there are no long jobs, so the budget limits every job.",
    ),
    "max_losses": ConfigKey(
        fields.integer(1, 1000), "3", "How many times a job may lose its runner before the job is dead."
    ),
}


@taken_as("mapping", {}, keys=RUN, defaults=RunSettings())
def _run(reading: Reading, node: Node, path: str) -> RunSettings:
    values = reading.fields(node, path, RUN).values
    run = replace(RunSettings(), **values)
    if "lease" in values:
        return run
    return replace(run, lease=max(run.lease, run.budget + timedelta(seconds=5)))


# --- retention, metrics, defaults -------------------------------------------------------------------------------------

_KEPT: Final = fields.span("1s", "3650d")
RETENTION: Final[Keys] = {
    "succeeded": ConfigKey(_KEPT, "30d", "How long succeeded jobs are kept."),
    "dead": ConfigKey(
        _KEPT,
        "180d",
        "How long dead and cancelled jobs are kept. If a dead job is pruned before anybody has dealt with it, a "
        "finding reports that.",
    ),
    "keys": ConfigKey(_KEPT, "730d", "How long an idempotency_key is remembered after its job has ended."),
    "occurrences": ConfigKey(_KEPT, "30d", "How long occurrences, ticks and resolved findings are kept."),
    "effects": ConfigKey(_KEPT, "730d", "How long records of side effects are kept."),
}
METRICS: Final[Keys] = {
    "textfile": ConfigKey(
        fields.path_beside_file,
        "/var/lib/node_exporter/cronjobs.prom",
        "The file that ticks write metrics to, for node_exporter.",
        "none",
    ),
}


class Defaults(NamedTuple):
    """The values of ``defaults:``. Every command inherits ``commands``, and every schedule inherits ``schedules``.

    ``bad`` lists the keys that could not be read. Entries that depend on a bad key are disabled.
    """

    retry: RetryChanges = RetryChanges()
    commands: Mapping | None = None
    schedules: Mapping | None = None
    bad: frozenset[str] = frozenset()


def _shared(table: Keys, defaults: object = None) -> Reader:
    @taken_as("mapping", {}, keys=table, defaults=defaults)
    def read(reading: Reading, node: Node, path: str) -> Mapping | None:
        if reading.fields(node, path, table).bad:
            raise ReportedError
        return node if isinstance(node, Mapping) else None

    return read


DEFAULTS: Final[Keys] = {
    "retry": ConfigKey(
        retry,
        "{max_attempts: 5, cap: 1h}",
        "How jobs are retried after a failure, unless @job or job_types says otherwise.",
        AS_BELOW,
    ),
    "commands": ConfigKey(
        _shared(OF_ALL_COMMANDS),
        "{on_lost: dead, env: {TZ: UTC}}",
        "Defaults for every entry with a command.",
        "none",
    ),
    "schedules": ConfigKey(
        _shared(OF_ALL_SCHEDULES, ScheduleSettings("", "")),
        "{catch_up: none, overlap: wait}",
        "Defaults for every schedule.",
        "none",
    ),
}


@taken_as("mapping", {}, keys=RETENTION, defaults=Retention())
def _retention(reading: Reading, node: Node, path: str) -> Retention:
    return Retention(**reading.fields(node, path, RETENTION).values)


@taken_as("mapping", {}, keys=METRICS)
def _metrics(reading: Reading, node: Node, path: str) -> MetricsSettings:
    return MetricsSettings(**reading.fields(node, path, METRICS).values)


@taken_as("mapping", {}, keys=DEFAULTS)
def _defaults(reading: Reading, node: Node, path: str) -> Defaults:
    values, bad = reading.fields(node, path, DEFAULTS)
    return Defaults(**values, bad=frozenset(bad))


# --- the file ---------------------------------------------------------------------------------------------------------


def _named(words: str, each: Reader) -> Reader:
    """Return the Reader of a section of named entries, which is read after the sections on which it depends."""
    return Reader(fields.later, words, {"propertyNames": {"pattern": f"^(?:{fields.NAME.pattern})$"}}, each=each)


FILE: Final[Keys] = {
    "project": ConfigKey(
        fields.title,
        "shop",
        "The project that owns the jobs. The database stores this name, so that another app's ticks "
        "claim nothing there.",
        "none",
    ),
    "environment": ConfigKey(
        fields.title,
        "production",
        (
            "The environment that the jobs belong to. The database stores this name, so that nothing runs if a copy of "
            "the database is restored in another environment."
        ),
        "none",
    ),
    "env_file": ConfigKey(
        Reader(fields.later, "path", fields.path_beside_file.schema),
        ".env",
        (
            "A file of KEY=value lines, which must exist. ${NAME} in cronjobs.yaml is looked up in the environment "
            "first, then in this file; handlers also get the file's variables. In this file, ${NAME} is not replaced."
        ),
        "none",
    ),
    "database": ConfigKey(
        Reader(fields.later, "database URL", schema_parts.DATABASE),
        "sqlite:///cronjobs.db",
        'The URL of the jobs database, or "django" for the database in Django\'s settings. '
        "--database-url and $CRONJOBS_DATABASE_URL override this key.",
        "must be given somewhere",
    ),
    "schema": ConfigKey(
        fields.database_schema,
        "jobs",
        "The PostgreSQL schema that the tables are in.",
        "the first one of the search_path",
    ),
    "imports": ConfigKey(
        fields.list_of(fields.module, keep_good=True), "[billing.jobs]", "The modules with your @job functions.", "none"
    ),
    "python_path": ConfigKey(
        fields.list_of(fields.folder, keep_good=True),
        "[.]",
        "Folders to import from, besides the file's folder.",
        "none",
    ),
    "extras": ConfigKey(
        fields.list_of(fields.module, keep_good=True),
        "[acme.cronjobs_extra]",
        "Modules that run alongside a tick or add findings: see docs/how-to/alerts.md#an-extra-of-your-own.",
        "none",
    ),
    "setup": ConfigKey(fields.function, "django.setup", "A function to call before the imports.", "none"),
    "env": ConfigKey(
        fields.variables,
        "{LANG: C.UTF-8}",
        "Environment variables for handlers and commands. They override the variables that the process already has, "
        "except DJANGO_SETTINGS_MODULE: see docs/tutorials/django.md#other-settings-in-production.",
        "none",
    ),
    "timezone": ConfigKey(
        fields.zone, "Europe/Berlin", "The default time zone of schedules, and the zone in which commands print times."
    ),
    "log": ConfigKey(
        fields.log_file, "cronjobs.log", 'The log file, with one line per event, or "none" for no file.', "none"
    ),
    "around": ConfigKey(
        fields.list_of(fields.hook, keep_good=True),
        "[billing.tracing:span]",
        "Context managers to run around every attempt, e.g. for tracing.",
        "none",
    ),
    "metrics": ConfigKey(_metrics, "{textfile: /tmp/cronjobs.prom}", "Metrics for Prometheus.", "none"),
    "alerts": ConfigKey(
        ReaderOfExtra("cronjobs.contrib.alerts.keys", "alerts"),
        "{channels: {ops: {command: [page]}}}",
        "Which findings are sent, and to whom.",
        "nothing is sent",
    ),
    "run": ConfigKey(_run, "{workers: 8}", "How ticks work.", AS_BELOW),
    "defaults": ConfigKey(_defaults, "{retry: {max_attempts: 5}}", "Defaults for every entry.", AS_BELOW),
    "retention": ConfigKey(
        _retention,
        "{succeeded: 30d}",
        "How long rows are kept. Ticks delete older rows when they have time to spare.",
        AS_BELOW,
    ),
    "limits": ConfigKey(
        limits,
        '{"smtp:": 4}',
        "How many jobs with a given concurrency_key prefix may run at once, on all hosts together.",
        "none",
    ),
    "executors": ConfigKey(
        ReaderOfExtra("cronjobs.contrib.dask.keys", "executors"),
        '{cluster: {dask: "tcp://127.0.0.1:8786"}}',
        "Clusters on which job types may run (executor: NAME); needs the extra cronjobs[dask].",
        "none",
    ),
    "queues": ConfigKey(
        _named("mapping: queue → its settings", queue),
        "{mail: {max_waiting: 10000}}",
        "Queues with a limited number of waiting jobs; other queues need no entry.",
        "none",
    ),
    "job_types": ConfigKey(
        _named("mapping: job type → its settings", job_type),
        "{backup: {command: [pg_dump, app]}}",
        "Job types that run commands, and overrides for the options of @job.",
        "none",
    ),
    "schedules": ConfigKey(
        _named("mapping: schedule → its settings", schedule),
        "{nightly: {every: 1h, job: hello}}",
        "Jobs that run at recurring times.",
        "none",
    ),
}
file: Final = Reader(fields.later, "mapping", {}, keys=FILE, defaults=Settings(file=None, folder=None))  # type: ignore[arg-type]
