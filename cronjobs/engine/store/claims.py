"""Which jobs may be claimed, and the claim: one statement on PostgreSQL, one short transaction on SQLite."""

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

from cronjobs.engine.probe.idle_conditions import after_now
from cronjobs.engine.rules.concurrency import Candidate, Limit, choose, closed, full, reached
from cronjobs.engine.rules.recovery_policy import NOT_READ, USUAL, ClaimPolicies
from cronjobs.engine.store.concurrency import BUT, behind_full_keys, full_parameters, judge_alone, running_by_key
from cronjobs.engine.store.job_rows import fetch_by_itself, job_from, jobs_from
from cronjobs.engine.store.lanes import lanes_of, types_in
from cronjobs.engine.store.overlap import runnable_value, take_turns, turn_is_taken
from cronjobs.engine.store.sizes import stored
from cronjobs.engine.store.sql import (
    among,
    database_now,
    define,
    group_value,
    is_postgresql,
    run,
)
from cronjobs.model import Job

define(
    # The lanes of due jobs: (type, whether rows have their own timeout, queue, priority), each found by one index step,
    # so that jobs of types that we cannot run cost nothing. A type is in ``timed`` only if some timeout suits, which is
    # one index step, too.
    lanes="""
      plain(job_type, queue, priority) AS ({lanes_plain}),
      timed(job_type, queue, priority) AS ({lanes_timed}),
      lane(job_type, own_timeout, queue, priority) AS (
        SELECT job_type, 0, queue, priority FROM plain WHERE queue IS NOT NULL
        UNION ALL SELECT job_type, 1, queue, priority FROM timed WHERE queue IS NOT NULL)""",
    lanes_plain=lanes_of("plain", "fitting_types"),
    lanes_timed=lanes_of("timed", "known_types", "{some_timeout_suits}"),
    some_timeout_suits="""
      (EXISTS (SELECT 1 FROM {jobs} j WHERE j.job_type = t.job_type AND j.{timed} AND j.timeout_s <= :remaining)
       OR EXISTS (SELECT 1 FROM {jobs} j WHERE j.job_type = t.job_type AND j.{timed} AND j.timeout_s > :longest))""",
    plain="{waiting} AND j.timeout_s IS NULL",
    timed="{waiting} AND j.timeout_s IS NOT NULL",
    fitting_types=types_in("fitting"),
    known_types=types_in("known"),
    due_plain="j.{plain} AND {due} AND {may_overrun}",
    # Where experience admits a job that its timeout does not, none whose effect was begun and may have to be settled.
    may_overrun="""
      (NOT j.job_type {among_expected}
       OR NOT EXISTS (SELECT 1 FROM {effects} e WHERE e.job_id = j.id AND e.state = 'begun'))""",
    among_expected=among("expected"),
    due_timed="j.{timed} AND (j.timeout_s <= :remaining OR j.timeout_s > :longest) AND {due}",
    due="{in_lane} AND j.run_at <= {now} AND {as_doubtful} AND (j.schedule IS NULL OR {in_turn})",
    # The same without lanes ("b" is the job itself), for databases with more lanes than are worth visiting.
    due_anywhere="""
      b.{waiting} AND b.run_at <= {now} AND {open_queue} AND {as_doubtful} AND CASE WHEN b.timeout_s IS NULL
        THEN b.job_type {among_fitting} AND {may_overrun}
        ELSE b.job_type {among_known} AND (b.timeout_s <= :remaining OR b.timeout_s > :longest) END""",
    as_doubtful=lambda postgresql: (
        f"(j.error_type IS NOT DISTINCT FROM '{NOT_READ}') = CAST(:doubtful AS boolean)"
        if postgresql
        else f"(j.error_type IS '{NOT_READ}') = :doubtful"
    ),
    is_doubtful=f"j.error_type = '{NOT_READ}'",
    in_some_turn="(j.schedule IS NULL OR {in_turn})",
    among_fitting=among("fitting"),
    # Bind type, queue and priority as values. With a join SQLite cannot see that it is one row, and sorts all due jobs.
    in_lane=lambda postgresql: (
        "j.job_type = b.job_type AND j.queue = b.queue AND j.priority = b.priority"
        if postgresql
        # The queue's bytes, which need not be UTF-8.
        else "j.job_type = :lane_type AND j.queue = CAST(:lane_queue AS text) AND j.priority = :lane_priority"
    ),
    among_no_prefetch=among("no_prefetch"),
    # Losses are not charged, but a job that was lost once must not be lost again only because it waited for a worker.
    not_prefetched="(j.losses > 0 OR j.job_type {among_no_prefetch})",
    candidate="j.id, j.priority, j.run_at, {not_prefetched} AS no_prefetch, j.concurrency_key",
    # Of rows that are given by id. Without statistics PostgreSQL would read the index of all that waits, too.
    still_waiting="j.status || '' IN ('queued', 'failed')",
    is_shared="(j.id = ANY(ARRAY(SELECT id FROM shared)))",
    after_lease=after_now(":lease_s"),
    # The policy by which any host's recovery decides. (SQLite: no ``others`` are two braces.)
    policy_at_claim=lambda postgresql: (
        """
      coalesce((SELECT CAST(:policies AS jsonb)) -> j.job_type, (SELECT CAST(:usual_policy AS jsonb)))
        || jsonb_build_object('retry_until',
             (SELECT {retry_until_key} FROM {schedules} s WHERE s.name = j.schedule))"""
        if postgresql
        else """
      json_set(CASE WHEN length(:policies) = 2 THEN :usual_policy ELSE
          coalesce((SELECT p.value FROM json_each(:policies) p WHERE p.key = j.job_type), :usual_policy) END,
        '$.retry_until', CASE WHEN j.schedule IS NOT NULL THEN
          (SELECT {retry_until_key} FROM {schedules} s WHERE s.name = j.schedule) END)"""
    ),
    leased="{lease_taken}, policy = {policy_at_claim}",
    lease_taken="""
      status = 'running', attempts = j.attempts + 1, locked_by = :locked_by, locked_until = {after_lease},
      started_at = {now}, cancel_requested_at = NULL""",
    # For recovery: whoever has this lease has not read the row yet.
    leased_unread=lambda postgresql: (
        "{lease_taken}, policy = {policy_at_claim} || jsonb_build_object('unread', true)"
        if postgresql
        else "{lease_taken}, policy = json_set({policy_at_claim}, '$.unread', json('true'))"
    ),
    is_unread=lambda postgresql: (
        "coalesce(j.policy ? 'unread', false)"
        if postgresql
        else "CASE WHEN json_valid(j.policy) THEN json_type(j.policy, '$.unread') IS NOT NULL ELSE 0 END"
    ),
    policy_read=lambda postgresql: "j.policy - 'unread'" if postgresql else "json_remove(j.policy, '$.unread')",
)


