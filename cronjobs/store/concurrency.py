"""What limits by concurrency key are judged by: whose turn it is to judge, and how many jobs run of each key."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from cronjobs.rules.concurrency import Full
from cronjobs.store.sql import among, define, group_value, is_postgresql, run

define(
    # Bytes, as Python's startswith compares them; LIKE would read the wildcards that a prefix may hold.
    begins_full=lambda postgresql: (
        "j.concurrency_key ^@ ANY(ARRAY(SELECT json_array_elements_text(CAST(:full_prefixes AS json))))"
        if postgresql
        else "EXISTS (SELECT 1 FROM json_each(:full_prefixes) p "
        "WHERE substr(j.concurrency_key, 1, length(p.value)) = p.value)"
    ),
    among_full_keys=among("full_keys"),
    is_full="j.concurrency_key IS NOT NULL AND (j.concurrency_key {among_full_keys} OR {begins_full})",
)


def full_parameters(connection: Connection, found: Full) -> dict[str, str]:
    """The parameters of ``{is_full}``."""
    return {
        "full_keys": group_value(connection, sorted(found.keys)),
        "full_prefixes": group_value(connection, sorted(found.prefixes)),
    }


def judge_alone(connection: Connection, *, wait: bool = False) -> bool:
    """Be the only one that counts and claims under limits until this transaction ends; False: another runner is.

    The lock is on the row of ``cronjobs_meta``, which only roles that run jobs can take: an advisory lock can be taken,
    and kept, by any login. It is a statement of its own, before any that counts: each sees what was committed when it
    began, so that a count in the statement that takes the lock, or before it, could miss what the last holder claimed.
    Without *wait* it only tries: a holder that is frozen must stop nobody's renewals. SQLite's writer is alone anyway.
    """
    if not is_postgresql(connection):
        return True
    lock = "SELECT 1 FROM {meta} m WHERE m.id = 1 FOR NO KEY UPDATE" + ("" if wait else " SKIP LOCKED")
    return run(connection, lock).first() is not None


def running_by_key(connection: Connection, known: Collection[str] = ()) -> dict[str, int]:
    """How many jobs are leased, by concurrency key. A lease that ran out counts: its code may still run.

    Unless nobody here can settle it, being of an older version and of none of the *known* types: it may stay so for
    days, and would hold its limit for as long.
    """
    rows = run(
        connection,
        """
        SELECT j.concurrency_key, count(*) AS leased FROM {jobs} j
        WHERE j.concurrency_key IS NOT NULL AND j.locked_until IS NOT NULL
          AND NOT ({unsettled_j} AND NOT j.job_type {among_known})
        GROUP BY j.concurrency_key""",
        known=group_value(connection, sorted(known)),
    ).all()
    return {row.concurrency_key: row.leased for row in rows}


def due_and_full(connection: Connection, found: Full) -> dict[str, int]:
    """How many due jobs there are of each concurrency key that is full."""
    rows = run(
        connection,
        "SELECT j.concurrency_key, count(*) AS waiting FROM {jobs} j "
        "WHERE j.{waiting} AND j.run_at <= {now} AND {is_full} GROUP BY j.concurrency_key",
        **full_parameters(connection, found),
    ).all()
    return {row.concurrency_key: row.waiting for row in rows}
