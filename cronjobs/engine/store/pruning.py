"""Remove rows that are past their retention: short statements, one per batch, none of which waits for a row lock.

What was removed is RETURNING: SQLite's driver counts no rows for a statement that begins with WITH.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, select, update

from cronjobs.engine.database.tables import meta
from cronjobs.engine.store.given_up import PRUNED, give_up
from cronjobs.engine.store.sql import among, database_now, define, run
from cronjobs.engine.store.totals import Leaving, occurrences_gone

# The payload is gone for good, so the job must not run again; see {stripped} in engine/store/sql.py.
DEATHS_NAMED: Final = 20  # by their ids
STRIPPED: Final = '{"cronjobs.stripped": "true"}'

define(
    # A row that a person has locked in an open transaction must stop nothing. FOR UPDATE, not FOR NO KEY UPDATE: DELETE
    # takes that lock, and must not wait for it either.
    # The key of a run of exec serves until the run is written: it goes with its row.
    keyed="(j.idempotency_key IS NOT NULL AND NOT {is_exec})",
    unlocked=lambda postgresql: "FOR UPDATE SKIP LOCKED" if postgresql else "",
)


@dataclass(frozen=True)
class Slot:
    """A position in a walk through the ended jobs of one status: after this job."""

    finished_at: datetime
    id: int


@dataclass(frozen=True)
class OldJob:
    """An ended job past its retention. ``keyed``: its key stays used, so it is stripped, not deleted."""

    id: int
    finished_at: datetime
    keyed: bool
    stripped: bool


# --- ended jobs -------------------------------------------------------------------------------------------------------


def old_jobs(connection: Connection, status: str, before: datetime, after: Slot | None, limit: int) -> Sequence[OldJob]:
    """The next *limit* jobs in *status* that ended before *before*, the earliest first."""
    beyond = "" if after is None else "AND j.finished_at >= :at AND (j.finished_at > :at OR j.id > :id)"
    place = {} if after is None else {"at": after.finished_at, "id": after.id}
    rows = run(
        connection,
        "SELECT j.id, j.finished_at, {keyed} AS keyed, {stripped} AS stripped FROM {jobs} j "
        f"WHERE j.finished_at IS NOT NULL AND j.status = :status AND j.finished_at < :before {beyond} "
        "ORDER BY j.finished_at, j.id LIMIT :limit",
        status=status,
        before=before,
        limit=limit,
        **place,
    )
    return [OldJob(row.id, row.finished_at, bool(row.keyed), bool(row.stripped)) for row in rows]


define(
    # They may have been retried since they were read. "+" keeps SQLite from using the index of all ended jobs.
    still_old=lambda postgresql: (
        "j.id {among_ids} AND j.finished_at IS NOT NULL AND j.status = :status AND j.finished_at < :before"
        if postgresql
        else "j.id {among_ids} AND +j.status = :status AND +j.finished_at < :before"
    ),
    without_runs="NOT EXISTS (SELECT 1 FROM {job_runs} r WHERE r.job_id = j.id)",
)
# Runs first, in batches: a job that snoozed for a year has half a million, which the cascade would delete at once.
_RUNS: Final = """
  WITH mine AS MATERIALIZED (SELECT r.job_id, r.attempt FROM {job_runs} r
    WHERE r.job_id IN (SELECT j.id FROM {jobs} j WHERE {still_old}) LIMIT :limit {unlocked})
  DELETE FROM {job_runs} WHERE (job_id, attempt) IN (SELECT job_id, attempt FROM mine)
  RETURNING job_id, attempt, (SELECT j.job_type FROM {jobs} j WHERE j.id = job_id) AS job_type, outcome, started_at,
    finished_at"""
_JOBS: Final = """
  WITH mine AS MATERIALIZED (SELECT j.id FROM {jobs} j WHERE {still_old} AND {without_runs} {unlocked})
  DELETE FROM {jobs} WHERE id IN (SELECT id FROM mine)
  RETURNING id, job_type, schedule, status, run_at, started_at, finished_at, dismissed_at"""
_STRIP: Final = """
  WITH mine AS MATERIALIZED (SELECT j.id FROM {jobs} j WHERE {still_old} AND {without_runs} {unlocked})
  UPDATE {jobs} SET payload = CAST(:empty AS {json_type}), meta = CAST(:mark AS {json_type}), result = NULL
  WHERE id IN (SELECT id FROM mine) RETURNING id"""


def remove_runs(leaving: Leaving, ids: Collection[int], status: str, before: datetime, limit: int) -> int:
    """Remove up to *limit* attempts of these jobs; return how many were removed."""
    gone = _of(leaving.connection, _RUNS, ids, status, before, limit=limit).all()
    leaving.attempts(gone)
    return len(gone)


def delete_jobs(leaving: Leaving, ids: Collection[int], status: str, before: datetime) -> set[int]:
    """Delete those of these jobs that have no attempts left and are not locked; return them."""
    gone = _of(leaving.connection, _JOBS, ids, status, before).all()
    leaving.jobs(gone)
    _note_deaths(leaving.connection, gone)
    return {row.id for row in gone}


def _note_deaths(connection: Connection, gone: Sequence[Row[Any]]) -> None:
    """Keep account of the dead jobs among *gone* that nobody has dealt with: their finding goes with them."""
    found: dict[str, dict[str, Any]] = {}
    for row in gone:
        if row.status == "dead" and (row.dismissed_at is None or row.dismissed_at < row.finished_at):
            its = found.setdefault(row.job_type, {"count": 0, "jobs": []})
            its["count"] += 1
            its["jobs"] += [row.id] if its["count"] <= DEATHS_NAMED else []
    if found:
        give_up(connection, PRUNED, found, database_now(connection))


def strip_jobs(connection: Connection, ids: Collection[int], status: str, before: datetime) -> set[int]:
    """Clear payload, meta and result of those that have no attempts left and are not locked; return them."""
    return set(_of(connection, _STRIP, ids, status, before, empty="{}", mark=STRIPPED).scalars())


def _of(
    connection: Connection, statement: str, ids: Collection[int], status: str, before: datetime, **more: Any
) -> Any:
    return run(connection, statement, ids=sorted(ids), status=status, before=before, **more)


# --- what is not a job ------------------------------------------------------------------------------------------------

# Never above the watermark: there, a missing row means that the occurrence is not settled yet, and the newest one below
# it explains a gap. Nor a schedule's newest row: it shows whether a schedule that is due once a year has had its run.
_OCCURRENCES: Final = """
  WITH mine AS MATERIALIZED (SELECT c.schedule_id, c.last_for FROM {occurrences} c WHERE c.last_for < :before
    AND {from_here} AND {may_go}
    ORDER BY c.last_for LIMIT :limit {unlocked_c})
  DELETE FROM {occurrences} WHERE (schedule_id, last_for) IN (SELECT schedule_id, last_for FROM mine)
  RETURNING schedule_id, last_for, outcome, count"""
_TICKS: Final = """
  WITH mine AS MATERIALIZED (SELECT t.id FROM {ticks} t WHERE t.started_at < :before AND {from_here}
    ORDER BY t.started_at LIMIT :limit {unlocked})
  DELETE FROM {ticks} WHERE id IN (SELECT id FROM mine) RETURNING started_at"""
_OLD_EFFECTS: Final = """
  SELECT e.key, e.begun_at FROM {effects} e WHERE {from_here} AND {served} ORDER BY e.begun_at LIMIT :limit"""
_EFFECTS: Final = """
  WITH mine AS MATERIALIZED (SELECT e.key FROM {effects} e
    WHERE e.key {among_keys} AND {served} {unlocked_e})
  DELETE FROM {effects} WHERE key IN (SELECT key FROM mine) RETURNING key"""

define(
    # Never the effect of a job that may run again, by itself or by a retry: it would be done twice.
    served="""e.begun_at < :before
      AND NOT EXISTS (SELECT 1 FROM {jobs} j WHERE j.id = e.job_id AND j.status <> 'succeeded')""",
    may_go="""EXISTS (SELECT 1 FROM {schedules} s WHERE s.id = c.schedule_id AND c.last_for < s.seen_until)
      AND EXISTS (SELECT 1 FROM {occurrences} n WHERE n.schedule_id = c.schedule_id AND n.last_for > c.last_for)""",
    among_keys=among("keys"),
    unlocked_c=lambda postgresql: "FOR UPDATE OF c SKIP LOCKED" if postgresql else "",
    unlocked_e=lambda postgresql: "FOR UPDATE OF e SKIP LOCKED" if postgresql else "",
)


def remove_occurrences(connection: Connection, before: datetime, after: datetime | None, limit: int) -> list[datetime]:
    """Remove up to *limit* ledger rows that end no earlier than *after*; return their instants."""
    rows = _from(connection, _OCCURRENCES, "c.last_for", before, after, limit).all()
    counts: Counter[tuple[int, str]] = Counter()
    for schedule_id, _, outcome, count in rows:
        counts[schedule_id, outcome] += count
    occurrences_gone(connection, counts)
    return [row.last_for for row in rows]


def remove_ticks(connection: Connection, before: datetime, after: datetime | None, limit: int) -> list[datetime]:
    """Remove up to *limit* ticks that began no earlier than *after*; return when they began."""
    return list(_from(connection, _TICKS, "t.started_at", before, after, limit).scalars())


def old_effects(connection: Connection, before: datetime, after: datetime | None, limit: int) -> Sequence[Row[Any]]:
    """The next *limit* effects past their retention that began no earlier than *after*: key, begun_at."""
    rows: Sequence[Row[Any]] = _from(connection, _OLD_EFFECTS, "e.begun_at", before, after, limit).all()
    return rows


def _from(
    connection: Connection, statement: str, column: str, before: datetime, after: datetime | None, limit: int
) -> Any:
    # Start where the last batch ended: PostgreSQL would step over every removed row that is not vacuumed yet.
    statement = statement.replace("{from_here}", "TRUE" if after is None else f"{column} >= :after")
    place = {} if after is None else {"after": after}
    return run(connection, statement, before=before, limit=limit, **place)


def remove_effects(connection: Connection, keys: Sequence[str], before: datetime) -> int:
    return len(run(connection, _EFFECTS, keys=list(keys), before=before).all())


def old_job_type_lists(connection: Connection, before: datetime, limit: int) -> Sequence[str]:
    """Hashes of up to *limit* lists of job types that no tick refers to any more."""
    rows = run(
        connection,
        """
        SELECT l.hash FROM {job_type_lists} l WHERE l.recorded_at < :before
          AND NOT EXISTS (SELECT 1 FROM {ticks} t WHERE t.job_types = l.hash) ORDER BY l.hash LIMIT :limit""",
        before=before,
        limit=limit,
    )
    return rows.scalars().all()


def remove_job_type_lists(connection: Connection, hashes: Sequence[str], before: datetime) -> int:
    statement = """
      WITH mine AS MATERIALIZED (SELECT l.hash FROM {job_type_lists} l
        WHERE l.hash {among_keys} AND l.recorded_at < :before {unlocked})
      DELETE FROM {job_type_lists} WHERE hash IN (SELECT hash FROM mine) RETURNING hash"""
    return len(run(connection, statement, keys=list(hashes), before=before).all())


# --- what would go ----------------------------------------------------------------------------------------------------

# Kind → its table, and the setting that says how long its rows are kept; in the order in which they go.
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
"""How many rows would go, and the instant of the oldest."""

define(
    old_job="j.finished_at IS NOT NULL AND j.status = :status AND j.finished_at < :before",
    key_goes="(NOT {keyed} OR j.finished_at < :keys)",
    # A job that died and goes, too, keeps its effects no longer.
    job_stays="""j.status <> 'succeeded' AND NOT (j.finished_at IS NOT NULL AND j.status IN ('dead', 'cancelled')
      AND j.finished_at < :dead AND {key_goes})""",
)


def past_jobs(connection: Connection, status: str, before: datetime, keys: datetime) -> dict[str, Past]:
    """What would go of the jobs in *status*: whole jobs, attempts, and what those leave whose key stays."""
    limits = {"status": status, "before": before, "keys": min(keys, before)}
    found = {}
    for kind, what in (
        (status, "{jobs} j WHERE {old_job} AND {key_goes}"),
        ("stripped", "{jobs} j WHERE {old_job} AND NOT {key_goes} AND NOT {stripped}"),
        (
            "attempts",
            "{jobs} j JOIN {job_runs} r ON r.job_id = j.id WHERE {old_job} AND ({key_goes} OR NOT {stripped})",
        ),
    ):
        found[kind] = _past(connection, f"min(j.finished_at) AS finished_at FROM {what}", **limits)
    return found


def past_occurrences(connection: Connection, before: datetime) -> Past:
    return _past(
        connection,
        """min(c.last_for) AS last_for FROM {occurrences} c WHERE c.last_for < :before
           AND {may_go}""",
        before=before,
    )


def past_ticks(connection: Connection, before: datetime) -> Past:
    return _past(
        connection, "min(t.started_at) AS started_at FROM {ticks} t WHERE t.started_at < :before", before=before
    )


def past_effects(connection: Connection, before: datetime, dead: datetime, keys: datetime) -> Past:
    return _past(
        connection,
        """min(e.begun_at) AS begun_at FROM {effects} e WHERE e.begun_at < :before
           AND NOT EXISTS (SELECT 1 FROM {jobs} j WHERE j.id = e.job_id AND {job_stays})""",
        before=before,
        dead=dead,
        keys=min(keys, dead),
    )


def past_job_type_lists(connection: Connection, before: datetime) -> Past:
    return _past(
        connection,
        """min(l.recorded_at) AS recorded_at FROM {job_type_lists} l WHERE l.recorded_at < :before AND NOT EXISTS (
             SELECT 1 FROM {ticks} t WHERE t.job_types = l.hash AND t.started_at >= :before)""",
        before=before,
    )


def last_tick_at(connection: Connection) -> datetime | None:
    """When the newest tick by its id began; see ``clock_jumped``."""
    at: datetime | None = run(connection, "SELECT t.started_at FROM {ticks} t ORDER BY t.id DESC LIMIT 1").scalar()
    return at


def _past(connection: Connection, what: str, **limits: Any) -> Past:
    count, oldest = list[Any](run(connection, f"SELECT count(*), {what}", **limits).one())
    return int(count), oldest


# --- how far it got ---------------------------------------------------------------------------------------------------


def prune_from(connection: Connection) -> dict[str, datetime]:
    """By status, the instant before which only stripped jobs are left: there may be a million that need not be read."""
    stored = connection.execute(select(meta.c.prune_from).where(meta.c.id == 1)).scalar()
    found = {}
    for status, at in stored.items() if isinstance(stored, dict) else ():
        try:
            found[status] = datetime.fromisoformat(at)
        except (TypeError, ValueError):  # edited by hand: look from the beginning
            continue
    return {status: at for status, at in found.items() if at.tzinfo is not None}


def set_prune_from(connection: Connection, places: dict[str, datetime]) -> None:
    connection.execute(update(meta).values(prune_from={status: at.isoformat() for status, at in places.items()}))


def set_pruned_at(connection: Connection, now: datetime) -> None:
    """Note that nothing was left to prune, or that the clock is unreliable: the next look is due in an hour."""
    connection.execute(update(meta).values(pruned_at=now))
