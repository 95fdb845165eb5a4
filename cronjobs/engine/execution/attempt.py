"""The attempts in this process: the state of each attempt, and the attempts for which a loop is responsible."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cronjobs.engine.execution.reporting import Reporting
from cronjobs.engine.jobs.checking import LONGEST_TIMEOUT
from cronjobs.engine.jobs.context import StopSignal
from cronjobs.engine.jobs.job_types import PROCESS_GRACE, JobType
from cronjobs.engine.rules.lease import Lease, Report, lease_margin_s, lease_of
from cronjobs.engine.rules.misfits import MISFIT
from cronjobs.engine.rules.payload import payload_fault
from cronjobs.model import Failed, Finished, Job, Outcome
from cronjobs.text import ERROR_LIMIT, one_line

if TYPE_CHECKING:
    from cronjobs.engine.config.settings import Settings
    from cronjobs.engine.database.connection import Database

# A job that gets its own process only because runners died gets this extra time for an interpreter to start.
TO_START: Final = timedelta(seconds=5)
# The time that process.py needs to end a process: to send SIGTERM, then SIGKILL, and to read the report.
PROCESS_SLACK: Final = PROCESS_GRACE + timedelta(seconds=6)
# If this many runners have died while they held a job, the job gets its own process.
ISOLATED_FROM_LOSSES: Final = 2
# Wait at least this long before retrying a failure that needs a deploy, such as a handler that returned a generator.
MISMATCH_DELAY: Final = timedelta(minutes=5)
# A longer timeout is cut to this many seconds, because plain SQL can write a number that a timedelta cannot hold.
READABLE_TIMEOUT_S: Final = 1e8


@dataclass(frozen=True)
class WorkerContext:
    """What all attempts of a process share. ``on_output`` shows a person the attempts' output live.

    The worker's thread calls ``on_start`` and ``on_end`` around the attempt's code. ``environ`` contains the variables
    that commands and child processes get. These are copied before the first handler runs, because handlers may change
    os.environ. ``run_async`` runs an async handler's coroutine.
    """

    settings: Settings
    database: Database | None = None
    on_output: Callable[[str], None] | None = None
    on_start: Callable[[Attempt], None] | None = None
    on_end: Callable[[Finished], None] | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    run_async: Callable[[Coroutine[Any, Any, Any]], Any] | None = None  # None means asyncio.run


class Phase(Enum):
    """The phases of an attempt in this process. Only ``InFlight.move`` changes a phase, on the loop's thread."""

    HELD = "held"  # leased. A worker is running the attempt, or will run it
    # Leased. The loop has asked the job's own process to adopt the job, and has no answer yet.
    HANDING_OVER = "handing over"
    OVERDUE = "overdue"  # leased. A timeout or an interruption is recorded, but the attempt's thread is still running
    ENDED = "ended"  # leased. The attempt's end still has to be written
    # Without a lease. The handler has recorded the success in its own transaction, and is still running.
    RUNS_ON = "runs on"
    RETURNED = "returned"  # the handler has recorded the success and has returned. The end still has to be reported
    LOST = "lost"  # without a lease. The lease was lost, but the attempt's thread is still running
    GONE = "gone"


_NEXT: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.HELD: frozenset(Phase) - {Phase.HELD, Phase.RETURNED},
    Phase.HANDING_OVER: frozenset({Phase.ENDED, Phase.GONE}),
    Phase.OVERDUE: frozenset({Phase.ENDED, Phase.RUNS_ON, Phase.LOST}),
    Phase.ENDED: frozenset({Phase.RETURNED, Phase.GONE}),
    Phase.RUNS_ON: frozenset({Phase.RETURNED}),
    Phase.RETURNED: frozenset({Phase.GONE}),
    Phase.LOST: frozenset({Phase.GONE}),
    Phase.GONE: frozenset(),
}
_LEASED: Final = (Phase.HELD, Phase.HANDING_OVER, Phase.OVERDUE, Phase.ENDED)
_AT_WORK: Final = (Phase.HELD, Phase.OVERDUE)
_HAS_ENDED: Final = (Phase.ENDED, Phase.RETURNED)
_WITHOUT_LEASE: Final = (Phase.RUNS_ON, Phase.LOST)


