"""The keys of ``job_types``, ``queues``, ``limits`` and ``schedules``, in tables like those of ``keys``."""

from __future__ import annotations

import re
from typing import Final

from cronjobs.engine.config import fields, schema_parts
from cronjobs.engine.config.payload_field import payload
from cronjobs.engine.config.reader import ConfigKey, FieldError, Keys, Reader, Reading, ReportedError, shown, taken_as
from cronjobs.engine.config.settings import RetryChanges, ScheduleSettings
from cronjobs.engine.config.yaml_nodes import Mapping, Node, Scalar
from cronjobs.engine.rules.capacity import Cap
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.model import LEAST_MEMORY, RetryPolicy, WrongPolicy

# --- retry ------------------------------------------------------------------------------------------------------------

_ATTEMPTS: Final = fields.integer(1, 10_000)

RETRY: Final[Keys] = {
    "max_attempts": ConfigKey(
        _ATTEMPTS, "5", "The number of failures after which a job is dead; lost runners and interruptions do not count."
    ),
    "base": ConfigKey(fields.span("10ms", "30d"), "30s", "The delay after the first failure."),
    "factor": ConfigKey(fields.number(1, 100), "3", "The factor by which each delay grows; 1 keeps it constant."),
    "cap": ConfigKey(fields.span("10ms", "30d"), "2h", "The longest delay, before jitter."),
    "jitter": ConfigKey(fields.number(0, 0.99), "0.1", "The random variation of a delay: 0.2 is ±20 %."),
    "delays": ConfigKey(
        fields.list_of(fields.span("0s", "30d")),
        "[1m, 5m, 30m]",
        'A list of delays, which replaces "base", "factor" and "cap". The last delay repeats. 0s counts as 1s.',
        "none: base, factor and cap apply",
    ),
    "retry_on": ConfigKey(
        fields.some_of(fields.kind, "nothing would be retried; to retry all, delete the key"),
        "[ConnectionError, exit-75]",
        "Retry only these kinds of failure, and timeouts; all other failures are final.",
        "all kinds",
    ),
    "give_up_on": ConfigKey(
        fields.list_of(fields.kind),
        "[ValueError]",
        "These kinds of failure are final at once, even if retry_on lists them.",
        "no kind",
    ),
}


@taken_as("mapping", {}, keys=RETRY, defaults=RetryPolicy())
def retry(reading: Reading, node: Node, path: str) -> RetryChanges:
    given, bad = reading.fields(node, path, RETRY)
    if bad:
        raise ReportedError
    if "delays" in given and (clash := sorted(given.keys() & {"base", "factor", "cap"})):
        raise FieldError(f"delays cannot be combined with {', '.join(clash)}: write one or the other")
    try:
        policy = RetryPolicy(**given)
        # While user code is imported, RetryPolicy returns a WrongPolicy instead of raising an error.
        if isinstance(policy, WrongPolicy):
            raise ValueError(policy.fault)
    except ValueError as error:
        raise FieldError(f"{error}; the defaults are base 1m and cap 30m: write both") from None
    return RetryChanges(tuple(given.items()))


# --- job types --------------------------------------------------------------------------------------------------------

_TIMEOUT: Final = fields.span("100ms", "30d")
_EXIT_CODE: Final = fields.integer(0, 255)

