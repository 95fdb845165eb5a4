"""The facts about an occurrence or a job that ``evidence`` gathers and ``explain`` describes. Data classes only.

All values come from rows. If no row shows a fact, the fact is None, and ``explain`` omits it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from cronjobs.desk.insight.kept_from_starting import Causes
from cronjobs.engine.rules.occurrences import BACKFILLED, RAN_EARLY
from cronjobs.engine.rules.progress import HowFar, Reported

Existence = Literal["defined", "retired", "not_yet", "unreadable"]


@dataclass(frozen=True)
class AuditEntry:
    """An action in the audit trail. ``host``: where the action was taken. ``moved``: a reschedule's old and new time.

    ``settled``: the effect's key, and whether it was recorded as "done" or "not-done".
    """

    at: datetime
    by: str | None = None
    host: str | None = None
    why: str | None = None
    moved: tuple[datetime, datetime] | None = None
    settled: tuple[str, str] | None = None


@dataclass(frozen=True)
class DefinitionFacts:
    """A schedule's definition. ``applied`` is None if the audit trail does not show when it was applied."""

    timing: str  # for example "15 2 * * *" or "every 10m"
    timezone: str
    catch_up: str
    catch_up_within: timedelta
    overlap: str
    starts_later_by: timedelta = timedelta(0)  # how much ``spread:`` delays this schedule's jobs
    grace: timedelta | None = None  # None if the schedule sets no grace of its own
    applied: AuditEntry | None = None

    @property
    def times(self) -> tuple[str, str]:
        return self.timing, self.timezone


@dataclass(frozen=True)
class TickFacts:
    """One tick. ``broken`` lists the bad entries of the tick's file, and why each is bad.

    ``kept_from_starting``: why earlier ticks of its host did not start, and how many did not.
    """

    host: str
    started_at: datetime
    finished_at: datetime | None
    broken: tuple[tuple[str, str], ...] = ()
    kept_from_starting: Causes = ()
    # The tick ran with CRONJOBS_SCHEDULES=off, so it settled no occurrences.
    schedules_off: bool = False
    # Why the tick could not use the database for some time, or None.
    away: str | None = None
    # The tick has not recorded its end. When it last wrote its row, it was importing the handlers.
    importing: bool = False
    # The modules and entries that the tick could not load, and why.
    not_loaded: tuple[tuple[str, str], ...] = ()

    @property
    def last_sign_at(self) -> datetime:
        return self.finished_at or self.started_at


class KilledTicks(NamedTuple):
    """How many ticks never recorded their end. ``importing`` of them were importing the handlers."""

    ticks: int
    importing: int


@dataclass(frozen=True)
class LedgerFacts:
    """One row of the ledger.

    ``whole_*`` describe the whole row, even if the question is about only a part of the row.
    """

    outcome: str
    reason: str | None
    job_id: int | None
    whole_first: datetime
    whole_last: datetime
    whole_count: int
    decided_at: datetime
    tick: int | None = None  # the id of the tick that wrote the row, or None if a person wrote it

    @property
    def early(self) -> bool:
        """Whether a wrong clock ran the occurrence before it was due."""
        return (self.reason or "").startswith(RAN_EARLY)

    @property
    def backfilled(self) -> bool:
        return (self.reason or "").startswith(BACKFILLED)


@dataclass(frozen=True)
class PauseFacts:
    """A past or present pause.

    ``ended_at``: when someone ended the pause or it expired, or None while it is in force.
    """

    scope: str  # "all", "queue" or "schedule"
    name: str
    by: str | None
    why: str | None
    since: datetime
    until: datetime | None = None
    ended_at: datetime | None = None
    skip: bool = False  # whether the pause skips occurrences instead of holding them back
    # Who last changed the pause's end or reason. None if that was the person who began the pause.
    changed_by: str | None = None


@dataclass(frozen=True)
class AttemptFacts:
    number: int
    outcome: str
    started_at: datetime
    finished_at: datetime
    host: str
    error_type: str | None = None
    error: str | None = None
    # If the attempt was lost: why ticks of its host did not start meanwhile, for example because the database was away.
    kept_from_starting: Causes = ()
    away: str | None = None  # if the attempt was lost: why its host could not use the database meanwhile
    released: int = 0  # how many claims directly before this attempt were released without starting the handler
    by_hand: bool = False  # whether "cronjobs run" started the attempt


