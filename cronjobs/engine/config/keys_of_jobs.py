"""The keys of ``job_types``, ``queues``, ``limits`` and ``schedules``: each with its reader, example and sentence."""

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
        _ATTEMPTS, "5", "How many failures make a job dead; losses and interruptions do not count."
    ),
    "base": ConfigKey(fields.span("10ms", "30d"), "30s", "The delay after the first failure."),
    "factor": ConfigKey(fields.number(1, 100), "3", "By how much each further delay is longer; 1 keeps it the same."),
    "cap": ConfigKey(fields.span("10ms", "30d"), "2h", "No delay is longer, but for the jitter."),
    "jitter": ConfigKey(fields.number(0, 0.99), "0.1", "How far a delay varies at random: 0.2 is ±20 %."),
    "delays": ConfigKey(
        fields.list_of(fields.span("0s", "30d")),
        "[1m, 5m, 30m]",
        "The delays one by one, instead of base, factor and cap; the last one repeats.",
        "none: base, factor and cap count",
    ),
    "retry_on": ConfigKey(
        fields.some_of(fields.kind, "nothing would be retried; to retry all, delete the key"),
        "[ConnectionError, exit-75]",
        "Only failures of these kinds, and time-outs, are retried; all others are final.",
        "all kinds",
    ),
    "give_up_on": ConfigKey(
        fields.list_of(fields.kind),
        "[ValueError]",
        "Failures of these kinds are final at once; goes before retry_on.",
        "no kind",
    ),
}


@taken_as("mapping", {}, keys=RETRY, defaults=RetryPolicy())
def retry(reading: Reading, node: Node, path: str) -> RetryChanges:
    given, bad = reading.fields(node, path, RETRY)
    if bad:
        raise ReportedError
    if "delays" in given and (clash := sorted(given.keys() & {"base", "factor", "cap"})):
        raise FieldError(f"delays take the place of {', '.join(clash)}: write one or the other")
    try:
        policy = RetryPolicy(**given)
        if isinstance(policy, WrongPolicy):  # a module that is being imported reads a file
            raise ValueError(policy.fault)
    except ValueError as error:
        raise FieldError(f"{error}; what is not written counts as base 1m, cap 30m: write both") from None
    return RetryChanges(tuple(given.items()))


# --- job types --------------------------------------------------------------------------------------------------------

_TIMEOUT: Final = fields.span("100ms", "30d")
_EXIT_CODE: Final = fields.integer(0, 255)

