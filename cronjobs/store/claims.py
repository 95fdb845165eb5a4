"""What may be claimed, and the claim: one statement on PostgreSQL, one short transaction on SQLite."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.model import Job
from cronjobs.store.sql import Fragment, after_now, among, database_now, define, group_value, is_postgresql, run


def _definition(key: str) -> Fragment:
    """A value of a schedule's definition, as text."""
    return lambda postgresql: f"s.definition ->> '{key}'" if postgresql else f"json_extract(s.definition, '$.{key}')"


define(
    # In the order of Job's fields; see job_from.
    facts="""
      j.id, j.job_type, j.payload, j.meta, j.queue, j.priority, j.run_at, j.attempts, j.failures, j.losses,
      j.interruptions, j.max_attempts, j.timeout_s, j.locked_by, j.idempotency_key, j.concurrency_key, j.schedule,
      j.scheduled_for,
      (SELECT CAST(1 + coalesce(sum(c.count), 0) AS integer) FROM {occurrences} c
       WHERE j.schedule IS NOT NULL AND c.job_id = j.id AND c.outcome = 'coalesced') AS stands_for,
      coalesce((SELECT {timezone_key} FROM {schedules} s WHERE s.name = j.schedule), 'UTC') AS timezone,
      j.created_at, j.started_at,
      (SELECT s.next_at FROM {schedules} s WHERE s.name = j.schedule AND s.status = 'active') AS next_occurrence,
      (SELECT {retry_until_key} FROM {schedules} s WHERE s.name = j.schedule) AS retry_until""",
    open_branch="""
      b.queue IS NOT NULL AND (CAST(:queue AS text) IS NULL OR b.queue = CAST(:queue AS text)) AND NOT {paused}""",
    eligible="""
      j.queue = b.queue AND j.priority = b.priority AND j.{waiting} AND j.run_at <= {now}
      AND ((j.timeout_s IS NULL AND j.job_type {among_fitting})
        OR (j.timeout_s IS NOT NULL AND (j.timeout_s <= :remaining OR j.timeout_s > :longest)
            AND j.job_type {among_known}))
      AND (j.schedule IS NULL OR {in_turn})""",
    # Jobs of one schedule run one at a time, oldest first, unless it allows overlap or a person forced this one. Only
    # the oldest unfinished one can be claimed, so two runners can never disagree about which; jobs of a schedule are
    # made under the lock of its row, so a smaller id cannot turn up later.
    in_turn="""
      (NOT EXISTS (SELECT 1 FROM {jobs} o WHERE o.schedule = j.schedule AND o.finished_at IS NULL AND o.id < j.id)
       OR {forced}
       OR EXISTS (SELECT 1 FROM {schedules} s WHERE s.name = j.schedule AND {overlap_key} = 'allow'))""",
    forced=lambda postgresql: (
        "j.meta ->> 'cronjobs.overlap' = 'allow'"
        if postgresql
        else "CASE WHEN json_valid(j.meta) THEN json_extract(j.meta, '$.\"cronjobs.overlap\"') = 'allow' END"
    ),
    overlap_key=_definition("overlap"),
    among_fitting=among("fitting"),
    among_known=among("known"),
    among_careful=among("careful"),
    # A loss is nobody's fault, but what was lost once shall not be lost again only because it waited for a worker.
    with_care="(j.losses > 0 OR j.job_type {among_careful})",
    after_lease=after_now(":lease_s"),
    timezone_key=_definition("timezone"),
    retry_until_key=_definition("retry_until"),
)

FACTS: Final = 24  # columns


# --- claim ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Admission:
    """Which jobs a runner may take now.

    ``known``: the job types it can run; ``fitting``: those whose own time-out suits it; a row's timeout_s is to be at
    most ``remaining_s`` or above ``longest_s``. ``queue`` None: every queue. Of ``careful`` types, and of those that a
    runner died with, only what begins at once is taken, ``free`` jobs: nothing of them is to be lost unbegun.
    """

    known: Collection[str]
    fitting: Collection[str]
    remaining_s: float
    longest_s: float = math.inf
    queue: str | None = None
    careful: Collection[str] = ()
    free: int = 1_000_000