@dataclass(eq=False)
class Attempt:
    """A claimed job on its way through this process. Instants are seconds of the monotonic clock.

    ``in_child_process`` says whether the handler gets its own process. None means that the handler gets a process if
    its job type says so, or if too many runners died while they held the job.
    """

    job: Job
    job_type: JobType
    timeout: timedelta
    in_child_process: bool | None = None
    stop: StopSignal = field(default_factory=StopSignal)
    claimed: float = 0.0  # when the claim was sent to the database
    # The length of the lease, which starts at ``leased_at``. 0 means that the attempt need not watch its lease.
    lease_s: float = 0.0
    reporting: Reporting = field(default_factory=Reporting)

    # Only the loop writes these fields.
    phase: Phase = Phase.HELD
    leased_at: float = 0.0  # when the last statement that extended the lease was sent
    taken: float = 0.0  # when the loop got the database's answer to the claim
    # The outcome that was recorded in the attempt's history row while the attempt's thread was still running.
    recorded: str | None = None
    recorded_at: float = 0.0
    is_row_due: bool = False  # True if the history row with ``recorded`` still has to be written
    stack: str | None = None  # the stack of the attempt's thread when the loop noted the timeout

    # Only the attempt's worker writes these fields.
    worker: str = ""
    on_its_way: bool = False  # True if a worker or a process has taken the attempt and will report its end
    handed_over: bool = False  # True if a separate process was asked to adopt the job. That process may have adopted it
    started: float | None = None
    thread: int | None = None  # the thread that is running the attempt's handler now
    begun: bool = False  # True if the job's own code may have run. Then a failure uses up a try
    # With ``durable: each``, the worker waits for this event. It is set when the attempt's end has been committed.
    let_go: threading.Event | None = None

    @property
    def lease(self) -> Lease:
        return lease_of(self.job)

    @property
    def is_leased(self) -> bool:
        return self.phase in _LEASED

    @property
    def has_ended(self) -> bool:
        """Whether the attempt's end still has to be written or reported."""
        return self.phase in _HAS_ENDED

    @property
    def ended_itself(self) -> bool:
        """Whether the handler recorded the success in its own transaction. Its code may still run, without a lease."""
        return self.phase in (Phase.RUNS_ON, Phase.RETURNED)

    @property
    def is_command(self) -> bool:
        return self.job_type.command is not None

    @property
    def has_process(self) -> bool:
        """Whether the attempt runs outside this process, so that it can certainly be killed."""
        if self.is_command or self.in_child_process is not None:
            return self.is_command or bool(self.in_child_process)
        return self.job_type.isolation == "process" or self.job.losses >= ISOLATED_FROM_LOSSES

    @property
    def waits_on_a_cluster(self) -> bool:
        """Whether the job is waiting on a cluster, where no worker has started it yet. Such a wait may take minutes."""
        return self.started is None and self.job_type.executor is not None

    @property
    def to_start(self) -> timedelta:
        """The extra time for an interpreter to start, which may take seconds. It does not count against the timeout.

        It is 0 unless the process is our own precaution. If the user asked for the process, the timeout includes the
        start.
        """
        declared = self.is_command or self.job_type.isolation == "process"
        ours = self.job_type.for_crashes or not declared
        return TO_START if ours and self.has_process else timedelta(0)

    @property
    def safe_until(self) -> float:
        """The instant of the monotonic clock by which the attempt's code must stop, unless its lease is renewed."""
        return self.leased_at + self.lease_s - lease_margin_s(self.lease_s) if self.lease_s else math.inf

    @property
    def overdue_at(self) -> float:
        """The instant by which the attempt's code should have finished on its own."""
        if self.started is None:
            return math.inf
        slack = PROCESS_SLACK + self.to_start if self.has_process else timedelta(0)
        return self.started + (self.timeout + slack).total_seconds()

    def refusal(self) -> Outcome | None:
        """Return a failure if plain SQL made the row unusable, or the payload does not fit the handler, else None."""
        fault = payload_fault(self.job.payload)
        if fault:
            return Failed(fault, "PayloadError", permanent=True)
        if self.timeout > LONGEST_TIMEOUT:
            # ``timeout`` is not the number in the row if that number is too large for a timedelta.
            timeout_s = self.job.timeout_s or self.timeout.total_seconds()
            said = f"timeout_s {timeout_s:.15g} is more than the longest timeout, 30 days"
            return Failed(said, "TimeoutError", permanent=True)
        registration = self.job_type.registration
        fault = registration.bind_names(self.job.payload) if registration is not None else None
        return mismatch(fault) if fault else None


