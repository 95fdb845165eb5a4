"""Every statement of ``explain``: reads of the ledger, the ticks, the audit trail and the jobs.

Every statement uses an index, so a question about the oldest rows costs no more than a question about today. A test
checks the query plans on both databases. Questions about many occurrences share one statement.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row, func, select

from cronjobs.desk.store.tailing import JOB_PROGRESS
from cronjobs.engine.database.tables import occurrences, pauses, schedules, ticks
from cronjobs.engine.probe.sql_text import (
    EFFECTS,
    JOB_RUNS,
    JOB_TYPE_LISTS,
    JOBS,
    NOW,
    OCCURRENCES,
    SCHEDULES,
    TICKS,
    TOKENS,
    either,
)
from cronjobs.engine.store.claims import PLAIN, TIMED
from cronjobs.engine.store.job_rows import RUNNER_S
from cronjobs.engine.store.overlap import AMONG_RUNNABLE, IN_TURN, PRESENT_TYPE, runnable_value
from cronjobs.engine.store.released_keys import KEY_OWNER
from cronjobs.engine.store.schedules import SCHEDULE_COLUMNS, StoredSchedule
from cronjobs.engine.store.shown_columns import columns_shown
from cronjobs.engine.store.sql import AMONG_IDS, AMONG_NAMES, group, run
from cronjobs.text import ERROR_LIMIT

TICKS_READ = 200
LONGEST_TICK = timedelta(minutes=15)  # a tick may have begun up to this long before it made a decision

_MOMENTS: Final = group("moments", {"number": "int", "due_at": "timestamptz"})
# Jobs with and without their own timeout have separate indexes, so each kind needs its own condition.
_TYPE_PLAIN: Final = f"j.job_type = :job_type AND j.{PLAIN}"
_TYPE_TIMED: Final = f"j.job_type = :job_type AND j.{TIMED}"
_FIRST_PLAIN: Final = f"SELECT j.id, j.run_at FROM {JOBS} j WHERE {_TYPE_PLAIN} ORDER BY j.run_at, j.id LIMIT 1"
_FIRST_TIMED: Final = f"SELECT j.id, j.run_at FROM {JOBS} j WHERE {_TYPE_TIMED} ORDER BY j.run_at, j.id LIMIT 1"
_LISTS_TYPE: Final = either(
    postgresql="l.names @> to_jsonb(CAST(:job_type AS text))",
    sqlite=(
        "CASE WHEN json_valid(l.names) THEN EXISTS (SELECT 1 FROM json_each(l.names) WHERE value = :job_type) "
        "ELSE 0 END"
    ),
)


# --- the schedule -----------------------------------------------------------------------------------------------------


def schedule_named(connection: Connection, name: str) -> StoredSchedule | None:
    row = run(connection, f"SELECT {SCHEDULE_COLUMNS} FROM {SCHEDULES} j WHERE j.name = :name", name=name).first()
    return None if row is None else StoredSchedule(**row._mapping)


def schedule_names(connection: Connection) -> list[str]:
    return list(connection.execute(select(schedules.c.name).order_by(schedules.c.name)).scalars())


def pause_rows(connection: Connection) -> Sequence[Row[Any]]:
    """Return the rows of the pauses table, including pauses that have expired."""
    return connection.execute(select(pauses).order_by(pauses.c.scope, pauses.c.name)).all()


# --- the ledger -------------------------------------------------------------------------------------------------------


def row_from(connection: Connection, schedule_id: int, at: datetime) -> Row[Any] | None:
    """Return the schedule's first ledger row that ends at or after *at*.

    The row covers *at* if it begins at or before *at*.
    """
    return connection.execute(
        select(occurrences)
        .where(occurrences.c.schedule_id == schedule_id, occurrences.c.last_for >= at)
        .order_by(occurrences.c.last_for)
        .limit(1)
    ).first()


def rows_between(
    connection: Connection, schedule_id: int, begin: datetime, end: datetime, limit: int
) -> Sequence[Row[Any]]:
    """Return the schedule's newest *limit* ledger rows that end in [*begin*, *end*], oldest first."""
    rows = connection.execute(
        select(occurrences)
        .where(occurrences.c.schedule_id == schedule_id, occurrences.c.last_for >= begin, occurrences.c.last_for <= end)
        .order_by(occurrences.c.last_for.desc())
        .limit(limit)
    ).all()
    return rows[::-1]


