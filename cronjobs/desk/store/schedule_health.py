"""Find the schedules that need a closer look, and those that fire next, for ``status``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.engine.probe.idle_conditions import IN_FORCE
from cronjobs.engine.probe.sql_text import JOBS, NOW, OCCURRENCES, PAUSES, SCHEDULES, either
from cronjobs.engine.rules.occurrences import RAN_EARLY
from cronjobs.engine.store.overlap import AMONG_RUNNABLE, runnable_value
from cronjobs.engine.store.schedules import PAUSED_BY, SCHEDULE_COLUMNS, StoredSchedule, stored_schedules
from cronjobs.engine.store.sql import AMONG_IDS, json_value, run

# True if the newest ledger row of schedule "j" has no run, or if the run's job has not succeeded. If a wrong clock
# dated the row in the future or ran the occurrence early, the row does not count as a run. A job that no longer exists
# ended long ago, and counts as succeeded. The condition uses subqueries with a limit, because for joins PostgreSQL
# would read the whole ledger and all jobs.
_WENT_BADLY: Final = f"""
      (SELECT CASE WHEN c.last_for <= {NOW} AND c.outcome IN ('enqueued', 'coalesced')
         AND coalesce(c.reason, '') NOT LIKE '{RAN_EARLY}%'
         AND coalesce((SELECT r.status FROM {JOBS} r WHERE r.id = c.job_id), 'succeeded') = 'succeeded'
         THEN 0 ELSE 1 END
       FROM {OCCURRENCES} c WHERE c.schedule_id = j.id ORDER BY c.last_for DESC LIMIT 1) = 1"""
# True if the definition is an object without a grace, and is certain to be readable in Python. Python may fail to read
# a value with a NUL, too many digits or too many levels.
_NO_GRACE: Final = either(
    postgresql=(
        "(jsonb_typeof(j.definition) = 'object' AND NOT j.definition ? 'grace_s' "
        "AND pg_column_size(j.definition) < 1500 AND pg_column_compression(j.definition) IS NULL)"
    ),
    sqlite="""
      CASE WHEN length(j.definition) BETWEEN length(CAST(j.definition AS BLOB)) AND 1500 AND json_valid(j.definition)
      THEN json_type(j.definition) = 'object' AND json_type(j.definition, '$.grace_s') IS NULL ELSE 0 END""",
)
# The same condition as "NOT EXISTS (… {STOPS_SCHEDULE})", but this form reads the pauses once, not for each schedule.
_FIRES: Final = f"""
      j.next_at IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM {PAUSES} p WHERE p.scope = 'all' AND {IN_FORCE})
      AND j.name NOT IN (SELECT p.name FROM {PAUSES} p WHERE p.scope = 'schedule' AND {IN_FORCE})"""
_JOB_NOW: Final = json_value("j.definition", "job")
_JOINED_IDS: Final = either(postgresql="string_agg(CAST(j.id AS text), ',')", sqlite="group_concat(j.id)")
_BY_BYTES: Final = either(postgresql='COLLATE "C"', sqlite="")  # compare by bytes, as Python does


@dataclass(frozen=True)
class ScheduleSurvey:
    """Counts of all active schedules, and the ids of schedules that need a closer look.

    ``coming`` counts the schedules that will fire if nothing changes. ``went_badly`` are the schedules whose newest
    ledger row needs a closer look. ``doubtful`` contains these schedules, and also the schedules that are due, have a
    ``grace``, may have an unreadable definition, or (even if retired) have unsettled occurrences of a former
    definition.
    """

    active: int = 0
    coming: int = 0
    of_unknown_types: int = 0
    went_badly: frozenset[int] = frozenset()
    doubtful: frozenset[int] = frozenset()


def survey(connection: Connection, runnable: Collection[str]) -> ScheduleSurvey:
    """Read, in one pass over all schedules, every fact that depends on each of them.

    *runnable* are the types that some host can run. The pass goes in order of id, not name, because the ledger rows are
    ordered by schedule id, too.
    """
    row = run(
        connection,
        f"""
        SELECT count(*) FILTER (WHERE j.status = 'active') AS active,
          count(*) FILTER (WHERE j.status = 'active' AND {_FIRES}) AS coming,
          count(*) FILTER (WHERE j.status = 'active' AND NOT ({_JOB_NOW} {AMONG_RUNNABLE})) AS of_unknown_types,
          {_JOINED_IDS} FILTER (WHERE j.status = 'active' AND {_WENT_BADLY}) AS badly,
          {_JOINED_IDS} FILTER (
            WHERE j.owed IS NOT NULL OR j.status = 'active' AND (j.next_at <= {NOW} OR NOT {_NO_GRACE})) AS others
        FROM {SCHEDULES} j""",
        runnable=runnable_value(connection, runnable),
    ).one()
    badly, others = (frozenset(map(int, ids.split(","))) if ids else frozenset() for ids in (row.badly, row.others))
    return ScheduleSurvey(row.active, row.coming, row.of_unknown_types, badly, badly | others)


def schedules_by_id(connection: Connection, ids: Collection[int]) -> list[StoredSchedule]:
    """Return these schedules, ordered by name."""
    if not ids:
        return []
    statement = f"SELECT {SCHEDULE_COLUMNS} FROM {SCHEDULES} j WHERE j.id {AMONG_IDS} ORDER BY j.name"
    return stored_schedules(connection, run(connection, statement, ids=sorted(ids)).all())


def next_to_fire(connection: Connection, limit: int) -> list[tuple[datetime, str]]:
    """Return the first *limit* active schedules that are not paused, ordered by instant and name."""
    rows = run(
        connection,
        f"SELECT j.next_at, j.name FROM {SCHEDULES} j WHERE j.status = 'active' AND {_FIRES} "
        f"ORDER BY j.next_at, j.name {_BY_BYTES} LIMIT :limit",
        limit=limit,
    )
    return [(row.next_at, row.name) for row in rows]


def active_schedules(connection: Connection) -> Sequence[Row[Any]]:
    """Return all active schedules, ordered by name: ``name``, ``next_at``, ``paused``."""
    return run(
        connection,
        f"SELECT j.name, j.next_at, {PAUSED_BY} AS paused FROM {SCHEDULES} j WHERE j.status = 'active' ORDER BY j.name",
    ).all()
