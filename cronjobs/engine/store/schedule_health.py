"""What ``status`` asks about all schedules: which need a closer look, which fire next. The others become no objects."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from cronjobs.engine.store.overlap import runnable_value
from cronjobs.engine.store.schedules import StoredSchedule, stored_schedules
from cronjobs.engine.store.sql import define, json_value, run

define(
    # Of the schedule "j": its newest ledger row did not run, or its job has not succeeded. A row in the future proves
    # nothing, as a clock was wrong; a job that is not there any more ended long ago.
    # Subqueries with a limit, not joins: PostgreSQL would read the whole ledger, and all jobs.
    went_badly="""
      (SELECT CASE WHEN c.last_for <= {now} AND c.outcome IN ('enqueued', 'coalesced')
         AND coalesce((SELECT r.status FROM {jobs} r WHERE r.id = c.job_id), 'succeeded') = 'succeeded'
         THEN 0 ELSE 1 END
       FROM {occurrences} c WHERE c.schedule_id = j.id ORDER BY c.last_for DESC LIMIT 1) = 1""",
    # An object without a grace. Not one that Python may find unreadable: a NUL, too many digits, too many levels.
    no_grace=lambda postgresql: (
        "(jsonb_typeof(j.definition) = 'object' AND NOT j.definition ? 'grace_s' "
        "AND pg_column_size(j.definition) < 1500 AND pg_column_compression(j.definition) IS NULL)"
        if postgresql
        else """
      CASE WHEN length(j.definition) BETWEEN length(CAST(j.definition AS BLOB)) AND 1500 AND json_valid(j.definition)
      THEN json_type(j.definition) = 'object' AND json_type(j.definition, '$.grace_s') IS NULL ELSE 0 END"""
    ),
    # As "NOT EXISTS (… {stops_schedule})", but the pauses are read once, not for each schedule.
    fires="""
      j.next_at IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM {pauses} p WHERE p.scope = 'all' AND {in_force})
      AND j.name NOT IN (SELECT p.name FROM {pauses} p WHERE p.scope = 'schedule' AND {in_force})""",
    job_now=json_value("j.definition", "job"),
    joined_ids=lambda postgresql: "string_agg(CAST(j.id AS text), ',')" if postgresql else "group_concat(j.id)",
    by_bytes=lambda postgresql: 'COLLATE "C"' if postgresql else "",  # as Python compares
)


@dataclass(frozen=True)
class Survey:
    """How many schedules are ``active``; how many of those will fire unless something changes; and ids of active ones.

    ``went_badly``: whose newest ledger row needs a closer look; ``doubtful``: these, and those that are due, have a
    ``grace`` or may have an unreadable definition, and also retired ones that owe something.
    """

    active: int = 0
    coming: int = 0
    of_unknown_types: int = 0
    went_badly: frozenset[int] = frozenset()
    doubtful: frozenset[int] = frozenset()


def survey(connection: Connection, runnable: Collection[str]) -> Survey:
    """All that needs a look at each schedule, in one pass; the job types of some are not *runnable*.

    In the order of ids, in which their ledger rows are, not of names.
    """
    row = run(
        connection,
        """
        SELECT count(*) FILTER (WHERE j.status = 'active') AS active,
          count(*) FILTER (WHERE j.status = 'active' AND {fires}) AS coming,
          count(*) FILTER (WHERE j.status = 'active' AND NOT ({job_now} {among_runnable})) AS of_unknown_types,
          {joined_ids} FILTER (WHERE j.status = 'active' AND {went_badly}) AS badly,
          {joined_ids} FILTER (
            WHERE j.owed IS NOT NULL OR j.status = 'active' AND (j.next_at <= {now} OR NOT {no_grace})) AS others
        FROM {schedules} j""",
        runnable=runnable_value(connection, runnable),
    ).one()
    badly, others = (frozenset(map(int, ids.split(","))) if ids else frozenset() for ids in (row.badly, row.others))
    return Survey(row.active, row.coming, row.of_unknown_types, badly, badly | others)


def schedules_by_id(connection: Connection, ids: Collection[int]) -> list[StoredSchedule]:
    """These schedules, by name."""
    if not ids:
        return []
    statement = "SELECT {schedule_columns} FROM {schedules} j WHERE j.id {among_ids} ORDER BY j.name"
    return stored_schedules(connection, run(connection, statement, ids=sorted(ids)).all())


def next_to_fire(connection: Connection, limit: int) -> list[tuple[datetime, str]]:
    """Active schedules that are not paused, by instant and name: the first *limit*."""
    rows = run(
        connection,
        "SELECT j.next_at, j.name FROM {schedules} j WHERE j.status = 'active' AND {fires} "
        "ORDER BY j.next_at, j.name {by_bytes} LIMIT :limit",
        limit=limit,
    )
    return [(row.next_at, row.name) for row in rows]


def active_schedules(connection: Connection) -> Sequence[Row[Any]]:
    """All active schedules by name: ``name``, ``next_at``, ``paused``."""
    return run(
        connection,
        "SELECT j.name, j.next_at, {paused_by} AS paused FROM {schedules} j WHERE j.status = 'active' ORDER BY j.name",
    ).all()
