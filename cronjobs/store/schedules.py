"""Definitions, watermarks, the occurrence ledger, pauses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from cronjobs.policy import Busy
from cronjobs.store.sql import define, group_value, is_postgresql, run
from cronjobs.tables import jobs, occurrences, pauses, schedules


@dataclass(frozen=True)
class StoredSchedule:
    """A row of cronjobs_schedules; ``paused`` when a pause of everything or of this schedule is in force."""

    id: int
    name: str
    definition: dict[str, Any]
    fingerprint: str
    status: str
    seen_until: datetime
    next_at: datetime | None
    paused: str | None = None
    pause_ended_at: datetime | None = None  # of a pause that ran out above the watermark: nothing is made up for it


@dataclass(frozen=True)
class LedgerRow:
    """What became of *count* occurrences from *first_for* to *last_for*."""

    schedule_id: int
    first_for: datetime
    last_for: datetime
    count: int
    outcome: str
    reason: str | None = None
    job_id: int | None = None
    decided_at: datetime | None = None  # None: when it is written


define(
    schedule_columns="""
      j.id, j.name, j.definition, j.fingerprint, j.status, j.seen_until, j.next_at,
      (SELECT coalesce('paused by ' || p.by, 'paused') || coalesce(': ' || p.why, '') FROM {pauses} p
       WHERE (p.scope = 'all' OR (p.scope = 'schedule' AND p.name = j.name)) AND (p.until IS NULL OR p.until > {now})
       ORDER BY p.scope LIMIT 1) AS paused,
      (SELECT max(p.until) FROM {pauses} p WHERE (p.scope = 'all' OR (p.scope = 'schedule' AND p.name = j.name))
       AND p.until <= {now} AND p.until > j.seen_until) AS pause_ended_at""",
)


def _stored(rows: Sequence[Row[Any]]) -> list[StoredSchedule]:
    return [StoredSchedule(**row._mapping) for row in rows]


def all_schedules(connection: Connection) -> list[StoredSchedule]:
    """Every definition that the database knows, retired ones too, by name."""
    return _stored(run(connection, "SELECT {schedule_columns} FROM {schedules} j ORDER BY j.name").all())


def due_schedules(connection: Connection, but: Collection[str] = ()) -> list[StoredSchedule]:
    """Active schedules whose wake-up hint has come, without locking them; *but* names those to leave alone.

    A watermark that lies in the future (a clock was wrong once) is due too, so that it can be set right.
    """
    rows = run(
        connection,
        """SELECT {schedule_columns} FROM {schedules} j WHERE j.status = 'active' AND j.next_at IS NOT NULL
           AND (j.next_at <= {now} OR j.seen_until > {now}) ORDER BY j.id""",
    ).all()
    return [schedule for schedule in _stored(rows) if schedule.name not in but]


def lock_schedules(connection: Connection, watermarks: Sequence[tuple[int, datetime]]) -> set[int]:
    """Lock those schedules whose watermark is still as read, passing over what another tick is at; return their ids.

    The comparison makes what was computed outside the transaction safe to write in it.
    """
    ids = [id_ for id_, _ in watermarks]
    rows = run(
        connection,
        "SELECT j.id, j.seen_until FROM {schedules} j WHERE j.id {among_ids} ORDER BY j.id {lock}",
        ids=group_value(connection, ids),
    ).all()
    expected = dict(watermarks)
    return {row.id for row in rows if row.seen_until == expected[row.id]}


def lock_definitions(connection: Connection) -> bool:
    """Take the right to change definitions until the transaction ends; False when another tick has it."""
    if not is_postgresql(connection):
        return True
    return run(connection, "SELECT j.id FROM {meta} j {lock}").first() is not None


def move_watermark(connection: Connection, schedule_id: int, seen_until: datetime, next_at: datetime | None) -> None:
    connection.execute(
        update(schedules).where(schedules.c.id == schedule_id).values(seen_until=seen_until, next_at=next_at)
    )


def ledger_between(connection: Connection, schedule_id: int, first: datetime, last: datetime) -> list[LedgerRow]:
    """The ledger rows that touch the range from *first* to *last*, oldest first."""
    columns = occurrences.c
    rows = connection.execute(
        select(*(columns[name] for name in LedgerRow.__dataclass_fields__))
        .where(columns.schedule_id == schedule_id, columns.last_for >= first, columns.first_for <= last)
        .order_by(columns.last_for)
    )
    return [LedgerRow(**row._mapping) for row in rows]


def forget_occurrences(connection: Connection, rows: Sequence[LedgerRow]) -> None:
    """Take rows out of the ledger whose occurrences are about to be written anew."""
    for row in rows:
        connection.execute(
            delete(occurrences).where(
                occurrences.c.schedule_id == row.schedule_id, occurrences.c.last_for == row.last_for
            )
        )


def recorded(connection: Connection, schedule_id: int, after: datetime) -> list[tuple[datetime, datetime]]:
    """The ranges that the ledger knows after *after*, oldest first: normally none, for that is the watermark."""
    rows = connection.execute(
        select(occurrences.c.first_for, occurrences.c.last_for)
        .where(occurrences.c.schedule_id == schedule_id, occurrences.c.last_for > after)
        .order_by(occurrences.c.last_for)
    )
    return [(row.first_for, row.last_for) for row in rows]


def record_occurrences(connection: Connection, rows: Sequence[LedgerRow], now: datetime) -> None:
    """Write ledger rows; the primary key refuses an occurrence that is there already, and with it the transaction."""
    if rows:
        connection.execute(insert(occurrences), [vars(row) | {"decided_at": row.decided_at or now} for row in rows])


def unfinished_jobs(connection: Connection, schedule: str) -> list[Busy]:
    """The schedule's unfinished jobs, oldest first: read from rows, never from a lock that could outlive a crash."""
    rows = run(
        connection,
        "SELECT id, status FROM {jobs} WHERE schedule IS NOT NULL AND finished_at IS NULL AND schedule = :schedule "
        "ORDER BY id",
        schedule=schedule,
    ).all()
    return [Busy(row.id, waiting=row.status != "running") for row in rows]


