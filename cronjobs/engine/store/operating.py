"""Operators' actions on jobs, in short batches: retry, cancel, dismiss, and release jobs whose runner is gone.

Each statement skips locked rows, and the caller tries them again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from cronjobs.engine.database.tables import LENGTHS, UNSETTLED_DEAD_SQL
from cronjobs.engine.probe.idle_conditions import IS_EXEC, WAITING
from cronjobs.engine.probe.sql_text import JOB_RUNS, JOBS, NOW, PAUSES, TOKENS
from cronjobs.engine.rules.lease import Finish, Lease, lease_of
from cronjobs.engine.rules.recovery_policy import seconds
from cronjobs.engine.store import leases, tokens
from cronjobs.engine.store.counts import count_jobs
from cronjobs.engine.store.job_rows import FACTS, LEASE_LENGTH_S, job_from
from cronjobs.engine.store.leases import FinishResult
from cronjobs.engine.store.released_keys import KEY_OWNER, RELEASE_KEY, TAKE_KEY_BACK
from cronjobs.engine.store.schedules import follow_renames
from cronjobs.engine.store.shown_columns import columns_shown
from cronjobs.engine.store.sizes import in_bytes
from cronjobs.engine.store.sql import AMONG_IDS, IS_STRIPPED, LOCK, database_now, is_postgresql, run
from cronjobs.engine.store.ticks import record
from cronjobs.model import Job, Status
from cronjobs.reserved import EXEC_PREFIX

# Change at most this many rows in one transaction, so that ticks are delayed only for a moment.
BATCH: Final = 500
# The statuses that each action applies to. The SQL statements check all other conditions.
TAKES: Final[Mapping[str, tuple[Status, ...]]] = {
    "retry": (Status.DEAD, Status.CANCELLED, Status.FAILED),
    "cancel": (Status.QUEUED, Status.FAILED, Status.RUNNING),
    "release": (Status.RUNNING,),
    "dismiss": (Status.DEAD,),
}
CANCELLED: Final = f"status = 'cancelled', finished_at = {NOW}, last_error = :error, error_type = NULL, {RELEASE_KEY}"

# A row from before the limits in LENGTHS may exceed them. It may stay, but must not become a waiting job again.
_TOO_LONG: Final = (
    "CASE " + " ".join(f"WHEN {in_bytes(f'j.{c}')} > {n} THEN '{c}'" for c, n in LENGTHS.items()) + " END"
)
# ``_refuse`` in ``desk/cli/jobs_change.py`` says why a job cannot be retried. If it finds no reason, the job counts as
# locked by another transaction. The statuses are literals and not parameters, so that the database's planner knows
# their values.
_CAN_RETRY: Final = f"""j.status IN ('dead', 'cancelled', 'failed') AND NOT {IS_STRIPPED} AND {_TOO_LONG} IS NULL
      AND NOT {IS_EXEC} AND {KEY_OWNER} IS NULL AND NOT EXISTS (SELECT 1 FROM {JOBS} n
        WHERE n.released_key = j.released_key AND n.id > j.id AND n.id {AMONG_IDS})"""
# After a job was chosen, another operator may have retried it, and the job may have failed again. Do not change such a
# job.
_AS_IT_WAS: Final = """(j.status IN ('queued', 'running')
      OR coalesce(j.finished_at, j.last_failed_at, j.created_at) <= :as_of)"""
CAN_CANCEL: Final = f"j.{WAITING}"
# A run of "cronjobs exec" cannot be asked to stop, because it never reads such a request.
RUNS: Final = f"j.status = 'running' AND NOT {IS_EXEC}"


@dataclass(frozen=True)
class Changed:
    """The result of a batch: the jobs in ``done`` were changed, the running jobs in ``asked`` were asked to stop."""

    done: frozenset[int] = frozenset()
    asked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class OperatorAction:
    """An operator's action, and the facts about it for the audit trail: who acts, on which host, and why.

    ``filter`` holds the options by which the jobs were chosen, or is None if they were chosen by id. If ``as_of`` is
    given, jobs that have ended or failed since then are left unchanged.
    """

    action: str
    actor: str
    host: str
    why: str | None
    filter: dict[str, str] | None = None
    as_of: datetime | None = None

    @property
    def words(self) -> str:
        """The action in words, for example "cancelled by ada: wrong customer"."""
        done = {"cancel": "cancelled", "retry": "retried", "release": "released", "dismiss": "dismissed"}[self.action]
        return f"{done} by {self.actor}" + (f": {self.why}" if self.why else "")


# --- retry, cancel ----------------------------------------------------------------------------------------------------


def retry(connection: Connection, ids: Collection[int], act: OperatorAction) -> Changed:
    """Make dead, cancelled or failed jobs due now, with all their tries available again.

    Their history is kept. ``attempts`` is not reset, because the fence needs attempt numbers that only rise.
    """
    # A retry that is overdue keeps its place in line.
    due = f"CASE WHEN j.status = 'failed' AND j.run_at < {NOW} THEN j.run_at ELSE {NOW} END"
    again = f"""status = 'queued', run_at = {due}, failures = 0, losses = 0, interruptions = 0, finished_at = NULL,
      cancel_requested_at = NULL, dismissed_at = NULL, misfit_since = NULL, {TAKE_KEY_BACK}"""
    dead = run(connection, f"SELECT j.id FROM {JOBS} j WHERE j.id {AMONG_IDS} AND j.status = 'dead'", ids=sorted(ids))
    were_dead = frozenset(dead.scalars())
    try:
        with connection.begin_nested():
            done = _change(connection, ids, _CAN_RETRY, again, act.as_of)
    # Another transaction has just committed a job with the key of one of these jobs. The caller's next try will see
    # that job.
    except IntegrityError:
        return Changed()
    follow_renames(connection, done)
    record_act(connection, act, done, were_dead=were_dead & done)
    return Changed(done)


def cancel(connection: Connection, ids: Collection[int], act: OperatorAction) -> Changed:
    """Cancel waiting jobs at once, and ask running jobs to stop."""
    done = _change(connection, _locked(connection, ids), CAN_CANCEL, CANCELLED, act.as_of, error=act.words)
    count_jobs(connection, done)
    request = f"cancel_requested_at = coalesce(j.cancel_requested_at, {NOW})"
    asked = _change(connection, set(ids) - done, RUNS, request)
    record_act(connection, act, done)
    # Write one audit row for each job. When the job's attempt ends, that row tells us who cancelled the job and why.
    record_act(connection, act, asked, each=True)
    return Changed(done, asked)


def dismiss(connection: Connection, ids: Collection[int], act: OperatorAction) -> Changed:
    """Record that dead jobs were dealt with. The jobs stay dead, but are no longer reported."""
    done = _change(connection, ids, UNSETTLED_DEAD_SQL, f"dismissed_at = {NOW}", act.as_of)
    record_act(connection, act, done)
    return Changed(done)


def take_back(connection: Connection, ids: Collection[int], act: OperatorAction) -> frozenset[int]:
    """Cancel the waiting jobs among *ids* that never had an attempt, and return their ids. Running jobs are not asked
    to stop.
    """
    never_ran = f"{CAN_CANCEL} AND NOT EXISTS (SELECT 1 FROM {JOB_RUNS} r WHERE r.job_id = j.id)"
    done = _change(connection, _locked(connection, ids), never_ran, CANCELLED, error=act.why)
    count_jobs(connection, done)
    record_act(connection, act, done)
    return done


def begun(connection: Connection, ids: Collection[int]) -> dict[int, int | None]:
    """Return the jobs among *ids* that have or had an attempt, each with the number of its last attempt.

    A pruned job counts as begun, because only ended jobs are pruned. Its number is None.
    """
    statement = f"""
      SELECT j.id, j.attempts, CASE WHEN j.status IN ('queued', 'failed', 'cancelled')
        AND NOT EXISTS (SELECT 1 FROM {JOB_RUNS} r WHERE r.job_id = j.id) THEN 1 ELSE 0 END AS never
      FROM {JOBS} j WHERE j.id {AMONG_IDS}"""
    rows = {row.id: row for row in run(connection, statement, ids=sorted(ids))}
    return {id_: rows[id_].attempts if id_ in rows else None for id_ in ids if id_ not in rows or not rows[id_].never}


def _locked(connection: Connection, ids: Collection[int]) -> Collection[int]:
    """Lock the waiting jobs among *ids* that no other session has locked, and return them.

    The next statement then sees whether an attempt of these jobs has begun.
    """
    if not ids or not is_postgresql(connection):
        return ids
    statement = f"SELECT j.id FROM {JOBS} j WHERE j.id {AMONG_IDS} AND {CAN_CANCEL} {LOCK}"
    return run(connection, statement, ids=sorted(ids)).scalars().all()


def _change(
    connection: Connection,
    ids: Collection[int],
    condition: str,
    assignments: str,
    as_of: datetime | None = None,
    **parameters: Any,
) -> frozenset[int]:
    if not ids:
        return frozenset()
    if as_of is not None:
        condition, parameters["as_of"] = f"{condition} AND {_AS_IT_WAS}", as_of
    if is_postgresql(connection):
        statement = (
            f"WITH mine AS MATERIALIZED (SELECT j.id FROM {JOBS} j WHERE j.id {AMONG_IDS} AND "
            + condition
            + f" {LOCK}) "
            f"UPDATE {JOBS} j SET " + assignments + " FROM mine WHERE j.id = mine.id RETURNING j.id"
        )
    else:
        statement = f"UPDATE {JOBS} AS j SET " + assignments + f" WHERE j.id {AMONG_IDS} AND " + condition
        statement += " RETURNING id"
    return frozenset(run(connection, statement, ids=sorted(ids), **parameters).scalars())


@dataclass(frozen=True)
class JobState:
    """The facts about a job that decide whether an action can be applied to it.

    ``too_long`` says which text is longer than its limit, and how long that text may be. ``key_owner`` is the id of the
    job that now has the key that this job released when it was cancelled.
    """

    status: Status
    # True if pruning removed the payload and kept only the key.
    stripped: bool
    too_long: str | None
    dismissed: bool
    # True for a run of "cronjobs exec", which no tick can run again or stop.
    is_exec: bool
    key_owner: int | None
    locked_by: str | None

    @property
    def unfit_to_retry(self) -> str | None:
        """Why this job can never be retried, as the end of "job 17 is dead, and …". None if nothing prevents it.

        A released key that another job has, and a run of "cronjobs exec", have messages of their own.
        """
        if self.stripped:
            return "retention has removed its payload and kept only its key"
        if self.too_long is not None:
            return f"its {self.too_long}: enqueue a new job with a shorter value"
        return None


def states(connection: Connection, ids: Collection[int]) -> dict[int, JobState]:
    """Return the states of the jobs among *ids* that exist."""
    statement = f"""
        SELECT j.id, j.status, {IS_STRIPPED} AS stripped, {_TOO_LONG} AS too_long,
          j.status = 'dead' AND NOT ({UNSETTLED_DEAD_SQL}) AS dismissed, {IS_EXEC} AS is_exec,
          {KEY_OWNER} AS key_owner, {columns_shown("locked_by")}
        FROM {JOBS} j WHERE j.id {AMONG_IDS}"""
    found = {}
    for row in run(connection, statement, ids=sorted(ids)):
        long = None if row.too_long is None else f"{row.too_long} is longer than {LENGTHS[row.too_long]:,} bytes"
        found[row.id] = JobState(
            Status(row.status),
            bool(row.stripped),
            long,
            bool(row.dismissed),
            bool(row.is_exec),
            row.key_owner,
            row.locked_by,
        )
    return found


def types_of(connection: Connection, ids: Collection[int]) -> set[str]:
    """Return the job types of the jobs among *ids* that exist."""
    statement = f"SELECT DISTINCT j.job_type FROM {JOBS} j WHERE j.id {AMONG_IDS}"
    return set(run(connection, statement, ids=sorted(ids)).scalars())


# --- release ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldJob:
    """A running job and its lease. If ``recorded`` is True, the runner has already recorded the attempt's outcome.

    ``lease_s`` is the length of its runner's leases in seconds, or None if unknown. A cluster worker may run the job
    until ``permitted_until``. If that is None, no worker may run it.
    """

    job: Job
    locked_until: datetime
    recorded: bool
    lease_s: float | None = None
    permitted_until: datetime | None = None

    @property
    def locked_by(self) -> str:
        return self.job.locked_by or ""

    def permitted(self, now: datetime) -> bool:
        """Whether a cluster worker may still be running the job, even if the job's runner is gone."""
        return self.permitted_until is not None and self.permitted_until > now


