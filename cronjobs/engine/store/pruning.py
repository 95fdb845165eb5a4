"""Delete rows that are past their retention. Each batch is one short statement. No batch waits for a row lock.

We count deleted rows with RETURNING, because SQLite's driver reports no row count for a statement that begins with
WITH.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, select, update

from cronjobs.engine.database.column_types import EPOCH
from cronjobs.engine.database.tables import meta
from cronjobs.engine.probe.idle_conditions import IS_EXEC
from cronjobs.engine.probe.sql_text import (
    EFFECTS,
    JOB_RUNS,
    JOB_TYPE_LISTS,
    JOBS,
    OCCURRENCES,
    SCHEDULES,
    TICKS,
    either,
)
from cronjobs.engine.store.effects import mark_of_dead
from cronjobs.engine.store.given_up import PRUNED, give_up
from cronjobs.engine.store.sql import AMONG_IDS, AMONG_KEYS, IS_STRIPPED, JSON_TYPE, database_now, run

# Name at most this many ids in one audit entry.
DEATHS_NAMED: Final = 20
# The meta of a stripped job. Its payload is gone for good, so the job must not run again. IS_STRIPPED in
# engine/store/sql.py tests for this mark.
STRIPPED: Final = '{"cronjobs.stripped": "true"}'

# After a run of "cronjobs exec" has been recorded, its key is never looked up again, so the key may be deleted with the
# row.
_KEYED: Final = f"(j.idempotency_key IS NOT NULL AND NOT {IS_EXEC})"
# Skip rows that somebody's open transaction has locked. Use FOR UPDATE and not FOR NO KEY UPDATE, because DELETE takes
# the stronger lock, and must not wait for it either.
_UNLOCKED: Final = either(postgresql="FOR UPDATE SKIP LOCKED", sqlite="")


@dataclass(frozen=True)
class PrunePosition:
    """How far a walk through the ended jobs of one status has come: just past the job with these values."""

    finished_at: datetime
    id: int


BEGINNING: Final = PrunePosition(EPOCH, 0)


@dataclass(frozen=True)
class OldJob:
    """An ended job past its retention. If ``keyed`` is True, the job's key stays in use, so the job is stripped and not
    deleted.
    """

    id: int
    finished_at: datetime
    keyed: bool
    stripped: bool


# --- ended jobs -------------------------------------------------------------------------------------------------------


def old_jobs(
    connection: Connection, status: str, before: datetime, after: PrunePosition, limit: int
) -> Sequence[OldJob]:
    """Return the next *limit* jobs in *status* that ended before *before*, the earliest end first."""
    rows = run(
        connection,
        f"SELECT j.id, j.finished_at, {_KEYED} AS keyed, {IS_STRIPPED} AS stripped FROM {JOBS} j "
        "WHERE j.finished_at IS NOT NULL AND j.status = :status AND j.finished_at < :before "
        "AND j.finished_at >= :at AND (j.finished_at > :at OR j.id > :id) ORDER BY j.finished_at, j.id LIMIT :limit",
        status=status,
        before=before,
        at=after.finished_at,
        id=after.id,
        limit=limit,
    )
    return [OldJob(row.id, row.finished_at, bool(row.keyed), bool(row.stripped)) for row in rows]


# Check the status again, because somebody may have retried a job since we read it. The "+" prevents SQLite from using
# the index of all ended jobs.
_STILL_OLD: Final = either(
    postgresql=f"j.id {AMONG_IDS} AND j.finished_at IS NOT NULL AND j.status = :status AND j.finished_at < :before",
    sqlite=f"j.id {AMONG_IDS} AND +j.status = :status AND +j.finished_at < :before",
)
_WITHOUT_RUNS: Final = f"NOT EXISTS (SELECT 1 FROM {JOB_RUNS} r WHERE r.job_id = j.id)"
# Delete the attempts of a job first, in batches. A job that snoozed for a year may have half a million attempts.
# Deleting the job would delete all of them at once, through the foreign key.
_RUNS: Final = f"""
  WITH mine AS MATERIALIZED (SELECT r.job_id, r.attempt FROM {JOB_RUNS} r
    WHERE r.job_id IN (SELECT j.id FROM {JOBS} j WHERE {_STILL_OLD}) LIMIT :limit {_UNLOCKED})
  DELETE FROM {JOB_RUNS} WHERE (job_id, attempt) IN (SELECT job_id, attempt FROM mine)
  RETURNING job_id"""
_JOBS: Final = f"""
  WITH mine AS MATERIALIZED (SELECT j.id FROM {JOBS} j WHERE {_STILL_OLD} AND {_WITHOUT_RUNS} {_UNLOCKED})
  DELETE FROM {JOBS} WHERE id IN (SELECT id FROM mine)
  RETURNING id, job_type, status, finished_at, dismissed_at"""
_STRIP: Final = f"""
  WITH mine AS MATERIALIZED (SELECT j.id FROM {JOBS} j WHERE {_STILL_OLD} AND {_WITHOUT_RUNS} {_UNLOCKED})
  UPDATE {JOBS} SET payload = CAST(:empty AS {JSON_TYPE}), meta = CAST(:mark AS {JSON_TYPE}), result = NULL
  WHERE id IN (SELECT id FROM mine) RETURNING id"""


def remove_runs(connection: Connection, ids: Collection[int], status: str, before: datetime, limit: int) -> int:
    """Delete up to *limit* attempts of these jobs. Return how many were deleted."""
    return len(run(connection, _RUNS, ids=sorted(ids), status=status, before=before, limit=limit).all())


def delete_jobs(connection: Connection, ids: Collection[int], status: str, before: datetime) -> set[int]:
    """Delete the jobs among *ids* that have no attempts left and are not locked. Return their ids."""
    gone = run(connection, _JOBS, ids=sorted(ids), status=status, before=before).all()
    _note_deaths(connection, gone)
    return {row.id for row in gone}


def _note_deaths(connection: Connection, gone: Sequence[Row[Any]]) -> None:
    """Write an audit entry about the dead jobs among *gone* that nobody dismissed.

    Deleting the jobs also removes the finding about them. Their unknown effects become findings of their own.
    """
    found: dict[str, dict[str, Any]] = {}
    dead = [row for row in gone if row.status == "dead"]
    # The same condition as UNSETTLED_DEAD_SQL, which RETURNING cannot contain: there SQLite 3.40 answers 0 to
    # "dismissed_at IS NULL" even if the value is NULL.
    undealt = [row for row in dead if row.dismissed_at is None or row.dismissed_at < row.finished_at]
    if dismissed := {row.id for row in dead} - {row.id for row in undealt}:
        mark_of_dead(connection, dismissed, dismissed=True)
    for row in undealt:
        its = found.setdefault(row.job_type, {"count": 0, "jobs": []})
        its["count"] += 1
        its["jobs"] += [row.id] if its["count"] <= DEATHS_NAMED else []
    if found:
        mark_of_dead(connection, [row.id for row in undealt], dismissed=False)
        give_up(connection, PRUNED, found, database_now(connection))


def strip_jobs(connection: Connection, ids: Collection[int], status: str, before: datetime) -> set[int]:
    """Clear payload, meta and result of the jobs that have no attempts left and are not locked. Return their ids."""
    texts = {"empty": "{}", "mark": STRIPPED}
    return set(run(connection, _STRIP, ids=sorted(ids), status=status, before=before, **texts).scalars())


# --- other rows -------------------------------------------------------------------------------------------------------

# Keep the effects of a job that may run again, whether by itself or because a person retries it. Otherwise the effects
# would be carried out twice.
_SERVED: Final = f"""e.begun_at < :before
      AND NOT EXISTS (SELECT 1 FROM {JOBS} j WHERE j.id = e.job_id AND j.status <> 'succeeded')"""
# Keep rows above the watermark, because a missing row there means that the occurrence is not settled yet. Keep a
# schedule's newest row. It explains a gap, and shows whether a schedule that is due once a year has had its run.
_MAY_GO: Final = f"""EXISTS (SELECT 1 FROM {SCHEDULES} s WHERE s.id = c.schedule_id AND c.last_for < s.seen_until)
      AND EXISTS (SELECT 1 FROM {OCCURRENCES} n WHERE n.schedule_id = c.schedule_id AND n.last_for > c.last_for)"""
_UNLOCKED_C: Final = either(postgresql="FOR UPDATE OF c SKIP LOCKED", sqlite="")
_UNLOCKED_E: Final = either(postgresql="FOR UPDATE OF e SKIP LOCKED", sqlite="")


# Each batch starts where the last one ended (``:after``). Otherwise PostgreSQL would step over every deleted row that
# is not vacuumed yet.
_OCCURRENCES: Final = f"""
  WITH mine AS MATERIALIZED (SELECT c.schedule_id, c.last_for FROM {OCCURRENCES} c
    WHERE c.last_for < :before AND c.last_for >= :after AND {_MAY_GO}
    ORDER BY c.last_for LIMIT :limit {_UNLOCKED_C})
  DELETE FROM {OCCURRENCES} WHERE (schedule_id, last_for) IN (SELECT schedule_id, last_for FROM mine)
  RETURNING last_for"""
_TICKS: Final = f"""
  WITH mine AS MATERIALIZED (SELECT t.id FROM {TICKS} t WHERE t.started_at < :before AND t.started_at >= :after
    ORDER BY t.started_at LIMIT :limit {_UNLOCKED})
  DELETE FROM {TICKS} WHERE id IN (SELECT id FROM mine) RETURNING started_at"""
_OLD_EFFECTS: Final = f"""
  SELECT e.key, e.begun_at FROM {EFFECTS} e WHERE e.begun_at >= :after AND {_SERVED} ORDER BY e.begun_at LIMIT :limit"""
_EFFECTS: Final = f"""
  WITH mine AS MATERIALIZED (SELECT e.key FROM {EFFECTS} e
    WHERE e.key {AMONG_KEYS} AND {_SERVED} {_UNLOCKED_E})
  DELETE FROM {EFFECTS} WHERE key IN (SELECT key FROM mine) RETURNING key"""


def remove_occurrences(connection: Connection, before: datetime, after: datetime, limit: int) -> Sequence[datetime]:
    """Delete up to *limit* ledger rows that end at or after *after* and before *before*. Return when these rows end."""
    return run(connection, _OCCURRENCES, before=before, after=after, limit=limit).scalars().all()


def remove_ticks(connection: Connection, before: datetime, after: datetime, limit: int) -> Sequence[datetime]:
    """Delete up to *limit* ticks that began before *before* and at or after *after*. Return when they began."""
    return run(connection, _TICKS, before=before, after=after, limit=limit).scalars().all()


def old_effects(connection: Connection, before: datetime, after: datetime, limit: int) -> Sequence[Row[Any]]:
    """Return key and begun_at of up to *limit* effects that began at or after *after* and may be pruned now."""
    return run(connection, _OLD_EFFECTS, before=before, after=after, limit=limit).all()


def remove_effects(connection: Connection, keys: Sequence[str], before: datetime) -> int:
    return len(run(connection, _EFFECTS, keys=list(keys), before=before).all())


def old_job_type_lists(connection: Connection, before: datetime, limit: int) -> Sequence[str]:
    """Return the hashes of up to *limit* lists of job types that no tick refers to any more."""
    rows = run(
        connection,
        f"""
        SELECT l.hash FROM {JOB_TYPE_LISTS} l WHERE l.recorded_at < :before
          AND NOT EXISTS (SELECT 1 FROM {TICKS} t WHERE t.job_types = l.hash) ORDER BY l.hash LIMIT :limit""",
        before=before,
        limit=limit,
    )
    return rows.scalars().all()


def remove_job_type_lists(connection: Connection, hashes: Sequence[str], before: datetime) -> int:
    statement = f"""
      WITH mine AS MATERIALIZED (SELECT l.hash FROM {JOB_TYPE_LISTS} l
        WHERE l.hash {AMONG_KEYS} AND l.recorded_at < :before {_UNLOCKED})
      DELETE FROM {JOB_TYPE_LISTS} WHERE hash IN (SELECT hash FROM mine) RETURNING hash"""
    return len(run(connection, statement, keys=list(hashes), before=before).all())


# --- what pruning would delete ----------------------------------------------------------------------------------------

# For each kind: its table, and the setting that says how long its rows are kept. The kinds are in the order of pruning.
KINDS: Final = {
    "succeeded": ("cronjobs_jobs", "succeeded"),
    "dead": ("cronjobs_jobs", "dead"),
    "cancelled": ("cronjobs_jobs", "dead"),
    "stripped": ("cronjobs_jobs", ""),
    "attempts": ("cronjobs_job_runs", ""),
    "occurrences": ("cronjobs_occurrences", "occurrences"),
    "ticks": ("cronjobs_ticks", "occurrences"),
    "findings": ("cronjobs_findings", "occurrences"),
    "effects": ("cronjobs_effects", "effects"),
    "job_type_lists": ("cronjobs_job_type_lists", "occurrences"),
}

Past = tuple[int, datetime | None]
"""The number of rows that pruning would delete, and the instant of the oldest row."""

_OLD_JOB: Final = "j.finished_at IS NOT NULL AND j.status = :status AND j.finished_at < :before"
_KEY_GOES: Final = f"(NOT {_KEYED} OR j.finished_at < :keys)"
# Pruning keeps the effects of a dead or cancelled job only until it prunes the job itself.
_JOB_STAYS: Final = f"""j.status <> 'succeeded' AND NOT (j.finished_at IS NOT NULL AND j.status IN ('dead', 'cancelled')
      AND j.finished_at < :dead AND {_KEY_GOES})"""


def past_jobs(connection: Connection, status: str, before: datetime, keys: datetime) -> dict[str, Past]:
    """Return how many rows pruning would take from the jobs in *status*, by kind.

    The kinds are jobs to delete, jobs to strip because they keep their key, and attempts.
    """
    limits = {"status": status, "before": before, "keys": min(keys, before)}
    found = {}
    for kind, what in (
        (status, f"{JOBS} j WHERE {_OLD_JOB} AND {_KEY_GOES}"),
        ("stripped", f"{JOBS} j WHERE {_OLD_JOB} AND NOT {_KEY_GOES} AND NOT {IS_STRIPPED}"),
        (
            "attempts",
            f"{JOBS} j JOIN {JOB_RUNS} r ON r.job_id = j.id WHERE {_OLD_JOB} AND ({_KEY_GOES} OR NOT {IS_STRIPPED})",
        ),
    ):
        found[kind] = _past(connection, f"min(j.finished_at) AS finished_at FROM {what}", **limits)
    return found


def past_occurrences(connection: Connection, before: datetime) -> Past:
    return _past(
        connection,
        f"""min(c.last_for) AS last_for FROM {OCCURRENCES} c WHERE c.last_for < :before
           AND {_MAY_GO}""",
        before=before,
    )


def past_ticks(connection: Connection, before: datetime) -> Past:
    return _past(
        connection, f"min(t.started_at) AS started_at FROM {TICKS} t WHERE t.started_at < :before", before=before
    )


def past_effects(connection: Connection, before: datetime, dead: datetime, keys: datetime) -> Past:
    return _past(
        connection,
        f"""min(e.begun_at) AS begun_at FROM {EFFECTS} e WHERE e.begun_at < :before
           AND NOT EXISTS (SELECT 1 FROM {JOBS} j WHERE j.id = e.job_id AND {_JOB_STAYS})""",
        before=before,
        dead=dead,
        keys=min(keys, dead),
    )


def past_job_type_lists(connection: Connection, before: datetime) -> Past:
    return _past(
        connection,
        f"""min(l.recorded_at) AS recorded_at FROM {JOB_TYPE_LISTS} l WHERE l.recorded_at < :before AND NOT EXISTS (
             SELECT 1 FROM {TICKS} t WHERE t.job_types = l.hash AND t.started_at >= :before)""",
        before=before,
    )


def last_tick_at(connection: Connection) -> datetime | None:
    """Return when the newest tick, by id, began. ``clock_jumped`` uses this time."""
    at: datetime | None = run(connection, f"SELECT t.started_at FROM {TICKS} t ORDER BY t.id DESC LIMIT 1").scalar()
    return at


def _past(connection: Connection, what: str, **limits: Any) -> Past:
    count, oldest = list[Any](run(connection, f"SELECT count(*), {what}", **limits).one())
    return int(count), oldest


# --- how far pruning has come -----------------------------------------------------------------------------------------


def prune_from(connection: Connection) -> dict[str, datetime]:
    """Return, by status, an instant before which only stripped jobs are left.

    There may be a million of them. Pruning begins at this instant, so it need not read them.
    """
    stored = connection.execute(select(meta.c.prune_from).where(meta.c.id == 1)).scalar()
    found = {}
    for status, at in stored.items() if isinstance(stored, dict) else ():
        try:
            found[status] = datetime.fromisoformat(at)
        # Somebody has edited the value, so start from the beginning.
        except (TypeError, ValueError):
            continue
    return {status: at for status, at in found.items() if at.tzinfo is not None}


def set_prune_from(connection: Connection, places: dict[str, datetime]) -> None:
    connection.execute(update(meta).values(prune_from={status: at.isoformat() for status, at in places.items()}))


def set_pruned_at(connection: Connection, now: datetime) -> None:
    """Record that nothing was left to prune, or that the clock is unreliable. In both cases, pruning is due again in an
    hour.
    """
    connection.execute(update(meta).values(pruned_at=now))
