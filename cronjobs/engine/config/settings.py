"""The content of a configuration file, as frozen dataclasses.

``load`` creates these objects, and all other modules only read them.
"""

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
# The part of a tick's budget that is reserved for imports and for the steps before the first job.
START_UP: Final = timedelta(seconds=5)

RetryUntil = Literal["next_occurrence"]
Tls = Literal["starttls", "tls", "none"]
WebhookFormat = Literal["json", "slack", "teams"]
Leftovers = Literal["end", "leave"]
# The users that root trusts: True for all users, or a list of them.
Trust = Literal[True] | tuple[str, ...]


@dataclass(frozen=True)
class RunSettings:
    """How ticks work. ``every`` is the time between two ticks that cron starts."""

    workers: int = 4
    budget: timedelta = timedelta(seconds=55)
    lease: timedelta = timedelta(seconds=60)
    shutdown_grace: timedelta = timedelta(seconds=10)
    every: timedelta = timedelta(minutes=1)
    long_jobs: int = 4
    max_losses: int = 10
    # A lingering tick looks for work again after this time. None means that ticks do not linger.
    linger: timedelta | None = None
    # The URL of a dead man's switch that ticks ping, such as healthchecks.io.
    ping: str | None = None
    # A tick that runs as root runs files that belong to root or to one of these users.
    trust_files: Trust = ()

    @property
    def default_timeout(self) -> timedelta:
        """The timeout of a job type that declares none. Two jobs with it fit into one tick, one after the other."""
        return min(timedelta(seconds=30), self.budget / 3)

    @property
    def long_above(self) -> timedelta:
        """A job with a longer declared timeout than this is a long job.

        The value is less than the budget, because the start of a tick takes time too.
        """
        return self.budget - min(START_UP, self.budget / 3)

    @property
    def longest_in_tick(self) -> timedelta:
        """The longest timeout of a job that runs inside a tick: the whole budget if this host runs no long jobs."""
        return self.long_above if self.long_jobs else self.budget


@dataclass(frozen=True)
class Retention:
    succeeded: timedelta = timedelta(days=14)
    dead: timedelta = timedelta(days=90)  # also for cancelled jobs
    keys: timedelta = timedelta(days=365)
    occurrences: timedelta = timedelta(days=90)  # also for ticks
    effects: timedelta = timedelta(days=365)


@dataclass(frozen=True)
class MetricsSettings:
    textfile: Path | None = None  # ticks write this file for node_exporter


@dataclass(frozen=True)
class MailChannel:
    """An SMTP server and the recipients of alerts. If ``port`` is None, the usual port for ``tls`` is used."""

    host: str
    to: tuple[str, ...]
    sender: str
    port: int | None = None
    tls: Tls = "starttls"
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class WebhookChannel:
    url: str = field(repr=False)  # hidden, because it often contains a token
    format: WebhookFormat = "json"


@dataclass(frozen=True)
class CommandChannel:
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class AlertFilter:
    """The findings that a channel sends. If ``findings`` is None, findings of all kinds are sent.

    An entry of ``findings`` or ``ignore`` is a kind ("host") or a key ("host:web2").
    """

    severity: str = "warning"  # findings of at least this severity are sent
    findings: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()

    def asks_for(self, key: str) -> bool:
        """Whether the finding with this *key*, such as "host:web2", is sent if it is severe enough."""
        names = {key, key.partition(":")[0]}
        return (self.findings is None or not names.isdisjoint(self.findings)) and names.isdisjoint(self.ignore)


@dataclass(frozen=True)
class AlertChannel:
    name: str
    way: MailChannel | WebhookChannel | CommandChannel
    only: AlertFilter = AlertFilter()


@dataclass(frozen=True)
class AlertThreshold:
    """A threshold for a finding. ``of`` says which jobs are counted: dead jobs, or jobs that failed.

    There is a finding if more than ``more_than`` such jobs are counted within the last ``within``.
    """

    name: str
    of: Literal["dead", "failed"]
    more_than: int
    within: timedelta
    job_type: str | None = None  # None means all job types
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
    """Return a message: the executor *name* does not exist, and what to write in the file."""
    there = f"; there is {', '.join(sorted(executors))}" if executors else ""
    return f'no executor is named "{one_line(name, 100)}"{there}: add "{name}: {{dask: …}}" under the key "executors"'


