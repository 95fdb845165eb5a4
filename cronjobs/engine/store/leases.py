"""All statements about leased jobs: renew, finish, hand over. Each statement that writes contains the fence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import Connection, CursorResult, Row

from cronjobs.engine.database.encoding import UTF8, fitted, server_encoding
from cronjobs.engine.database.tables import job_runs, jobs
from cronjobs.engine.probe.sql_text import AUDIT, JOB_RUNS, JOBS, after_now, either
from cronjobs.engine.rules.ending import late_output
from cronjobs.engine.rules.lease import Finish, Lease, Report
from cronjobs.engine.rules.misfits import MISFIT
from cronjobs.engine.rules.progress import row_value
from cronjobs.engine.store.claims import AFTER_LEASE, held_by
from cronjobs.engine.store.concurrency import judge_alone
from cronjobs.engine.store.counts import count_ends
from cronjobs.engine.store.released_keys import NEVER_BEGUN
from cronjobs.engine.store.sql import (
    JSON_TYPE,
    LOCK,
    WAIT_FOR_LOCK,
    is_postgresql,
    kinds,
    run,
    shaped,
    shaped_rows,
)
from cronjobs.model import Job, Status

_LEASE_COLUMNS: Final = {"id": "bigint", "attempt": "int", "locked_by": "text"}
_REPORT_COLUMNS: Final = _LEASE_COLUMNS | {"progress": "text", "live_output": "text"}
NO_REPORTS: Final[Mapping[int, Report]] = MappingProxyType({})
# ``Finish.columns`` returns its values in this order.
_FINISH_COLUMNS: Final = (
    _LEASE_COLUMNS
    | kinds(jobs, "status", "failures", "losses", "interruptions")
    | kinds(job_runs, "outcome")
    | kinds(jobs, "run_at")
    | {"ended_ago": "float8", "duration": "float8"}
    | kinds(job_runs, "worker", "error_type", "error", "traceback", "output")
    | kinds(jobs, "result")
)


# The fence: a write about an attempt takes effect only while that attempt holds the lease.
_FENCE: Final = "j.id = o.id AND j.attempts = o.attempt AND j.locked_by = o.locked_by AND j.status = 'running'"
# ``_run`` replaces this with the statement's leases or ends.
_GROUP: Final = "{group}"
# Without this condition, PostgreSQL may scan the table for "status = 'running'" and compare each row with the group.
# For 250 of 10,000 rows, the statement then took 21 ms instead of 3 ms.
_BY_ID: Final = either(
    postgresql="j.id = ANY(ARRAY(SELECT CAST(v AS bigint) FROM json_array_elements_text(CAST(:id_rows AS json)) v))",
    sqlite="true",
)
# An attempt may end before it learns that its job was cancelled. Even then the job is not retried. The audit trail
# records who cancelled the job and why. If a cancelled command left something running, the outcome's error says so.
_TO_CANCEL: Final = "j.cancel_requested_at IS NOT NULL AND o.status IN ('queued', 'failed', 'cancelled')"
_CANCEL_WORDS: Final = f"""
      coalesce((SELECT 'cancelled by ' || coalesce(a.actor, 'someone') || coalesce(': ' || a.why, '') FROM {AUDIT} a
                WHERE a.action = 'cancel' AND a.subject = 'job ' || CAST(j.id AS text)
                  AND a.at >= j.cancel_requested_at ORDER BY a.at, a.id LIMIT 1), 'cancelled')
      || CASE WHEN o.status = 'cancelled' AND o.error LIKE 'cancelled%' THEN substr(o.error, 10) ELSE '' END"""
_STATUS_AFTER: Final = f"CASE WHEN {_TO_CANCEL} THEN 'cancelled' ELSE o.status END"
# True if the runner releases a job whose attempt has not begun, and somebody has asked to cancel that job. Such a job
# gives up its key.
_GIVES_KEY_BACK: Final = f"CASE WHEN {_TO_CANCEL} AND o.outcome IS NULL THEN {NEVER_BEGUN} ELSE false END"
_ENDED_AT: Final = after_now("-o.ended_ago")
_BEGAN_AT: Final = after_now("-o.ended_ago - o.duration")


# --- renew ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Renewal:
    """The result of a renewal, as sets of job ids.

    ``lost`` are the jobs whose leases are gone for good. The attempts of ``succeeded`` jobs have recorded their own
    success, in the user's transaction (``finish_here``). A job that is in none of the sets was locked by another
    transaction, so the next turn must try to renew its lease again.
    """

    renewed: frozenset[int]
    cancel_requested: frozenset[int]
    lost: frozenset[int]
    succeeded: frozenset[int] = frozenset()


def renew(
    connection: Connection, leases: Sequence[Lease], lease: timedelta, reports: Mapping[int, Report] = NO_REPORTS
) -> Renewal:
    """Renew *leases*: make them end after the duration *lease*, by the database's clock.

    Return which leases were renewed, which are lost, and which jobs somebody asked to cancel.

    The same statement writes the *reports*, whose keys are job ids. Jobs without a report keep their progress and
    output.
    """
    renewed = _extend(connection, [reports.get(each.job_id, each) for each in leases] if reports else leases, lease)
    mine = {row.id: bool(row.cancel_requested) for row in _mine(connection, leases)}
    gone = [held for held in leases if held.job_id not in mine]
    ended = _succeeded(_recorded(connection, gone))
    return Renewal(
        renewed=frozenset(renewed),
        cancel_requested=frozenset(id_ for id_, requested in mine.items() if requested),
        lost=frozenset(held.job_id for held in gone) - ended,
        succeeded=ended,
    )


def hold(connection: Connection, lease: Lease) -> bool:
    """Lock the job's row. Return whether *lease* is still valid. A valid lease stays valid until this transaction ends.

    The call waits for the lock, because another runner may be taking the job over at this moment. While we hold the
    lock, no other runner can take the job over, and our own renewals skip the row and try it again later.
    """
    return bool(_mine(connection, [lease], f" {WAIT_FOR_LOCK}"))


def is_held(connection: Connection, lease: Lease) -> bool:
    return bool(_mine(connection, [lease]))


def _mine(connection: Connection, leases: Sequence[Lease], lock: str = "") -> Sequence[Row[Any]]:
    """Return a row with id and cancel_requested for each of *leases* that passes the fence."""
    return _run(
        connection,
        f"SELECT j.id, j.cancel_requested_at IS NOT NULL AS cancel_requested FROM {_GROUP} AS o "
        f"JOIN {JOBS} j ON {_FENCE} WHERE {_BY_ID}{lock}",
        leases,
    ).all()


class _Group(NamedTuple):
    """Leases or ends as a statement needs them: the SQL that replaces ``_GROUP``, and the parameters of that SQL."""

    source: str
    parameters: dict[str, Any]

    @classmethod
    def of(cls, connection: Connection, group: Sequence[Lease] | Sequence[Finish] | Sequence[Lease | Report]) -> _Group:
        """Return the SQL and the parameters for *group*, which must not be empty."""
        columns: Mapping[str, str] = _LEASE_COLUMNS
        found: Iterable[Sequence[Any]]
        if isinstance(group[0], Finish):
            columns, found = _FINISH_COLUMNS, Finish.columns(cast("Sequence[Finish]", group))
        elif any(isinstance(each, Report) for each in group):
            columns = _REPORT_COLUMNS
            found = zip(*[_report_row(connection, cast("Lease | Report", each)) for each in group], strict=True)
        else:
            found = zip(*group, strict=True)
        values = dict(zip(columns, found, strict=True))
        for name in _TEXTS & values.keys():
            if any(values[name]):
                values[name] = [None if text is None else fitted(connection, text) for text in values[name]]
        given, bound, varying = shaped(connection, values, from_json=("id",))
        return cls(shaped_rows(is_postgresql(connection), columns, bound, varying), given)


Group = Sequence[Lease] | Sequence[Finish] | Sequence[Lease | Report] | _Group


def _run(connection: Connection, statement: str, group: Group, **more: Any) -> CursorResult[Any]:
    """Run *statement*, with ``_GROUP`` replaced by these leases or ends. The statement may return only ids, statuses
    and texts, because a user's connection may be unable to read instants.
    """
    about = group if isinstance(group, _Group) else _Group.of(connection, group)
    return run(connection, statement.replace(_GROUP, about.source), **about.parameters, **more)


_TEXTS: Final = frozenset({"error_type", "error", "traceback", "output"})


def _report_row(connection: Connection, each: Lease | Report) -> tuple[Any, ...]:
    if isinstance(each, Lease):
        return (*each, None, None)
    how_far = each.reported.progress
    # In JSON, a character that the server's encoding lacks would become an escape sequence, which the server rejects.
    if how_far.note is not None and server_encoding(connection) != UTF8:
        how_far = how_far._replace(note=how_far.note.encode("ascii", "backslashreplace").decode())
    progress = row_value(each.reported._replace(progress=how_far))
    return (*each.lease, progress, None if each.live_output is None else fitted(connection, each.live_output))


_REPORTED: Final = f"""
  locked_until = {AFTER_LEASE}, progress = coalesce(CAST(o.progress AS {JSON_TYPE}), j.progress),
  live_output = coalesce(o.live_output, j.live_output)"""


def _extend(connection: Connection, leases: Sequence[Lease | Report], left: timedelta) -> list[int]:
    reports = any(isinstance(each, Report) for each in leases)
    assignments = _REPORTED if reports else f"locked_until = {AFTER_LEASE}"
    return [row[0] for row in _update_mine(connection, leases, assignments, lease_s=left.total_seconds())]


def _update_mine(connection: Connection, group: Group, assignments: str, **parameters: Any) -> Sequence[Row[Any]]:
    """Update the rows of *group* that pass the fence and are not locked. Return the id, the status and last_error of
    the updated rows.

    A row that another transaction has locked, such as somebody's open psql session, is skipped. Otherwise one such row
    would block the renewal of all leases in the group.
    """
    if is_postgresql(connection):
        statement = (
            f"WITH o AS MATERIALIZED {_GROUP}, "
            f"mine AS MATERIALIZED (SELECT j.id FROM o JOIN {JOBS} j ON {_FENCE} WHERE {_BY_ID} {LOCK}) "
            f"UPDATE {JOBS} j SET {assignments} FROM o JOIN mine ON mine.id = o.id WHERE {_FENCE} "
            "RETURNING j.id, j.status, j.last_error"
        )
    else:
        statement = (
            f"UPDATE {JOBS} AS j SET {assignments} FROM {_GROUP} AS o WHERE {_FENCE} RETURNING id, status, last_error"
        )
    return _run(connection, statement, group, **parameters).all()


# --- finish -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FinishResult:
    """The result of ``finish``, as job ids.

    ``written`` are the jobs whose end was recorded. ``lost`` are the jobs whose attempt has lost its lease for good.
    Other transactions have locked the rows of all other jobs, so the caller must try these jobs again. ``cancelled``
    has each written job that is now cancelled, whatever its outcome, with a text that says who cancelled the job and
    why. ``succeeded`` are the jobs of ``written`` that an attempt had already recorded as succeeded, in the user's
    transaction.
    """

    written: frozenset[int]
    lost: frozenset[int]
    cancelled: Mapping[int, str] = field(default_factory=dict)
    succeeded: frozenset[int] = frozenset()


# A loss, an interruption or a release does not show whether the payload fits, so it leaves ``misfit_since`` as it is.
_MISFIT_AFTER: Final = f"""CASE WHEN o.error_type = '{MISFIT}' THEN coalesce(j.misfit_since, {_ENDED_AT})
      WHEN o.outcome IN ('succeeded', 'failed', 'timed_out', 'snoozed') THEN NULL ELSE j.misfit_since END"""


# The history may already have a row for this attempt, because a timeout is recorded while the attempt's thread is still
# running. If the attempt then returns a result before it is stopped, the result counts and replaces that row.
_HISTORY_COLUMNS: Final = """(job_id, attempt, outcome, started_at, finished_at, runner, worker, error_type, error,
      traceback, output)"""
_HISTORY_VALUES: Final = f"""
      j.id, o.attempt, o.outcome,
      CASE WHEN o.duration IS NULL THEN coalesce(j.started_at, {_ENDED_AT}) ELSE {_BEGAN_AT} END, {_ENDED_AT},
      o.locked_by, o.worker, o.error_type, CASE WHEN o.outcome = 'cancelled' THEN j.last_error ELSE o.error END,
      o.traceback, o.output"""
_HISTORY_AGAIN: Final = """
      ON CONFLICT (job_id, attempt) DO UPDATE SET outcome = excluded.outcome, finished_at = excluded.finished_at,
        error_type = excluded.error_type, error = excluded.error, traceback = excluded.traceback,
        output = excluded.output"""

# Only the history keeps why an attempt was postponed. It is no error, and the job's row keeps the last one.
_ERROR: Final = "CASE WHEN o.outcome = 'snoozed' THEN NULL ELSE o.error END"
_FINISH: Final = f"""
  status = {_STATUS_AFTER}, failures = o.failures, losses = o.losses, interruptions = o.interruptions,
  locked_by = NULL, locked_until = NULL, policy = NULL, progress = NULL, live_output = NULL,
  run_at = coalesce(o.run_at, j.run_at),
  last_error = CASE WHEN {_TO_CANCEL} THEN {_CANCEL_WORDS} ELSE coalesce({_ERROR}, j.last_error) END,
  error_type = CASE WHEN {_TO_CANCEL} THEN NULL WHEN o.outcome = 'snoozed' THEN j.error_type
    WHEN o.error IS NOT NULL THEN o.error_type
    ELSE coalesce(o.error_type, j.error_type) END,
  misfit_since = {_MISFIT_AFTER},
  last_failed_at = CASE WHEN {_ERROR} IS NULL THEN j.last_failed_at ELSE {_ENDED_AT} END,
  result = CASE WHEN o.status = 'succeeded' THEN CAST(o.result AS {JSON_TYPE}) ELSE j.result END,
  started_at = CASE WHEN o.duration IS NULL THEN coalesce(
      (SELECT r.started_at FROM {JOB_RUNS} r WHERE r.job_id = j.id AND r.attempt = o.attempt), j.started_at)
    ELSE {_BEGAN_AT} END,
  finished_at = CASE WHEN {_STATUS_AFTER} IN ('succeeded', 'dead', 'cancelled') THEN {_ENDED_AT} END,
  released_key = CASE WHEN {_GIVES_KEY_BACK} THEN coalesce(j.idempotency_key, j.released_key) ELSE j.released_key END,
  idempotency_key = CASE WHEN {_GIVES_KEY_BACK} THEN NULL ELSE j.idempotency_key END"""


_FINISH_POSTGRESQL: Final = f"""
  WITH o AS MATERIALIZED {_GROUP},
  mine AS MATERIALIZED (SELECT j.id FROM o JOIN {JOBS} j ON {_FENCE} WHERE {_BY_ID} {LOCK}),
  j AS (
    UPDATE {JOBS} j SET {_FINISH}
    FROM o JOIN mine ON mine.id = o.id WHERE {_FENCE} RETURNING j.id, j.started_at, j.status, j.last_error),
  history AS (
    INSERT INTO {JOB_RUNS} {_HISTORY_COLUMNS}
    SELECT {_HISTORY_VALUES} FROM o JOIN j ON j.id = o.id WHERE o.outcome IS NOT NULL {_HISTORY_AGAIN})
  SELECT id, status, last_error FROM j"""


def finish(connection: Connection, finishes: Sequence[Finish]) -> FinishResult:
    """Record how attempts ended, in the job row, the history row and the counts. Attempts that fail the fence are
    skipped.
    """
    all_of_them = _Group.of(connection, finishes)
    if is_postgresql(connection):
        ended = _run(connection, _FINISH_POSTGRESQL, all_of_them).all()
    else:
        ended = _update_mine(connection, all_of_them, _FINISH)
    written = frozenset([row[0] for row in ended])
    if not is_postgresql(connection):
        history = [end for end in finishes if end.lease.job_id in written and end.outcome]
        if history:
            _write_history(connection, all_of_them if len(history) == len(finishes) else history)
    count_ends(connection, written)
    left = [end.lease for end in finishes if end.lease.job_id not in written]
    mine = {row.id for row in _mine(connection, left)} if left else set()
    return FinishResult(
        written,
        lost=frozenset(held.job_id for held in left if held.job_id not in mine),
        cancelled={id_: error or "" for id_, status, error in map(tuple, ended) if status == Status.CANCELLED},
    )


def finish_here(connection: Connection, end: Finish) -> bool:
    """Record an attempt's end as the last statement of the user's transaction. Return False if its lease is gone.

    The call waits for the lock on the job's row, which a renewal may hold. After that, no other runner can take the job
    until this transaction ends. *connection* may be the user's own (see ``database.user_connections``).
    """
    return hold(connection, end.lease) and end.lease.job_id in finish(connection, [end]).written


def _write_history(connection: Connection, ends: Group) -> None:
    """Insert history rows of attempts whose lease this transaction has locked, or has just given up."""
    _run(
        connection,
        f"INSERT INTO {JOB_RUNS} {_HISTORY_COLUMNS} SELECT {_HISTORY_VALUES} FROM {_GROUP} AS o "
        f"JOIN {JOBS} j ON j.id = o.id WHERE {_BY_ID} {_HISTORY_AGAIN}",
        ends,
    )


def record_overdue(connection: Connection, finishes: Sequence[Finish]) -> frozenset[int]:
    """Write history rows for attempts that are still running after their timeout or the grace period.

    The attempts keep their leases.

    Returns the ids of the jobs whose history was written. Rows that another session has locked are left for the next
    turn, because the history's foreign key would make the whole turn wait for them.
    """
    if not finishes:
        return frozenset()
    ids = frozenset(row.id for row in _mine(connection, [end.lease for end in finishes], f" {LOCK}"))
    running = [end for end in finishes if end.lease.job_id in ids]
    if running:
        _write_history(connection, running)
    return ids


def cut_leases(connection: Connection, leases: Sequence[Lease], left: timedelta) -> list[int]:
    """Make leases end *left* from now, because the process and its threads are about to end."""
    return _extend(connection, leases, left)


# --- hand over --------------------------------------------------------------------------------------------------------

# The last part of locked_by, the tick, begins with this prefix if the holder of the lease is a process that runs one
# long job.
LONG: Final = "long-"


def long_running(connection: Connection, host: str) -> int:
    """Return how many long jobs run in processes of their own on *host*."""
    statement = f"SELECT count(*) FROM {JOBS} l WHERE {_LONG_OF_HOST}"
    return int(run(connection, statement, **_host(host)).scalar_one())


def adopt(
    connection: Connection,
    held: Lease,
    *,
    locked_by: str,
    lease: timedelta,
    host: str,
    at_most: int,
    policy: str | None = None,
) -> Job | None:
    """Transfer the lease *held* to *locked_by*, keeping the attempt. Return the job.

    Returns None if the lease is gone, or if *host* already runs *at_most* long jobs. If the attempt is lost, recovery
    applies *policy*, a JSON text. If *policy* is None, the policy that the claim wrote stays. The transfer is a
    compare-and-swap: after it, the previous holder fails the fence.
    """
    # Take the lock in a separate statement. If the next statement took the lock itself, its snapshot would be older
    # than the lock, and it could miss a long job that another process has just taken.
    judge_alone(connection, wait=True)
    run(
        connection,
        f"""
        UPDATE {JOBS} SET locked_by = :own, locked_until = {AFTER_LEASE},
          policy = coalesce(CAST(:policy AS {JSON_TYPE}), policy)
        WHERE id = :id AND attempts = :attempt AND locked_by = :locked_by AND status = 'running'
          AND (SELECT count(*) FROM {JOBS} l WHERE {_LONG_OF_HOST}) < :at_most""",
        **held.facts(),
        **_host(host),
        own=locked_by,
        policy=policy,
        lease_s=lease.total_seconds(),
        at_most=at_most,
    )
    return next(iter(held_by(connection, locked_by)), None)


def _host(host: str) -> dict[str, Any]:
    return {"prefix": f"{host}:", "prefix_length": len(host) + 1, "long": f"%:{LONG}%"}


_LONG_OF_HOST: Final = """
      l.locked_until IS NOT NULL AND substr(l.locked_by, 1, :prefix_length) = :prefix AND l.locked_by LIKE :long"""


# --- after a reply was lost -------------------------------------------------------------------------------------------


_IN_HISTORY: Final = "r.job_id = o.id AND r.attempt = o.attempt AND r.runner = o.locked_by"


def _recorded(connection: Connection, leases: Sequence[Lease]) -> dict[int, str]:
    """Return, by job id, the outcomes that the history has for the attempts of *leases*."""
    if not leases:
        return {}
    statement = f"SELECT r.job_id, r.outcome FROM {_GROUP} AS o JOIN {JOB_RUNS} r ON {_IN_HISTORY}"
    return {row.job_id: row.outcome for row in _run(connection, statement, leases).all()}


def _succeeded(recorded: Mapping[int, str]) -> frozenset[int]:
    """Return the jobs whose own attempt has recorded its success (see ``finish_here``)."""
    return frozenset(id_ for id_, outcome in recorded.items() if outcome == "succeeded")


def settle(connection: Connection, finishes: Sequence[Finish], written: FinishResult) -> FinishResult:
    """Correct *written*, the result of ``finish``, from the history.

    An end that seems lost may have been recorded after all, by a COMMIT whose reply was lost or by the attempt itself.
    If the attempt recorded its own success, add its late output and error to the history.
    """
    lost = [end for end in finishes if end.lease.job_id in written.lost]
    recorded = _recorded(connection, [end.lease for end in lost])
    ours = {end.lease.job_id for end in lost if end.outcome and end.outcome == recorded.get(end.lease.job_id)}
    ended = _succeeded(recorded)
    more = [added for end in lost if end.lease.job_id in ended and (added := late_output(end)) is not None]
    if more:
        _run(
            connection,
            f"""UPDATE {JOB_RUNS} AS r SET output = coalesce(o.output, r.output), error = coalesce(o.error, r.error),
                 error_type = coalesce(o.error_type, r.error_type), traceback = coalesce(o.traceback, r.traceback)
               FROM {_GROUP} AS o
               WHERE {_IN_HISTORY} AND r.outcome = 'succeeded'""",
            more,
        )
    return replace(written, written=written.written | ours | ended, lost=written.lost - ours - ended, succeeded=ended)
