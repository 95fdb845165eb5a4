"""Is all well? One look at the database gathers the facts; ``findings`` says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.config.settings import Settings
from cronjobs.insight.judged_types import judged_types, unknown_schedules
from cronjobs.insight.watched import Watched, late_after, quiet_after, ticking, watch
from cronjobs.jobs.job_types import Fault, JobTypes
from cronjobs.rules.concurrency import Limit
from cronjobs.rules.crashing_types import Crashing
from cronjobs.rules.pausing import of_queue
from cronjobs.store import concurrency, expiry, listing, meta, schedules
from cronjobs.store.crashing_types import crashing
from cronjobs.store.expiry import LeftAlone
from cronjobs.store.queues import pressures
from cronjobs.store.schedules import StoredSchedule
from cronjobs.store.sql import database_now

RUNNING_SHOWN: Final = 50
UNKNOWN_IS_LATE: Final = timedelta(minutes=5)  # status reports it from the first minute; see findings
STEADY_TICKS: Final = 10  # a host that ticked so often is expected to go on
FORGOTTEN: Final = timedelta(days=1)  # and after a day counts as switched off
RUNS_ASKED: Final = 1000
RUNS_IN_A_LEASE: Final = 5  # of typical length; a long job's process exists for one run, and renews for as long


@dataclass
class Queue:
    """What waits in one queue. ``failed`` jobs wait for another try, and count in due or future as well."""

    due: int = 0
    future: int = 0
    failed: int = 0
    late: int = 0
    paused: bool = False
    max_waiting: int | None = None  # None: it has no cap
    on_full: str | None = None
    dropped: int = 0  # since it first had a cap

    @property
    def waiting(self) -> int:
        return self.due + self.future

    @property
    def full(self) -> bool:
        # SQLite accepts any type there.
        return isinstance(self.max_waiting, int) and self.waiting >= self.max_waiting


@dataclass(frozen=True)
class Health:
    """The facts, some as plain rows. ``late`` counts only jobs that could run: of known types, and not paused."""

    now: datetime
    project: str
    environment: str
    schema_revision: str
    ticks: list[dict[str, Any]]  # the last of each host, newest first
    running: list[dict[str, Any]]  # the longest first, at most RUNNING_SHOWN
    running_total: int
    overdue: int
    queues: dict[str, Queue]
    oldest_due_at: datetime | None
    unresolved: dict[str, int]  # due jobs by a type that no tick knew lately
    dead: dict[str, int]
    pauses: list[dict[str, Any]]
    schedules: list[StoredSchedule]
    faults: tuple[Fault, ...] = field(default=())
    judged_by_ticks: bool = False  # types are judged by what ticks knew; else by what is registered here
    unknown_schedules: dict[str, list[str]] = field(default_factory=dict)  # active ones, by such a type
    silent: dict[str, datetime] = field(default_factory=dict)  # steady hosts that stopped ticking: since when
    slow: dict[str, timedelta] = field(default_factory=dict)  # job types whose typical run is too long for the lease
    limited: dict[Limit, int] = field(default_factory=dict)  # reached limits: how many due jobs wait for each
    crashing: list[Crashing] = field(default_factory=list)  # job types that run in child processes because they crash
    left_alone: list[LeftAlone] = field(default_factory=list)  # lost attempts that no host can settle
    watch: Watched = field(default_factory=Watched)

    def total(self, what: str) -> int:
        return sum(getattr(queue, what) for queue in self.queues.values())


def look(connection: Connection, settings: Settings, types: JobTypes) -> Health:
    """Gather the facts in a few indexed statements; *types* are those that this configuration knows."""
    now = database_now(connection)
    whose = meta.read_meta(connection)
    in_force = schedules.pauses_in_force(connection)
    pauses = [dict(row._mapping) for row in in_force]
    judged = judged_types(connection, settings, types)
    queues: dict[str, Queue] = {}
    unresolved: dict[str, int] = {}
    oldest: list[datetime] = []
    for row in listing.waiting_groups(connection, late_after(settings)):
        queue = queues.setdefault(row.queue, Queue(paused=bool(of_queue(in_force, row.queue))))
        queue.due += row.due
        queue.future += row.waiting - row.due
        queue.failed += row.failed
        if row.due:
            oldest.append(row.run_at)
        unknown = row.due and not judged.knows(row.job_type, since=row.run_at)
        if unknown:
            unresolved[row.job_type] = unresolved.get(row.job_type, 0) + row.due
        if not queue.paused and not (unknown and now - row.run_at < UNKNOWN_IS_LATE):
            queue.late += row.late
    for capped in pressures(connection):
        queue = queues.setdefault(capped.name, Queue(paused=bool(of_queue(in_force, capped.name))))
        queue.max_waiting, queue.dropped = capped.max_waiting, capped.dropped
        queue.on_full = None if capped.max_waiting is None else capped.on_full
    running_total, overdue = listing.running_count(connection)
    last_ticks = [dict(row._mapping) for row in listing.last_ticks(connection)]
    definitions = schedules.all_schedules(connection)
    return Health(
        now=now,
        project=whose.project,
        environment=whose.environment,
        schema_revision=whose.schema_revision,
        ticks=last_ticks,
        running=[dict(row._mapping) for row in listing.running_jobs(connection, RUNNING_SHOWN)],
        running_total=running_total,
        overdue=overdue,
        queues=queues,
        oldest_due_at=min(oldest, default=None),
        unresolved=unresolved,
        judged_by_ticks=judged.ticks is not None,
        unknown_schedules=unknown_schedules(connection, judged),
        dead=listing.dead_counts(connection),
        pauses=pauses,
        schedules=definitions,
        faults=types.faults,
        silent=_silent_hosts(connection, last_ticks, now, settings),
        slow={
            job_type: took
            for job_type, took in listing.typical_runs(connection, RUNS_ASKED).items()
            if settings.run.lease < RUNS_IN_A_LEASE * took <= RUNS_IN_A_LEASE * settings.run.budget
        },
        limited=concurrency.waiting_for(connection, settings.limits),
        crashing=crashing(connection),
        left_alone=expiry.left_alone(connection, [], [], {*types.types, *(judged.ticks or ())}),
        watch=watch(connection, settings, definitions, ticking(last_ticks, now, settings), pauses, now),
    )


def _silent_hosts(
    connection: Connection, last_ticks: Sequence[Mapping[str, Any]], now: datetime, settings: Settings
) -> dict[str, datetime]:
    """Hosts that ticked steadily within the last day and stopped, while others tick.

    A container with a new random name for each tick never counts as steady; CRONJOBS_HOST gives it a fixed name.
    """
    signs = {tick["host"]: tick["finished_at"] or tick["started_at"] for tick in last_ticks}
    return {
        host: last
        for host, last in signs.items()
        if quiet_after(settings) < now - last < FORGOTTEN and listing.ticked_at_least(connection, host, STEADY_TICKS)
    }
