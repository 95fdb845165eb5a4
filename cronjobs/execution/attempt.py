"""An attempt of a job on its way through this process: its state, and how long it may take."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from cronjobs.jobs.context import StopSignal
from cronjobs.jobs.job_types import JobType
from cronjobs.model import (
    Finished,
    Job,
)
from cronjobs.rules.lease import lease_margin_s

if TYPE_CHECKING:
    from cronjobs.config.settings import Settings
    from cronjobs.database.connection import Database

PROCESS_GRACE: Final = timedelta(seconds=2)  # from SIGTERM to SIGKILL at the time-out of a process
TO_START: Final = timedelta(seconds=5)  # an interpreter, for a job that has its own only because its type crashed
PROCESS_SLACK: Final = PROCESS_GRACE + timedelta(seconds=6)  # for process.py to end it: TERM, KILL, report
ISOLATED_FROM_LOSSES: Final = 2  # runners that died holding the job; then it gets its own process


@dataclass(frozen=True)
class WorkerContext:
    """What all attempts of a process share. ``on_output`` shows their output live to a person."""

    settings: Settings
    database: Database | None = None
    on_output: Callable[[str], None] | None = None


@dataclass
class Attempt:
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
    leased_at: float = 0.0
    on_its_way: bool = False  # a worker or a process has it and will report its end
    handed_over: bool = False  # a process of its own is to adopt it and will outlive the tick
    succeeded: bool = False  # its handler ended it in a transaction: no lease is left, its code may still run
    begun: bool = False  # its own code may have run: from now on it is charged for failures
    recorded: str | None = None  # the outcome recorded in its history row while its thread still runs
    recorded_at: float = 0.0

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
        slack = PROCESS_SLACK + self.to_start if self.has_process else timedelta(0)
        return math.inf if self.started is None else self.started + (self.timeout + slack).total_seconds()


@dataclass(frozen=True)
class Ended:
    """An attempt's end on its way to the loop, and when it ended (monotonic).

    ``answer``: the word of the process that a long job was handed to; None: the job ran here.
    """

    attempt: Attempt
    finished: Finished
    at: float
    answer: str | None = None
