"""Put jobs into the table, in a transaction that belongs to the caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects import postgresql, sqlite

from cronjobs.model import Status
from cronjobs.store.sql import clock_of, is_postgresql
from cronjobs.tables import jobs, server_now


@dataclass(frozen=True)
class NewJob:
    """A job about to be written; texts and JSON are checked before. ``run_at`` None: now plus ``delay``."""

    job_type: str
    payload: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)
    run_at: datetime | None = None
    delay: timedelta | None = None
    queue: str = "default"
    priority: int = 5
    max_attempts: int | None = None
    timeout_s: float | None = None
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    schedule: str | None = None
    scheduled_for: datetime | None = None
    enqueued_by: str | None = None


def insert_job(connection: Connection, job: NewJob) -> tuple[int, bool, Status]:
    """Insert *job*; return its id, whether it is new, and its status.

    With a key that is spent already, nothing is written and the existing row is told. ON CONFLICT DO NOTHING, then
    SELECT: never an error that would spoil the caller's transaction.
    """
    values = _values(connection, job)
    dialect = postgresql if is_postgresql(connection) else sqlite
    insert = dialect.insert(jobs).values(values)
    if job.idempotency_key is not None:
        insert = insert.on_conflict_do_nothing(index_elements=[jobs.c.idempotency_key])
    inserted = connection.execute(insert.returning(jobs.c.id, jobs.c.status)).first()
    if inserted is not None:
        return inserted.id, True, Status(inserted.status)
    there = connection.execute(
        select(jobs.c.id, jobs.c.status).where(jobs.c.idempotency_key == job.idempotency_key)
    ).one()
    return there.id, False, Status(there.status)


def insert_jobs(connection: Connection, new: Sequence[NewJob], *, created_at: datetime) -> list[int]:
    """Insert jobs without idempotency keys in one statement; return their ids in order. Each has its ``run_at``."""
    if not new:
        return []
    statement = jobs.insert().returning(jobs.c.id, sort_by_parameter_order=True)
    rows = [
        _facts(job) | {"run_at": job.run_at, "created_at": created_at, "enqueued_by": job.enqueued_by} for job in new
    ]
    return list(connection.execute(statement, rows).scalars())


def _values(connection: Connection, job: NewJob) -> dict[str, Any]:
    """Columns of one row. Who enqueued it is the server's default unless it is said."""
    now = _from_now(connection, timedelta(0))
    values = _facts(job) | {"created_at": now, "run_at": job.run_at}
    if job.run_at is None:
        values["run_at"] = _from_now(connection, job.delay) if job.delay else now
    if job.enqueued_by is not None:
        values["enqueued_by"] = job.enqueued_by
    return values


def _facts(job: NewJob) -> dict[str, Any]:
    return {
        "job_type": job.job_type,
        "payload": job.payload,
        "meta": job.meta,
        "queue": job.queue,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "timeout_s": job.timeout_s,
        "idempotency_key": job.idempotency_key,
        "concurrency_key": job.concurrency_key,
        "schedule": job.schedule,
        "scheduled_for": job.scheduled_for,
    }


def _from_now(connection: Connection, delay: timedelta) -> Any:
    """The database's now plus *delay*, as SQL where the database has a clock of its own."""
    clock = clock_of(connection)
    if not is_postgresql(connection):
        return clock.now() + delay
    seconds = (clock.shift + delay).total_seconds()
    # In seconds: an interval of "7 days" is an hour off where the session's zone changes its clock on the way.
    return server_now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds) if seconds else server_now()


def job_status(connection: Connection, job_id: int) -> Status | None:
    status = connection.execute(select(jobs.c.status).where(jobs.c.id == job_id)).scalar()
    return None if status is None else Status(status)