def rows_naming(connection: Connection, job_ids: Collection[int], outcome: str | None = None) -> Sequence[Row[Any]]:
    """Return the ledger rows that name these jobs, with the names and definitions of their schedules.

    A row names the job that its occurrences created, gave way to, or were coalesced into.
    """
    return run(
        connection,
        f"""
        SELECT c.*, s.name AS schedule, s.definition FROM {OCCURRENCES} c
        JOIN {SCHEDULES} s ON s.id = c.schedule_id
        WHERE c.job_id IS NOT NULL AND c.job_id {AMONG_IDS}
          AND (CAST(:outcome AS text) IS NULL OR c.outcome = CAST(:outcome AS text))
        ORDER BY c.last_for""",
        ids=list(job_ids),
        outcome=outcome,
    ).all()


def is_unsettled(connection: Connection, effect_key: str) -> bool:
    """Return whether an effect was begun, and neither its attempt nor a person has recorded it as done."""
    statement = f"SELECT 1 FROM {EFFECTS} e WHERE e.key = :key AND e.state <> 'recorded'"
    return run(connection, statement, key=effect_key).first() is not None


def stopped_by_effects(connection: Connection, ids: Collection[int]) -> Sequence[Row[Any]]:
    """Return the dead jobs among *ids* that died of an EffectUnknown: id, ``error_type`` and ``last_error``."""
    statement = f"""SELECT j.id, j.error_type, substr(j.last_error, 1, {ERROR_LIMIT}) AS last_error FROM {JOBS} j
      WHERE j.id {AMONG_IDS} AND j.status = 'dead' AND j.error_type = 'EffectUnknown'"""
    return run(connection, statement, ids=sorted(ids)).all()


def job_of_key(connection: Connection, key: str) -> int | None:
    """Return the job that has the key, or else the newest job that released the key."""
    statement = f"""SELECT coalesce((SELECT j.id FROM {JOBS} j WHERE j.idempotency_key = :key),
      (SELECT max(j.id + 0) FROM {JOBS} j WHERE j.released_key = :key)) AS id"""
    found: int | None = run(connection, statement, key=key).scalar()
    return found


# --- jobs -------------------------------------------------------------------------------------------------------------


def jobs_of(connection: Connection, job_ids: Collection[int]) -> Sequence[Row[Any]]:
    """Return these jobs without their large columns."""
    return run(
        connection,
        f"""
        SELECT j.id, {columns_shown("job_type", "queue")}, j.status, j.run_at, j.attempts, j.failures, j.losses,
          j.max_attempts, j.timeout_s, {columns_shown("locked_by")}, j.locked_until,
          {columns_shown("idempotency_key", "released_key", "concurrency_key", "schedule")}, j.scheduled_for,
          {columns_shown("last_error", "enqueued_by")}, j.cancel_requested_at, j.misfit_since, j.created_at,
          j.started_at, j.finished_at, j.last_failed_at,
          CASE WHEN j.status = 'dead' AND j.dismissed_at >= j.finished_at THEN 1 ELSE 0 END AS dismissed,
          {KEY_OWNER} AS key_owner, {JOB_PROGRESS} AS progress,
          CASE WHEN j.status = 'running' THEN {RUNNER_S} END AS runner_s
        FROM {JOBS} j WHERE j.id {AMONG_IDS}""",
        ids=list(job_ids),
    ).all()