def put_definition(
    connection: Connection,
    *,
    name: str,
    definition: dict[str, Any],
    fingerprint: str,
    seen_until: datetime | None,
    next_at: datetime | None,
) -> None:
    """Insert or redefine a schedule and make it active. ``seen_until`` None keeps the watermark (not a timing edit)."""
    dialect = postgresql if is_postgresql(connection) else sqlite
    values = {"definition": definition, "fingerprint": fingerprint, "status": "active", "next_at": next_at}
    if seen_until is None:
        connection.execute(update(schedules).where(schedules.c.name == name).values(values))
        return
    values["seen_until"] = seen_until
    connection.execute(
        dialect.insert(schedules)
        .values(name=name, **values)
        .on_conflict_do_update(index_elements=[schedules.c.name], set_=values)
    )


def rename(connection: Connection, old: str, new: str) -> None:
    """Give a schedule another name; its ledger and watermark hang on its id, its unfinished jobs follow."""
    connection.execute(update(schedules).where(schedules.c.name == old).values(name=new))
    connection.execute(update(jobs).where(jobs.c.schedule == old, jobs.c.finished_at.is_(None)).values(schedule=new))


def retire(connection: Connection, names: Collection[str]) -> None:
    """Stop firing these schedules; rows, ledger and jobs stay."""
    connection.execute(
        update(schedules).where(schedules.c.name.in_(list(names))).values(status="retired", next_at=None)
    )


# --- pauses -----------------------------------------------------------------------------------------------------------


def pause(
    connection: Connection, *, scope: str, name: str, until: datetime | None, by: str, why: str | None, now: datetime
) -> None:
    """Put the brake on, or change the one that is on."""
    dialect = postgresql if is_postgresql(connection) else sqlite
    values = {"until": until, "by": by, "why": why, "paused_at": now}
    connection.execute(
        dialect.insert(pauses)
        .values(scope=scope, name=name, **values)
        .on_conflict_do_update(index_elements=[pauses.c.scope, pauses.c.name], set_=values)
    )


def resume(connection: Connection, *, scope: str, name: str) -> bool:
    """Take the brake off; whether it was on."""
    gone = connection.execute(
        delete(pauses).where(pauses.c.scope == scope, pauses.c.name == name).returning(pauses.c.scope)
    ).all()
    return bool(gone)


def pauses_in_force(connection: Connection) -> Sequence[Row[Any]]:
    return run(
        connection,
        "SELECT scope, name, until, by, why, paused_at FROM {pauses} WHERE until IS NULL OR until > {now} "
        "ORDER BY scope, name",
    ).all()


def ledger(connection: Connection, schedule_id: int, limit: int) -> Sequence[Row[Any]]:
    """The newest ledger rows of a schedule."""
    return connection.execute(
        select(occurrences)
        .where(occurrences.c.schedule_id == schedule_id)
        .order_by(occurrences.c.last_for.desc())
        .limit(limit)
    ).all()
