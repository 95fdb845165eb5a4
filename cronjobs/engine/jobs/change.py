"""Cancel a job or change when it is due, in the app's own transaction."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.engine.jobs.checking import Key, Span, delay_of, instant_of
from cronjobs.engine.jobs.enqueue import TargetOrEngine
from cronjobs.engine.jobs.find import in_transaction, job_name
from cronjobs.engine.store.app_changes import LOCKED, cancel_one, reschedule_one
from cronjobs.engine.store.find_jobs import JobName, require_ready
from cronjobs.errors import JobHeld, JobNotWaiting, NoSuchJob, UsageError
from cronjobs.model import Status
from cronjobs.text import clean, one_line

REASON_LIMIT: Final = 500  # in characters


def cancel(
    target: TargetOrEngine,
    *,
    id: int | None = None,
    idempotency_key: Key | None = None,
    reason: str | None = None,
    schema: str | None = None,
) -> Status | None:
    """Cancel a job in *target*'s transaction, which the caller commits.

    A waiting job is cancelled at once. A running job is asked to stop when its runner next renews its lease. If no
    attempt of the job has begun, its key becomes free again: the next ``enqueue`` with that key makes a new job.

    Args:
        target: anything that ``enqueue`` accepts.
        id: the id that ``enqueue`` returned.
        idempotency_key: the key that was given to ``enqueue``.
        reason: why the job is cancelled. The reason is kept with the job and in the audit trail. Only the first 500
            characters are kept.
        schema: on PostgreSQL, the schema that contains the tables. If None, the search_path is used.

    Returns:
        The job's status after the call: cancelled; running, if the job was asked to stop; succeeded or dead, if the job
        had already ended, and so did not change. None if the job does not exist, or has been deleted.

    Raises:
        UsageError: neither or both of *id* and *idempotency_key* are given, or one of them is invalid.
        JobHeld: another open transaction has the job locked; nothing was changed.
        SchemaMissing: the tables do not exist yet. Run ``cronjobs db upgrade``.

    The transaction stays usable after any of these errors.
    """
    name, why = job_name(id, idempotency_key), reason_text(reason)

    def write(connection: Connection) -> Status | None:
        require_ready(connection)
        return _status(cancel_one(connection, name, why), name)

    return in_transaction(target, schema, "cancel", write)


def reschedule(
    target: TargetOrEngine,
    *,
    id: int | None = None,
    idempotency_key: Key | None = None,
    run_at: datetime | None = None,
    delay: Span | None = None,
    reason: str | None = None,
    schema: str | None = None,
) -> Status:
    """Change when a waiting job is due, in *target*'s transaction, which the caller commits.

    A failed job that is waiting for its retry can also be moved. Its failures still count. A schedule's job can be
    moved too. Until the moved job has ended, ``overlap`` treats it as unfinished.

    Args:
        target: anything that ``enqueue`` accepts.
        id: the id that ``enqueue`` returned.
        idempotency_key: the key that was given to ``enqueue``.
        run_at: the earliest time to start the job, timezone-aware. Give either *run_at* or *delay*.
        delay: how long to wait before starting the job, by the database's clock: seconds, "90s" or a timedelta.
        reason: why the job is moved, for the audit trail. Only the first 500 characters are kept.
        schema: on PostgreSQL, the schema that contains the tables. If None, the search_path is used.

    Returns:
        The job's status: queued, or failed if the job is waiting for a retry.

    Raises:
        JobNotWaiting: the job is running or has ended, so it cannot be moved. The error's ``status`` says which.
        NoSuchJob: the job does not exist, or has been deleted.
        JobHeld: another open transaction has the job locked; nothing was changed.
        UsageError: an argument is invalid.
        SchemaMissing: the tables do not exist yet. Run ``cronjobs db upgrade``.

    The transaction stays usable after any of these errors.
    """
    name = job_name(id, idempotency_key)
    if (run_at is None) == (delay is None):
        raise UsageError("say when the job is due: give either run_at or delay")
    at = None if run_at is None else instant_of(run_at)
    delay_s = 0.0 if delay is None else delay_of(delay).total_seconds()
    why = reason_text(reason)

    def write(connection: Connection) -> Status:
        require_ready(connection)
        status = _status(reschedule_one(connection, name, at, delay_s, why), name)
        if status is None:
            raise NoSuchJob(str(name))
        if status not in (Status.QUEUED, Status.FAILED):
            raise JobNotWaiting(str(name), status)
        return status

    return in_transaction(target, schema, "reschedule", write)


def _status(state: str | None, name: JobName) -> Status | None:
    if state == LOCKED:
        raise JobHeld(name.key, name.id)
    return None if state is None else Status(state)


def reason_text(reason: Any) -> str | None:
    return None if reason is None else one_line(clean(str(reason)), REASON_LIMIT).strip() or None