def attempts_of(connection: Connection, job_ids: Collection[int]) -> Sequence[Row[Any]]:
    """Return every recorded attempt of these jobs, in order, without traceback and output."""
    return run(
        connection,
        f"""
        SELECT j.job_id, j.attempt, j.outcome, j.started_at, j.finished_at,
          {columns_shown("runner", "worker", "error_type", "error")}
        FROM {JOB_RUNS} j WHERE j.job_id {AMONG_IDS} ORDER BY j.job_id, j.attempt""",
        ids=list(job_ids),
    ).all()


def place_in_line(connection: Connection, job_id: int, runnable: Collection[str] | None) -> Row[Any] | None:
    """Return a waiting job's ``priority``, and which job of its schedule it is waiting for (``first_id``, ``running``).

    ``first_id`` and ``running`` are None if the job is not waiting for another job of its schedule. *runnable* has the
    same meaning as in ``ClaimFilter``.
    """
    return run(
        connection,
        f"""
        SELECT p.priority, p.first_id,
          (SELECT CASE WHEN f.status = 'running' THEN 1 ELSE 0 END FROM {JOBS} f WHERE f.id = p.first_id) AS running
        FROM (SELECT j.priority, CASE WHEN j.schedule IS NULL OR {IN_TURN} THEN NULL ELSE (
            SELECT o.id FROM {JOBS} o LEFT JOIN {SCHEDULES} s ON s.name = o.schedule
            WHERE o.schedule = j.schedule AND o.finished_at IS NULL AND o.id <> j.id
              AND (o.status = 'running' OR CAST(:runnable AS text) IS NULL OR o.job_type {AMONG_RUNNABLE})
            ORDER BY CASE WHEN o.status = 'running' THEN 0 WHEN o.job_type = coalesce({PRESENT_TYPE}, s.name) THEN 1
              ELSE 2 END, o.id LIMIT 1) END AS first_id
          FROM {JOBS} j WHERE j.id = :id) p""",
        id=job_id,
        runnable=runnable_value(connection, runnable),
    ).first()


def jobs_of_type(connection: Connection, job_type: str) -> Row[Any]:
    """Return how many jobs of a type are waiting, how many of these are due, and the id of the job due first."""
    return run(
        connection,
        f"""
        SELECT count(*) AS waiting, count(CASE WHEN w.run_at <= {NOW} THEN 1 END) AS due,
          (SELECT o.id FROM (SELECT * FROM ({_FIRST_PLAIN}) p UNION ALL SELECT * FROM ({_FIRST_TIMED}) t) AS o
           ORDER BY o.run_at, o.id LIMIT 1) AS oldest
        FROM (SELECT j.run_at FROM {JOBS} j WHERE {_TYPE_PLAIN}
              UNION ALL SELECT j.run_at FROM {JOBS} j WHERE {_TYPE_TIMED}) AS w""",
        job_type=job_type,
    ).one()


def is_inline(connection: Connection, job_type: str) -> bool:
    """Return whether the type is the command of an active schedule of the same name."""
    statement = f"""SELECT 1 FROM {SCHEDULES} s WHERE s.name = :job_type AND s.status = 'active'
      AND coalesce({PRESENT_TYPE}, s.name) = s.name"""
    return run(connection, statement, job_type=job_type).first() is not None


def schedules_of_type(connection: Connection, job_type: str) -> list[str]:
    """Return the names of the active schedules whose jobs have this type."""
    return list(
        run(
            connection,
            f"SELECT s.name FROM {SCHEDULES} s WHERE s.status = 'active' AND {PRESENT_TYPE} = :job_type "
            "ORDER BY s.name",
            job_type=job_type,
        ).scalars()
    )