@dataclass(frozen=True)
class LateTry:
    """An attempt after the first that started late, or long after the attempt before it.

    ``due_at``: when the attempt was due. Only the last attempt's due time is recorded, so ``due_at`` is None for
    earlier attempts. ``by_hand``: see ``AttemptFacts``. ``held``: the pause that delayed the attempt. ``quiet``: the
    longest time without ticks before the attempt.
    """

    number: int
    begun_at: datetime
    due_at: datetime | None = None
    by_hand: bool = False
    held: PauseFacts | None = None
    quiet: tuple[datetime, datetime] | None = None


@dataclass(frozen=True)
class NotStartedRecord:
    """The last tick that recorded the job as due but not started."""

    tick: TickFacts
    why: str
    too_short: bool = False  # whether the job does not fit even a whole tick
    again: bool = False  # whether this tick had already run an earlier attempt of the job
    no_room: bool = False  # whether the tick had no room or no time for any more jobs like this one
    out_of_time: bool = False  # whether the timeout did not fit into the rest of the tick
    no_place: bool = False  # whether all slots for long jobs were taken on that host
    passed_over: bool = False  # whether the job was due during the whole tick, which had a free worker
    # Whether a host recorded that it cannot run the job, or that its tick's options exclude the job. The host still
    # ticks.
    not_by_any_tick: bool = False
    no_process: bool = False  # whether that host could not start a process for the long job
    long_off: tuple[str, ...] = ()  # the hosts that ticked, if long jobs are off on each of them and the job is long


@dataclass(frozen=True)
class JobsAhead:
    """How many due jobs come before this job when ticks claim jobs.

    ``better``: jobs with a better priority. ``earlier``: jobs with the same priority that became due earlier. A job
    does not count if its queue is paused, or if its limit is reached. ``more``: whether there may be more jobs than
    counted.
    """

    better: int
    earlier: int
    more: bool = False


@dataclass(frozen=True)
class AwaitedJob:
    """The job of the same schedule that this job waits for. ``running``: whether that job has begun."""

    job_id: int
    running: bool


@dataclass(frozen=True)
class TypeFacts:
    """Whether some host can run a job type, according to the types that ticks recorded.

    ``known`` is None if no tick recorded any types. ``last``: the newest tick that loaded the type. ``since``: the
    start of the first tick that could not run the type. ``not_loaded``: the faults of the newest ticks that may be the
    reason. ``silent_since``: when the host of ``last`` last ticked, if it has been silent for longer than usual.
    """

    name: str
    known: bool | None = None
    last: TickFacts | None = None
    since: datetime | None = None
    silent_since: datetime | None = None
    # Each item has three texts: a host, the part of its file or code that the host could not use, and the reason.
    not_loaded: tuple[tuple[str, str, str], ...] = ()
    # Whether the type is registered in the configuration here, or None if the configuration file is broken.
    here: bool | None = True
    # If the type is not registered here: the faults here that may be why, except those that a tick has recorded. Each
    # item is a module or job type and the reason.
    not_loaded_here: tuple[tuple[str, str], ...] = ()
    file_fault: str | None = None  # what is wrong with the type's entry in that configuration
    # Whether this command could load everything that this host's ticks recorded as not loaded.
    loads_only_here: bool = False
    # If no host can run the type: the schedules that used it before they were removed from the file.
    removed_schedules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Excluded:
    """From ``since`` on, every tick that could have run the job had options that excluded it."""

    since: datetime
    options: tuple[tuple[str, str], ...]  # each item is a host and its options, such as "--queue mail"


@dataclass(frozen=True)
class OnlyElsewhere:
    """No ticking host can run the waiting job. ``host`` could run it, but last ticked ``at``.

    Both are None if no such host is known.
    """

    host: str | None = None
    at: datetime | None = None


@dataclass(frozen=True)
class Triggered:
    """A job of the schedule, triggered by hand. ``status`` is None if the job's row is gone."""

    job_id: int
    at: datetime
    by: str | None
    status: str | None = None
    finished_at: datetime | None = None
    dismissed: bool = False
    no_runner: bool = False  # whether the job is leased, but its runner died or hangs


