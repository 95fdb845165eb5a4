"""The content of a configuration file, frozen: the shapes that ``config`` fills and everything else reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from cronjobs import masking
from cronjobs.engine.rules.capacity import Cap
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.errors import Problem
from cronjobs.model import Job, JobOptions, RetryPolicy
from cronjobs.text import one_line

CatchUp = Literal["none", "latest", "all"]
Overlap = Literal["skip", "wait", "allow"]
START_UP: Final = timedelta(seconds=5)  # of a tick's budget, for imports and the steps before the work

RetryUntil = Literal["next_occurrence"]
Tls = Literal["starttls", "tls", "none"]
WebhookFormat = Literal["json", "slack", "teams"]
Leftovers = Literal["end", "leave"]
Trust = Literal[True] | tuple[str, ...]  # everybody, or these users


@dataclass(frozen=True)
class RunSettings:
    """The settings of a tick. ``every``: the time between cron's wake-ups."""

    workers: int = 4
    budget: timedelta = timedelta(seconds=55)
    lease: timedelta = timedelta(seconds=60)
    shutdown_grace: timedelta = timedelta(seconds=10)
    every: timedelta = timedelta(minutes=1)
    long_jobs: int = 4
    max_losses: int = 10
    # for a tick that stays for its minute, how often it looks again; None: it does not stay
    linger: timedelta | None = None
    ping: str | None = None  # the URL that ticks ping, for a dead-man's switch such as healthchecks.io
    trust_files: Trust = ()  # whose files root runs, besides root's own

    @property
    def default_timeout(self) -> timedelta:
        """Of a job type that declares none: short enough that two such jobs in a row fit into one tick."""
        return min(timedelta(seconds=30), self.budget / 3)

    @property
    def longest_in_tick(self) -> timedelta:
        """A longer declared timeout makes a long job: after its start a tick may not have more time to give.

        Without long jobs (``long_jobs: 0``) the whole budget counts.
        """
        return self.budget - min(START_UP, self.budget / 3) if self.long_jobs else self.budget


@dataclass(frozen=True)
class Retention:
    succeeded: timedelta = timedelta(days=14)
    dead: timedelta = timedelta(days=90)  # and cancelled jobs
    keys: timedelta = timedelta(days=365)
    occurrences: timedelta = timedelta(days=90)  # and ticks
    effects: timedelta = timedelta(days=365)


@dataclass(frozen=True)
class MetricsSettings:
    textfile: Path | None = None  # for node_exporter; ticks write it


@dataclass(frozen=True)
class MailChannel:
    """An SMTP server, and the recipients of alerts. ``port`` None means the usual one for its ``tls``."""

    host: str
    to: tuple[str, ...]
    sender: str
    port: int | None = None
    tls: Tls = "starttls"
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class WebhookChannel:
    url: str = field(repr=False)  # it often contains a token
    format: WebhookFormat = "json"


@dataclass(frozen=True)
class CommandChannel:
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class AlertFilter:
    """The findings that are sent.

    If ``findings`` is None, all are; its entries are kinds ("host") or keys ("host:web2").
    """

    severity: str = "warning"  # this and worse
    findings: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class AlertChannel:
    name: str
    way: MailChannel | WebhookChannel | CommandChannel
    only: AlertFilter = AlertFilter()


@dataclass(frozen=True)
class AlertThreshold:
    """More than so many of what ``of`` names, within this time before now, are a finding."""

    name: str
    of: Literal["dead", "failed"]
    more_than: int
    within: timedelta
    job_type: str | None = None  # None: all types
    severity: str = "critical"


@dataclass(frozen=True)
class AlertSettings:
    channels: dict[str, AlertChannel] = field(default_factory=dict)
    thresholds: dict[str, AlertThreshold] = field(default_factory=dict)


@dataclass(frozen=True)
class ExecutorTls:
    ca: Path
    cert: Path
    key: Path