def mismatch(fault: str) -> Failed:
    """Return the outcome for a payload that does not fit the handler. Newer code may accept the payload, so the job is
    retried.
    """
    return Failed(one_line(fault, ERROR_LIMIT), MISFIT)


def timeout_of(job: Job, job_type: JobType) -> timedelta:
    """Return the timeout in the job's row, or the job type's timeout if the row has none."""
    if job.timeout_s is None:
        return job_type.timeout
    # If the row's timeout is NaN, min() returns READABLE_TIMEOUT_S.
    return timedelta(seconds=min(READABLE_TIMEOUT_S, job.timeout_s))


class Ended(NamedTuple):
    """The end of an attempt, as a worker or a process reports it to the loop. ``at`` is on the monotonic clock.

    If a long job was handed to a process, ``answer`` is that process's answer. ``answer`` is None if the job ran in
    this process.
    """

    attempt: Attempt
    finished: Finished
    at: float
    answer: str | None = None


@dataclass
class InFlight:
    """The work of a loop: the leases it holds, and the ends it has not written yet.

    Instants are seconds of the monotonic clock. ``held`` has every leased attempt, by job id. ``without_lease`` has the
    attempts without a lease whose thread still runs and occupies a worker. ``unwritten`` has the ends to write, in
    order of arrival. ``given_up`` has leases that must expire, so nobody may renew them: lost leases, and leases of
    attempts whose end the database refuses in every form.
    """

    held: dict[int, Attempt] = field(default_factory=dict)
    without_lease: list[Attempt] = field(default_factory=list)
    unwritten: dict[Attempt, Ended] = field(default_factory=dict)
    given_up: set[Lease] = field(default_factory=set)

    def take(self, attempt: Attempt) -> None:
        """Add a newly claimed attempt to ``held``."""
        if attempt.job_type.durable == "each":
            attempt.let_go = threading.Event()
        attempt.leased_at = attempt.claimed
        self.held[attempt.job.id] = attempt

    def move(self, attempt: Attempt, phase: Phase) -> None:
        """Put *attempt* into *phase*. Raises RuntimeError if that phase cannot follow the attempt's present phase."""
        before = attempt.phase
        if phase not in _NEXT[before]:
            raise RuntimeError(f"job {attempt.job.id}: an attempt that is {before.value} cannot be {phase.value}")
        if before in _WITHOUT_LEASE or phase in _WITHOUT_LEASE:
            others = [other for other in self.without_lease if other is not attempt]
            self.without_lease = [*others, attempt] if phase in _WITHOUT_LEASE else others
        attempt.phase = phase
        if phase is Phase.GONE:
            self.unwritten.pop(attempt, None)
        if before in _LEASED and phase not in _LEASED:
            del self.held[attempt.job.id]
            if attempt.let_go is not None:
                attempt.let_go.set()

    def end(self, ended: Ended) -> None:
        """Keep the end of an attempt until it is written."""
        attempt = ended.attempt
        phase = Phase.ENDED if attempt.is_leased else Phase.RETURNED
        if phase in _NEXT[attempt.phase]:
            # Keep the end before the move, because an unexpected error may occur between the two steps.
            self.unwritten[attempt] = ended
        self.move(attempt, phase)

    def note_overdue(self, attempt: Attempt, outcome: str, now: float) -> None:
        """Note that the attempt's thread should have stopped, but still runs. Its history row will say *outcome*."""
        attempt.recorded, attempt.recorded_at, attempt.is_row_due = outcome, now, True
        self.move(attempt, Phase.OVERDUE)

    def lose(self, attempt: Attempt) -> None:
        """Drop an attempt whose lease is lost, and its unwritten end. Its thread may still be running."""
        self.given_up.add(attempt.lease)
        runs = attempt.started is not None and attempt.phase in _AT_WORK
        self.move(attempt, Phase.LOST if runs else Phase.GONE)

    def end_itself(self, attempt: Attempt) -> None:
        """Note that the handler ended the job in its own transaction. While it runs, its worker stays occupied."""
        attempt.leased_at = attempt.overdue_at
        self.move(attempt, Phase.RETURNED if attempt.phase is Phase.ENDED else Phase.RUNS_ON)

    def drop(self, attempt: Attempt) -> None:
        """Drop an attempt whose end the database refuses in every form."""
        self.given_up.add(attempt.lease)
        self.move(attempt, Phase.GONE)

    def leases(self) -> list[Lease]:
        return [attempt.lease for attempt in self.held.values()]

    def renewed(self, job_ids: Collection[int], sent: float, reports: Mapping[int, Report]) -> None:
        """Note that these leases have been renewed, and that the jobs' *reports* have been written with them."""
        for job_id in job_ids & self.held.keys():
            attempt = self.held[job_id]
            attempt.leased_at = sent
            if job_id in reports:
                attempt.reporting.written(reports[job_id])

    def first_leased(self, *, working: bool = False) -> float:
        """Return when the held lease that will expire first was last extended, or infinity if no lease is held.

        If *working* is True, consider only attempts that have not ended.
        """
        # Iterate over a copy, because the signal handler may call this while the loop changes the dict.
        attempts = list(self.held.values())
        return min([each.leased_at for each in attempts if not (working and each.has_ended)], default=math.inf)

    def busy(self) -> list[Attempt]:
        """Return the leased attempts that have not ended, started or not, except those that are being handed over."""
        return [each for each in self.held.values() if each.phase in _AT_WORK]

    def handing_over(self) -> list[Attempt]:
        """Return the attempts of long jobs that are being handed over: the job's own process has not answered yet."""
        return [each for each in self.held.values() if each.phase is Phase.HANDING_OVER]

    def running_on(self, now: float) -> list[Attempt]:
        """Return the attempts whose handler has recorded its own success, and is still running within its timeout."""
        return [each for each in self.without_lease if each.phase is Phase.RUNS_ON and now < each.overdue_at]

    def unrecorded(self) -> list[Attempt]:
        """Return the overdue attempts whose history rows are not written yet."""
        return [each for each in self.held.values() if each.is_row_due]

    def recorded(self, job_ids: Collection[int]) -> None:
        """Note that the history rows of these overdue attempts have been written."""
        for job_id in job_ids & self.held.keys():
            self.held[job_id].is_row_due = False

    def reports(self, secrets_of: Callable[[Job], frozenset[str]]) -> dict[int, Report]:
        """Return, by job id, what running attempts have reported since their reports were last written."""
        found = {}
        for job_id, attempt in self.held.items():
            if attempt.has_ended:
                continue
            if news := attempt.reporting.news(attempt.lease, attempt.claimed, secrets_of(attempt.job)):
                found[job_id] = news
        return found