@dataclass(frozen=True)
class DoubtfulEffect:
    """An effect that was repeated or skipped while its outcome was unknown.

    The attempt ``attempt`` was the last to begin the effect.
    """

    key: str
    attempt: int
    begun_at: datetime
    repeats: int  # how often this attempt and earlier attempts repeated the effect
    skipped: bool  # True if a later attempt counted the effect as done


@dataclass(frozen=True)
class DoneEffect:
    """An effect that was recorded as done. The attempt ``attempt`` was the last to begin the effect."""

    key: str
    attempt: int
    recorded_at: datetime


@dataclass(frozen=True)
class JobFacts:
    """A job's row and history. ``most``: how many tries the job has, or None if only the handler sets the number."""

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
    released_key: str | None = None  # the key that the job lost when it was cancelled
    key_owner: int | None = None  # the job that has the lost key now
    unfit_to_retry: str | None = None  # if the job is dead or cancelled: why it can never be retried
    schedule: str | None = None
    scheduled_for: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    last_error: str | None = None
    host: str | None = None  # the host that holds the job's lease
    by_hand: bool = False  # whether "cronjobs run" holds the job's lease
    locked_until: datetime | None = None
    cancel_requested_at: datetime | None = None
    dismissed: bool = False  # whether the job is dead and was dismissed
    doubtful: tuple[DoubtfulEffect, ...] = ()
    done: tuple[DoneEffect, ...] = ()  # if the job is dead or cancelled: effects that it has recorded as done
    # The key of an unsettled effect that the dead job died of, or that the job began before it was cancelled or
    # succeeded.
    unsettled: str | None = None
    # If the job did not succeed: later runs of its schedule that were triggered by hand, newest first.
    triggered: tuple[Triggered, ...] = ()
    acts: tuple[tuple[str, AuditEntry], ...] = ()  # what operators did to the job: cancel, retry, release …
    attempts: tuple[AttemptFacts, ...] = ()
    released: int = 0  # how many claims after the last recorded attempt were released before they began
    released_because: str | None = None  # why the last of these claims was released, if the runner gave a reason
    paused: PauseFacts | None = None  # the pause that holds back the waiting job
    # The pause that delayed the first attempt, and when the delay began.
    held: tuple[datetime, PauseFacts] | None = None
    quiet: tuple[datetime, datetime] | None = None  # the longest time without ticks, if it delayed the first attempt
    late_tries: tuple[LateTry, ...] = ()
    known: bool = True  # whether the job type is registered here
    timeout_s: float | None = None
    passed_over: NotStartedRecord | None = None
    killed: KilledTicks | None = None  # the killed ticks that could have started the first attempt
    type_facts: TypeFacts | None = None  # set if the job waits and its type is unknown here or to the ticks
    out_of_reach: Excluded | None = None
    only_elsewhere: OnlyElsewhere | None = None
    # If a clock that was ahead set the due time of the waiting job: the command that runs the job sooner.
    misdated: str | None = None
    misfit_since: datetime | None = None  # when a tick first found that the payload does not fit the handler
    limit: str | None = None  # a sentence about the reached limit that the job waits for
    reported: Reported | None = None  # the progress that the running attempt has reported
    runner_gone: bool = False  # whether this host can prove that the runner's process has ended
    # If the runner did not stop the running attempt in time: when it should have. Such a runner is dead or hangs.
    overrun_since: datetime | None = None
    # The cluster worker that runs the attempt. "" while the attempt waits for a worker.
    cluster_worker: str | None = None
    executor: str | None = None  # the executor of a waiting job's type
    turn_after: AwaitedJob | None = None
    ahead: JobsAhead | None = None
    # Only for a long job: how many long jobs a host may run at once.
    long_places: int | None = None


@dataclass(frozen=True)
class Now:
    """Facts that all questions of one command share."""

    now: datetime
    last_tick: TickFacts | None = None
    every: timedelta = timedelta(minutes=1)  # the time between two ticks that cron starts
    quiet_after: timedelta = timedelta(minutes=3)  # a time without ticks is a problem if it is longer than this
    succeeded_kept: timedelta = timedelta(days=14)
    dead_kept: timedelta = timedelta(days=90)
    ledger_kept: timedelta = timedelta(days=90)
    foreign: str | None = None  # why ticks with the configuration here refuse this database
    # Why this user's ticks on this host do not start, and how many did not.
    kept_from_starting: Causes = ()