@dataclass(frozen=True)
class ExecutorSettings:
    """An entry of ``executors:``: a Dask cluster. ``dask`` is the address of its scheduler."""

    name: str
    dask: str
    tls: ExecutorTls | None = None
    insecure: bool = False
    resources: tuple[tuple[str, float], ...] = ()
    in_flight: int = 200
    queue_wait: timedelta = timedelta(minutes=10)


def unknown_executor(name: str, executors: Mapping[str, ExecutorSettings]) -> str:
    """Why a job type cannot run on the executor *name*, and what to write."""
    there = f"; there is {', '.join(sorted(executors))}" if executors else ""
    return f'no executor is named "{one_line(name, 100)}"{there}: write it under executors: {{{name}: {{dask: …}}}}'


@dataclass(frozen=True)
class RetryChanges:
    """The fields that a ``retry:`` mapping sets; the others come from the next source in precedence."""

    changes: tuple[tuple[str, Any], ...] = ()

    def apply(self, policy: RetryPolicy) -> RetryPolicy:
        given = dict(self.changes)
        if given.keys() & {"base", "factor", "cap"} and "delays" not in given:
            given["delays"] = None
        return replace(policy, **given)


@dataclass(frozen=True)
class JobTypeSettings(JobOptions):
    """An entry of ``job_types:``, or an inline command of a schedule (then it has the schedule's name).

    None means not written, so the value of ``@job`` applies, or the default.
    """

    name: str
    command: tuple[str, ...] | None = None
    retry: RetryChanges = RetryChanges()
    env: tuple[tuple[str, str], ...] = ()  # for commands, on top of cron's and the file's env
    inherit_env: tuple[str, ...] | None = None  # a command gets only these of them; None: all
    success_exit_codes: tuple[int, ...] = ()  # of commands; (): 0
    retry_exit_codes: tuple[int, ...] = ()  # of commands: tried again, although 65 and 78 are otherwise permanent
    hide: tuple[str, ...] = ()  # keys of payloads whose values are shown nowhere
    stdin: str | None = None  # of commands; None: the payload as JSON, "": nothing, /dev/null
    run_in: Path | None = None  # the folder of a command; None: the file's
    leftovers: Leftovers = "end"  # what becomes of processes that a command leaves running


@dataclass(frozen=True)
class ScheduleSettings:
    """A valid entry of ``schedules:``. Exactly one of ``cron`` and ``every`` is set."""

    name: str
    job: str
    cron: str | None = None
    every: timedelta | None = None
    timezone: str = "UTC"
    payload: dict[str, Any] = field(default_factory=dict)
    queue: str = "default"
    priority: int = 5
    timeout: timedelta | None = None
    max_attempts: int | None = None
    catch_up: CatchUp = "latest"
    catch_up_within: timedelta = timedelta(hours=24)
    catch_up_limit: int = 100
    overlap: Overlap = "skip"
    spread: timedelta | None = None  # run_at is delayed by a fixed part of it, computed from the schedule's name
    retry_until: RetryUntil | None = None  # "next_occurrence": give up instead of retrying beyond it
    grace: timedelta | None = None  # how late its last occurrence may be before it is a finding
    warn_after_failures: int | None = None  # failures in a row (each try counts) before it is a finding; None: 3
    ping: str | None = None  # a dead-man's switch for its runs: the check's URL; not part of the stored definition
    environments: tuple[str, ...] | None = None  # None: it runs in every environment of the file
    renamed_from: str | None = None  # keeps the ledger and watermark of that name
    secret_keys: list[str] | None = None  # keys of the payload whose values came from ${…}


