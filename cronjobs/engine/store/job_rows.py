"""Fetch jobs. If plain SQL wrote unreadable values to a job's row, read as much of the row as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from cronjobs.engine.probe.sql_text import JOBS, OCCURRENCES, SCHEDULES
from cronjobs.engine.rules.payload import NOT_UTF8, BadJson
from cronjobs.engine.store.sizes import UNREAD, if_not_too_large
from cronjobs.engine.store.sql import JSON_TYPE, is_lost, json_value, run
from cronjobs.model import Job
from cronjobs.text import BrokenText

# Look up the schedule only for jobs that have one, because most jobs have none.
_OF_SCHEDULE: Final = "CASE WHEN j.schedule IS NOT NULL THEN"
_ITS_SCHEDULE: Final = f"{SCHEDULES} s WHERE s.name = j.schedule"
_TIMEZONE_KEY: Final = json_value("s.definition", "timezone")
RETRY_UNTIL_KEY: Final = json_value("s.definition", "retry_until")
RUNNER_S: Final = json_value("j.policy", "runner_s")
LEASE_LENGTH_S: Final = json_value("j.policy", "lease_s")


def _facts(*, payload: str, meta: str, queue: str, key: str, concurrency: str) -> str:
    """Return SQL for the columns of a job ``j``, in the order of Job's fields. ``job_from`` reads them."""
    return f"""
      j.id, j.job_type, {payload} AS payload, {meta} AS meta, {queue} AS queue, j.priority, j.run_at,
      j.attempts, j.failures, j.losses, j.interruptions, j.max_attempts, j.timeout_s, j.locked_by,
      {key} AS idempotency_key, {concurrency} AS concurrency_key, j.schedule, j.scheduled_for,
      {_OF_SCHEDULE} (SELECT CAST(1 + coalesce(sum(c.count), 0) AS integer) FROM {OCCURRENCES} c
                     WHERE c.job_id = j.id AND c.outcome = 'coalesced') ELSE 1 END AS stands_for,
      coalesce({_OF_SCHEDULE} (SELECT {_TIMEZONE_KEY} FROM {_ITS_SCHEDULE}) END, 'UTC') AS timezone,
      j.created_at, j.started_at,
      {_OF_SCHEDULE} (SELECT s.next_at FROM {_ITS_SCHEDULE} AND s.status = 'active') END AS next_occurrence,
      {_OF_SCHEDULE} (SELECT {RETRY_UNTIL_KEY} FROM {_ITS_SCHEDULE}) END AS retry_until"""


FACTS: Final = _facts(
    payload=if_not_too_large("j.payload"),
    meta=if_not_too_large("j.meta"),
    queue="j.queue",
    key="j.idempotency_key",
    concurrency="j.concurrency_key",
)
# These columns are for rows that cannot be fetched as a whole, and for callers that do not need the payload.
FACTS_UNREAD: Final = _facts(
    payload=f"""CAST('"{UNREAD}"' AS {JSON_TYPE})""", meta="NULL", queue="'?'", key="NULL", concurrency="NULL"
)
_COLUMNS: Final = len(Job._fields)
_TEXTS: Final = ("payload", "meta", "job_type", "queue", "idempotency_key", "concurrency_key", "schedule")
_texts_of: Final = attrgetter(*_TEXTS)


def job_from(row: Sequence[Any]) -> Job:
    """Return the job of a row that begins with ``FACTS``. Neutralizes harmful values that plain SQL wrote."""
    job = Job._make(row[:_COLUMNS])
    for name, value in zip(_TEXTS, _texts_of(job), strict=True):
        if value.__class__ in (BrokenText, BadJson) or value == UNREAD:
            fault = _fault(name, value)
            if fault is not None:
                # When the job's turn comes, it dies with this fault as its error.
                job = job._replace(payload=fault)
                break
    meta: Any = job.meta
    if meta != {}:
        job = job._replace(meta={str(key): str(value) for key, value in meta.items()} if isinstance(meta, dict) else {})
    return job


def _fault(name: str, value: Any) -> BadJson | None:
    """Return why a job must not run with this *value*, whose meaning is unclear. Return None if the job may run."""
    if isinstance(value, BrokenText):
        return BadJson(NOT_UTF8, name)
    if value == UNREAD:
        return BadJson("unreadable: the row cannot be fetched", name)
    if isinstance(value, BadJson) and name == "meta" and not value.reason.startswith("not JSON"):
        return replace(value, what="meta")
    return None


_IF_LEASED: Final = f"FROM {JOBS} j WHERE j.id = :id AND j.locked_by = :locked_by"
# The codes of query_canceled (the query took too long) and out_of_memory.
_TOO_MUCH: Final = ("57014", "53200")


def fetch_by_itself(connection: Connection, job_id: int, locked_by: str) -> Job | None:
    """Fetch one job in a savepoint, or return None if the job is no longer leased to *locked_by*.

    If the row cannot be read, the returned job has only the values that are needed to end the job. Each statement
    checks the lease itself, because another runner may have taken the lease since an earlier statement of the same
    transaction saw it. Raises DBAPIError or MemoryError if reading took too much time or memory; a later try may
    succeed.
    """
    try:
        with connection.begin_nested():
            row = run(connection, f"SELECT {FACTS} {_IF_LEASED}", id=job_id, locked_by=locked_by).one_or_none()
            return None if row is None else job_from(row)
    except DBAPIError as error:
        if is_lost(error) or getattr(error.orig, "sqlstate", None) in _TOO_MUCH:
            raise
        row = run(connection, f"SELECT {FACTS_UNREAD} {_IF_LEASED}", id=job_id, locked_by=locked_by).one_or_none()
        return None if row is None else job_from(row)