@dataclass(frozen=True)
class Standing:
    """A schedule's present state: ``retired``, or active with a ``definition`` and the ``next`` occurrence."""

    retired: bool = False
    act: AuditEntry | None = None  # the action that retired the schedule
    definition: DefinitionFacts | None = None
    next: datetime | None = None
    pause: PauseFacts | None = None


@dataclass(frozen=True)
class OccurrenceFacts:
    """Facts about the occurrences from ``first_for`` to ``last_for`` (one instant if ``count`` is 1).

    If ``due`` is False, the schedule has no occurrence at that time. ``ledger`` is None if no row shows what became of
    the occurrences.
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
    # The definition that a later edit made without changing the times, if ticks apply or applied it to the occurrence.
    edited: DefinitionFacts | None = None
    settled_until: datetime | None = None  # the watermark: ticks have settled every occurrence up to this instant
    # True if the occurrence is unsettled although it is before the watermark. In that case a pause held the occurrence
    # back when its definition ended.
    owed: bool = False
    beyond_retention: bool = False
    ledger: LedgerFacts | None = None
    # These fields are about the instant itself.
    remark: str | None = None  # how a clock change affects the instant
    # The wall-clock time asked about, if it did not exist ("gap") or came twice ("doubled").
    asked: str | None = None
    clock_change: Literal["gap", "doubled"] | None = None
    previous: datetime | None = None
    next: datetime | None = None
    due_by: DefinitionFacts | None = None  # another definition of the schedule that has an occurrence at the instant
    # These fields are about the schedule's history.
    first_defined: AuditEntry | None = None
    retired: AuditEntry | None = None
    returned: AuditEntry | None = None
    renamed_from: str | None = None
    # The name that the file here gives to the schedule. No tick has applied that file yet.
    renamed_to: str | None = None
    standing: Standing | None = None  # set if the question did not name a time
    file_fault: str | None = None  # what is wrong with the schedule's entry in the file here
    renaming_entry: str | None = None  # the new name, if that broken entry renames the schedule
    in_file: bool = False  # whether the file here has the schedule for this environment
    # The environment here, if the file has the schedule only for other environments.
    elsewhere: str | None = None
    # These fields say who settled the occurrence, and when.
    settler: TickFacts | None = None  # None if an operator settled it, or if the tick's row is pruned
    # True if the clock of ``settler`` was ahead, and somebody had set it back before ``tick_after`` began.
    settled_ahead: bool = False
    tick_before: TickFacts | None = None
    tick_after: TickFacts | None = None
    # The pause that skipped the occurrence, or the last of the pauses that hold it back or held it back.
    pause: PauseFacts | None = None
    # The pause that skips the occurrence, although no tick has recorded that yet.
    skipped_by: PauseFacts | None = None
    held_before: tuple[PauseFacts, ...] = ()  # earlier pauses that held back the occurrence, oldest first
    # The job that the occurrence made, gave way to, or was coalesced into.
    job: JobFacts | None = None
    pruned_dead: datetime | None = None  # when retention removed the occurrence's dead job
    job_for: datetime | None = None  # the occurrence that ``job`` was made for
    stands_for: int = 1
    # If the occurrence has no job: later runs of the schedule that were triggered by hand, newest first.
    triggered: tuple[Triggered, ...] = ()

    @property
    def decided_by(self) -> DefinitionFacts | None:
        return self.edited or self.definition


@dataclass(frozen=True)
class OccurrenceOfJob:
    """A ledger row that names the job."""

    schedule: str
    timezone: str
    ledger: LedgerFacts


@dataclass(frozen=True)
class JobLife:
    """A job, or its ledger rows if its own row is gone."""

    job_id: int
    timezone: str
    around: Now
    job: JobFacts | None
    rows: tuple[OccurrenceOfJob, ...] = ()
    settler: TickFacts | None = None
    pruned_dead: datetime | None = None


@dataclass(frozen=True)
class Explanation:
    """An answer of ``explain``.

    ``brief``: the answer's text in a list. ``usual``: whether a list may merge the answer with its neighbours.
    ``facts``: the facts for programs.
    """

    subject: str
    at: datetime | None
    verdict: str
    sentences: tuple[str, ...]
    brief: str = ""
    usual: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


def plain(value: Any) -> Any:
    """Convert facts to JSON values. Drop fields that are None, False, 0, [] or {}. Time spans become seconds."""
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
