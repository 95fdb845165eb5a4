"""Decide which job types some host can run, from what ticks recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.desk.rules.schedule_names import names_of
from cronjobs.desk.store.explaining import first_tick_without, last_tick_that_knew
from cronjobs.desk.store.status_facts import defined_at
from cronjobs.desk.store.workload import waiting_by_other_types
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.jobs.source import source_hash
from cronjobs.engine.store.job_types import Loaded, present_types, remembered, types_recorded_at, unknown_to_schedules
from cronjobs.engine.store.schedules import renames

# Why this command may not find a fault that this host's last tick recorded.
FIXED_OR_ENVIRONMENT: Final = (
    "the fault was fixed after the last tick, or ticks have a different environment from your shell"
)

# For at most this many unknown types, find out when work began to wait. Each type costs a query on ticks.
TYPES_DATED: Final = 20


@dataclass(frozen=True)
class JudgedTypes:
    """The job types that can run.

    ``here``: the types registered in this process. ``ticks``: the types that recent ticks recorded, or None if no tick
    recorded any. ``at``: when a tick last recorded types.
    """

    here: Collection[str]
    ticks: Collection[str] | None
    at: datetime | None

    def knows(self, job_type: str, *, since: datetime) -> bool:
        """Return whether a job of this type, created at *since*, can probably run on some host.

        A type that is registered only here counts as known until a tick after *since* records its types. Then the tick
        decides, because cron's environment may differ from this one.
        """
        if self.ticks is None:
            return job_type in self.here
        return job_type in self.ticks or (job_type in self.here and (self.at is None or self.at <= since))

    def knows_for(self, job: Any, now: datetime) -> bool:
        """Return ``knows`` for a waiting job. *job* has the columns of its row."""
        return self.knows(job.job_type, since=job.run_at if job.run_at <= now else job.created_at)


def judged_types(connection: Connection, every: timedelta, types: JobTypes) -> JudgedTypes:
    known_by_ticks = present_types(connection, remembered(every))
    return JudgedTypes(types.types.keys(), known_by_ticks, types_recorded_at(connection))


def waiting_without_handler(
    connection: Connection, settings: Settings, types: JobTypes, host: str, limit: int
) -> dict[str, int]:
    """Count the waiting jobs, due or not, of each type that neither the code here nor another host has.

    A type does not count as available just because earlier ticks of this *host* had loaded it. If some code cannot be
    imported here, the result is empty, since the failed import is reported instead.
    """
    if types.faults:
        return {}
    here = (host, str(settings.file), Loaded(types.types.keys(), source_hash(settings)))
    present = present_types(connection, remembered(settings.run.every), here) or frozenset()
    return waiting_by_other_types(connection, present | types.types.keys() | set(settings.disabled_job_types), limit)


def unknown_schedules(connection: Connection, judged: JudgedTypes) -> dict[str, list[str]]:
    """Map each job type that no recent tick knew to the active schedules that use it."""
    if judged.ticks is None:
        return {}
    found = {}
    unknown = unknown_to_schedules(connection, judged.ticks)
    renamed = renames(connection) if unknown else []
    for job_type, names in unknown.items():
        every = (defined_at(connection, names_of(name, renamed)) for name in names[:3])
        defined = max(filter(None, every), default=None)
        if defined is None or not judged.knows(job_type, since=defined):
            found[job_type] = names
    return found


def unknown_since(
    connection: Connection,
    job_types: Sequence[str],
    came: Mapping[str, datetime],
    schedules_of: Mapping[str, Sequence[str]],
) -> tuple[dict[str, datetime], dict[str, datetime]]:
    """Return when work of each of the unknown *job_types* began to wait, and when ticks began to lack the type.

    A type that no tick ever knew is not in the second result. *came*: when each type's oldest due job became due.
    *schedules_of*: the active schedules of each type.
    """
    since: dict[str, datetime] = {}
    gone: dict[str, datetime] = {}
    renamed = renames(connection) if schedules_of else []
    for job_type in job_types[:TYPES_DATED]:
        if (tick := last_tick_that_knew(connection, job_type)) is not None:
            gone[job_type] = first_tick_without(connection, tick)
        waits = came.get(job_type)
        if job_type in schedules_of:
            waits = defined_at(connection, names_of(schedules_of[job_type][0], renamed))
        if both := [at for at in (waits, gone.get(job_type)) if at is not None]:
            since[job_type] = max(both)
    return since, gone