def held(connection: Connection, ids: Collection[int]) -> dict[int, HeldJob]:
    """Return the jobs among *ids* that are running."""
    rows = run(
        connection,
        f"""
        SELECT {FACTS}, j.locked_until, {LEASE_LENGTH_S} AS lease_s, r.outcome, t.permitted_until FROM {JOBS} j
        LEFT JOIN {JOB_RUNS} r ON r.job_id = j.id AND r.attempt = j.attempts
        LEFT JOIN {TOKENS} t ON t.job_id = j.id AND t.attempt = j.attempts
        WHERE j.id {AMONG_IDS} AND j.locked_until IS NOT NULL""",
        ids=sorted(ids),
    )
    return {
        row.id: HeldJob(
            job_from(row), row.locked_until, row.outcome is not None, seconds(row.lease_s), row.permitted_until
        )
        for row in rows
    }


def release(connection: Connection, gone: Sequence[HeldJob], act: OperatorAction) -> FinishResult:
    """Return the jobs in *gone* to the queue, due now. A run of "cronjobs exec" becomes dead and is not returned.

    The jobs' runners must certainly be gone. Skips a job that fails its fence. A release uses up no try, but counts as
    one more loss.
    """
    now = database_now(connection)
    # On a cluster, a handler may outlive its supervisor until its permit ends.
    over = tokens.close(connection, [lease_of(holding.job) for holding in gone]).over
    ends = [_released(holding, now, act.words) for holding in gone if holding.job.id in over]
    written = leases.finish(connection, ends) if ends else FinishResult(frozenset(), frozenset())
    record_act(connection, act, written.written)
    return written


