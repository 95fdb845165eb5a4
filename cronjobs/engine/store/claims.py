"""Find the jobs that may be claimed, and claim them in one PostgreSQL statement or one short SQLite transaction."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row
from sqlalchemy.exc import DBAPIError

from cronjobs.engine.probe.idle_conditions import WAITING
from cronjobs.engine.probe.sql_text import EFFECTS, JOBS, NOW, SCHEDULES, after_now, either
from cronjobs.engine.rules.concurrency import Candidate, Limit, choose, closed, full, reached
from cronjobs.engine.rules.recovery_policy import NOT_READ, USUAL, ClaimPolicies
from cronjobs.engine.store.concurrency import BUT, full_parameters, judge_alone, running_by_key
from cronjobs.engine.store.job_rows import FACTS, FACTS_UNREAD, RETRY_UNTIL_KEY, fetch_by_itself, job_from
from cronjobs.engine.store.lanes import lanes_of, types_in
from cronjobs.engine.store.overlap import HOLDS_TURN, IN_TURN, runnable_value, take_turns
from cronjobs.engine.store.sizes import stored
from cronjobs.engine.store.sql import (
    AMONG_IDS,
    AMONG_KNOWN,
    LOCK,
    OPEN_QUEUE,
    among,
    database_now,
    group_value,
    is_lost,
    is_postgresql,
    run,
)
from cronjobs.model import Job

PLAIN: Final = f"{WAITING} AND j.timeout_s IS NULL"
TIMED: Final = f"{WAITING} AND j.timeout_s IS NOT NULL"
_SOME_TIMEOUT_SUITS: Final = f"""
      (EXISTS (SELECT 1 FROM {JOBS} j WHERE j.job_type = t.job_type AND j.{TIMED} AND j.timeout_s <= :remaining)
       OR EXISTS (SELECT 1 FROM {JOBS} j WHERE j.job_type = t.job_type AND j.{TIMED} AND j.timeout_s > :longest))"""
# A lane is one combination of job type, queue and priority. Rows that have their own timeout have separate lanes. We
# look up only the lanes of types that we can run, with one index step per lane. So jobs of other types cost nothing.
# ``timed`` includes a type only if one of its rows has a timeout that fits. That check costs one more index step per
# type.
LANES: Final = f"""
      plain(job_type, queue, priority) AS ({lanes_of("plain", PLAIN, types_in("fitting"))}),
      timed(job_type, queue, priority) AS ({lanes_of("timed", TIMED, types_in("known"), _SOME_TIMEOUT_SUITS)}),
      lane(job_type, own_timeout, queue, priority) AS (
        SELECT job_type, 0, queue, priority FROM plain WHERE queue IS NOT NULL
        UNION ALL SELECT job_type, 1, queue, priority FROM timed WHERE queue IS NOT NULL)"""
# Pass type, queue and priority as parameters. With a join, SQLite would not know that all three values come from one
# row, and would sort all due jobs.
IN_LANE: Final = either(
    postgresql="j.job_type = b.job_type AND j.queue = b.queue AND j.priority = b.priority",
    # The CAST is needed for queue names that are not valid UTF-8, because the parameter of such a name is bytes.
    sqlite="j.job_type = :lane_type AND j.queue = CAST(:lane_queue AS text) AND j.priority = :lane_priority",
)
_AS_DOUBTFUL: Final = either(
    postgresql=f"(j.error_type IS NOT DISTINCT FROM '{NOT_READ}') = CAST(:doubtful AS boolean)",
    sqlite=f"(j.error_type IS '{NOT_READ}') = :doubtful",
)
_IN_SOME_TURN: Final = f"(j.schedule IS NULL OR {IN_TURN})"
_DUE: Final = f"{IN_LANE} AND j.run_at <= {NOW} AND {_AS_DOUBTFUL} AND {_IN_SOME_TURN}"
# Claim jobs of a type whose timeout does not fit, if the type's jobs usually end in time. But leave out a job that has
# begun an effect: if the tick interrupted that job, a person might have to settle the effect.
_MAY_OVERRUN: Final = f"""
      (NOT j.job_type {among("expected")}
       OR NOT EXISTS (SELECT 1 FROM {EFFECTS} e WHERE e.job_id = j.id AND e.state = 'begun'))"""
_DUE_PLAIN: Final = f"j.{PLAIN} AND {_DUE} AND {_MAY_OVERRUN}"
_DUE_TIMED: Final = f"j.{TIMED} AND (j.timeout_s <= :remaining OR j.timeout_s > :longest) AND {_DUE}"
# The same conditions without lanes, for databases with too many lanes to visit. Here "b" is the job itself.
_DUE_ANYWHERE: Final = f"""
      b.{WAITING} AND b.run_at <= {NOW} AND {OPEN_QUEUE} AND {_AS_DOUBTFUL} AND CASE WHEN b.timeout_s IS NULL
        THEN b.job_type {among("fitting")} AND {_MAY_OVERRUN}
        ELSE b.job_type {AMONG_KNOWN} AND (b.timeout_s <= :remaining OR b.timeout_s > :longest) END"""
_IS_DOUBTFUL: Final = f"j.error_type = '{NOT_READ}'"
# Do not prefetch a job that was lost before: it must not be lost again just because it waited here for a worker.
_NOT_PREFETCHED: Final = f"(j.losses > 0 OR j.job_type {among('no_prefetch')})"
_CANDIDATE: Final = f"j.id, j.priority, j.run_at, {_NOT_PREFETCHED} AS no_prefetch, j.concurrency_key"
# This condition is for rows selected by id. The ``|| ''`` hides the status from the planner. Without it, PostgreSQL
# would also read the index of all waiting jobs while it has no statistics.
_STILL_WAITING: Final = "j.status || '' IN ('queued', 'failed')"
_IS_SHARED: Final = "(j.id = ANY(ARRAY(SELECT id FROM shared)))"
AFTER_LEASE: Final = after_now(":lease_s")
# If this attempt is lost, recovery on any host applies the policy stored here. On SQLite, a length of 2 shows that
# ``:policies`` is the empty object "{}".
_POLICY_AT_CLAIM: Final = either(
    postgresql=f"""
      coalesce((SELECT CAST(:policies AS jsonb)) -> j.job_type, (SELECT CAST(:usual_policy AS jsonb)))
        || jsonb_build_object('retry_until',
             (SELECT {RETRY_UNTIL_KEY} FROM {SCHEDULES} s WHERE s.name = j.schedule))""",
    sqlite=f"""
      json_set(CASE WHEN length(:policies) = 2 THEN :usual_policy ELSE
          coalesce((SELECT p.value FROM json_each(:policies) p WHERE p.key = j.job_type), :usual_policy) END,
        '$.retry_until', CASE WHEN j.schedule IS NOT NULL THEN
          (SELECT {RETRY_UNTIL_KEY} FROM {SCHEDULES} s WHERE s.name = j.schedule) END)""",
)
_LEASE_TAKEN: Final = f"""
      status = 'running', attempts = j.attempts + 1, locked_by = :locked_by, locked_until = {AFTER_LEASE},
      started_at = {NOW}, cancel_requested_at = NULL"""
_LEASED: Final = f"{_LEASE_TAKEN}, policy = {_POLICY_AT_CLAIM}"
# "unread" tells recovery that the holder of the lease has not read the row yet.
_LEASED_UNREAD: Final = either(
    postgresql=f"{_LEASE_TAKEN}, policy = {_POLICY_AT_CLAIM} || jsonb_build_object('unread', true)",
    sqlite=f"{_LEASE_TAKEN}, policy = json_set({_POLICY_AT_CLAIM}, '$.unread', json('true'))",
)
_IS_UNREAD: Final = either(
    postgresql="coalesce(j.policy ? 'unread', false)",
    sqlite="CASE WHEN json_valid(j.policy) THEN json_type(j.policy, '$.unread') IS NOT NULL ELSE 0 END",
)
_POLICY_READ: Final = either(postgresql="j.policy - 'unread'", sqlite="json_remove(j.policy, '$.unread')")


# --- claim ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClaimFilter:
    """Which jobs a runner may claim now.

    ``known`` are the job types that the runner can run. ``fitting`` are the types whose timeout fits into the remaining
    time, and the ``expected`` types. The timeout of an expected type does not fit, but its jobs usually end in time. A
    job of an expected type is claimed only if it has not begun an effect. If a job's row has a timeout of its own, that
    timeout must be at most ``remaining_s`` (the job fits into this tick), or longer than ``longest_s`` (it is a long
    job). If ``queue`` is None, the runner claims jobs of every queue.

    Jobs of ``no_prefetch`` types, and jobs whose runner died, are claimed only if they can start at once, so that they
    are not lost while they wait here. ``free`` is how many jobs can start at once.

    ``limits`` apply to the jobs of all runners together. ``policies`` decide what recovery does if an attempt is lost.
    ``runnable`` are the types that some host is known to run, or None if that is unknown. A schedule's job waits for an
    older job of the schedule only if the older job's type is runnable. ``but`` are the ids of jobs to leave out.
    ``many_queues`` is explained in ``Overview``. If ``doubtful`` is True, the runner claims only jobs that are marked
    as doubtful: an earlier runner died before it had read their row.
    """

    known: Collection[str]
    fitting: Collection[str]
    remaining_s: float
    longest_s: float = math.inf
    queue: str | None = None
    no_prefetch: Collection[str] = ()
    expected: Collection[str] = ()
    free: int = 1_000_000
    limits: Sequence[Limit] = ()
    policies: ClaimPolicies = USUAL
    runnable: Collection[str] | None = None
    but: Collection[int] = ()
    many_queues: bool = False
    doubtful: bool = False


class Claim(NamedTuple):
    """The leased jobs in the order in which to run them, and the database's current time.

    ``more_due`` is True if more jobs may be due.
    """

    now: datetime | None  # None only in NO_CLAIM
    jobs: list[Job]
    more_due: bool = False
    refused: Mapping[int, str] = MappingProxyType({})  # jobs that the database refused to lease, each with the reason
    unread: Sequence[int] = ()  # leased jobs whose rows still have to be read
    # True if doubtful jobs are due, which are claimed only when nothing else is running in this process.
    postponed: bool = False


NO_CLAIM: Final = Claim(None, [])


def claim(connection: Connection, *, limit: int, locked_by: str, lease: timedelta, admission: ClaimFilter) -> Claim:
    """Lease up to *limit* due jobs for *locked_by*, ordered by (priority, run_at, id).

    Rows that other transactions have locked are skipped, so no claim waits for another claim.
    """
    parameters = _parameters(connection, limit, admission)
    lease_parameters = _lease_parameters(locked_by, lease, admission.policies)
    more_due = False
    if admission.limits:
        ids, more_due = _choose(connection, parameters, admission)
        rows = _take(connection, ids, lease_parameters)
    elif is_postgresql(connection):
        statement = CLAIM_ANYWHERE if admission.many_queues else CLAIM_POSTGRESQL
        rows = run(connection, statement, free=admission.free, **parameters, **lease_parameters).all()
    else:
        rows = _claim_sqlite(connection, parameters, admission, lease_parameters)
    if not rows:
        return Claim(database_now(connection), [], more_due or not judge_alone(connection))
    jobs = sorted(map(job_from, rows), key=_order)
    take_turns(connection, [job.id for job in jobs if job.schedule is not None])
    return Claim(rows[0].now, jobs, more_due)


def any_with_own_timeout(connection: Connection) -> bool:
    """Return whether the row of any waiting job has a timeout of its own."""
    return run(connection, f"SELECT 1 FROM {JOBS} j WHERE j.{TIMED} LIMIT 1").first() is not None


_order: Final = attrgetter("priority", "run_at", "id")


def _parameters(connection: Connection, limit: int, admission: ClaimFilter) -> dict[str, Any]:
    return {
        "limit": limit,
        "queue": admission.queue,
        "known": group_value(connection, sorted(admission.known)),
        "fitting": group_value(connection, sorted(admission.fitting)),
        "remaining": admission.remaining_s,
        "longest": min(admission.longest_s, 1e300),
        "no_prefetch": group_value(connection, sorted(admission.no_prefetch)),
        "expected": group_value(connection, sorted(admission.expected)),
        "runnable": runnable_value(connection, admission.runnable),
        "doubtful": admission.doubtful,
    }


# ``picked`` is a materialised CTE and not a subquery under IN, because PostgreSQL may rerun a locking subquery for each
# row and exceed the limit (bug 15715). ``due`` and ``head`` find the rows that the claim would take if no other session
# were claiming: a share of rows from each lane. They lock nothing. The lateral subqueries then lock row by row. So only
# rows that are taken are locked, and a row that another session has locked costs one step. If a lane cannot give its
# share, ``picked`` takes more from the other lanes. A claim also prefetches jobs that cannot start at once. It stops
# before the first such job that must not be prefetched. That job and all jobs behind it wait for a later claim.
def _picked(*, behind_full_keys: bool = False) -> str:
    """Return the SQL for ``picked``, the rows to claim.

    With *behind_full_keys*, the statement leaves out jobs whose concurrency key is full. The statement steps over such
    jobs only once, in ``due``. The lateral subqueries see the same snapshot, so each of them can begin at the first row
    that ``due`` found in its lane. If ``due`` found fewer rows than it asked for, no other rows can be taken.
    """
    but = heads = first = from_first = ""
    others = "head"  # the lanes that may give more rows than their share
    if behind_full_keys:
        but, heads = BUT, ", h.run_at, h.id"
        first = ", min(run_at) AS first_at, (array_agg(id ORDER BY turn))[1] AS first_id"
        from_first = " AND (j.run_at, j.id) >= (b.first_at, b.first_id)"
        others = "(SELECT * FROM head WHERE (SELECT count(*) FROM due) >= :limit)"
    can_take = f" AND {HOLDS_TURN}{from_first}"
    return f"""
  WITH RECURSIVE {LANES},
  due AS MATERIALIZED (
    SELECT b.*, row_number() OVER (ORDER BY b.priority, h.run_at, h.id) AS turn{heads} FROM lane b
    CROSS JOIN LATERAL ({_due_in_lane("j.run_at, j.id", but, ":limit")}) h
    WHERE {OPEN_QUEUE}),
  head AS MATERIALIZED (
    SELECT job_type, own_timeout, queue, priority, count(*) FILTER (WHERE turn <= :limit) AS share{first}
    FROM due GROUP BY 1, 2, 3, 4 ORDER BY min(turn)),
  shared AS MATERIALIZED (
    SELECT c.* FROM head b
    CROSS JOIN LATERAL ({_due_in_lane(_CANDIDATE, f"{but}{can_take}", f"b.share {LOCK}")}) c
    WHERE b.share > 0),
  picked AS MATERIALIZED (
    SELECT * FROM shared
    UNION ALL
    SELECT c.* FROM {others} b
    CROSS JOIN LATERAL ({_due_in_lane(_CANDIDATE, f"{but} AND NOT {_IS_SHARED}{can_take}", f":limit {LOCK}")}) c
    LIMIT :limit)"""


def _due_in_lane(columns: str, more: str, most: str) -> str:
    """Return SQL for *most* due jobs of lane ``b``, in order. *more* is further conditions."""
    return f"""
      SELECT * FROM (SELECT {columns} FROM {JOBS} j
                     WHERE b.own_timeout = 0 AND {_DUE_PLAIN}{more} ORDER BY j.run_at, j.id LIMIT {most}) p
      UNION ALL
      SELECT * FROM (SELECT {columns} FROM {JOBS} j
                     WHERE b.own_timeout = 1 AND {_DUE_TIMED}{more} ORDER BY j.run_at, j.id LIMIT {most}) t"""


def _picked_anywhere(but: str = "") -> str:
    return f"""
  WITH picked AS MATERIALIZED (
    SELECT {_CANDIDATE} FROM {JOBS} j CROSS JOIN LATERAL (SELECT j.*) b
    WHERE {_DUE_ANYWHERE} AND {_IN_SOME_TURN}{but} AND {HOLDS_TURN}
    ORDER BY j.priority, j.run_at, j.id LIMIT :limit {LOCK})"""


PICKED_POSTGRESQL: Final = _picked()
PICKED_ANYWHERE: Final = _picked_anywhere()
_LEASE_PICKED: Final = f""",
  placed AS (SELECT id, no_prefetch, row_number() OVER (ORDER BY priority, run_at, id) AS place FROM picked),
  taken AS (
    SELECT id FROM placed WHERE place <
      coalesce((SELECT min(place) FROM placed WHERE no_prefetch AND place > :free), 9223372036854775807))
  UPDATE {JOBS} j SET {_LEASED}
  WHERE j.id = ANY(ARRAY(SELECT id FROM taken)) AND {_STILL_WAITING}
  RETURNING {FACTS}, {NOW} AS now"""
CLAIM_POSTGRESQL: Final = PICKED_POSTGRESQL + _LEASE_PICKED
CLAIM_ANYWHERE: Final = PICKED_ANYWHERE + _LEASE_PICKED


def _lease_parameters(locked_by: str, lease: timedelta, policies: ClaimPolicies) -> dict[str, Any]:
    return {
        "locked_by": locked_by,
        "lease_s": lease.total_seconds(),
        "policies": policies.others,
        "usual_policy": policies.usual,
    }


def _claim_sqlite(
    connection: Connection, parameters: dict[str, Any], admission: ClaimFilter, lease_parameters: dict[str, Any]
) -> Sequence[Row[Any]]:
    # SQLite has only one writer at a time (BEGIN IMMEDIATE), so separate statements can find the rows and lease them.
    due = _due_sqlite(connection, parameters, admission)
    end = next((place for place, row in enumerate(due) if row.no_prefetch and place >= admission.free), len(due))
    return _take(connection, [row.id for row in due[:end]], lease_parameters)


def _due_sqlite(
    connection: Connection, parameters: dict[str, Any], admission: ClaimFilter, also: str = ""
) -> list[Row[Any]]:
    """Return the first due rows in claim order, read lane by lane. *also* is an additional SQL condition."""
    if admission.many_queues:
        anywhere = f"""
  SELECT {_CANDIDATE_SQLITE} FROM {JOBS} b JOIN {JOBS} j ON j.id = b.id
  WHERE {_DUE_ANYWHERE} AND {_IN_SOME_TURN}{also} ORDER BY b.priority, b.run_at, b.id LIMIT :limit"""
        return list(run(connection, anywhere, **parameters))
    due: list[Row[Any]] = []
    lanes = run(connection, LANES_SQLITE, **parameters)
    for lane in sorted(lanes, key=lambda lane: (lane.priority, lane.head_us)):
        if len(due) == parameters["limit"] and (lane.priority, lane.head_us) > (due[-1].priority, due[-1].due_us):
            break
        rows = run(
            connection,
            f"SELECT {_CANDIDATE_SQLITE} FROM {JOBS} j "
            f"WHERE true{also} AND {_DUE_TIMED if lane.own_timeout else _DUE_PLAIN} "
            "ORDER BY j.run_at, j.id LIMIT :limit",
            lane_type=lane.job_type,
            lane_queue=stored(lane.queue),
            lane_priority=lane.priority,
            **parameters,
        )
        found = list(rows)  # already in claim order
        due = sorted(due + found, key=lambda row: row[:3])[: parameters["limit"]] if due else found
    return due


LANES_SQLITE: Final = f"""
  WITH RECURSIVE {LANES}, placed AS (
    SELECT b.*, CASE b.own_timeout
      WHEN 0 THEN (SELECT j.run_at FROM {JOBS} j WHERE j.job_type = b.job_type AND j.queue = b.queue
                   AND j.priority = b.priority AND j.{PLAIN} ORDER BY j.run_at LIMIT 1)
      ELSE (SELECT j.run_at FROM {JOBS} j WHERE j.job_type = b.job_type AND j.queue = b.queue
            AND j.priority = b.priority AND j.{TIMED} ORDER BY j.run_at LIMIT 1) END AS head_us
    FROM lane b WHERE {OPEN_QUEUE})
  SELECT * FROM placed WHERE head_us <= {NOW}"""


_CANDIDATE_SQLITE: Final = f"j.priority, j.run_at AS due_us, j.id, {_NOT_PREFETCHED} AS no_prefetch, j.concurrency_key"


def _take(connection: Connection, ids: list[int], lease_parameters: dict[str, Any]) -> Sequence[Row[Any]]:
    """Lease the rows of *ids* that are still waiting. The caller makes sure that no other session can take them."""
    if not ids:
        return []
    if is_postgresql(connection):
        return run(connection, TAKE + f" RETURNING {FACTS}, {NOW} AS now", ids=ids, **lease_parameters).all()
    # SQLite's RETURNING cannot use the table's alias, but FACTS needs the alias.
    run(connection, TAKE, ids=ids, **lease_parameters)
    return run(connection, f"SELECT {FACTS}, {NOW} AS now FROM {JOBS} j WHERE j.id {AMONG_IDS}", ids=ids).all()


_WHERE_STILL_WAITING: Final = f"WHERE j.id {AMONG_IDS} AND {_STILL_WAITING}"
TAKE: Final = f"UPDATE {JOBS} AS j SET {_LEASED} {_WHERE_STILL_WAITING}"
TAKE_UNREAD: Final = f"UPDATE {JOBS} AS j SET {_LEASED_UNREAD} {_WHERE_STILL_WAITING}"


# --- claim row by row -------------------------------------------------------------------------------------------------


READ_WITHIN_S: Final = 5.0  # the time allowed for reading one row


def claim_warily(connection: Connection, *, locked_by: str, lease: timedelta, admission: ClaimFilter) -> Claim:
    """Lease one job as ``claim`` does, but do not read its row. The caller reads the row after ``note_read``.

    Use this function after a process died while its claim was reading rows. The caller must commit before it reads the
    row. If reading then kills the process, the lease shows which row the process was reading.
    """
    parameters = _parameters(connection, 1, admission)
    lease_parameters = _lease_parameters(locked_by, lease, admission.policies)
    if admission.limits:
        ids, more_due = _choose(connection, parameters, admission)
    else:
        seen = _look(connection, parameters, admission, full_parameters(connection, full((), {})), list(admission.but))
        ids, more_due = list(choose(seen, (), {}, before=0, free=admission.free).taken), False
    refused = {}
    for job_id in ids:
        try:
            with connection.begin_nested():
                run(connection, TAKE_UNREAD, ids=[job_id], **lease_parameters)
        except DBAPIError as error:
            if is_lost(error):
                raise
            refused[job_id] = " ".join(str(error.orig).split())
    taken = [job_id for job_id in ids if job_id not in refused]
    scheduled = run(
        connection, f"SELECT j.id FROM {JOBS} j WHERE j.id {AMONG_IDS} AND j.schedule IS NOT NULL", ids=taken
    )
    take_turns(connection, scheduled.scalars().all())
    # If this call claimed a job, more jobs may be due behind that job.
    return Claim(database_now(connection), [], more_due or bool(ids), refused, taken)


def note_read(connection: Connection, job_id: int, locked_by: str) -> bool:
    """Mark a row leased by ``claim_warily`` as read, in the transaction that reads it.

    Returns False if the lease no longer exists. If reading fails, or takes the server too long, the transaction also
    rolls back the mark, so recovery sees an unread row.
    """
    if is_postgresql(connection):
        run(connection, f"SET LOCAL statement_timeout = {READ_WITHIN_S * 1000:.0f}")
    read = run(
        connection,
        f"""
        UPDATE {JOBS} AS j SET policy = {_POLICY_READ},
          error_type = CASE WHEN {_IS_DOUBTFUL} THEN NULL ELSE j.error_type END
        WHERE j.id = :id AND j.locked_by = :locked_by AND {_IS_UNREAD}""",
        id=job_id,
        locked_by=locked_by,
    )
    return bool(read.rowcount)


def unread_by(connection: Connection, locked_by: str) -> list[Job]:
    """Return every job leased to *locked_by* whose row was never read. The returned jobs have no payloads."""
    rows = run(connection, f"SELECT {FACTS_UNREAD} {_LEASED_TO} AND {_IS_UNREAD}", locked_by=locked_by)
    return [job_from(row) for row in rows]


# --- claim under limits -----------------------------------------------------------------------------------------------

# If jobs cannot run because their keys are full, a claim looks for the jobs behind them, at most this many times. The
# next claim continues.
ROUNDS: Final = 8
_SEEN: Final = " SELECT id, no_prefetch, concurrency_key FROM picked ORDER BY priority, run_at, id"
LOOK_POSTGRESQL: Final = _picked(behind_full_keys=True) + _SEEN
LOOK_ANYWHERE: Final = _picked_anywhere(BUT) + _SEEN


def _choose(connection: Connection, parameters: dict[str, Any], admission: ClaimFilter) -> tuple[list[int], bool]:
    """Choose the jobs to take under limits, and lock their rows.

    Returns the ids of these jobs in order, and whether more jobs may be due.
    """
    alone = judge_alone(connection)
    limits = admission.limits if alone else closed(admission.limits)
    running: Mapping[str, int] = running_by_key(connection) if alone else {}
    taken: list[int] = []
    but = list(admission.but)
    for _ in range(ROUNDS):
        # Leave out keys that have become full, to find the jobs behind those with full keys.
        asked = parameters["limit"] - len(taken)
        closed_keys = full_parameters(connection, full(limits, running))
        seen = _look(connection, parameters | {"limit": asked}, admission, closed_keys, [*but, *taken])
        choice = choose(seen, limits, running, before=len(taken), free=admission.free)
        taken += choice.taken
        running = choice.running
        if choice.cut or len(seen) < asked or len(choice.taken) == asked:
            return taken, not alone
    return taken, True


def _look(
    connection: Connection,
    parameters: dict[str, Any],
    admission: ClaimFilter,
    full: dict[str, str],
    taken: Sequence[int],
) -> list[Candidate]:
    """Return and lock the first due jobs, in order, whose keys are not *full* and whose ids are not in *taken*."""
    parameters = parameters | full | {"ids": group_value(connection, list(taken))}
    if is_postgresql(connection):
        rows = run(connection, LOOK_ANYWHERE if admission.many_queues else LOOK_POSTGRESQL, **parameters).all()
    else:
        rows = _due_sqlite(connection, parameters, admission, BUT)
    return [Candidate(row.id, row.concurrency_key, bool(row.no_prefetch)) for row in rows]


def claim_one(
    connection: Connection,
    job_id: int,
    *,
    locked_by: str,
    lease: timedelta,
    policies: ClaimPolicies,
    limits: Sequence[Limit] = (),
) -> Job | Limit | None:
    """Lease one waiting job that a person named, even if it is not due yet.

    If the job's concurrency key has reached one of *limits*, returns that limit instead of the job. Returns None if the
    job is not waiting, or if another session has locked it. With *limits*, the call first waits until any other
    claim under limits has finished. Raises DatabaseError.
    """
    if limits:
        judge_alone(connection, wait=True)
    found = run(
        connection,
        f"SELECT j.id, j.concurrency_key FROM {JOBS} j WHERE j.id = :id AND j.{WAITING} {LOCK}",
        id=job_id,
    ).first()
    if found is None:
        return None
    if limits and (limit := reached(limits, running_by_key(connection), found.concurrency_key)) is not None:
        return limit
    [row] = _take(connection, [job_id], _lease_parameters(locked_by, lease, policies))
    return job_from(row)


_LEASED_TO: Final = f"FROM {JOBS} j WHERE j.locked_until IS NOT NULL AND j.locked_by = :locked_by"


def held_by(connection: Connection, locked_by: str, *, warily: bool = False) -> list[Job]:
    """Return every job that is leased to *locked_by* and whose row has been read.

    If the reply to a claim's COMMIT was lost, these are the jobs that the claim took. With *warily*, each row is
    fetched in its own statement, because one of the rows may be unreadable.
    """
    leased = f"{_LEASED_TO} AND NOT {_IS_UNREAD} ORDER BY j.priority, j.run_at, j.id"
    if warily:
        ids = run(connection, f"SELECT j.id {leased}", locked_by=locked_by).scalars().all()
        fetched = (fetch_by_itself(connection, id_, locked_by) for id_ in ids)
        return [job for job in fetched if job is not None]
    rows = run(connection, f"SELECT {FACTS} {leased}", locked_by=locked_by)
    return list(map(job_from, rows))
