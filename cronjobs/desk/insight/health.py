"""The facts that ``gathering`` reads and ``findings`` judges."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from cronjobs.desk.insight.check_config import TimeoutTooLong
from cronjobs.desk.insight.excluded_jobs import BeyondOptions
from cronjobs.desk.insight.findings_of_extras import Findings
from cronjobs.desk.insight.slow_runs import SlowRun
from cronjobs.desk.insight.waiting import LateGroup, Queue, StrandedJobs
from cronjobs.desk.insight.watched import Watched
from cronjobs.desk.store.failing_types import FailingType
from cronjobs.desk.store.schedule_health import ScheduleSurvey
from cronjobs.engine.jobs.job_types import Fault
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.rules.crashing_types import Crashing
from cronjobs.engine.store.acks import StoredAck
from cronjobs.engine.store.misfits import WaitingMisfits
from cronjobs.errors import Problem


@dataclass(frozen=True)
class Health:
    """The facts, some of them as plain rows. ``late`` counts only jobs that could run.

    A job could run if its type is known, its queue is not paused, and it waits neither for a limit nor for another job
    of its schedule. If there are very many queues or unknown types, only some are listed: see ``QueueFacts``.
    """

    now: datetime
    project: str
    environment: str
    schema_revision: str
    ticks: list[dict[str, Any]]  # the last tick of each host, newest first
    running: list[dict[str, Any]]  # longest running first, at most gathering.RUNNING_SHOWN
    running_total: int
    overdue: int
    queues: dict[str, Queue]
    oldest_due_at: datetime | None
    late_since: datetime | None  # when the oldest late job became late
    unresolved: dict[str, int]  # type that no recent tick knew → due jobs
    dead: dict[str, int]
    pauses: list[dict[str, Any]]
    schedules: ScheduleSurvey
    next: list[tuple[datetime, str]]  # the schedules to fire next, at most gathering.NEXT_SHOWN
    faults: tuple[Fault, ...] = field(default=())
    schedule_misfits: list[tuple[str, Problem]] = field(default_factory=list)  # job type, misfit in the file here
    never_begin: list[TimeoutTooLong] = field(default_factory=list)  # timeouts in the file here that fit no tick
    judged_by_ticks: bool = False  # what is unknown: by the types that ticks recorded, else by this process's
    unknown_schedules: dict[str, list[str]] = field(default_factory=dict)  # unknown type → active schedules
    unknown_since: dict[str, datetime] = field(default_factory=dict)  # unknown type → since when its work has waited
    gone: dict[str, datetime] = field(default_factory=dict)  # unknown type → when a tick first lacked it
    out_of_reach: list[BeyondOptions] = field(default_factory=list)
    late: list[LateGroup] = field(default_factory=list)  # except those out of reach
    stranded: list[StrandedJobs] = field(default_factory=list)  # late jobs that none of the hosts now ticking can run
    slower: list[SlowRun] = field(default_factory=list)
    silent: dict[str, datetime] = field(default_factory=dict)  # steady host that stopped ticking → since when
    slow: dict[str, timedelta] = field(default_factory=dict)  # job type → typical run, too long for the lease
    limited: dict[Limit, int] = field(default_factory=dict)  # reached limit → due jobs that wait for it
    limits_a_minute: dict[Limit, float] = field(default_factory=dict)  # limit → jobs that succeed
    crashing: list[Crashing] = field(default_factory=list)  # job types that run in child processes because they crash
    failing_types: list[FailingType] = field(default_factory=list)
    misfits: list[WaitingMisfits] = field(default_factory=list)  # by job type
    watch: Watched = field(default_factory=Watched)
    acks: dict[str, StoredAck] = field(default_factory=dict)  # finding's key → ack in force
    of_extras: Findings = field(default_factory=Findings)  # findings of extras

    others: Queue = field(default_factory=Queue)
    more_queues: int = 0
    more_types: int = 0
    more_unresolved: int = 0
    more_late: int = 0

    @property
    def late_groups(self) -> set[tuple[str, str]]:
        """Return each pair of a queue and a job type that has late jobs."""
        return {(each.queue, each.job_type) for each in self.late}

    @property
    def dismissed_words(self) -> str:
        """Return what to add to the number of all dead jobs if a person has dealt with every one of them, else ""."""
        if not self.dead["total"] or self.watch.deaths.count:
            return ""
        return ", dismissed" if self.dead["total"] == 1 else ", all dismissed"

    def total(self, what: str) -> int:
        return sum(getattr(queue, what) for queue in (*self.queues.values(), self.others))
