"""Read the facts of ``Health`` from the database. ``findings`` judges them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.desk.insight.check_config import log_problem, misfits, never_begin
from cronjobs.desk.insight.findings_of_extras import findings_of_extras
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.judged_types import judged_types, unknown_schedules, unknown_since
from cronjobs.desk.insight.kept_from_starting import kept_from_starting_here
from cronjobs.desk.insight.same_cause import recorded_faults, without_room
from cronjobs.desk.insight.schedule_facts import really_next
from cronjobs.desk.insight.slow_runs import slow_runs
from cronjobs.desk.insight.slow_types import slow_types
from cronjobs.desk.insight.waiting import stranded, what_waits
from cronjobs.desk.insight.watched import last_ticking, silent_hosts, ticking, watch
from cronjobs.desk.store import workload
from cronjobs.desk.store.explaining import removed_schedules
from cronjobs.desk.store.failing_types import failing_types
from cronjobs.desk.store.schedule_health import next_to_fire, survey
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store import meta, schedules, ticks
from cronjobs.engine.store.acks import acks_in_force
from cronjobs.engine.store.crashing_types import crashing
from cronjobs.engine.store.misfits import waiting_misfits
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.tick.result import as_noted
from cronjobs.errors import Problem

RUNNING_SHOWN: Final = 50
NEXT_SHOWN: Final = 5


def look(connection: Connection, settings: Settings, types: JobTypes) -> Health:
    """Gather the facts in a few indexed statements. *types*: the job types that this configuration registers."""
    every, now = settings.run.every, database_now(connection)
    whose = meta.read_meta(connection)
    in_force = schedules.pauses_in_force(connection)
    pauses = [dict(row._mapping) for row in in_force]
    judged = judged_types(connection, every, types)
    last_ticks = [dict(row._mapping) for row in ticks.last_ticks(connection)]
    at_work = ticking(last_ticks, now, every)
    waiting = what_waits(connection, settings, judged, in_force, at_work, now, types.types)
    surveyed = survey(connection, judged.ticks or ())
    running_total, overdue = workload.running_count(connection)
    without_type = unknown_schedules(connection, judged) if surveyed.of_unknown_types else {}
    since, gone = unknown_since(connection, [*waiting.unresolved, *without_type], waiting.came, without_type)
    health = Health(
        now=now,
        project=whose.project,
        environment=whose.environment,
        schema_revision=whose.schema_revision,
        ticks=last_ticks,
        running=[dict(row._mapping) for row in workload.running_jobs(connection, RUNNING_SHOWN)],
        running_total=running_total,
        overdue=overdue,
        waiting=waiting,
        stranded=stranded(connection, waiting.late, at_work, last_ticks),
        judged_by_ticks=judged.ticks is not None,
        unknown_schedules=without_type,
        removed_schedules=removed_schedules(connection, waiting.unresolved) if waiting.unresolved else {},
        unknown_since=since,
        gone=gone,
        failing_types=failing_types(connection) if waiting.queues else [],
        dead=workload.dead_counts(connection),
        pauses=pauses,
        schedules=surveyed,
        next=_next(connection),
        faults=types.faults,
        log=_log_problem(settings, last_ticking(last_ticks, now, every)),
        kept_from_starting=kept_from_starting_here(settings),
        schedule_misfits=misfits(settings, types),
        never_begin=never_begin(settings, types),
        silent=silent_hosts(connection, last_ticks, now, every),
        slower=slow_runs(connection, now),
        acks=acks_in_force(connection, now),
        watch=watch(connection, every, surveyed, at_work, last_ticking(last_ticks, now, every), pauses, now),
        slow=slow_types(connection, settings, types),
        crashing=crashing(connection),
        misfits=waiting_misfits(connection),
        of_extras=findings_of_extras(connection, settings, now),
    )
    # The finding ``config`` reports these jobs, so they do not count as late.
    for (queue, _), jobs in without_room(health, every).items():
        waiting.of(queue).late -= jobs
    return health


def _log_problem(settings: Settings, last_ticks: Sequence[Mapping[str, Any]]) -> tuple[Problem, ...]:
    """Return why the log here cannot be written, but only if a tick recorded the same.

    Ticks may run as a user who may write the log, while the user of this process may not.
    """
    problem = log_problem(settings)
    if problem is None:
        return ()
    fault = as_noted(problem.path, problem.message)
    return (problem,) if any(fault in recorded_faults(tick).items() for tick in last_ticks) else ()


def _next(connection: Connection) -> list[tuple[datetime, str]]:
    # Read twice as many schedules as needed, because a schedule that a wrong clock ran early moves back in this order.
    due = {name: at for at, name in next_to_fire(connection, 2 * NEXT_SHOWN)}
    return sorted((at, name) for name, at in really_next(connection, due).items() if at is not None)[:NEXT_SHOWN]