def claim(
    connection: Connection, *, limit: int, locked_by: str, lease: timedelta, admission: Admission
) -> tuple[datetime, list[Job]]:
    """Lease up to *limit* due jobs for *locked_by*; return the database's now and the jobs in the order to run them.

    Order is (priority, run_at, id). Rows that others hold locked are passed over, so nobody waits for anybody.
    """
    parameters = {
        "limit": limit,
        "queue": admission.queue,
        "known": group_value(connection, sorted(admission.known)),
        "fitting": group_value(connection, sorted(admission.fitting)),
        "remaining": admission.remaining_s,
        "longest": min(admission.longest_s, 1e300),
        "careful": group_value(connection, sorted(admission.careful)),
    }
    lease_parameters = {"locked_by": locked_by, "lease_s": lease.total_seconds()}
    if is_postgresql(connection):
        rows = run(connection, CLAIM_POSTGRESQL, free=admission.free, **parameters, **lease_parameters).all()
    else:
        rows = _claim_sqlite(connection, parameters, admission.free, lease_parameters)
    if not rows:
        return database_now(connection), []
    jobs = sorted((job_from(row) for row in rows), key=lambda job: (job.priority, job.run_at, job.id))
    return rows[0].now, jobs


# A materialised CTE, not a subquery under IN: PostgreSQL may run a locking subquery again per row and pass the limit
# (bug 15715). The lateral subquery with the lock is drawn from row by row, best branch first, so that no more is locked
# than taken, and a row that somebody holds costs one step to the next instead of an empty hand. A job to be careful
# with ends the row of those taken ahead: it waits until it is among the first, and those behind it wait with it.
CLAIM_POSTGRESQL: Final = """
  WITH RECURSIVE {branches},
  head AS MATERIALIZED (
    SELECT b.queue, b.priority FROM branch b
    CROSS JOIN LATERAL (SELECT j.run_at, j.id FROM {jobs} j WHERE {eligible} ORDER BY j.run_at, j.id LIMIT 1) h
    WHERE {open_branch} ORDER BY b.priority, h.run_at, h.id),
  picked AS MATERIALIZED (
    SELECT c.id, c.careful FROM head b
    CROSS JOIN LATERAL (
      SELECT j.id, {with_care} AS careful FROM {jobs} j WHERE {eligible} ORDER BY j.run_at, j.id LIMIT :limit {lock}) c
    LIMIT :limit),
  placed AS (SELECT id, careful, row_number() OVER () AS place FROM picked),
  taken AS (
    SELECT id FROM placed WHERE place <
      coalesce((SELECT min(place) FROM placed WHERE careful AND place > :free), 9223372036854775807))
  UPDATE {jobs} j SET status = 'running', attempts = j.attempts + 1, locked_by = :locked_by,
    locked_until = {after_lease}, started_at = {now}, cancel_requested_at = NULL
  WHERE j.id = ANY(ARRAY(SELECT id FROM taken)) AND j.{waiting}
  RETURNING {facts}, {now} AS now"""