@dataclass(frozen=True)
class RetryChanges:
    """The fields that a ``retry:`` mapping sets. A policy keeps its values in all other fields."""

    changes: tuple[tuple[str, Any], ...] = ()

    def apply(self, policy: RetryPolicy) -> RetryPolicy:
        given = dict(self.changes)
        if given.keys() & {"base", "factor", "cap"} and "delays" not in given:
            given["delays"] = None
        return replace(policy, **given)


@dataclass(frozen=True)
class JobTypeSettings(JobOptions):
    """An entry of ``job_types:``, or a schedule's inline command, which has the schedule's name.

    None means that the file omits the key. Then the value in ``@job`` applies, or the default if ``@job`` omits it too.
    """

    name: str
    command: tuple[str, ...] | None = None
    retry: RetryChanges = RetryChanges()
    # Variables for a command, in addition to cron's variables and the file's ``env``.
    env: tuple[tuple[str, str], ...] = ()
    # Which of cron's and the file's variables a command inherits. None means all.
    inherit_env: tuple[str, ...] | None = None
    success_exit_codes: tuple[int, ...] = ()  # exit codes of a command that mean success. () means only 0
    # Exit codes after which a command is retried. Without an entry here, 65 and 78 are permanent failures.
    retry_exit_codes: tuple[int, ...] = ()
    hide: tuple[str, ...] = ()  # keys of the payload whose values are never shown
    # The standard input of a command. None means the payload as JSON, and "" means no input (/dev/null).
    stdin: str | None = None
    # The working folder of a command. None means the file's folder.
    run_in: Path | None = None
    # What happens to processes that a command leaves running.
    leftovers: Leftovers = "end"


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
    # If set, each job is delayed by a part of this span, which depends only on the schedule's name.
    spread: timedelta | None = None
    # With "next_occurrence", a failing job is given up if its retry would come after the schedule's next occurrence.
    retry_until: RetryUntil | None = None
    # If no run of an occurrence succeeds within this time after it was due, there is a finding.
    grace: timedelta | None = None
    # This many failed tries in a row cause a finding. None means 3.
    warn_after_failures: int | None = None
    # The URL of a dead man's switch for the schedule's runs. The URL is not part of the definition in the database.
    ping: str | None = None
    # The environments in which the schedule runs. None means all environments.
    environments: tuple[str, ...] | None = None
    # The previous name of the schedule. The schedule takes over the ledger and the watermark of that name.
    renamed_from: str | None = None
    secret_keys: list[str] | None = None  # keys of the payload whose values came from ${…}


