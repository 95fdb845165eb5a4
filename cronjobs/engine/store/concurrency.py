"""Limits by concurrency key in the database.

A lock lets only one transaction at a time claim jobs under limits. That transaction counts the running jobs by key.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from sqlalchemy import Connection

from cronjobs.engine.probe.idle_conditions import WAITING
from cronjobs.engine.probe.sql_text import JOBS, META, NOW, after_now, either
from cronjobs.engine.rules.concurrency import Full, Limit, full, waiting_by_limit
from cronjobs.engine.store.overlap import IN_TURN, runnable_value
from cronjobs.engine.store.sql import AMONG_IDS, AMONG_NAMES, among, group_value, is_postgresql, run

# Read at most this many groups of (queue, type), because anyone can invent names of queues.
MOST_GROUPS: Final = 5000
# On SQLite, compare this many prefixes one by one. Reading the list of prefixes for each row takes several times as
# long.
FIRST_PREFIXES: Final = 3


def _is_full() -> str:
    """Return SQL that is true if the key of job ``j`` has reached a limit.

    A claim evaluates this condition for every row that it passes, so the condition must be fast.
    """
    # Compare bytes, as Python's startswith does: LIKE would interpret wildcards in a prefix.
    is_full_key, prefixes = among("full_keys"), "ARRAY(SELECT json_array_elements_text(CAST(:full_prefixes AS json)))"
    there, begins = "json_array_length(:full_prefixes) > {}", "substr(j.concurrency_key, 1, {}) = {}"
    # SQLite computes the list's length and the first prefixes once per statement.
    one = "(SELECT {} FROM json_each(:full_prefixes) WHERE key = {})"
    first = [
        f"WHEN {there.format(n)} AND {begins.format(one.format('length(value)', n), one.format('value', n))} THEN 1"
        for n in range(FIRST_PREFIXES)
    ]
    others = f"EXISTS (SELECT 1 FROM json_each(:full_prefixes) p WHERE {begins.format('length(p.value)', 'p.value')})"
    return either(
        postgresql="j.concurrency_key IS NOT NULL "
        f"AND (j.concurrency_key {is_full_key} OR j.concurrency_key ^@ ANY({prefixes}))",
        sqlite=f"CASE WHEN j.concurrency_key IS NULL THEN 0 {' '.join(first)} "
        f"WHEN j.concurrency_key {is_full_key} THEN 1 "
        f"WHEN {there.format(FIRST_PREFIXES)} THEN {others} ELSE 0 END",
    )


_IS_FULL: Final = _is_full()

# Leaves out jobs whose key is full, and the jobs in :ids.
BUT: Final = f" AND NOT ({_IS_FULL}) AND NOT (j.id {AMONG_IDS})"


def full_parameters(connection: Connection, found: Full) -> dict[str, str]:
    """Return the parameters for ``BUT``, and for every other statement that checks whether a key is full."""
    return {
        "full_keys": group_value(connection, sorted(found.keys)),
        "full_prefixes": group_value(connection, sorted(found.prefixes)),
    }


def judge_alone(connection: Connection, *, wait: bool = False) -> bool:
    """Let no other transaction claim jobs under limits, or jobs of schedules, until this transaction ends.

    Returns False if another transaction already has this right. Without *wait* the call returns at once, so a frozen
    holder cannot prevent others from renewing their leases. SQLite has only one writer, so it needs no lock.

    The lock is on the row of ``cronjobs_meta``, which only roles that run jobs can lock. An advisory lock would not be
    safe, because any login could take it and keep it. A separate statement takes the lock, before any statement that
    counts. A statement sees only changes that were committed before the statement began. So a count in the locking
    statement, or before it, could miss jobs that the last holder claimed.
    """
    if not is_postgresql(connection):
        return True
    lock = f"SELECT 1 FROM {META} m WHERE m.id = 1 FOR NO KEY UPDATE" + ("" if wait else " SKIP LOCKED")
    return run(connection, lock).first() is not None


def running_by_key(connection: Connection) -> dict[str, int]:
    """Return the number of leased jobs for each concurrency key.

    Expired leases count, because their jobs may still be running.
    """
    rows = run(
        connection,
        f"""
        SELECT j.concurrency_key, count(*) AS leased FROM {JOBS} j
        WHERE j.concurrency_key IS NOT NULL AND j.locked_until IS NOT NULL
        GROUP BY j.concurrency_key""",
    ).all()
    return {row.concurrency_key: row.leased for row in rows}


def waiting_for(connection: Connection, limits: Sequence[Limit], paused: Collection[str]) -> dict[Limit, int]:
    """Return, for each limit that has been reached, how many due jobs wait only for it. Jobs of *paused* queues do not
    count.
    """
    running = running_by_key(connection) if limits else {}
    found = full(limits, running)
    if not (found.prefixes or found.keys):
        return {}
    rows = run(
        connection,
        f"SELECT j.concurrency_key, count(*) AS waiting FROM {JOBS} j "
        f"WHERE j.{WAITING} AND j.run_at <= {NOW} AND {_IS_FULL} "
        f"AND NOT j.queue {AMONG_NAMES} GROUP BY j.concurrency_key",
        names=group_value(connection, sorted(paused)),
        **full_parameters(connection, found),
    ).all()
    return waiting_by_limit(limits, running, {row.concurrency_key: row.waiting for row in rows})


class LateBehind(NamedTuple):
    """``behind`` is the number of late jobs of a queue and type that had to wait for other jobs.

    ``late`` is the number of all late jobs of the queue and type that the same statement saw. It is None if no limit
    held back any of them. To get the jobs that could have run, subtract ``behind`` from ``late``, not from the count of
    an earlier statement: a tick may have claimed some of those jobs since.
    """

    behind: int = 0
    late: int | None = None


def late_behind_others(
    connection: Connection,
    limits: Sequence[Limit],
    late: timedelta,
    runnable: Collection[str] | None,
    held: Full,
) -> dict[tuple[str, str], LateBehind]:
    """Count, by queue and type, the jobs that have been due for longer than *late*, but could not run for at least part
    of that time.

    Such a job waited for a limit or for another job of its schedule, or it was created late, for a past occurrence.
    *runnable* has the same meaning as in ``ClaimFilter``. *held* are the limits that held jobs back recently. Between
    two ticks no job runs, so a limit that was reached during the last tick looks free now.
    """
    running = running_by_key(connection) if limits else {}
    now = full(limits, running)
    found = Full(now.prefixes | held.prefixes, now.keys | held.keys)
    keys = full_parameters(connection, found) | {"late_s": -late.total_seconds(), "most": MOST_GROUPS}
    late_jobs = f"FROM {JOBS} j WHERE j.{WAITING} AND j.run_at <= {after_now(':late_s')}"
    not_yet = f"(NOT {IN_TURN} OR j.created_at > {after_now(':late_s')})"
    rows = run(
        connection,
        f"SELECT j.queue, j.job_type, count(*) AS behind {late_jobs} AND j.schedule IS NOT NULL "
        f"AND j.finished_at IS NULL AND {not_yet} AND NOT ({_IS_FULL}) GROUP BY j.queue, j.job_type "
        "ORDER BY behind DESC LIMIT :most",
        runnable=runnable_value(connection, runnable),
        **keys,
    )
    behind = {(row.queue, row.job_type): LateBehind(row.behind) for row in rows}
    if found.prefixes or found.keys:
        rows = run(
            connection,
            "SELECT * FROM (SELECT j.queue, j.job_type, count(*) AS late, "
            f"count(CASE WHEN {_IS_FULL} THEN 1 END) AS behind {late_jobs} GROUP BY j.queue, j.job_type) AS each "
            "WHERE behind > 0 ORDER BY behind DESC LIMIT :most",
            **keys,
        )
        for row in rows:
            place = (row.queue, row.job_type)
            behind[place] = LateBehind(behind.get(place, LateBehind()).behind + row.behind, row.late)
    return behind