def removed_schedules(connection: Connection, job_types: Collection[str]) -> dict[str, list[str]]:
    """Map each of these types to the retired schedules that used it, unless an active schedule uses it."""
    rows = run(
        connection,
        f"""
        SELECT coalesce({PRESENT_TYPE}, s.name) AS job_type, s.name FROM {SCHEDULES} s
        WHERE s.status = 'retired' AND coalesce({PRESENT_TYPE}, s.name) {AMONG_NAMES} ORDER BY s.name""",
        names=sorted(job_types),
    ).all()
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row.job_type, []).append(row.name)
    return {job_type: names for job_type, names in found.items() if not schedules_of_type(connection, job_type)}


# --- ticks ------------------------------------------------------------------------------------------------------------


def newest_tick(connection: Connection) -> Row[Any] | None:
    """Return the tick with the highest id. Its start may not be the latest, if the clock of another tick was ahead."""
    return run(connection, f"SELECT t.* FROM {TICKS} t ORDER BY t.id DESC LIMIT 1").first()


def newest_ticks(connection: Connection, limit: int) -> Sequence[Row[Any]]:
    """Return the *limit* ticks that began last, newest first."""
    return run(
        connection, f"SELECT t.* FROM {TICKS} t ORDER BY t.started_at DESC, t.id DESC LIMIT :limit", limit=limit
    ).all()


def first_tick_at(connection: Connection) -> datetime | None:
    found: datetime | None = connection.execute(select(func.min(ticks.c.started_at))).scalar()
    return found


def ticks_beside(connection: Connection, moments: Sequence[dict[str, Any]]) -> dict[int, tuple[int | None, int | None]]:
    """Map each moment's number to two tick ids: the last tick that began by the moment's ``due_at``, and the next."""
    rows = run(
        connection,
        f"""
        SELECT o.number,
          (SELECT t.id FROM {TICKS} t WHERE t.started_at <= o.due_at ORDER BY t.started_at DESC, t.id DESC LIMIT 1)
            AS before_id,
          (SELECT t.id FROM {TICKS} t WHERE t.started_at > o.due_at ORDER BY t.started_at, t.id LIMIT 1) AS after_id
        FROM {_MOMENTS} AS o""",
        moments=list(moments),
    ).all()
    return {row.number: (row.before_id, row.after_id) for row in rows}


def jobs_under(connection: Connection, prefix: str, key: str, most: int) -> Sequence[Row[Any]]:
    """Return running jobs whose concurrency key begins with *prefix*, ordered by start, but those with *key* first."""
    return run(
        connection,
        f"""SELECT j.id, j.locked_by FROM {JOBS} j
           WHERE j.locked_until IS NOT NULL AND substr(j.concurrency_key, 1, :length) = :prefix
           ORDER BY CASE WHEN j.concurrency_key = :key THEN 0 ELSE 1 END, j.started_at, j.id LIMIT :most""",
        prefix=prefix,
        length=len(prefix),
        key=key,
        most=most,
    ).all()


def records_between(connection: Connection, begin: datetime, end: datetime) -> Sequence[Any]:
    """Return ended ticks that began in [*begin*, *end*], newest first. At most TICKS_READ ticks are read."""
    lately = (
        select(ticks)
        .where(ticks.c.started_at >= begin, ticks.c.started_at <= end)
        .order_by(ticks.c.started_at.desc(), ticks.c.id.desc())
        .limit(TICKS_READ)
        .subquery()
    )
    found = connection.execute(
        select(
            lately.c.host,
            lately.c.started_at,
            lately.c.finished_at,
            lately.c.did,
            lately.c.not_started,
            lately.c.schedules_on,
        )
        .where(lately.c.finished_at.is_not(None))
        .order_by(lately.c.started_at.desc(), lately.c.id.desc())
    )
    return found.all()