JOB_TYPE: Final[Keys] = {
    "command": ConfigKey(
        fields.command,
        "[pg_dump, --file, /backup/app.sql, app]",
        "The program that a job of this type runs, instead of a Python handler.",
        "the handler that @job registers",
    ),
    "timeout": ConfigKey(
        _TIMEOUT,
        "20m",
        "How long an attempt may take. With a timeout above run.budget - 5 s, the job is a long job, which outlives "
        "its tick. If the budget is below 15 s, the bound is two thirds of the budget.",
        "from @job, else the shorter of 30s and a third of run.budget",
    ),
    "retry": ConfigKey(
        retry,
        "{max_attempts: 5}",
        "How jobs of this type are retried after a failure.",
        "from @job, else defaults.retry",
    ),
    "env": ConfigKey(
        fields.all_variables,
        "{PGUSER: backup}",
        "Environment variables for the command, added to cron's environment and to the file's env. If one of them "
        "cannot be read, the command does not run.",
        "none",
    ),
    "inherit_env": ConfigKey(
        fields.list_of(fields.variable),
        "[PATH, HOME]",
        "The command inherits only these variables from cron's environment and from the file's env.",
        "all",
    ),
    "isolation": ConfigKey(
        fields.choice("thread", "process"),
        "process",
        (
            "Whether a handler runs in a thread or in a process of its own. A process can be killed, and its crash "
            "harms no other job."
        ),
        "from @job, else thread",
    ),
    "max_memory": ConfigKey(
        fields.memory(LEAST_MEMORY, "16TiB"),
        "512MiB",
        'How much memory each process of a job may allocate. Needs a command, or "isolation: process".',
        "from @job, else no limit",
    ),
    "on_shutdown": ConfigKey(
        fields.choice("release", "drop"),
        "drop",
        "What a tick does at shutdown with jobs it claimed but did not start: release them, or cancel them (drop).",
        "from @job, else release",
    ),
    "on_lost": ConfigKey(
        fields.choice("retry", "dead"),
        "dead",
        "What happens to a job whose runner died: it is retried, or stays dead until someone retries it.",
        "from @job, else retry",
    ),
    "durable": ConfigKey(
        fields.choice("group", "each"),
        "each",
        'Whether a tick commits outcomes in groups ("group") or one at a time ("each"). With "each", a crash repeats '
        "at most one job per worker.",
        "from @job, else group",
    ),
    "executor": ConfigKey(
        fields.name,
        "cluster",
        'The entry under "executors" whose cluster runs the handler, instead of the host that claimed the job.',
        "from @job, else this host",
    ),
    "success_exit_codes": ConfigKey(
        fields.some_of(_EXIT_CODE, "no exit code would mean success; to accept only 0, delete the key"),
        "[0, 24]",
        "The exit codes by which the command reports success.",
        "[0]",
    ),
    "retry_exit_codes": ConfigKey(
        fields.list_of(_EXIT_CODE),
        "[65]",
        "Exit codes after which the job is retried. Only 65 and 78 need this key, because they are otherwise final.",
        "[]",
    ),
    "hide": ConfigKey(
        fields.list_of(fields.title),
        "[card_number]",
        'Payload keys whose values are masked wherever cronjobs shows them, except in live output of "cronjobs run".',
        "[]",
    ),
    "stdin": ConfigKey(
        fields.standard_input,
        "none",
        'Text for the command\'s standard input. With "none", the input is empty.',
        "the payload as JSON",
    ),
    "folder": ConfigKey(fields.path_beside_file, "/srv/shop", "Where the command runs.", "the file's folder"),
    "leftovers": ConfigKey(
        fields.choice("end", "leave"),
        "leave",
        "What happens to processes that the command leaves running: end them, or leave them alone as cron does.",
        "end",
    ),
}
job_type: Final = Reader(fields.later, "mapping", {}, keys=JOB_TYPE)
# The keys that defaults.commands may contain.
OF_ALL_COMMANDS: Final[Keys] = {
    name: JOB_TYPE[name]._replace(unset=JOB_TYPE[name].unset.removeprefix("from @job, else "))
    for name in (
        "timeout",
        "retry",
        "env",
        "inherit_env",
        "max_memory",
        "on_lost",
        "success_exit_codes",
        "retry_exit_codes",
        "stdin",
        "folder",
        "leftovers",
    )
}


# --- queues and limits ------------------------------------------------------------------------------------------------

QUEUE: Final[Keys] = {
    "max_waiting": ConfigKey(
        fields.integer(1, 100_000_000), "10000", "How many jobs may wait in this queue.", "must be given"
    ),
    "on_full": ConfigKey(
        fields.choice("error", "drop", "wait"),
        "drop",
        "What enqueue does when the queue is full: raise QueueFull, drop the job, or wait for room.",
    ),
}
queue: Final = Reader(fields.later, "mapping", schema_parts.needs("max_waiting"), keys=QUEUE, defaults=Cap("", 1))

# If the file's limits cannot be read, this limit replaces them, and no job that has a concurrency_key starts.
UNREADABLE_LIMITS: Final = (Limit("", most=0),)
_PREFIX: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


@taken_as("whole number, 1–10000", schema_parts.number("integer", 1, 10_000))
def _at_once(reading: Reading, node: Node, path: str) -> int:
    if reading.text(node) == "0":
        raise FieldError('0 would let no job start: to stop jobs for a while, run "cronjobs pause --queue NAME"')
    count: int = fields.integer(1, 10_000)(reading, node, path)
    return count


LIMIT: Final[Keys] = {
    "most": ConfigKey(_at_once, "4", "How many jobs with this concurrency_key prefix may run at once.", "no limit"),
    "each": ConfigKey(_at_once, "1", "How many jobs with the same concurrency_key may run at once.", "no limit"),
}


@taken_as("whole number (most), or mapping", schema_parts.number("integer", 1, 10_000), keys=LIMIT)
def limit(reading: Reading, node: Node, path: str) -> dict[str, int]:
    """A limit: a number for all jobs of the prefix together (``4``), or a mapping such as ``{most: 4, each: 1}``."""
    if not isinstance(node, Mapping):
        return {"most": _at_once(reading, node, path)}
    values, bad = reading.fields(node, path, LIMIT)
    if bad:
        raise ReportedError
    if not values:
        raise FieldError('set "most" (for all keys together), "each" (for each key), or both')
    return values