def _claim_sqlite(
    connection: Connection, parameters: dict[str, Any], free: int, lease_parameters: dict[str, Any]
) -> Sequence[Row[Any]]:
    # The writer is alone (BEGIN IMMEDIATE), so looking and taking can be several statements.
    branches = run(
        connection,
        "WITH RECURSIVE {branches} SELECT b.queue, b.priority FROM branch b WHERE {open_branch}",
        queue=parameters.pop("queue"),
    ).all()
    due: list[tuple[int, int, int, bool]] = []
    for branch in sorted(branches, key=lambda branch: branch.priority):
        if len(due) == parameters["limit"] and branch.priority > due[-1][0]:
            break
        rows = run(
            connection,
            """SELECT j.priority, j.run_at AS due_us, j.id, {with_care} AS careful FROM {jobs} j,
               (SELECT :branch_queue AS queue, :branch_priority AS priority) b
               WHERE {eligible} ORDER BY j.run_at, j.id LIMIT :limit""",
            branch_queue=branch.queue,
            branch_priority=branch.priority,
            **parameters,
        )
        due = sorted([*due, *((row.priority, row.due_us, row.id, row.careful) for row in rows)])[: parameters["limit"]]
    if not due:
        return []
    end = next((place for place, row in enumerate(due) if row[3] and place >= free), len(due))
    ids = group_value(connection, [row[2] for row in due[:end]])
    run(
        connection,
        """UPDATE {jobs} SET status = 'running', attempts = attempts + 1, locked_by = :locked_by,
           locked_until = {after_lease}, started_at = {now}, cancel_requested_at = NULL
           WHERE id IN (SELECT value FROM json_each(:ids)) AND {waiting}""",
        ids=ids,
        **lease_parameters,
    )
    return run(
        connection,
        """SELECT {facts}, {now} AS now FROM {jobs} j
           WHERE j.id IN (SELECT value FROM json_each(:ids))""",
        ids=ids,
    ).all()


def job_from(row: Row[Any]) -> Job:
    """A row that begins with ``{facts}``; what plain SQL wrote into ``meta`` is made harmless here."""
    facts = list(row[:FACTS])
    if facts[3] != {}:
        facts[3] = _strings(facts[3])
    return Job(*facts)


def _strings(meta: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in meta.items()} if isinstance(meta, dict) else {}


def claim_one(connection: Connection, job_id: int, *, locked_by: str, lease: timedelta) -> Job | None:
    """Lease one waiting job whatever its run_at says, for someone who named it; None when it is not free."""
    found = run(
        connection,
        "SELECT j.id FROM {jobs} j WHERE j.id = :id AND j.{waiting} {lock}",
        id=job_id,
    ).first()
    if found is None:
        return None
    run(
        connection,
        """UPDATE {jobs} SET status = 'running', attempts = attempts + 1, locked_by = :locked_by,
           locked_until = {after_lease}, started_at = {now}, cancel_requested_at = NULL WHERE id = :id""",
        id=job_id,
        locked_by=locked_by,
        lease_s=lease.total_seconds(),
    )
    return next(job for job in held_by(connection, locked_by) if job.id == job_id)


def held_by(connection: Connection, locked_by: str) -> list[Job]:
    """Every job leased to *locked_by*: what a claim whose COMMIT got no answer really took."""
    rows = run(
        connection,
        """
        SELECT {facts} FROM {jobs} j
        WHERE j.locked_until IS NOT NULL AND j.locked_by = :locked_by ORDER BY j.priority, j.run_at, j.id""",
        locked_by=locked_by,
    ).all()
    return [job_from(row) for row in rows]


def unresolved(connection: Connection, known: Collection[str]) -> list[tuple[str, int]]:
    """Job types that are due and not among *known*, with how many of their jobs wait."""
    rows = run(
        connection,
        """
        SELECT j.job_type, count(*) AS waiting FROM {jobs} j WHERE j.{waiting} AND j.run_at <= {now}
        AND NOT (j.job_type {among_known}) GROUP BY j.job_type ORDER BY j.job_type""",
        known=group_value(connection, sorted(known)),
    ).all()
    return [(row.job_type, row.waiting) for row in rows]


def due_by_type(connection: Connection, queue: str | None) -> list[tuple[str, float | None, int]]:
    """Due jobs by type and row time-out: what a short tick did not start."""
    rows = run(
        connection,
        """
        SELECT j.job_type, j.timeout_s, count(*) AS waiting FROM {jobs} j WHERE j.{waiting} AND j.run_at <= {now}
        AND (CAST(:queue AS text) IS NULL OR j.queue = CAST(:queue AS text))
        GROUP BY j.job_type, j.timeout_s ORDER BY j.job_type""",
        queue=queue,
    ).all()
    return [(row.job_type, row.timeout_s, row.waiting) for row in rows]
