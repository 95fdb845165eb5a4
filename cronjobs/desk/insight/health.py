"""How the system does, as ``gathering`` finds it: ``findings`` says what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from cronjobs.desk.insight.check_config import NeverBegins
from cronjobs.desk.insight.findings_of_extras import Told
from cronjobs.desk.insight.out_of_reach import BeyondOptions
from cronjobs.desk.insight.slow_runs import SlowRun
from cronjobs.desk.insight.waiting import LateGroup, Queue, Stranded
from cronjobs.desk.insight.watched import Watched
from cronjobs.engine.jobs.job_types import Fault
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.rules.crashing_types import Crashing
from cronjobs.engine.store.acks import StoredAck
from cronjobs.engine.store.failing_types import FailingType
from cronjobs.engine.store.misfits import WaitingMisfits
from cronjobs.engine.store.schedule_health import Survey
from cronjobs.errors import Problem


@dataclass(frozen=True)
class Health:
    """The facts, some as plain rows. ``late`` counts only jobs that could run.

    Those are of known types, not paused, and wait neither for a limit nor for another job of their schedule.
    Of very many queues and unknown types the rest is counted: see ``QueueFacts``.
    """

    now: datetime
    project: str
    environment: str
    schema_revision: str
    ticks: list[dict[str, Any]]  # the last of each host, newest first
    running: list[dict[str, Any]]  # the longest first, at most gathering.RUNNING_SHOWN
    running_total: int
    overdue: int
    queues: dict[str, Queue]
    oldest_due_at: datetime | None
    late_since: datetime | None  # when the first of those that are late became late
    unresolved: dict[str, int]  # due jobs by a type that no tick knew lately
    dead: dict[str, int]
    pauses: list[dict[str, Any]]
    schedules: Survey
    next: list[tuple[datetime, str]]  # which schedules fire when, at most gathering.NEXT_SHOWN
    faults: tuple[Fault, ...] = field(default=())
    schedule_misfits: list[tuple[str, Problem]] = field(default_factory=list)  # by job type: payloads of the file here
    never_begin: list[NeverBegins] = field(default_factory=list)  # timeouts of the file here that no tick has room for
    judged_by_ticks: bool = False  # types are judged by what ticks knew; else by what is registered here
    unknown_schedules: dict[str, list[str]] = field(default_factory=dict)  # active ones, by such a type
    unknown_since: dict[str, datetime] = field(default_factory=dict)  # since when work of such a type waits
    gone: dict[str, datetime] = field(default_factory=dict)  # when the first tick did not know such a type any more
    out_of_reach: list[BeyondOptions] = field(default_factory=list)
    late: list[LateGroup] = field(default_factory=list)  # but those that are out of reach
    stranded: list[Stranded] = field(default_factory=list)  # of these, whose types no host that ticks now can run
    slower: list[SlowRun] = field(default_factory=list)
    silent: dict[str, datetime] = field(default_factory=dict)  # steady hosts that stopped ticking: since when
    slow: dict[str, timedelta] = field(default_factory=dict)  # job types whose typical run is too long for the lease
    limited: dict[Limit, int] = field(default_factory=dict)  # reached limits: how many due jobs wait for each
    crashing: list[Crashing] = field(default_factory=list)  # job types that run in child processes because they crash
    failing_types: list[FailingType] = field(default_factory=list)
    misfits: list[WaitingMisfits] = field(default_factory=list)  # by job type
    watch: Watched = field(default_factory=Watched)
    acks: dict[str, StoredAck] = field(default_factory=dict)  # in force, by the finding's key
    told: Told = field(default_factory=Told)  # by extras

    others: Queue = field(default_factory=Queue)
    more_queues: int = 0
    more_types: int = 0
    more_unresolved: int = 0
    more_late: int = 0

    @property
    def late_groups(self) -> set[tuple[str, str]]:
        """The queues and types of late jobs."""
        return {(each.queue, each.job_type) for each in self.late}

    def total(self, what: str) -> int:
        return sum(getattr(queue, what) for queue in (*self.queues.values(), self.others))