@taken_as("mapping: concurrency_key prefix → limit", {}, each=limit)
def limits(reading: Reading, node: Node, path: str) -> tuple[Limit, ...]:
    """Limits by concurrency_key prefix. A bad limit stops its jobs, because otherwise too many might run at once."""

    def entry(key: Scalar, value: Node, here: str) -> Limit:
        if not _PREFIX.fullmatch(key.text):
            raise FieldError(f"{shown(key)} is not a concurrency_key prefix: write 1–200 characters")
        return Limit(key.text, **reading.read(limit, value, here))

    found, _ = reading.entries(
        node,
        path,
        entry,
        'write a mapping such as {"smtp:": 4}: a concurrency_key prefix, and how many jobs may run at once',
    )
    prefixes = node.entries if isinstance(node, Mapping) else ()
    return tuple(found.get(prefix) or Limit(prefix, most=0) for prefix in prefixes)


# --- schedules --------------------------------------------------------------------------------------------------------

SCHEDULE: Final[Keys] = {
    "cron": ConfigKey(
        fields.cron,
        '"15 2 * * *"',
        "When the schedule is due: minute, hour, day, month, weekday, or @daily and the like.",
        'none: "cron" or "every" must be given',
    ),
    "every": ConfigKey(
        fields.span("1s", "366d", whole_seconds=True),
        "10m",
        "When the schedule is due: every multiple of this span since 1970-01-01T00:00Z; below 1m only with run.linger.",
        'none: "cron" or "every" must be given',
    ),
    "timezone": ConfigKey(
        fields.zone, "America/New_York", "The time zone of the cron expression.", "the file's timezone"
    ),
    "job": ConfigKey(
        fields.type_name, "billing.send_invoice", "The job type that runs.", "job or command must be given"
    ),
    "command": ConfigKey(
        fields.command,
        '[find, /tmp/app, -mtime, "+7", -delete]',
        "The program to run; its job type has the schedule's name.",
        "job or command must be given",
    ),
    "payload": ConfigKey(payload, "{region: us}", "The payload of each job: the handler's keyword arguments.", "{}"),
    "queue": ConfigKey(fields.name, "reports", "The queue that the schedule's jobs wait in."),
    "priority": ConfigKey(fields.integer(0, 9), "2", "Which waiting jobs start first, from 0 (first) to 9 (last)."),
    "timeout": ConfigKey(_TIMEOUT, "40s", "How long an attempt of a job may take.", "the job type's timeout"),
    "max_attempts": ConfigKey(
        _ATTEMPTS,
        "3",
        "The number of failures after which a job of the schedule is dead.",
        "the job type's max_attempts",
    ),
    "catch_up": ConfigKey(
        fields.choice("none", "latest", "all"),
        "all",
        "Which occurrences run later if no tick ran in time: none, the latest (in place of all), or all.",
    ),
    "catch_up_within": ConfigKey(
        fields.span("0s", "366d"),
        "6h",
        'How old an occurrence may be for "catch_up" to run it. Older occurrences are missed.',
    ),
    "catch_up_limit": ConfigKey(
        fields.integer(1, 10_000),
        "20",
        'The maximum number of occurrences to run with "catch_up: all". A finding reports dropped occurrences.',
    ),
    "overlap": ConfigKey(
        fields.choice("skip", "wait", "allow"),
        "wait",
        "What to do with an occurrence while a job of this schedule is unfinished: skip the occurrence, let "
        "one job wait, or allow both jobs to run at once.",
    ),
    "spread": ConfigKey(
        fields.span("1s", "1d"),
        "10m",
        "Start this schedule's jobs later, by a delay of up to this span. The schedule's name decides the delay.",
        "no delay",
    ),
    "retry_until": ConfigKey(
        fields.choice("next_occurrence"),
        "next_occurrence",
        "Stop retrying a failing job when the next occurrence is due.",
        "a failing job is retried until max_attempts",
    ),
    "grace": ConfigKey(
        fields.span("1s", "366d"),
        "30m",
        "How soon after an occurrence its run must succeed; if it does not, there is a critical finding.",
        "no critical finding; if nothing runs or is retried for an hour, a warning",
    ),
    "warn_after_failures": ConfigKey(
        fields.integer(1, 100), "5", "How many failed tries in a row become a finding.", "3"
    ),
    "ping": ConfigKey(
        fields.web_address,
        "https://hc-ping.com/1234abcd",
        "The URL of a dead man's switch that gets the result of each run.",
        "none",
    ),
    "environments": ConfigKey(
        fields.list_of(fields.title),
        "[production]",
        "Run only if the file's environment is one of these.",
        "the schedule runs in every environment",
    ),
    "renamed_from": ConfigKey(
        fields.name,
        "old-report",
        "The schedule's previous name. The schedule keeps its history and its jobs, and no occurrence runs twice.",
        "none",
    ),
}
schedule: Final = Reader(
    fields.later,
    "mapping",
    {"allOf": [schema_parts.exactly_one("cron", "every"), schema_parts.exactly_one("job", "command")]},
    keys=SCHEDULE,
    defaults=ScheduleSettings("", ""),
)
# The keys that defaults.schedules may contain.
OF_ALL_SCHEDULES: Final[Keys] = {
    name: SCHEDULE[name]
    for name in (
        "queue",
        "priority",
        "catch_up",
        "catch_up_within",
        "catch_up_limit",
        "overlap",
        "spread",
        "grace",
        "warn_after_failures",
    )
}