# --- claim ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClaimFilter:
    """Which jobs a runner may claim now.

    ``known``: the job types it can run; ``fitting``: those whose own time-out fits, and the ``expected``, of which jobs
    fit by experience, if none of their effects is begun; a row's timeout_s must be at most ``remaining_s`` or above
    ``longest_s``. ``queue`` None: every queue. Of ``no_prefetch`` types, and of jobs
    that a runner died with, only those that start at once (``free``) are claimed: none may be lost before it has
    started. ``limits`` count the jobs of all runners. ``policies``: by these recovery decides about the attempts.
    ``runnable``: the types that some host is known to run; None: unknown, so any. A schedule's job waits for an
    older one only if that is runnable. ``but``: jobs to leave alone. ``many_queues``: see ``Overview``. ``doubtful``:
    only jobs, instead of all others, of which a claim ended before the row was read.
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
    """The database's now, and the jobs in the order to run them. ``more_due``: more may be due, not looked at."""

    now: datetime
    jobs: list[Job]
    more_due: bool = False
    refused: Mapping[int, str] = MappingProxyType({})  # jobs that the database would not lease, and why
    unread: Sequence[int] = ()  # jobs that are leased, of which the rows are to be read by ``read_leased``
    postponed: bool = False  # doubtful jobs may wait, and were not claimed because something runs here