@dataclass(frozen=True)
class Settings:
    """One configuration file. ``folder``: where it lies; it is on the import path, and commands run in it.

    ``database``: the URL as written after ${…}, "" if a command that needs none allowed that. ``disabled``: the
    schedules and job types whose entries are bad; they are neither run nor retired.
    """

    file: Path
    folder: Path
    database: str = ""
    database_unset: str = ""  # why it is "": a variable in it is not set
    project: str = ""
    environment: str = ""
    schema: str | None = None
    timezone: str = "UTC"
    imports: tuple[str, ...] = ()
    python_path: tuple[Path, ...] = ()
    extras: tuple[str, ...] = ()  # third-party modules with a hook or found()
    setup: str | None = None  # "django.setup": module.function, called before the imports
    env: tuple[tuple[str, str], ...] = ()
    env_file: Path | None = None
    # the file, its env_file and every ${file:…}, as read
    contents: dict[Path, bytes] = field(default_factory=dict, repr=False)
    variables: tuple[str, ...] = ()  # names that ${…} asked for, set or not
    log: Path | None = None
    around: tuple[str, ...] = ()  # "module:function": context managers around every attempt
    metrics: MetricsSettings = MetricsSettings()
    alerts: AlertSettings | None = None  # None: findings are neither kept nor sent
    run: RunSettings = RunSettings()
    retry: RetryChanges = RetryChanges()  # defaults.retry
    retention: Retention = Retention()
    limits: tuple[Limit, ...] = ()
    executors: dict[str, ExecutorSettings] = field(default_factory=dict)
    queues: dict[str, Cap] | None = field(default_factory=dict)  # None: the section is bad, and the stored caps stay
    job_types: dict[str, JobTypeSettings] = field(default_factory=dict)
    schedules: dict[str, ScheduleSettings] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()  # schedules of other environments, left out of ``schedules``
    disabled_schedules: frozenset[str] = frozenset()
    disabled_job_types: frozenset[str] = frozenset()
    disabled_queues: frozenset[str] = frozenset()  # they keep the stored cap, or none
    by_django: bool = False  # the database comes from Django's settings
    without_project: bool = False  # exec's records in the state folder: no tick reads them
    trusted: bool = False  # the caller of this process vouches for the files, such as a test that has already run them
    broken: bool = False  # ticks refuse this file; only commands that read the database continue
    problems: tuple[Problem, ...] = ()  # what is wrong with disabled entries; a tick then exits with 3
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)  # dotted path -> line, column
    secrets: frozenset[str] = frozenset()  # values that came from ${…}: masked wherever text is shown

    def secrets_of(self, job: Job) -> frozenset[str]:
        """Return the texts that no sentence about *job* may repeat: the file's secrets, and those in its payload."""
        declared = self.job_types.get(job.job_type)
        keys = masking.keys_of_meta(job.meta).union(declared.hide if declared else ())
        return self.secrets | masking.values_under(job.payload, keys) if keys else self.secrets

    def shown_payload(self, job_type: str, payload: Any, secret_keys: Collection[str] = ()) -> Any:
        """*payload* of a job of this type, without what *secret_keys* and its ``hide:`` name.

        All of it is hidden if that entry of the file is unreadable.
        """
        declared = self.job_types.get(job_type)
        unread = job_type in self.disabled_job_types or any(each.path == "job_types" for each in self.problems)
        if declared is None and unread:
            return masking.MASK
        return masking.without(payload, {*secret_keys, *(declared.hide if declared else ())})

    def shown_definition(self, definition: Any) -> Any:
        """The *definition* of a schedule, as rows have it, with the payload as it may be shown."""
        if not isinstance(definition, dict) or "payload" not in definition:
            return definition
        keys = definition.get("secret_keys")
        keys = [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else ()
        return definition | {"payload": self.shown_payload(str(definition.get("job")), definition["payload"], keys)}

    def problems_of(self, schedule: str) -> list[Problem]:
        """Return what is wrong with the entry of *schedule*."""
        return [problem for problem in self.problems if f"{problem.path}.".startswith(f"schedules.{schedule}.")]

    @property
    def defines_something(self) -> bool:
        """Whether a sync may have something to write: schedules, caps of queues, or bad entries of these."""
        return bool(self.schedules or self.disabled_schedules or self.queues != {} or self.disabled_queues)
