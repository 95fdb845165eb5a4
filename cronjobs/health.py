"""Is all well? One look at the database gathers the facts; a pure function says what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.interpolate import mask
from cronjobs.jobtypes import Fault, JobTypes
from cronjobs.settings import Settings
from cronjobs.store import looking, meta, schedules
from cronjobs.store.schedules import StoredSchedule
from cronjobs.store.sql import database_now

RUNNING_SHOWN: Final = 50


@dataclass
class Queue:
    """What waits in one queue. ``failed`` is among due and future: it waits for another try."""

    due: int = 0
    future: int = 0
    failed: int = 0
    late: int = 0
    paused: bool = False


@dataclass(frozen=True)
class Health:
    """The facts, as rows where they are rows. ``late`` counts only what could run: known here, and not paused."""

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
    unresolved: dict[str, int]  # due jobs by a type that this configuration does not know
    dead: dict[str, int]
    pauses: list[dict[str, Any]]
    schedules: list[StoredSchedule]
    faults: tuple[Fault, ...] = field(default=())

    def total(self, what: str) -> int:
        return sum(getattr(queue, what) for queue in self.queues.values())


def look(connection: Connection, settings: Settings, types: JobTypes) -> Health:
    """Gather the facts in a few indexed statements; *types* are those that this configuration knows."""
    now = database_now(connection)
    whose = meta.read_meta(connection)
    pauses = schedules.pauses_in_force(connection)
    queues: dict[str, Queue] = {}
    unresolved: dict[str, int] = {}
    oldest: list[datetime] = []
    for row in looking.waiting_groups(connection, late_after(settings)):
        queue = queues.setdefault(row.queue, Queue(paused=_queue_paused(pauses, row.queue)))
        queue.due += row.due
        queue.future += row.waiting - row.due
        queue.failed += row.waiting if row.status == "failed" else 0
        if row.due:
            oldest.append(row.run_at)
        if row.job_type in types.types:
            queue.late += 0 if queue.paused else row.late
        elif row.due:
            unresolved[row.job_type] = unresolved.get(row.job_type, 0) + row.due
    running_total, overdue = looking.running_count(connection)
    return Health(
        now=now,
        project=whose.project,
        environment=whose.environment,
        schema_revision=whose.schema_revision,
        ticks=[dict(row._mapping) for row in looking.last_ticks(connection)],
        running=[dict(row._mapping) for row in looking.running_jobs(connection, RUNNING_SHOWN)],
        running_total=running_total,
        overdue=overdue,
        queues=queues,
        oldest_due_at=min(oldest, default=None),
        unresolved=unresolved,
        dead=looking.dead_counts(connection),
        pauses=[dict(row._mapping) for row in pauses],
        schedules=schedules.all_schedules(connection),
        faults=tuple(Fault(fault.where, mask(fault.what, settings.secrets)) for fault in types.faults),
    )


def late_after(settings: Settings) -> timedelta:
    """A due job is late after this: two minutes where cron wakes each minute."""
    return settings.run.every + timedelta(minutes=1)


def quiet_after(settings: Settings) -> timedelta:
    """Without a tick for so long something is wrong: three minutes where cron wakes each minute."""
    return 2 * settings.run.every + timedelta(minutes=1)


def last_sign(ticks: Sequence[Mapping[str, Any]]) -> datetime | None:
    """When a tick was last known to be there: its row is written as it begins to work, and as it ends."""
    return max((tick["finished_at"] or tick["started_at"] for tick in ticks), default=None)


def _queue_paused(pauses: Sequence[Any], queue: str) -> bool:
    return any(pause.scope == "all" or (pause.scope == "queue" and pause.name == queue) for pause in pauses)


@dataclass(frozen=True)
class Trouble:
    """Something that somebody has to mend. ``kind`` is for programs, ``text`` one sentence for people."""

    kind: str
    text: str


def troubles(health: Health, settings: Settings) -> list[Trouble]:
    """What is wrong, the worst first; empty when all is well."""
    found: list[Trouble] = []
    theirs, ours = (health.project, health.environment), (settings.project, settings.environment)
    if theirs not in (("", ""), ours):
        found.append(
            Trouble(
                "foreign",
                f"this database belongs to {_name(*theirs)}, and the configuration says {_name(*ours)}: ticks claim "
                'nothing; "cronjobs db adopt" hands it over',
            )
        )
    found += _no_tick(health, settings)
    if late := health.total("late"):
        jobs = "1 job has" if late == 1 else f"{late:,} jobs have"
        minutes = round(late_after(settings).total_seconds() / 60)
        found.append(
            Trouble("late", f"{jobs} been due for more than {minutes} minutes: the ticks do not keep up, or do not run")
        )
    for job_type, count in health.unresolved.items():
        jobs = "1 due job waits" if count == 1 else f"{count:,} due jobs wait"
        found.append(Trouble("unresolved", f'{jobs}: no handler or command "{job_type}" is registered here'))
    if dead := health.dead["last_1h"]:
        jobs = "1 job" if dead == 1 else f"{dead:,} jobs"
        found.append(
            Trouble("dead", f'{jobs} died in the last hour: "cronjobs jobs list --status dead --since 1h" says why')
        )
    found += [Trouble("config", f"{fault.where}: {fault.what}") for fault in health.faults]
    found += [Trouble("config", str(problem)) for problem in settings.problems]
    return found


def _no_tick(health: Health, settings: Settings) -> list[Trouble]:
    last = last_sign(health.ticks)
    if last is None:
        text = 'no tick has ever reached this database: "cronjobs crontab install" lets cron run one each minute'
        return [Trouble("no_tick", text)]
    if health.now - last <= quiet_after(settings):
        return []
    minutes = round((health.now - last).total_seconds() / 60)
    span = f"{minutes} minutes" if minutes < 180 else f"{round(minutes / 60)} hours"
    return [
        Trouble("no_tick", f'no tick has reached this database for {span}: "cronjobs crontab show" says if cron knows')
    ]


def _name(project: str, environment: str) -> str:
    return f'project "{project}", environment "{environment}"'