def claim(connection: Connection, *, limit: int, locked_by: str, lease: timedelta, admission: ClaimFilter) -> Claim:
    """Lease up to *limit* due jobs for *locked_by*.

    Order is (priority, run_at, id). Rows locked by others are skipped, so no claim waits for another.
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
        return Claim(database_now(connection), [], more_due or turn_is_taken(connection))
    jobs = sorted(jobs_from(rows), key=_order)
    take_turns(connection, [job.id for job in jobs if job.schedule is not None], admission.runnable)
    return Claim(rows[0].now, jobs, more_due)


def any_with_own_timeout(connection: Connection) -> bool:
    """Whether a job waits whose row has a timeout of its own."""
    return run(connection, "SELECT 1 FROM {jobs} j WHERE j.{timed} LIMIT 1").first() is not None


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


# A materialised CTE, not a subquery under IN: PostgreSQL may run a locking subquery again per row and exceed the limit
# (bug 15715). ``due`` and ``head`` find, without locks, what the claim would take if it were alone: so many rows of
# each lane (its share). The lateral subqueries then lock row by row, so that no more is locked than taken, and a row
# that another session has locked costs one step. If a lane has too few rows left, ``picked`` takes more than their
# share from the others. A job that is not prefetched ends what is claimed ahead: it waits until it is among the first,
# and later jobs wait with it.
PICKED_POSTGRESQL: Final = """
  WITH RECURSIVE {lanes},
  due AS MATERIALIZED (
    SELECT b.*, row_number() OVER (ORDER BY b.priority, h.run_at, h.id) AS turn FROM lane b
    CROSS JOIN LATERAL (
      SELECT * FROM (SELECT j.run_at, j.id FROM {jobs} j
                     WHERE b.own_timeout = 0 AND {due_plain} ORDER BY j.run_at, j.id LIMIT :limit) p
      UNION ALL
      SELECT * FROM (SELECT j.run_at, j.id FROM {jobs} j
                     WHERE b.own_timeout = 1 AND {due_timed} ORDER BY j.run_at, j.id LIMIT :limit) t) h
    WHERE {open_queue}),
  head AS MATERIALIZED (
    SELECT job_type, own_timeout, queue, priority, count(*) FILTER (WHERE turn <= :limit) AS share
    FROM due GROUP BY 1, 2, 3, 4 ORDER BY min(turn)),
  shared AS MATERIALIZED (
    SELECT c.* FROM head b
    CROSS JOIN LATERAL (
      SELECT * FROM (SELECT {candidate} FROM {jobs} j WHERE b.own_timeout = 0 AND {due_plain} AND {holds_turn}
                     ORDER BY j.run_at, j.id LIMIT b.share {lock}) p
      UNION ALL
      SELECT * FROM (SELECT {candidate} FROM {jobs} j WHERE b.own_timeout = 1 AND {due_timed} AND {holds_turn}
                     ORDER BY j.run_at, j.id LIMIT b.share {lock}) t) c
    WHERE b.share > 0),
  picked AS MATERIALIZED (
    SELECT * FROM shared
    UNION ALL
    SELECT c.* FROM head b
    CROSS JOIN LATERAL (
      SELECT * FROM (SELECT {candidate} FROM {jobs} j
                     WHERE b.own_timeout = 0 AND {due_plain} AND NOT {is_shared} AND {holds_turn}
                     ORDER BY j.run_at, j.id LIMIT :limit {lock}) p
      UNION ALL
      SELECT * FROM (SELECT {candidate} FROM {jobs} j
                     WHERE b.own_timeout = 1 AND {due_timed} AND NOT {is_shared} AND {holds_turn}
                     ORDER BY j.run_at, j.id LIMIT :limit {lock}) t) c
    LIMIT :limit)"""
PICKED_ANYWHERE: Final = """
  WITH picked AS MATERIALIZED (
    SELECT {candidate} FROM {jobs} j CROSS JOIN LATERAL (SELECT j.*) b
    WHERE {due_anywhere} AND {in_some_turn} AND {holds_turn} ORDER BY j.priority, j.run_at, j.id LIMIT :limit {lock})"""
_LEASE_PICKED: Final = """,
  placed AS (SELECT id, no_prefetch, row_number() OVER (ORDER BY priority, run_at, id) AS place FROM picked),
  taken AS (
    SELECT id FROM placed WHERE place <
      coalesce((SELECT min(place) FROM placed WHERE no_prefetch AND place > :free), 9223372036854775807))
  UPDATE {jobs} j SET {leased}
  WHERE j.id = ANY(ARRAY(SELECT id FROM taken)) AND {still_waiting}
  RETURNING {facts}, {now} AS now"""
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
    # SQLite's writer is alone (BEGIN IMMEDIATE), so looking and taking can be separate statements.
    due = _due_sqlite(connection, parameters, admission)
    end = next((place for place, row in enumerate(due) if row.no_prefetch and place >= admission.free), len(due))
    return _take(connection, [row.id for row in due[:end]], lease_parameters)


def _due_sqlite(
    connection: Connection, parameters: dict[str, Any], admission: ClaimFilter, also: str = ""
) -> list[Row[Any]]:
    """The first due rows in order, lane by lane; *also* is an additional condition."""
    if admission.many_queues:
        return list(run(connection, ANYWHERE_SQLITE.replace("{also}", also), **parameters))
    lanes = run(connection, LANES_SQLITE, **_named(parameters, "queue fitting known remaining longest"))
    facts = _named(parameters, "limit no_prefetch runnable doubtful") | {
        name: value for name, value in parameters.items() if name in ("ids", "full_keys", "full_prefixes")
    }
    due: list[Row[Any]] = []
    for lane in sorted(lanes, key=lambda lane: (lane.priority, lane.head_us)):
        if len(due) == parameters["limit"] and (lane.priority, lane.head_us) > (due[-1].priority, due[-1].due_us):
            break
        rows = run(
            connection,
            DUE_SQLITE.replace(
                "{due_in_lane}", f"true{also} AND " + ("{due_timed}" if lane.own_timeout else "{due_plain}")
            ),
            lane_type=lane.job_type,
            lane_queue=stored(lane.queue),
            lane_priority=lane.priority,
            **facts,
            **_named(parameters, "remaining longest" if lane.own_timeout else "expected"),
        )
        found = list(rows)  # in order
        due = sorted(due + found, key=lambda row: row[:3])[: parameters["limit"]] if due else found
    return due


LANES_SQLITE: Final = """
  WITH RECURSIVE {lanes}, placed AS (
    SELECT b.*, CASE b.own_timeout
      WHEN 0 THEN (SELECT j.run_at FROM {jobs} j WHERE j.job_type = b.job_type AND j.queue = b.queue
                   AND j.priority = b.priority AND j.{plain} ORDER BY j.run_at LIMIT 1)
      ELSE (SELECT j.run_at FROM {jobs} j WHERE j.job_type = b.job_type AND j.queue = b.queue
            AND j.priority = b.priority AND j.{timed} ORDER BY j.run_at LIMIT 1) END AS head_us
    FROM lane b WHERE {open_queue})
  SELECT * FROM placed WHERE head_us <= {now}"""
DUE_SQLITE: Final = """
  SELECT j.priority, j.run_at AS due_us, j.id, {not_prefetched} AS no_prefetch, j.concurrency_key FROM {jobs} j
  WHERE {due_in_lane} ORDER BY j.run_at, j.id LIMIT :limit"""
ANYWHERE_SQLITE: Final = """
  SELECT j.priority, j.run_at AS due_us, j.id, {not_prefetched} AS no_prefetch, j.concurrency_key
  FROM {jobs} b JOIN {jobs} j ON j.id = b.id
  WHERE {due_anywhere} AND {in_some_turn}{also} ORDER BY b.priority, b.run_at, b.id LIMIT :limit"""


def _named(parameters: Mapping[str, Any], names: str) -> dict[str, Any]:
    return {name: parameters[name] for name in names.split()}


def _take(connection: Connection, ids: list[int], lease_parameters: dict[str, Any]) -> Sequence[Row[Any]]:
    """Lease the waiting rows of these *ids*; the caller has made sure that nobody else can take them."""
    if not ids:
        return []
    if is_postgresql(connection):
        return run(connection, TAKE + " RETURNING {facts}, {now} AS now", ids=ids, **lease_parameters).all()
    # SQLite's RETURNING accepts no alias, and {facts} needs one.
    run(connection, TAKE, ids=ids, **lease_parameters)
    return run(connection, "SELECT {facts}, {now} AS now FROM {jobs} j WHERE j.id {among_ids}", ids=ids).all()


TAKE: Final = """
  UPDATE {jobs} AS j SET {leased}
  WHERE j.id {among_ids} AND {still_waiting}"""
TAKE_UNREAD: Final = TAKE.replace("{leased}", "{leased_unread}")


# --- claim row by row -------------------------------------------------------------------------------------------------


READ_WITHIN_S: Final = 5.0  # one row


def claim_warily(connection: Connection, *, locked_by: str, lease: timedelta, admission: ClaimFilter) -> Claim:
    """Like ``claim``, for one job, whose row ``read_leased`` reads: for when reading rows made a claim fail.

    Once this transaction is committed the lease says which row was being read, should that be the end of us.
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
            refused[job_id] = " ".join(str(error.orig).split())
    taken = [job_id for job_id in ids if job_id not in refused]
    scheduled = run(
        connection, "SELECT j.id FROM {jobs} j WHERE j.id {among_ids} AND j.schedule IS NOT NULL", ids=taken
    )
    take_turns(connection, scheduled.scalars().all(), admission.runnable)
    return Claim(database_now(connection), [], more_due or bool(ids), refused, taken)  # others may be behind those