JOB_TYPE: Final[Keys] = {
    "command": ConfigKey(
        fields.command,
        "[pg_dump, --file, /backup/app.sql, app]",
        "The program that a job of this type runs, instead of a handler in Python.",
        "the handler that @job registers",
    ),
    "timeout": ConfigKey(
        _TIMEOUT,
        "20m",
        "How long an attempt may take; above run.budget less 5 s it makes a long job, which outlives its tick.",
        "as @job says, else 30s, or a third of run.budget if that is less",
    ),
    "retry": ConfigKey(
        retry, "{max_attempts: 5}", "How failures of this type are retried.", "as @job says, else defaults.retry"
    ),
    "env": ConfigKey(
        fields.variables,
        "{PGUSER: backup}",
        "Variables for the command, on top of those of cron and of the file's env.",
        "none",
    ),
    "inherit_env": ConfigKey(
        fields.list_of(fields.variable),
        "[PATH, HOME]",
        "Of cron's and the file's variables, the command gets only these.",
        "all",
    ),
    "isolation": ConfigKey(
        fields.choice("thread", "process"),
        "process",
        "Where a handler runs; in a process of its own it can be killed, and a crash harms no other job.",
        "as @job says, else thread",
    ),
    "max_memory": ConfigKey(
        fields.memory(LEAST_MEMORY, "16TiB"),
        "512MiB",
        "How much memory each process of a job may allocate; needs a command or isolation: process.",
        "as @job says, else no limit",
    ),
    "on_shutdown": ConfigKey(
        fields.choice("release", "drop"),
        "drop",
        "What becomes of jobs that a tick has claimed, but not begun, at its shutdown: released, or cancelled (drop).",
        "as @job says, else release",
    ),
    "on_lost": ConfigKey(
        fields.choice("retry", "dead"),
        "dead",
        "What becomes of a job whose runner died: it runs again, or is dead until someone has looked.",
        "as @job says, else retry",
    ),
    "durable": ConfigKey(
        fields.choice("group", "each"),
        "each",
        "Whether ends are committed in groups or one by one; with each, a crash repeats at most one job per worker.",
        "as @job says, else group",
    ),
    "executor": ConfigKey(
        fields.name,
        "cluster",
        "The entry of executors whose cluster runs the handler, instead of the host that claimed the job.",
        "as @job says, else this host",
    ),
    "success_exit_codes": ConfigKey(
        fields.some_of(_EXIT_CODE, "no end would be a success; for 0 alone delete the key"),
        "[0, 24]",
        "The exit codes of the command that mean success.",
        "[0]",
    ),
    "retry_exit_codes": ConfigKey(
        fields.list_of(_EXIT_CODE),
        "[65]",
        "Exit codes of the command that are retried although 65 and 78 are final otherwise.",
        "[]",
    ),
    "hide": ConfigKey(
        fields.list_of(fields.title),
        "[card_number]",
        "Keys of the payload whose values are shown nowhere.",
        "[]",
    ),
    "stdin": ConfigKey(
        fields.standard_input,
        "none",
        "What the command reads on its standard input: this text, or none for nothing.",
        "the payload as JSON",
    ),
    "folder": ConfigKey(fields.path_beside_file, "/srv/shop", "Where the command runs.", "the file's folder"),
    "leftovers": ConfigKey(
        fields.choice("end", "leave"),
        "leave",
        "What becomes of processes that the command leaves running: they are ended, or left alone as cron does.",
        "end",
    ),
}
job_type: Final = Reader(fields.later, "mapping", {}, keys=JOB_TYPE)
OF_ALL_COMMANDS: Final[Keys] = {  # what defaults.commands may say
    name: JOB_TYPE[name]
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

UNREADABLE_LIMITS: Final = (Limit("", most=0),)  # of every job with a concurrency_key none begins
_PREFIX: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


@taken_as("whole number, 1–10000", schema_parts.number("integer", 1, 10_000))
def _at_once(reading: Reading, node: Node, path: str) -> int:
    if reading.text(node) == "0":
        raise FieldError('0 would let none begin: to stop jobs for a while, "cronjobs pause --queue NAME"')
    count: int = fields.integer(1, 10_000)(reading, node, path)
    return count


LIMIT: Final[Keys] = {
    "most": ConfigKey(_at_once, "4", "How many run at once of all jobs whose concurrency_key begins so.", "no limit"),
    "each": ConfigKey(
        _at_once, "1", "How many run at once of the jobs that have the same concurrency_key.", "no limit"
    ),
}


@taken_as("whole number (most), or mapping", schema_parts.number("integer", 1, 10_000), keys=LIMIT)
def limit(reading: Reading, node: Node, path: str) -> dict[str, int]:
    """``4``, all together, or ``{most: 4, each: 1}``."""
    if not isinstance(node, Mapping):
        return {"most": _at_once(reading, node, path)}
    values, bad = reading.fields(node, path, LIMIT)
    if bad:
        raise ReportedError
    if not values:
        raise FieldError("a limit says most: (of all together), each: (of one key), or both")
    return values


@taken_as("mapping: beginning of a concurrency_key → limit", {}, each=limit)
def limits(reading: Reading, node: Node, path: str) -> tuple[Limit, ...]:
    """Limits by the beginning of a concurrency_key. A bad one lets none of its jobs begin, else too many would."""
    if isinstance(node, Scalar) and node.is_null:
        return ()
    if not isinstance(node, Mapping):
        raise FieldError('write it as a mapping: {"smtp:": 4}, the beginning of a concurrency_key and how many at once')

    def entry(key: Scalar, value: Node, here: str) -> Limit:
        if not _PREFIX.fullmatch(key.text):
            raise FieldError(f"{shown(key)} is not the beginning of a concurrency_key: write 1–200 characters")
        return Limit(key.text, **reading.read(limit, value, here))

    found = reading.entries(node, path, entry).values
    return tuple(found.get(prefix) or Limit(prefix, most=0) for prefix in node.entries)


# --- schedules --------------------------------------------------------------------------------------------------------

SCHEDULE: Final[Keys] = {
    "cron": ConfigKey(
        fields.cron,
        '"15 2 * * *"',
        "When it is due: minute, hour, day, month, weekday, or @daily and the like.",
        "this or every",
    ),
    "every": ConfigKey(
        fields.span("1s", "366d", whole_seconds=True),
        "10m",
        "When it is due: at the multiples of this span since 1970-01-01T00:00Z; below 1m only with run.linger.",
        "this or cron",
    ),
    "timezone": ConfigKey(
        fields.zone, "America/New_York", "The time zone that cron is meant in.", "the file's timezone"
    ),
    "job": ConfigKey(fields.type_name, "billing.send_invoice", "The job type that runs.", "this or command"),
    "command": ConfigKey(
        fields.command,
        '[find, /tmp/app, -mtime, "+7", -delete]',
        "The program that runs; its job type bears the schedule's name.",
        "this or job",
    ),
    "payload": ConfigKey(payload, "{region: us}", "The payload of its jobs: the handler's keyword arguments.", "{}"),
    "queue": ConfigKey(fields.name, "reports", "The queue that its jobs wait in."),
    "priority": ConfigKey(fields.integer(0, 9), "2", "Which of the waiting jobs begins first: 0 before 9."),
    "timeout": ConfigKey(_TIMEOUT, "40s", "How long an attempt of its jobs may take.", "the job type's"),
    "max_attempts": ConfigKey(_ATTEMPTS, "3", "How many failures make one of its jobs dead.", "the job type's"),
    "catch_up": ConfigKey(
        fields.choice("none", "latest", "all"),
        "all",
        "What runs of the occurrences that no tick came for in time: nothing, the newest for all, or each.",
    ),
    "catch_up_within": ConfigKey(
        fields.span("0s", "366d"), "6h", "How old an occurrence may be for catch_up; older ones are missed."
    ),
    "catch_up_limit": ConfigKey(
        fields.integer(1, 10_000),
        "20",
        "How many occurrences catch_up: all makes up for at most; what it drops is a finding.",
    ),
    "overlap": ConfigKey(
        fields.choice("skip", "wait", "allow"),
        "wait",
        "What becomes of an occurrence while a job of this schedule is unfinished: skipped, one waits, or both run.",
    ),
    "spread": ConfigKey(
        fields.span("1s", "1d"),
        "10m",
        "Delays it by a fixed part of this span, so that not all start together.",
        "no delay",
    ),
    "retry_until": ConfigKey(
        fields.choice("next_occurrence"),
        "next_occurrence",
        "Gives a failing job up rather than retry it beyond the next occurrence.",
        "it is retried until max_attempts",
    ),
    "grace": ConfigKey(
        fields.span("1s", "366d"),
        "30m",
        "How long after an occurrence a run must have succeeded; otherwise it is a critical finding.",
        "no critical finding; after an hour, one if nothing runs or is retried",
    ),
    "warn_after_failures": ConfigKey(
        fields.integer(1, 100), "5", "How many failures in a row are a finding; each try counts.", "3"
    ),
    "ping": ConfigKey(
        fields.web_address,
        "https://hc-ping.com/1234abcd",
        "The address of a dead-man's switch that is told how each run went.",
        "none",
    ),
    "environments": ConfigKey(
        fields.list_of(fields.title),
        "[production]",
        "Runs only where the file's environment is one of these.",
        "it runs in each",
    ),
    "renamed_from": ConfigKey(
        fields.name, "old-report", "The name it had before: it keeps that one's history and runs nothing twice.", "none"
    ),
}
schedule: Final = Reader(
    fields.later,
    "mapping",
    {"allOf": [schema_parts.exactly_one("cron", "every"), schema_parts.exactly_one("job", "command")]},
    keys=SCHEDULE,
    defaults=ScheduleSettings("", ""),
)
OF_ALL_SCHEDULES: Final[Keys] = {  # what defaults.schedules may say
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