def _released(holding: HeldJob, now: datetime, words: str) -> Finish:
    job = holding.job
    return Finish(
        lease=Lease(job.id, job.attempt, holding.locked_by),
        status=Status.DEAD if job.job_type.startswith(EXEC_PREFIX) else Status.QUEUED,
        failures=job.failures,
        losses=job.losses + 1,
        interruptions=0,
        outcome=None if holding.recorded else "lost",
        run_at=None if job.job_type.startswith(EXEC_PREFIX) else now,
        error=words,
        error_type="Lost",
    )


# --- the audit trail --------------------------------------------------------------------------------------------------


def record_act(
    connection: Connection,
    act: OperatorAction,
    ids: Collection[int],
    *,
    each: bool = False,
    were_dead: frozenset[int] = frozenset(),
) -> None:
    """Record the action in the audit trail.

    If the jobs were chosen by id, or if *each* is True, each job gets one row. Otherwise one row lists all ids of the
    batch. *were_dead* are the jobs that were dead before the action, which their rows no longer show.
    """
    if not ids:
        return
    facts: dict[str, Any] = {"action": act.action, "actor": act.actor, "host": act.host, "why": act.why}
    facts["at"] = database_now(connection)
    if act.filter is not None and not each:
        deaths = {"dead": sorted(were_dead)} if were_dead else {}
        record(connection, subject="jobs", detail={"filter": act.filter, "ids": sorted(ids)} | deaths, **facts)
        return
    for job_id in sorted(ids):
        detail: dict[str, Any] = {} if act.filter is None else {"filter": act.filter}
        detail |= {"dead": [job_id]} if job_id in were_dead else {}
        record(connection, subject=f"job {job_id}", detail=detail or None, **facts)