@dataclass(frozen=True)
class Settings:
    """One configuration file. Its ``folder`` is on the import path, and commands run there.

    ``database`` is the URL with its ${…} filled in, or "" if there is no usable URL and the command needs no database.
    The ``disabled_…`` fields contain the names of bad entries. A disabled schedule does not run, but it is not retired
    either.
    """

    file: Path
    folder: Path
    database: str = ""
    # Why ``database`` is "": a variable is not set, or Django's settings cannot be used.
    database_unset: str = ""
    project: str = ""
    environment: str = ""
    schema: str | None = None
    timezone: str = "UTC"
    imports: tuple[str, ...] = ()
    python_path: tuple[Path, ...] = ()
    extras: tuple[str, ...] = ()  # third-party modules with hooks or findings
    setup: str | None = None  # a function ("django.setup") to call before the imports
    env: tuple[tuple[str, str], ...] = ()
    env_file: Path | None = None
    # The bytes that we read from the configuration file, its env_file and every ``${file:…}``.
    contents: dict[Path, bytes] = field(default_factory=dict, repr=False)
    variables: tuple[str, ...] = ()  # the names used in ${…}, whether set or not
    log: Path | None = None
    # Context managers that wrap every attempt, as "module:function".
    around: tuple[str, ...] = ()
    metrics: MetricsSettings = MetricsSettings()
    alerts: AlertSettings | None = None  # None means that findings are neither stored nor sent
    run: RunSettings = RunSettings()
    retry: RetryChanges = RetryChanges()  # from defaults.retry
    retention: Retention = Retention()
    limits: tuple[Limit, ...] = ()
    executors: dict[str, ExecutorSettings] = field(default_factory=dict)
    # None if the section ``queues:`` is bad. In that case the caps in the database stay as they are.
    queues: dict[str, Cap] | None = field(default_factory=dict)
    job_types: dict[str, JobTypeSettings] = field(default_factory=dict)
    schedules: dict[str, ScheduleSettings] = field(default_factory=dict)
    # The names of schedules that run only in other environments. ``schedules`` does not contain them.
    elsewhere: frozenset[str] = frozenset()
    # The names of schedules whose entries are bad, and their previous names from ``renamed_from``. Syncs do not change
    # these schedules in the database, and ticks do not fire them.
    disabled_schedules: frozenset[str] = frozenset()
    # Maps the previous names in ``disabled_schedules`` to the new names.
    disabled_renames: dict[str, str] = field(default_factory=dict)
    disabled_job_types: frozenset[str] = frozenset()
    # The names of queues whose entries are bad. If the database has a cap for such a queue, the cap stays as it is.
    disabled_queues: frozenset[str] = frozenset()
    # True if the database comes from Django's settings.
    by_django: bool = False
    # True for "cronjobs exec" without a project, which keeps its records in the state folder, where no tick reads them.
    without_project: bool = False
    # True if the caller trusts the files, such as a test, which has already run them.
    trusted: bool = False
    # True if ticks refuse this file. Only commands that read the database accept it.
    broken: bool = False
    # The problems of the disabled entries. If there is any problem, a tick exits with status 3.
    problems: tuple[Problem, ...] = ()
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)  # line and column by dotted path
    # The values to mask wherever text is shown, such as values from ``${…}``.
    secrets: frozenset[str] = frozenset()

    def secrets_of(self, job: Job) -> frozenset[str]:
        """Return what no message about *job* may contain: the file's secrets, and the secrets in the job's payload."""
        declared = self.job_types.get(job.job_type)
        keys = masking.keys_of_meta(job.meta).union(declared.hide if declared else ())
        return self.secrets | masking.values_under(job.payload, keys) if keys else self.secrets

    def shown_payload(self, job_type: str, payload: Any, secret_keys: Collection[str] = ()) -> Any:
        """Return a job's *payload* without the values under the keys that are listed in *secret_keys* or in ``hide:``.

        If the type's entry in the file cannot be read, the whole payload is hidden.
        """
        declared = self.job_types.get(job_type)
        unread = job_type in self.disabled_job_types or any(each.path == "job_types" for each in self.problems)
        if declared is None and unread:
            return masking.MASK
        return masking.without(payload, {*secret_keys, *(declared.hide if declared else ())})

    def shown_definition(self, definition: Any) -> Any:
        """Return a schedule's *definition*, as stored in the database, with its secrets hidden."""
        if not isinstance(definition, dict) or "payload" not in definition:
            return definition
        keys = definition.get("secret_keys")
        keys = [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else ()
        return definition | {"payload": self.shown_payload(str(definition.get("job")), definition["payload"], keys)}

    def problems_of(self, schedule: str) -> list[Problem]:
        entry = f"schedules.{self.disabled_renames.get(schedule, schedule)}."
        return [problem for problem in self.problems if f"{problem.path}.".startswith(entry)]

    @property
    def defines_something(self) -> bool:
        """Whether to sync the file, because it has schedules, queue caps, limits, or bad entries of these kinds.

        A sync of limits writes only an audit entry, which says when the limits began to apply.
        """
        return bool(
            self.schedules or self.disabled_schedules or self.queues != {} or self.disabled_queues or self.limits
        )