def read_leased(connection: Connection, job_id: int, locked_by: str) -> Job | None:
    """Read the row of a job that ``claim_warily`` leased; None: the lease is gone.

    Raises DBAPIError or MemoryError for one that takes too much: then its lease stays, and recovery decides.
    """
    if is_postgresql(connection):
        run(connection, f"SET LOCAL statement_timeout = {READ_WITHIN_S * 1000:.0f}")
    read = run(
        connection,
        """
        UPDATE {jobs} AS j SET policy = {policy_read},
          error_type = CASE WHEN {is_doubtful} THEN NULL ELSE j.error_type END
        WHERE j.id = :id AND j.locked_by = :locked_by AND {is_unread}""",
        id=job_id,
        locked_by=locked_by,
    )
    return fetch_by_itself(connection, job_id) if read.rowcount else None


# --- claim under limits -----------------------------------------------------------------------------------------------

ROUNDS: Final = 8  # of looking behind full keys within one claim; the next claim continues
_SEEN: Final = " SELECT id, no_prefetch, concurrency_key FROM picked ORDER BY priority, run_at, id"
LOOK_POSTGRESQL: Final = behind_full_keys(PICKED_POSTGRESQL) + _SEEN
LOOK_ANYWHERE: Final = PICKED_ANYWHERE.replace("{in_some_turn}", "{in_some_turn}" + BUT) + _SEEN


