"""What limits by concurrency key need: who may judge them now, and how many jobs of each key are running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs.engine.probe.idle_conditions import after_now
from cronjobs.engine.rules.concurrency import Full, Limit, full, waiting_by_limit
from cronjobs.engine.store.overlap import runnable_value
from cronjobs.engine.store.sql import among, define, group_value, is_postgresql, run

MOST_GROUPS: Final = 5000  # of queue and type: anyone may name queues
FIRST_PREFIXES: Final = 3  # these SQLite compares one by one; to read the list for a row takes several times as long


def _is_full(postgresql: bool) -> str:
    """Whether the key of job ``j`` has no room. A claim asks it of each row that it steps over, however many wait."""
    # Compare bytes, as Python's startswith does; LIKE would interpret wildcards in a prefix.
    if postgresql:
        prefixes = "ARRAY(SELECT json_array_elements_text(CAST(:full_prefixes AS json)))"
        return (
            "j.concurrency_key IS NOT NULL "
            f"AND (j.concurrency_key {{among_full_keys}} OR j.concurrency_key ^@ ANY({prefixes}))"
        )
    there, begins = "json_array_length(:full_prefixes) > {}", "substr(j.concurrency_key, 1, {}) = {}"
    # SQLite finds the length of the list, and each of the first prefixes, once for the whole statement.
    one = "(SELECT {} FROM json_each(:full_prefixes) WHERE key = {})"
    first = [
        f"WHEN {there.format(n)} AND {begins.format(one.format('length(value)', n), one.format('value', n))} THEN 1"
        for n in range(FIRST_PREFIXES)
    ]
    others = f"EXISTS (SELECT 1 FROM json_each(:full_prefixes) p WHERE {begins.format('length(p.value)', 'p.value')})"
    return (
        f"CASE WHEN j.concurrency_key IS NULL THEN 0 {' '.join(first)} "
        "WHEN j.concurrency_key {among_full_keys} THEN 1 "
        f"WHEN {there.format(FIRST_PREFIXES)} THEN {others} ELSE 0 END"
    )


define(among_full_keys=among("full_keys"), is_full=_is_full, late_before=after_now(":late_s"))

# Neither full nor among :ids.
BUT: Final = " AND NOT ({is_full}) AND NOT (j.id {among_ids})"
_FIRST: Final = "min(run_at) AS first_at, (array_agg(id ORDER BY turn))[1] AS first_id"


def behind_full_keys(picked: str) -> str:
    """The claim's ``picked`` on PostgreSQL, without what is full, and stepping over that once instead of three times.

    ``due`` sees by the same snapshot all that the lateral subqueries see. So they begin at the first row of their lane
    that it found; and if it found fewer than were asked for, it found all, and there are no more to take.
    """
    for kind in ("{due_plain}", "{due_timed}"):
        picked = picked.replace(kind, kind + BUT)
    others = "UNION ALL\n    SELECT c.* FROM head b"  # who take more than their share
    return (
        picked.replace(" AS turn FROM", " AS turn, h.run_at, h.id FROM")
        .replace(" AS share\n", f" AS share, {_FIRST}\n")
        .replace("{holds_turn}", "{holds_turn} AND (j.run_at, j.id) >= (b.first_at, b.first_id)")
        .replace(others, others.replace("head", "(SELECT * FROM head WHERE (SELECT count(*) FROM due) >= :limit)"))
    )


def full_parameters(connection: Connection, found: Full) -> dict[str, str]:
    """The parameters of ``{is_full}``."""
    return {
        "full_keys": group_value(connection, sorted(found.keys)),
        "full_prefixes": group_value(connection, sorted(found.prefixes)),
    }


def judge_alone(connection: Connection, *, wait: bool = False) -> bool:
    """Let only this transaction count and claim under limits until it ends; False: another runner is doing so.

    The lock is on the row of ``cronjobs_meta``, which only roles that run jobs can lock; an advisory lock could be
    taken, and kept, by any login. It is a statement of its own, before any that counts: a statement sees what was
    committed when it began, so a count in the locking statement, or before it, could miss what the last holder claimed.
    Without *wait* it only tries, so that a frozen holder cannot stop anyone's renewals. SQLite's writer is alone.
    """
    if not is_postgresql(connection):
        return True
    lock = "SELECT 1 FROM {meta} m WHERE m.id = 1 FOR NO KEY UPDATE" + ("" if wait else " SKIP LOCKED")
    return run(connection, lock).first() is not None


def running_by_key(connection: Connection) -> dict[str, int]:
    """How many jobs are leased, by concurrency key. An expired lease counts: its code may still run."""
    rows = run(
        connection,
        """
        SELECT j.concurrency_key, count(*) AS leased FROM {jobs} j
        WHERE j.concurrency_key IS NOT NULL AND j.locked_until IS NOT NULL
        GROUP BY j.concurrency_key""",
    ).all()
    return {row.concurrency_key: row.leased for row in rows}


def waiting_for(connection: Connection, limits: Sequence[Limit]) -> dict[Limit, int]:
    """Of the limits that are reached: how many due jobs wait for each."""
    running = running_by_key(connection) if limits else {}
    found = full(limits, running)
    if not (found.prefixes or found.keys):
        return {}
    rows = run(
        connection,
        "SELECT j.concurrency_key, count(*) AS waiting FROM {jobs} j "
        "WHERE j.{waiting} AND j.run_at <= {now} AND {is_full} GROUP BY j.concurrency_key",
        **full_parameters(connection, found),
    ).all()
    return waiting_by_limit(limits, running, {row.concurrency_key: row.waiting for row in rows})


def late_behind_others(
    connection: Connection, limits: Sequence[Limit], late: timedelta, runnable: Collection[str] | None
) -> dict[tuple[str, str], int]:
    """By queue and type: how many jobs have been due for longer than *late* and wait for others.

    They wait for a limit, or for another job of their schedule (*runnable* as in a claim).
    """
    running = running_by_key(connection) if limits else {}
    found = full(limits, running)
    keys = full_parameters(connection, found) | {"late_s": -late.total_seconds(), "most": MOST_GROUPS}
    behind: Counter[tuple[str, str]] = Counter()
    wheres = ["j.schedule IS NOT NULL AND j.finished_at IS NULL AND NOT {in_turn} AND NOT ({is_full})"]
    if found.prefixes or found.keys:
        wheres.append("{is_full}")
    for where in wheres:
        own = {"runnable": runnable_value(connection, runnable)} if "in_turn" in where else {}
        rows = run(
            connection,
            "SELECT j.queue, j.job_type, count(*) AS waiting FROM {jobs} j "
            f"WHERE j.{{waiting}} AND j.run_at <= {{late_before}} AND {where} GROUP BY j.queue, j.job_type "
            "ORDER BY waiting DESC LIMIT :most",
            **keys,
            **own,
        )
        for row in rows:
            behind[row.queue, row.job_type] += row.waiting
    return behind
