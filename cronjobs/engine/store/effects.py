"""All statements about effects: attempts begin and end effects, and operators list and settle effects."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.engine.database.tables import CANCELLED_RUNNING_SQL, CANCELLED_SQL
from cronjobs.engine.probe.sql_text import EFFECTS, JOB_RUNS, JOBS, NOW, either
from cronjobs.engine.rules.lease import Lease
from cronjobs.engine.rules.payload import BadJson
from cronjobs.engine.store.sql import AMONG_IDS, JSON_TYPE, run
from cronjobs.text import ERROR_LIMIT

_WAIT_FOR_EFFECT: Final = either(postgresql="FOR NO KEY UPDATE OF e", sqlite="")
# Joins an effect to its job if the attempt that began the effect has not ended. Each claim has its own attempt number.
_ITS_ATTEMPT: Final = "j.id = e.job_id AND j.attempts = e.attempt AND j.status = 'running'"
_STANDING: Final = f"""CASE WHEN e.state = 'recorded' THEN 'done' WHEN e.state <> 'begun' THEN e.state
      WHEN j.id IS NULL OR j.id {AMONG_IDS} THEN 'unknown' ELSE 'running' END"""  # ids: jobs whose runner is gone

STEPS: Final = "job:%:step:%"  # matches the keys that ``step_key`` of ``engine/jobs/effects.py`` makes


@dataclass(frozen=True)
class Record:
    """One effect in the ledger. ``running`` is true if the attempt that began the effect has not ended."""

    key: str
    state: str  # begun, recorded, skipped, stopped
    job_id: int | None
    attempt: int | None
    running: bool
    result: Any = None

    def is_by(self, lease: Lease) -> bool:
        return (self.job_id, self.attempt) == (lease.job_id, lease.attempt)


# --- the beginning ----------------------------------------------------------------------------------------------------


def insert_begun(connection: Connection, key: str, lease: Lease) -> bool:
    """Record that this attempt begins the effect *key*, unless *key* already has a row. Return whether a row was
    inserted.
    """
    made = run(
        connection,
        f"""INSERT INTO {EFFECTS} (key, job_id, attempt, state, begun_at)
           VALUES (:key, :job_id, :attempt, 'begun', {NOW}) ON CONFLICT DO NOTHING RETURNING key""",
        **_ours(key, lease),
    )
    return made.first() is not None


def find(connection: Connection, key: str) -> Record | None:
    """Read an effect and lock it until this transaction ends."""
    # Lock in one statement and read in the next, so that the read sees what was committed while the lock waited.
    run(connection, f"SELECT 1 FROM {EFFECTS} e WHERE e.key = :key {_WAIT_FOR_EFFECT}", key=key).first()
    row = run(
        connection,
        f"""SELECT e.key, e.state, e.job_id, e.attempt, e.result, j.id IS NOT NULL AS running
           FROM {EFFECTS} e LEFT JOIN {JOBS} j ON {_ITS_ATTEMPT} WHERE e.key = :key""",
        key=key,
    ).first()
    if row is None:
        return None
    result = None if isinstance(row.result, BadJson) else row.result
    return Record(row.key, row.state, row.job_id, row.attempt, bool(row.running), result)


def end_of_attempt(connection: Connection, effect: Record) -> Row[Any] | None:
    """Return ``outcome``, ``error_type`` and ``error`` of the attempt that began the effect. Return None if the attempt
    has no history row.
    """
    return run(
        connection,
        f"""SELECT r.outcome, r.error_type, substr(r.error, 1, {ERROR_LIMIT}) AS error FROM {JOB_RUNS} r
           WHERE r.job_id = :job_id AND r.attempt = :attempt""",
        job_id=effect.job_id,
        attempt=effect.attempt,
    ).first()


def begin_again(connection: Connection, key: str, lease: Lease) -> None:
    """Record that this attempt repeats an effect that was begun but never ended, and count the repeat."""
    run(
        connection,
        f"""UPDATE {EFFECTS} SET job_id = :job_id, attempt = :attempt, state = 'begun', begun_at = {NOW},
             repeats = repeats + 1
           WHERE key = :key""",
        **_ours(key, lease),
    )


def mark(connection: Connection, key: str, state: str) -> None:
    """Set the state of an effect to "skipped" or "stopped".

    The row keeps its attempt, so the attempt can still record the effect as done.
    """
    run(connection, f"UPDATE {EFFECTS} SET state = :state WHERE key = :key", key=key, state=state)


# --- the end ----------------------------------------------------------------------------------------------------------


def record(connection: Connection, key: str, lease: Lease, result: str | None) -> bool:
    """Record that this attempt carried out the effect. *result* is JSON text.

    Returns False if a newer attempt has begun the effect since. If the database's reply was lost, call this again: a
    second call changes nothing.
    """
    # Use INSERT, because the row may be gone: an operator who settles the effect as not done, perhaps too early,
    # deletes the row. This attempt knows that the effect was carried out.
    written = run(
        connection,
        f"""INSERT INTO {EFFECTS} AS e (key, job_id, attempt, state, begun_at, recorded_at, result)
           VALUES (:key, :job_id, :attempt, 'recorded', {NOW}, {NOW}, CAST(:result AS {JSON_TYPE}))
           ON CONFLICT (key) DO UPDATE SET state = 'recorded', recorded_at = excluded.recorded_at,
             result = excluded.result
           WHERE e.job_id = excluded.job_id AND e.attempt = excluded.attempt RETURNING key""",
        result=result,
        **_ours(key, lease),
    )
    return written.first() is not None


def withdraw(connection: Connection, key: str, lease: Lease) -> None:
    """Delete the record that this attempt began the effect, as if the effect had never begun."""
    run(
        connection,
        f"DELETE FROM {EFFECTS} WHERE key = :key AND job_id = :job_id AND attempt = :attempt AND state = 'begun'",
        **_ours(key, lease),
    )


def _ours(key: str, lease: Lease) -> dict[str, Any]:
    return {"key": key, "job_id": lease.job_id, "attempt": lease.attempt}


# --- operators --------------------------------------------------------------------------------------------------------


def settle(connection: Connection, key: str, result: str | None) -> None:
    """Record an effect as done because an operator confirmed it. *result* is JSON text."""
    run(
        connection,
        f"""UPDATE {EFFECTS} SET state = 'recorded', recorded_at = coalesce(recorded_at, {NOW}),
             result = CAST(:result AS {JSON_TYPE})
           WHERE key = :key""",
        key=key,
        result=result,
    )


def remove(connection: Connection, key: str) -> None:
    """Delete the record that an effect was begun."""
    run(connection, f"DELETE FROM {EFFECTS} WHERE key = :key", key=key)


def performers(connection: Connection) -> Sequence[Row[Any]]:
    """Return the running jobs that have begun an effect and have recorded no result for it. Each row has id and
    ``locked_by``.
    """
    statement = f"SELECT DISTINCT j.id, j.locked_by FROM {EFFECTS} e JOIN {JOBS} j ON {_ITS_ATTEMPT}"
    return run(connection, f"{statement} WHERE e.state = 'begun'").all()


def list_effects(
    connection: Connection, *, standing: str | None, prefix: str | None, gone: Collection[int], limit: int
) -> Sequence[Row[Any]]:
    """Return effects, the most recently begun first. Each row has the table's columns and ``standing``.

    *gone* contains the ids of running jobs whose runner has certainly ended. A filter that is None matches every
    effect.
    """
    return run(
        connection,
        f"""SELECT e.key, e.job_id, e.attempt, e.state, e.begun_at, e.recorded_at, e.result, e.repeats,
             {_STANDING} AS standing
           FROM {EFFECTS} e LEFT JOIN {JOBS} j ON {_ITS_ATTEMPT}
           WHERE (CAST(:standing AS text) IS NULL OR {_STANDING} = CAST(:standing AS text))
             AND substr(e.key, 1, :length) = :prefix
           ORDER BY e.begun_at DESC, e.key LIMIT :limit""",
        ids=sorted(gone),
        limit=limit,
        standing=standing,
        prefix=prefix or "",
        length=len(prefix or ""),
    ).all()


def unknown_of(connection: Connection, job_ids: Collection[int], *, steps: bool = True) -> dict[int, str]:
    """Return the jobs among *job_ids* that have an unknown effect, each with the key of one such effect.

    If *steps* is False, leave out steps.
    """
    rows = run(
        connection,
        f"""SELECT e.job_id, min(e.key) AS key FROM {EFFECTS} e LEFT JOIN {JOBS} j ON {_ITS_ATTEMPT}
           WHERE e.job_id {AMONG_IDS} AND (e.state = 'stopped' OR (e.state = 'begun' AND j.id IS NULL))
             AND e.key NOT LIKE CAST(:steps AS text)
           GROUP BY e.job_id""",
        ids=sorted(job_ids),
        steps="" if steps else STEPS,
    )
    return {row.job_id: row.key for row in rows}


def done_by(connection: Connection, job_id: int, most: int) -> Sequence[Row[Any]]:
    """Return up to *most* effects that the job has recorded as done, in the order in which they began.

    Steps are left out. Each row has key, attempt and recorded_at.
    """
    return run(
        connection,
        f"""SELECT e.key, e.attempt, e.recorded_at FROM {EFFECTS} e
           WHERE e.job_id = :job_id AND e.state = 'recorded' AND e.key NOT LIKE CAST(:steps AS text)
           ORDER BY e.begun_at, e.key LIMIT :most""",
        job_id=job_id,
        steps=STEPS,
        most=most,
    ).all()


def performed_by(connection: Connection, job_ids: Collection[int]) -> dict[int, str]:
    """Return the jobs among *job_ids* that are performing an effect now, each with the key of one such effect.

    Steps are left out, as in ``left_unknown``.
    """
    rows = run(
        connection,
        f"""SELECT e.job_id, min(e.key) AS key FROM {EFFECTS} e JOIN {JOBS} j ON {_ITS_ATTEMPT}
           WHERE e.job_id {AMONG_IDS} AND e.state = 'begun' AND e.key NOT LIKE CAST(:steps AS text)
           GROUP BY e.job_id""",
        ids=sorted(job_ids),
        steps=STEPS,
    )
    return {row.job_id: row.key for row in rows}


def left_unknown(connection: Connection, most: int, effects: int) -> Sequence[Row[Any]]:
    """Return the jobs with an unknown effect that will not run again by themselves, the most recently ended first.

    Each job has succeeded, was cancelled, or is pruned. Dead jobs are left out, since they are reported as dead until
    somebody deals with them. Each row has id, status, ended_at and the key of one such effect. For a pruned job, status
    is None, and ended_at is when the effect began. Steps are left out, because they matter only if the job runs again.

    Reads only the newest *effects* effects, the last *most* cancelled jobs, and the last *most* jobs that were
    cancelled while they ran.
    """
    # A separate query, with its own index, reads the jobs that were cancelled while they ran. In a single query,
    # thousands of cancelled waiting jobs could displace them.
    cancelled, last = f"SELECT j.id, j.finished_at FROM {JOBS} j WHERE", "ORDER BY j.finished_at DESC LIMIT :most"
    return run(
        connection,
        f"""WITH newest AS MATERIALIZED (
             SELECT e.key, e.job_id, e.state, e.begun_at FROM {EFFECTS} e ORDER BY e.begun_at DESC LIMIT :effects),
           unknown AS MATERIALIZED (
             SELECT key, job_id, state, begun_at FROM newest WHERE state IN ('begun', 'stopped') AND job_id IS NOT NULL
             UNION SELECT e.key, e.job_id, e.state, e.begun_at FROM (
               SELECT id FROM ({cancelled} {CANCELLED_RUNNING_SQL} {last}) AS ran
               UNION SELECT id FROM ({cancelled} {CANCELLED_SQL} {last}) AS any_time) c
             JOIN {EFFECTS} e ON e.job_id = c.id WHERE e.state IN ('begun', 'stopped'))
           SELECT u.job_id AS id, j.status, coalesce(j.finished_at, max(u.begun_at)) AS ended_at, min(u.key) AS key
           FROM unknown u LEFT JOIN {JOBS} j ON j.id = u.job_id
           WHERE (j.status IN ('succeeded', 'cancelled') OR (j.id IS NULL AND u.state = 'begun'))
             AND u.key NOT LIKE CAST(:steps AS text)
           GROUP BY u.job_id, j.status, j.finished_at ORDER BY ended_at DESC, u.job_id DESC""",
        most=most,
        effects=effects,
        steps=STEPS,
    ).all()


def mark_of_pruned(connection: Connection, job_ids: Collection[int], state: str) -> None:
    """Set the unknown effects of these dead jobs to *state*, before the jobs' rows go.

    ``left_unknown`` reports the effects in state "begun". A person has dealt with those of a dismissed job, so they get
    the state "stopped".
    """
    statement = (
        f"UPDATE {EFFECTS} AS e SET state = :state WHERE e.job_id {AMONG_IDS} AND e.state IN ('begun', 'stopped')"
    )
    run(connection, statement, ids=sorted(job_ids), state=state)


def doubtful_of(connection: Connection, job_ids: Collection[int]) -> Sequence[Row[Any]]:
    """Return the effects of these jobs that were repeated or skipped although nobody knew whether they had happened.

    An effect belongs to the job that was the last to begin it. Each row has job_id, attempt, key, begun_at, repeats and
    ``skipped``.
    """
    return run(
        connection,
        f"""SELECT e.job_id, e.attempt, e.key, e.begun_at, e.repeats, e.state = 'skipped' AS skipped FROM {EFFECTS} e
           WHERE e.job_id {AMONG_IDS} AND (e.repeats > 0 OR e.state = 'skipped') ORDER BY e.begun_at, e.key""",
        ids=sorted(job_ids),
    ).all()


def dead_of(connection: Connection, error: str) -> list[int]:
    """Return the jobs that died of an EffectUnknown whose message is *error*, or begins with *error* and "; "."""
    rows = run(
        connection,
        f"""SELECT id FROM {JOBS} WHERE status = 'dead' AND finished_at IS NOT NULL AND error_type = 'EffectUnknown'
           AND substr(last_error || '; ', 1, :length) = :error ORDER BY id""",
        error=f"{error}; ",
        length=len(error) + 2,
    )
    return list(rows.scalars())