def _choose(connection: Connection, parameters: dict[str, Any], admission: ClaimFilter) -> tuple[list[int], bool]:
    """Ids to take under limits, in order, rows locked; and whether more may be due that was not looked at."""
    alone = judge_alone(connection)
    limits = admission.limits if alone else closed(admission.limits)
    running: Mapping[str, int] = running_by_key(connection) if alone else {}
    taken: list[int] = []
    but = list(admission.but)
    for _ in range(ROUNDS):
        # Jobs behind a full key must still be found: look again without that key.
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
    """The first due jobs in order that are neither *full* nor *taken*, with their rows locked."""
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
    limits: Sequence[Limit] = (),
    policies: ClaimPolicies = USUAL,
) -> Job | Limit | None:
    """Lease one waiting job that a person named, whatever its run_at.

    Returns the limit that is reached, or None if another session has the job. Waits a moment for other claims under
    limits. Raises DatabaseError.
    """
    if limits:
        judge_alone(connection, wait=True)
    found = run(
        connection,
        "SELECT j.id, j.concurrency_key FROM {jobs} j WHERE j.id = :id AND j.{waiting} {lock}",
        id=job_id,
    ).first()
    if found is None:
        return None
    if limits and (limit := reached(limits, running_by_key(connection), found.concurrency_key)) is not None:
        return limit
    [row] = _take(connection, [job_id], _lease_parameters(locked_by, lease, policies))
    return job_from(row)


def held_by(connection: Connection, locked_by: str, *, warily: bool = False) -> list[Job]:
    """Every job leased to *locked_by* and read: what a claim whose COMMIT reply was lost really took.

    *warily*: fetch each row by itself, as one of them may be unreadable.
    """
    statement = """
        SELECT {facts} FROM {jobs} j
        WHERE j.locked_until IS NOT NULL AND j.locked_by = :locked_by AND NOT {is_unread}
        ORDER BY j.priority, j.run_at, j.id"""
    if warily:
        rows = run(connection, statement.replace("{facts}", "j.id"), locked_by=locked_by).all()
        return [fetch_by_itself(connection, row.id) for row in rows]
    return jobs_from(run(connection, statement, locked_by=locked_by).all())