def unended_between(connection: Connection, begin: datetime, end: datetime) -> Sequence[Row[Any]]:
    """Return the ticks from *begin* to *end* without an end. ``followed``: whether their host ticked again by *end*."""
    return run(
        connection,
        f"""
        SELECT t.started_at, t.did, t.tick,
          EXISTS (SELECT 1 FROM {TICKS} l WHERE l.host = t.host AND l.id > t.id AND l.started_at <= :end) AS followed
        FROM {TICKS} t WHERE t.started_at >= :begin AND t.started_at <= :end AND t.finished_at IS NULL""",
        begin=begin,
        end=end,
    ).all()


def last_tick_that_knew(connection: Connection, job_type: str) -> Row[Any] | None:
    """Return the newest tick whose recorded job types include *job_type*."""
    names = (
        run(connection, f"SELECT l.hash FROM {JOB_TYPE_LISTS} l WHERE {_LISTS_TYPE}", job_type=job_type).scalars().all()
    )
    if not names:
        return None
    return run(
        connection,
        f"SELECT t.* FROM {TICKS} t WHERE t.job_types IS NOT NULL AND t.job_types {AMONG_NAMES} "
        "ORDER BY t.started_at DESC LIMIT 1",
        names=list(names),
    ).first()


def last_tick_with_its_types(connection: Connection, tick: Row[Any]) -> Row[Any]:
    """Return the last tick to which the job types that *tick* recorded still apply.

    That is the last tick of the same host before the host's next tick that recorded types. Most ticks record no types.
    """
    return run(
        connection,
        f"""
        SELECT t.* FROM {TICKS} t WHERE t.host = :host AND t.id >= :id AND t.id < coalesce(
          (SELECT min(n.id) FROM {TICKS} n WHERE n.host = :host AND n.id > :id AND n.job_types IS NOT NULL),
          :id + {1 << 53})
        ORDER BY t.id DESC LIMIT 1""",
        host=tick.host,
        id=tick.id,
    ).one()


def first_tick_without(connection: Connection, knew: Row[Any]) -> datetime:
    """Return the start of the first tick after the last tick that could run a type.

    *knew* is the last tick that recorded the type. Most ticks record no types. So the first tick without the type is
    the same host's next tick that recorded types. If that host has recorded no types since, the first tick without the
    type is the first later tick of any host.
    """
    last = last_tick_with_its_types(connection, knew)
    at: datetime | None = run(
        connection,
        f"""
        SELECT coalesce(
          (SELECT n.started_at FROM {TICKS} n WHERE n.host = :host AND n.id > :id ORDER BY n.id LIMIT 1),
          (SELECT min(n.started_at) FROM {TICKS} n WHERE n.started_at > :last)) AS started_at""",
        host=last.host,
        id=last.id,
        last=last.started_at,
    ).scalar()
    return at or last.started_at


def newest_ticks_with_types(connection: Connection) -> Sequence[Row[Any]]:
    """Return the last ticks that recorded their job types, newest first."""
    return run(
        connection,
        f"SELECT t.host, t.started_at, t.did, t.schedules_on FROM {TICKS} t WHERE t.job_types IS NOT NULL "
        "ORDER BY t.started_at DESC LIMIT :most",
        most=TICKS_READ,
    ).all()


def ticks_of(connection: Connection, ids: Collection[int]) -> dict[int, Row[Any]]:
    rows = run(connection, f"SELECT j.* FROM {TICKS} j WHERE j.id {AMONG_IDS}", ids=list(ids)).all()
    return {row.id: row for row in rows}


def workers_of(connection: Connection, job_ids: Collection[int]) -> dict[int, str]:
    """Map each of these jobs that runs on a cluster to its attempt's worker, or to "" if no worker has begun it."""
    rows = run(
        connection,
        f"""
        SELECT t.job_id, t.holder FROM {TOKENS} t JOIN {JOBS} j ON j.id = t.job_id AND j.attempts = t.attempt
        WHERE t.job_id {AMONG_IDS} AND j.status = 'running'""",
        ids=sorted(job_ids),
    )
    return {row.job_id: (row.holder or "").partition(" ")[0] for row in rows}
