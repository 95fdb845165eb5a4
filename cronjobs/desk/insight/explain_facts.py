"""The facts about one occurrence, and about one job, that ``evidence`` gathers and ``explain`` describes. Shapes only.

Everything here was read from rows. What no row shows is None, and ``explain`` leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from cronjobs.engine.rules.progress import HowFar, Reported

Existence = Literal["defined", "retired", "not_yet", "unreadable"]


@dataclass(frozen=True)
class AuditEntry:
    """Something that was done, from the audit trail. ``host``: where. ``moved``: from when to when, by a reschedule."""

    at: datetime
    by: str | None = None
    host: str | None = None
    why: str | None = None
    moved: tuple[datetime, datetime] | None = None


@dataclass(frozen=True)
class DefinitionFacts:
    """A definition of a schedule; ``applied`` None: the audit trail does not show when it came into force."""

    timing: str  # "15 2 * * *", "every 10m"
    timezone: str
    catch_up: str
    catch_up_within: timedelta
    overlap: str
    starts_later_by: timedelta = timedelta(0)  # the schedule's share of spread:
    applied: AuditEntry | None = None


@dataclass(frozen=True)
class TickFacts:
    """``broken``: bad entries of its file, with what is wrong; as all that follows, only from version 0003 on."""

    host: str
    started_at: datetime
    finished_at: datetime | None
    broken: tuple[tuple[str, str], ...] = ()
    schedules_off: bool = False  # CRONJOBS_SCHEDULES=off: it settled no occurrence

    @property
    def last_sign_at(self) -> datetime:
        return self.finished_at or self.started_at


@dataclass(frozen=True)
class LedgerFacts:
    """One row of the ledger. ``whole_*`` describe the whole row, even if only a part of it was asked for."""

    outcome: str
    reason: str | None
    job_id: int | None
    whole_first: datetime
    whole_last: datetime
    whole_count: int
    decided_at: datetime
    tick: int | None = None  # the id of the tick that wrote it; None: a person did


@dataclass(frozen=True)
class PauseFacts:
    """A past or present pause. ``ended_at``: resumed, or expired; None: in force, until ``until`` or a resume."""

    scope: str  # all, queue, schedule
    name: str
    by: str | None
    why: str | None
    since: datetime
    until: datetime | None = None
    ended_at: datetime | None = None
    skip: bool = False  # what became due during it was skipped, not held back


@dataclass(frozen=True)
class AttemptFacts:
    number: int
    outcome: str
    started_at: datetime
    finished_at: datetime
    host: str
    error_type: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class PassedOver:
    """The last tick that found the job due and did not start it, as it recorded itself."""

    tick: TickFacts
    why: str
    too_short: bool = False  # not even a whole tick of its length has time for the job
    again: bool = False  # it had started an earlier attempt of the job itself
    no_place: bool = False  # all places for long jobs were taken there


@dataclass(frozen=True)
class Ahead:
    """Due jobs that a tick takes before a job: of a ``better`` priority, or due ``earlier``; ``more``: at least these.

    Without those that cannot start themselves, as their queue is paused or their limit reached.
    """

    better: int
    earlier: int
    more: bool = False


@dataclass(frozen=True)
class Turn:
    """The job of its schedule that a job waits for. ``running``: it has begun."""

    job_id: int
    running: bool


@dataclass(frozen=True)
class TypeFacts:
    """Whether some host can run a job type, as far as ticks have recorded their types.

    ``known`` None: nothing shows it. ``last``: the newest tick that could run it; ``since``: when the first tick after
    that one began which could not. ``not_loaded``: what the newest ticks could not import, by host.
    """

    name: str
    known: bool | None = None
    last: TickFacts | None = None
    since: datetime | None = None
    not_loaded: tuple[tuple[str, str, str], ...] = ()  # host, module or job type, why
    here: bool = True  # it is registered in the configuration at hand
    file_fault: str | None = None  # what is wrong with its entry there


@dataclass(frozen=True)
class Excluded:
    """Since ``since`` every tick that could have run the job had options that exclude it."""

    since: datetime
    options: tuple[tuple[str, str], ...]  # host, "--queue mail"


@dataclass(frozen=True)
class Triggered:
    """A job of the schedule that a person triggered. ``status`` None: its row is gone."""

    job_id: int
    at: datetime
    by: str | None
    status: str | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True)
class JobFacts:
    """A job by its row and its history. ``most``: how often it may fail; None if only code could tell."""

    id: int
    job_type: str
    status: str
    queue: str
    run_at: datetime
    created_at: datetime
    failures: int = 0
    losses: int = 0
    attempt: int = 0
    most: int | None = None
    enqueued_by: str | None = None
    idempotency_key: str | None = None
    released_key: str | None = None  # which it gave back when it was cancelled
    schedule: str | None = None
    scheduled_for: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    last_error: str | None = None
    host: str | None = None  # of the runner that has its lease
    locked_until: datetime | None = None
    cancel_requested_at: datetime | None = None
    dismissed: bool = False  # it is dead, and a person has dismissed it
    unsettled: str | None = None  # the effect that it is dead for, while nobody has said whether that happened
    triggered: tuple[Triggered, ...] = ()  # later runs of its schedule by hand, newest first, if it did not succeed
    acts: tuple[tuple[str, AuditEntry], ...] = ()  # what people did to it: cancel, retry, release …
    attempts: tuple[AttemptFacts, ...] = ()
    paused: PauseFacts | None = None  # why it waits, if it waits
    held: tuple[datetime, PauseFacts] | None = None  # what kept its first attempt from beginning, and since when
    known: bool = True  # its job type is registered here
    timeout_s: float | None = None
    passed_over: PassedOver | None = None
    type_facts: TypeFacts | None = None  # of a job that waits and whose type is not known here
    out_of_reach: Excluded | None = None
    misfit_since: datetime | None = None  # its payload does not fit the handler: since its first attempt
    limit: str | None = None  # the limit that is reached, as a sentence
    reported: Reported | None = None  # by the attempt that runs
    runner_gone: bool = False  # as far as this host can prove: its process has ended, and nothing has settled the job
    cluster_worker: str | None = None  # of the attempt that runs, if it is on a cluster; "": it waits for one there
    executor: str | None = None  # of a job that waits: the executor of its type
    turn_after: Turn | None = None
    ahead: Ahead | None = None
    long_places: int | None = None  # its timeout is longer than a tick: how many such jobs a host may run at once


@dataclass(frozen=True)
class Now:
    """What is the same for every question of one command."""

    now: datetime
    last_tick: TickFacts | None = None
    quiet_after: timedelta = timedelta(minutes=3)  # without a tick for so long something is wrong
    succeeded_kept: timedelta = timedelta(days=14)
    ledger_kept: timedelta = timedelta(days=90)
    foreign: str | None = None  # why ticks with the configuration at hand refuse this database


@dataclass(frozen=True)
class Standing:
    """How a schedule stands now: ``retired``, or in force with that ``definition``, and due ``next``."""

    retired: bool = False
    act: AuditEntry | None = None  # that retired it
    definition: DefinitionFacts | None = None
    next: datetime | None = None
    pause: PauseFacts | None = None


@dataclass(frozen=True)
class OccurrenceFacts:
    """What is known of the occurrences from ``first_for`` to ``last_for`` (of one instant, if ``count`` is 1).

    ``due`` False: the schedule had none at that instant. ``ledger`` None: no row shows what became of it.
    """

    schedule: str
    first_for: datetime
    last_for: datetime
    count: int
    timezone: str
    around: Now
    existence: Existence
    due: bool = True
    definition: DefinitionFacts | None = None
    settled_until: datetime | None = None  # the watermark
    owed: bool = False  # by a definition that ended while a pause held it back: unsettled, though below the watermark
    beyond_retention: bool = False
    ledger: LedgerFacts | None = None
    # the instant itself
    remark: str | None = None  # what a clock change did to it
    asked: str | None = None  # a wall-clock time that did not exist that day (gap), or came twice (doubled)
    clock_change: Literal["gap", "doubled"] | None = None
    previous: datetime | None = None
    next: datetime | None = None
    due_by: DefinitionFacts | None = None  # another definition of the schedule, by which it would have been due
    # the schedule's own history
    first_defined: AuditEntry | None = None
    retired: AuditEntry | None = None
    returned: AuditEntry | None = None
    renamed_from: str | None = None
    renamed_to: str | None = None  # by the file at hand, which no tick has applied yet
    standing: Standing | None = None  # of a question without a time
    file_fault: str | None = None  # what is wrong with its entry in the file at hand
    in_file: bool = False  # the file at hand has it for this environment
    elsewhere: str | None = None  # the environment here, if the file has it only for others
    # who decided about it
    settler: TickFacts | None = None  # None: a person, or a tick whose row is pruned
    settled_ahead: bool = False  # by a clock that was ahead: the tick after it, by time, really began later
    tick_before: TickFacts | None = None
    tick_after: TickFacts | None = None
    pause: PauseFacts | None = None  # by which it was or is skipped or held back
    job: JobFacts | None = None  # made for it, given way to, or coalesced into
    pruned_dead: datetime | None = None  # when retention removed the job that was made for it, dead
    job_for: datetime | None = None  # the occurrence that ``job`` was made for
    stands_for: int = 1
    triggered: tuple[Triggered, ...] = ()  # later runs by hand, newest first, if no job was made for it


@dataclass(frozen=True)
class MadeFor:
    """A ledger row, seen from the job that it names."""

    schedule: str
    timezone: str
    ledger: LedgerFacts


@dataclass(frozen=True)
class JobLife:
    """A job, or what is left of it in the ledger when its row is gone."""

    job_id: int
    timezone: str
    around: Now
    job: JobFacts | None
    rows: tuple[MadeFor, ...] = ()
    settler: TickFacts | None = None
    pruned_dead: datetime | None = None


@dataclass(frozen=True)
class Explanation:
    """The answer. ``brief`` is a line for a list, which combines many ``usual`` ones; ``facts`` are for programs."""

    subject: str
    at: datetime | None
    verdict: str
    sentences: tuple[str, ...]
    brief: str = ""
    usual: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


def plain(value: Any) -> Any:
    """Facts as JSON values: None, empty and False are left out, spans become seconds."""
    pairs = None
    if is_dataclass(value) and not isinstance(value, type):
        pairs = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    elif isinstance(value, Reported | HowFar):
        pairs = {name: plain(each) for name, each in value._asdict().items()}
    if pairs is not None:
        return {name: found for name, found in pairs.items() if found not in (None, False, [], {})}
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value
