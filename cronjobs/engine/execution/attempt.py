"""Attempts of jobs on their way through this process: the state of each, and all that a loop has in flight."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from cronjobs.engine.execution.reporting import Reporting
from cronjobs.engine.jobs.checking import LONGEST_TIMEOUT
from cronjobs.engine.jobs.context import StopSignal
from cronjobs.engine.jobs.job_types import JobType
from cronjobs.engine.rules.lease import Lease, Report, lease_margin_s, lease_of
from cronjobs.engine.rules.misfits import MISFIT
from cronjobs.engine.rules.payload import payload_fault
from cronjobs.model import Failed, Finished, Job, Outcome
from cronjobs.text import ERROR_LIMIT, one_line

if TYPE_CHECKING:
    from cronjobs.engine.config.settings import Settings
    from cronjobs.engine.database.connection import Database

PROCESS_GRACE: Final = timedelta(seconds=2)  # from SIGTERM to SIGKILL at the time-out of a process
TO_START: Final = timedelta(seconds=5)  # an interpreter, for a job that has its own only because its type crashed
PROCESS_SLACK: Final = PROCESS_GRACE + timedelta(seconds=6)  # for process.py to end it: TERM, KILL, report
ISOLATED_FROM_LOSSES: Final = 2  # runners that died holding the job; then it gets its own process
# Only a deploy mends a handler that returns a generator: wait long enough for one.
MISMATCH_DELAY: Final = timedelta(minutes=5)
READABLE_TIMEOUT_S: Final = 1e8  # plain SQL can write any number, and a timedelta cannot hold it


@dataclass(frozen=True)
class WorkerContext:
    """What all attempts of a process share. ``on_output`` shows their output live to a person.

    ``on_start`` and ``on_end`` are called in the worker's thread, around the attempt's code. ``environ`` is what
    commands and processes get: the variables as they were before the first handler, which may change them.
    """

    settings: Settings
    database: Database | None = None
    on_output: Callable[[str], None] | None = None
    on_start: Callable[[Job], None] | None = None
    on_end: Callable[[Finished], None] | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


class _Course:
    """How far an attempt has come: what none has when it is made, so that a drain does not assign it each time."""

    leased_at: float = 0.0  # when the statement was sent that last extended the lease
    on_its_way: bool = False  # a worker or a process has it and will report its end
    handed_over: bool = False  # a process of its own is to adopt it and will outlive the tick
    succeeded: bool = False  # its handler ended it in a transaction: no lease is left, its code may still run
    begun: bool = False  # its own code may have run: from now on it is charged for failures
    let_go: threading.Event | None = None  # with durable: each, for the worker to wait until its end is committed
    recorded: str | None = None  # the outcome recorded in its history row while its thread still runs
    recorded_at: float = 0.0


@dataclass
class Attempt(_Course):
    """A claimed job on its way through this process. Instants are of the monotonic clock; None: not yet.

    ``in_child_process``: whether its handler gets its own process; None: if its type says so, or after too many losses.
    """

    job: Job
    job_type: JobType
    timeout: timedelta
    in_child_process: bool | None = None
    stop: StopSignal = field(default_factory=StopSignal)
    worker: str = ""
    claimed: float = 0.0
    started: float | None = None
    lease_s: float = 0.0  # length of the lease from ``leased_at`` on; 0: the attempt need not watch it
    reporting: Reporting = field(default_factory=Reporting)

    @property
    def lease(self) -> Lease:
        return lease_of(self.job)

    @property
    def is_command(self) -> bool:
        return self.job_type.command is not None

    @property
    def has_process(self) -> bool:
        """Whether it runs outside this process, so that it can be killed for certain."""
        if self.is_command or self.in_child_process is not None:
            return self.is_command or bool(self.in_child_process)
        return self.job_type.isolation == "process" or self.job.losses >= ISOLATED_FROM_LOSSES

    @property
    def waits_on_a_cluster(self) -> bool:
        """Whether a cluster has it and no worker there has begun it, which may take minutes."""
        return self.started is None and self.job_type.executor is not None

    @property
    def to_start(self) -> timedelta:
        """Time to start that does not count against the timeout: an interpreter may need seconds, a thread none."""
        return TO_START if self.job_type.for_crashes and self.has_process else timedelta(0)

    @property
    def safe_until(self) -> float:
        """Until when (monotonic) its code may run if the lease is not renewed; each renewal moves it."""
        return self.leased_at + self.lease_s - lease_margin_s(self.lease_s) if self.lease_s else math.inf

    @property
    def overdue_at(self) -> float:
        """When its code should have ended by itself."""
        if self.started is None:
            return math.inf
        slack = PROCESS_SLACK + self.to_start if self.has_process else timedelta(0)
        return self.started + (self.timeout + slack).total_seconds()

    def refusal(self) -> Outcome | None:
        """The failure if the row itself is unusable, which plain SQL can make it; None: it can run."""
        fault = payload_fault(self.job.payload)
        if fault:
            return Failed(fault, "PayloadError", permanent=True)
        if self.timeout > LONGEST_TIMEOUT:
            said = f"timeout_s {self.timeout.total_seconds():g} is more than the longest timeout, 30 days"
            return Failed(said, "TimeoutError", permanent=True)
        registration = self.job_type.registration
        fault = registration.bind_names(self.job.payload) if registration is not None else None
        return mismatch(fault) if fault else None


def mismatch(fault: str) -> Failed:
    """The outcome if the payload does not fit the handler, by name or by type: perhaps it fits the next version."""
    return Failed(one_line(fault, ERROR_LIMIT), MISFIT)


def timeout_of(job: Job, job_type: JobType) -> timedelta:
    """The row's own timeout, else the type's."""
    if job.timeout_s is None:
        return job_type.timeout
    return timedelta(seconds=min(READABLE_TIMEOUT_S, job.timeout_s))  # NaN too gives the first


class Ended(NamedTuple):
    """An attempt's end on its way to the loop, and when it ended (monotonic).

    ``answer``: the word of the process that a long job was handed to; None: the job ran here.
    """

    attempt: Attempt
    finished: Finished
    at: float
    answer: str | None = None


@dataclass
class InFlight:
    """What a loop is working on: the leases it has, and what it has not yet written about them.

    Instants are seconds of the monotonic clock. Every turn asks for what has not ended, of hundreds that are held.
    """

    held: dict[int, Attempt] = field(default_factory=dict)  # every leased attempt, by job id
    working: dict[int, Attempt] = field(default_factory=dict)  # those of them that have not ended
    without_lease: list[Attempt] = field(default_factory=list)  # the thread still runs, and keeps its slot
    unwritten: list[Ended] = field(default_factory=list)
    unrecorded: list[Attempt] = field(default_factory=list)  # overdue; their history row is not written yet
    given_up: set[Lease] = field(default_factory=set)  # lost, or the end is refused in any form: they run out

    def take(self, attempt: Attempt, sent: float) -> None:
        if attempt.job_type.durable == "each":
            attempt.let_go = threading.Event()
        self.held[attempt.job.id] = self.working[attempt.job.id] = attempt
        attempt.leased_at = sent

    def end(self, ended: Ended) -> None:
        """Note an end, which is to be written."""
        self.unwritten.append(ended)
        self.working.pop(ended.attempt.job.id, None)

    def renewed(self, job_ids: Collection[int], sent: float) -> None:
        for job_id in job_ids & self.held.keys():
            self.held[job_id].leased_at = sent

    def leases(self) -> list[Lease]:
        return [attempt.lease for attempt in self.held.values()]

    def reports(self, secrets: frozenset[str]) -> dict[int, Report]:
        """What running attempts have reported since it was last written, by job id."""
        found = {}
        for job_id, attempt in self.working.items():
            news = attempt.reporting.news(attempt.lease, attempt.claimed, secrets)
            if news is not None:
                found[job_id] = news
        return found

    def reported(self, reports: Iterable[Report]) -> None:
        """The rows have these."""
        for report in reports:
            attempt = self.held.get(report.lease.job_id)
            if attempt is not None:
                attempt.reporting.written(report)

    def first_leased(self, *, working: bool = False) -> float:
        """When the lease that ends first was last extended, of all or of what has not ended; infinity: of none."""
        # A copy: the signal handler may call this while the loop changes the dict.
        attempts = list((self.working if working else self.held).values())
        return min([attempt.leased_at for attempt in attempts], default=math.inf)

    def holds(self, attempt: Attempt) -> bool:
        return self.held.get(attempt.job.id) is attempt

    def has_ended(self, attempt: Attempt) -> bool:
        """Whether the end of an attempt that is held waits to be written."""
        return attempt.job.id not in self.working

    def forget(self, job_id: int) -> None:
        self.working.pop(job_id, None)
        attempt = self.held.pop(job_id, None)
        if attempt is not None and attempt.let_go is not None:
            attempt.let_go.set()

    def lose(self, job_id: int) -> Attempt:
        """Drop a lost lease and what was to be written about it; its thread may still run."""
        attempt = self.held[job_id]
        ended = self.has_ended(attempt)
        self.given_up.add(attempt.lease)
        self.forget(job_id)
        self.unwritten = [end for end in self.unwritten if end.attempt is not attempt]
        if attempt.started is not None and not ended and not attempt.handed_over:
            self.without_lease.append(attempt)
        return attempt

    def drop(self, ended: Ended) -> None:
        """The database takes this end in no form."""
        self.unwritten = [other for other in self.unwritten if other is not ended]
        self.given_up.add(ended.attempt.lease)
        self.forget(ended.attempt.job.id)

    def end_itself(self, job_id: int) -> None:
        """Drop a job that its handler ended in its own transaction; the handler may still run, and keeps its slot."""
        attempt = self.held[job_id]
        attempt.succeeded, attempt.leased_at = True, attempt.overdue_at
        if not self.has_ended(attempt):
            self.without_lease.append(attempt)
        self.forget(job_id)

    def running_on(self, now: float) -> list[Attempt]:
        """Attempts that recorded their own success and whose handler is still within its timeout."""
        return [attempt for attempt in self.without_lease if attempt.succeeded and now < attempt.overdue_at]

    def settle(self, job_ids: Collection[int]) -> None:
        """These ends are written, or need not be written any more."""
        self.unwritten = [end for end in self.unwritten if end.attempt.job.id not in job_ids]

    def recorded(self, job_ids: Collection[int]) -> None:
        """The history rows of these overdue attempts are written."""
        self.unrecorded = [a for a in self.unrecorded if a.job.id not in job_ids and a.job.id in self.held]

    def came_back(self, attempt: Attempt) -> None:
        if self.without_lease:
            self.without_lease = [other for other in self.without_lease if other is not attempt]

    def busy(self) -> list[Attempt]:
        """Attempts that are claimed and have not ended, started or not, except those being handed over to a process."""
        return [attempt for attempt in self.working.values() if not attempt.handed_over]

    def handing_over(self) -> list[Attempt]:
        """Attempts whose own process has not answered yet."""
        return [attempt for attempt in self.working.values() if attempt.handed_over]