# --- pause --wait -----------------------------------------------------------------------------------------------------


def claims_in_flight(connection: Connection) -> frozenset[str]:
    """Return the ids of the transactions that are claiming jobs now.

    A claim that began before a pause was committed may not have seen the pause. In each claim, one statement reads the
    pauses. Before that statement takes its snapshot, it locks the tables of pauses and jobs, and the claim holds these
    locks until its end. So call this function once after the pause was committed: any claim that is not in the result
    sees the pause. (A claim under limits, or row by row, leases its rows in a later statement, while it still holds the
    locks.) On SQLite only one transaction at a time can write, so the result is empty.
    """
    if not is_postgresql(connection):
        return frozenset()
    rows = run(
        connection,
        f"""
        SELECT DISTINCT r.virtualtransaction FROM pg_locks r
        JOIN pg_locks w ON w.virtualtransaction = r.virtualtransaction
        WHERE r.granted AND r.relation = CAST('{PAUSES}' AS regclass) AND r.mode = 'AccessShareLock'
          AND w.granted AND w.relation = CAST('{JOBS}' AS regclass) AND w.mode IN ('RowShareLock', 'RowExclusiveLock')
          AND r.pid <> pg_backend_pid()
          -- relation numbers are unique only within a database: a copy of our database has the same numbers
          AND r.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())""",
    )
    return frozenset(rows.scalars())
