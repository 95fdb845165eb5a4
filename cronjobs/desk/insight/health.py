"""The facts that ``gathering`` reads and ``findings`` judges."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from cronjobs.desk.insight.check_config import TimeoutTooLong
from cronjobs.desk.insight.findings_of_extras import Findings
from cronjobs.desk.insight.kept_from_starting import Causes, others_work
from cronjobs.desk.insight.slow_runs import SlowRun
from cronjobs.desk.insight.waiting import QueueFacts, StrandedJobs
from cronjobs.desk.insight.watched import Watched, last_ticking, ticking
from cronjobs.desk.rules.tick_rows import was_importing
from cronjobs.desk.store.failing_types import FailingType
from cronjobs.desk.store.schedule_health import ScheduleSurvey
from cronjobs.engine.jobs.job_types import Fault
from cronjobs.engine.rules.crashing_types import Crashing
from cronjobs.engine.store.acks import StoredAck
from cronjobs.engine.store.misfits import WaitingMisfits
from cronjobs.errors import Problem


@dataclass(frozen=True)
class Health:
    """Facts about the whole system."""

    now: datetime
    project: str
    environment: str
    schema_revision: str
    ticks: list[dict[str, Any]]  # the last tick of each host, newest first
    # The jobs that have been running for longest come first. There are at most gathering.RUNNING_SHOWN.
    running: list[dict[str, Any]]
    running_total: int
    overdue: int
    waiting: QueueFacts
    dead: dict[str, int]
    pauses: list[dict[str, Any]]
    schedules: ScheduleSurvey
    # The schedules to fire next. There are at most gathering.NEXT_SHOWN.
    next: list[tuple[datetime, str]]
    faults: tuple[Fault, ...] = field(default=())
    log: tuple[Problem, ...] = ()  # why ticks cannot write the log that the file here names, or ()
    kept_from_starting: Causes = ()  # why the last ticks of the file here did not start, or () if the last tick did
    # Each item is a job type, and a payload in the file here that does not fit the type's handler.
    schedule_misfits: list[tuple[str, Problem]] = field(default_factory=list)
    never_begin: list[TimeoutTooLong] = field(default_factory=list)  # timeouts in the file here that fit no tick
    # True if the types that ticks recorded decide what is unknown. False if this process's types decide.
    judged_by_ticks: bool = False
    # Maps each unknown type to its active schedules.
    unknown_schedules: dict[str, list[str]] = field(default_factory=dict)
    # Maps each unknown type to the schedules that used it before the file lost them. No active schedule uses the type.
    removed_schedules: dict[str, list[str]] = field(default_factory=dict)
    # Maps each unknown type to the time since which its work has waited.
    unknown_since: dict[str, datetime] = field(default_factory=dict)
    # Maps each unknown type to the time when a tick first lacked the type.
    gone: dict[str, datetime] = field(default_factory=dict)
    # Late jobs that none of the hosts now ticking can run.
    stranded: list[StrandedJobs] = field(default_factory=list)
    slower: list[SlowRun] = field(default_factory=list)
    # Maps each host that ticked steadily and then stopped to its last tick's time.
    silent: dict[str, datetime] = field(default_factory=dict)
    # Maps each job type whose runs are typically too long for the lease to their typical duration.
    slow: dict[str, timedelta] = field(default_factory=dict)
    # Job types that run in child processes because they crash their runners.
    crashing: list[Crashing] = field(default_factory=list)
    failing_types: list[FailingType] = field(default_factory=list)
    misfits: list[WaitingMisfits] = field(default_factory=list)  # one item for each job type
    watch: Watched = field(default_factory=Watched)
    acks: dict[str, StoredAck] = field(default_factory=dict)  # maps a finding's key to its ack in force
    of_extras: Findings = field(default_factory=Findings)

    def ticking(self, every: timedelta) -> list[dict[str, Any]]:
        return ticking(self.ticks, self.now, every)

    def last_ticking(self, every: timedelta) -> list[dict[str, Any]]:
        return last_ticking(self.ticks, self.now, every)

    def why_none_starts(self, every: timedelta) -> Causes:
        """Return why the last ticks here did not start, or () if the last tick did or another host is at work."""
        return () if others_work(every, self.ticking(every)) else self.kept_from_starting

    def dies_importing(self, every: timedelta) -> bool:
        """Return whether the last tick of each host that ticks was killed while it imported the handlers, like earlier
        ticks there. Then no job can start.
        """
        at_work, killed = self.ticking(every), self.watch.killed
        dying = (
            tick["finished_at"] is None
            and was_importing(tick["did"])
            and tick["host"] in killed
            and killed[tick["host"]].importing > 0
            for tick in at_work
        )
        return bool(at_work) and all(dying)

    @property
    def dismissed_words(self) -> str:
        """Return the words to add to the number of dead jobs if someone has dealt with all of them, else ""."""
        if not self.dead["total"] or self.watch.deaths.count:
            return ""
        return ", dismissed" if self.dead["total"] == 1 else ", all dismissed"
