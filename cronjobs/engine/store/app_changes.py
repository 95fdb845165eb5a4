"""Cancel or reschedule one job in the app's own transaction, on whatever connection the app has.

On PostgreSQL, two stored functions make the change with the rights of the tables' owner. So a role that may only
enqueue can call them, from any language. SQLite has no stored functions, so the statements in this module do the same
there. A test checks that both ways leave the same rows.

Unlike an operator's command, these changes do not make the next tick look for findings, because an app's transaction
may stay open for a long time, and ticks would then wait for its lock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.engine.database.column_types import from_microseconds
from cronjobs.engine.database.encoding import fitted
from cronjobs.engine.host.caller import caller
from cronjobs.engine.probe.kernel_facts import host_name
from cronjobs.engine.probe.sql_text import AUDIT, CANCEL, JOBS, NOW, RESCHEDULE, after_now
from cronjobs.engine.store.counts import count_jobs
from cronjobs.engine.store.find_jobs import JobName, cannot_be_there
from cronjobs.engine.store.operating import CAN_CANCEL, CANCELLED, RUNS
from cronjobs.engine.store.sql import INSTANT_TYPE, is_postgresql, run

LOCKED: Final = "locked"  # returned instead of a status if another transaction has locked the job's row

# Used only on SQLite. Finds the job by its id. Without an id, finds the job that has the key now, or else the newest
# job that released the key.
_NAMED: Final = f"""j.id = CASE WHEN :id IS NOT NULL THEN :id ELSE coalesce(
      (SELECT k.id FROM {JOBS} k WHERE k.idempotency_key = :key),
      (SELECT max(k.id + 0) FROM {JOBS} k WHERE k.released_key = :key)) END"""
_MOVED_TO: Final = f"coalesce(CAST(:run_at AS {INSTANT_TYPE}), {after_now('CAST(:delay_s AS double precision)')})"


def cancel_one(connection: Connection, name: JobName, reason: str | None) -> str | None:
    """Cancel a waiting job, or ask a running job to stop.

    Returns the job's status afterwards, ``LOCKED``, or None if there is no such job.
    """
    if cannot_be_there(connection, name):
        return None
    if is_postgresql(connection):
        return _call(connection, f"{CANCEL}({_ARGUMENTS})", name, reason)
    with _one_transaction(connection):
        return _cancel_on_sqlite(connection, name, reason)


def _cancel_on_sqlite(connection: Connection, name: JobName, reason: str | None) -> str | None:
    actor, place = caller(), name._asdict()
    _take_write_lock(connection)
    changed = run(
        connection,
        f"UPDATE {JOBS} AS j SET {CANCELLED} WHERE {_NAMED} AND {CAN_CANCEL} RETURNING id",
        error=f"cancelled by {actor}" + (f": {reason}" if reason else ""),
        **place,
    ).all()
    count_jobs(connection, [row.id for row in changed])
    if not changed:
        changed = run(
            connection,
            f"""UPDATE {JOBS} AS j SET cancel_requested_at = coalesce(j.cancel_requested_at, {NOW})
               WHERE {_NAMED} AND {RUNS} RETURNING id""",
            **place,
        ).all()
    if changed:
        _record(connection, "cancel", changed[0].id, actor, reason)
    return _status(connection, name)


def reschedule_one(
    connection: Connection, name: JobName, run_at: datetime | None, delay_s: float, reason: str | None
) -> str | None:
    """Make a queued or failed job due at *run_at*, or in *delay_s* seconds if *run_at* is None.

    Returns the job's status, ``LOCKED``, or None if there is no such job.
    """
    if cannot_be_there(connection, name):
        return None
    if is_postgresql(connection):
        at = None if run_at is None else run_at.isoformat()
        call = f"{RESCHEDULE}({_ARGUMENTS}, run_at => {_MOVED_TO})"
        return _call(connection, call, name, reason, run_at=at, delay_s=delay_s)
    with _one_transaction(connection):
        return _reschedule_on_sqlite(connection, name, {"run_at": run_at, "delay_s": delay_s}, reason)


def _reschedule_on_sqlite(
    connection: Connection, name: JobName, due: Mapping[str, Any], reason: str | None
) -> str | None:
    place = name._asdict()
    _take_write_lock(connection)
    before = run(connection, f"SELECT j.run_at AS was_due FROM {JOBS} j WHERE {_NAMED} AND {CAN_CANCEL}", **place).all()
    if before:
        [moved] = run(
            connection,
            f"""UPDATE {JOBS} AS j SET run_at = {_MOVED_TO} WHERE {_NAMED} AND {CAN_CANCEL}
               RETURNING id, run_at AS now_due""",
            **due,
            **place,
        ).all()
        instants = {"from": before[0].was_due, "to": moved.now_due}
        detail = {word: from_microseconds(at).isoformat(timespec="microseconds") for word, at in instants.items()}
        _record(connection, "reschedule", moved.id, caller(), reason, detail)
    return _status(connection, name)


def _take_write_lock(connection: Connection) -> None:
    """Take the write lock, so that a time that we read afterwards is later than every time that other writers wrote.

    Call this first: on SQLite, a transaction that began with a SELECT cannot always become a write transaction.
    """
    run(connection, f"UPDATE {JOBS} SET id = id WHERE 1 = 0")


@contextmanager
def _one_transaction(connection: Connection) -> Iterator[None]:
    """Begin a transaction if the app's connection is in autocommit mode. Otherwise use the app's transaction."""
    # Imported only here: few programs need user_connections, and it imports both dialects.
    from cronjobs.engine.database.user_connections import commits_by_itself

    if not commits_by_itself(connection):
        yield
        return
    run(connection, "BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        run(connection, "ROLLBACK")
        raise
    run(connection, "COMMIT")


# Send texts as ASCII JSON, because the encoding of the app's connection may lack some of their characters.
_ARGUMENTS: Final = """id => CAST(:id AS bigint), idempotency_key => CAST(:texts AS json) ->> 0,
      reason => CAST(:texts AS json) ->> 1"""


def _call(connection: Connection, call: str, name: JobName, reason: str | None, **values: Any) -> str | None:
    texts = [name.key, None if reason is None else fitted(connection, reason)]
    state: str | None = run(connection, f"SELECT {call} AS state", id=name.id, texts=texts, **values).scalar_one()
    return state


def _status(connection: Connection, name: JobName) -> str | None:
    found = run(connection, f"SELECT j.status FROM {JOBS} j WHERE {_NAMED}", **name._asdict()).all()
    return found[0].status if found else None


def _record(
    connection: Connection,
    action: str,
    job_id: int,
    actor: str,
    reason: str | None,
    detail: dict[str, str] | None = None,
) -> None:
    run(
        connection,
        f"""INSERT INTO {AUDIT} (at, actor, host, action, subject, why, detail)
           VALUES ({NOW}, :actor, :host, :action, :subject, :why, :detail)""",
        actor=actor,
        host=host_name(),
        action=action,
        subject=f"job {job_id}",
        why=reason,
        detail=None if detail is None else json.dumps(detail, separators=(",", ":")),
    )
