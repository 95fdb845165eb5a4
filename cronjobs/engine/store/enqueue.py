"""Insert jobs, in a transaction that belongs to the caller."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, select

from cronjobs.engine.database.column_types import POSTGRESQL_CALLER
from cronjobs.engine.database.encoding import UTF8, from_ascii, in_ascii, server_encoding, unfit_character
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.host.caller import caller
from cronjobs.engine.probe.sql_text import JOBS, NOW, after_now, either
from cronjobs.engine.store.meta import qualified
from cronjobs.engine.store.queues import IS_CAPPED
from cronjobs.engine.store.sql import (
    AMONG_KEYS,
    JSON_TYPE,
    group,
    group_value,
    is_postgresql,
    json_text,
    kinds,
    run,
    shaped,
    shaped_rows,
)
from cronjobs.errors import PayloadError
from cronjobs.model import Status

_COLUMNS: Final = {"delay_s": "float8"} | kinds(
    jobs,
    *("job_type", "payload", "meta", "queue", "priority", "run_at", "max_attempts", "timeout_s", "idempotency_key"),
    *("concurrency_key", "schedule", "scheduled_for", "enqueued_by"),
)
_JSON_TEXTS: Final = ("payload",)

_REPLACING_ROWS: Final = group("rows", _COLUMNS | {"stays": "int"})
# If a job moves to another queue, the caller has checked that the queue has room. If it should stay in its queue
# (``stays``), the caller has not checked, so the job is replaced only if it is still in the same queue.
_HAS_ROOM: Final = "(r.stays = 0 OR j.queue = r.queue)"
# The default of the column ``enqueued_by``, for callers that give no name. SQLite does not know who is connected, so
# there we pass the name.
_CALLER: Final = either(postgresql=POSTGRESQL_CALLER, sqlite=":caller_")
# Look up the key before the INSERT, because ON CONFLICT alone would wait for any open transaction that has updated the
# row with that key, and every claim updates the rows that it takes. Use a scalar subquery, because PostgreSQL plans NOT
# EXISTS as a join. While the statistics say that the table is empty, that join scans the whole table for each row.
_NOT_THERE: Final = either(
    postgresql=f"(SELECT j.id FROM {JOBS} j WHERE j.idempotency_key = r.idempotency_key) IS NULL", sqlite="true"
)
_DUE_AT: Final = f"coalesce(r.run_at, {after_now('coalesce(r.delay_s, 0)')})"
# Select these columns as ASCII. Otherwise reading them would fail if the encoding of the caller's connection lacked one
# of their characters.
_KEY_IN_ASCII: Final = in_ascii("idempotency_key")
_ROW_KEY_IN_ASCII: Final = in_ascii("j.idempotency_key")
_QUEUE_IN_ASCII: Final = in_ascii("j.queue")
_TYPE_IN_ASCII: Final = in_ascii("j.job_type")
# The job is as it was enqueued: no runner has claimed it, and nobody has cancelled or retried it.
_NOT_STARTED: Final = "j.status = 'queued' AND j.attempts = 0"

# Statements begin with INSERT or UPDATE where possible. With its legacy transaction control, Python's sqlite3 opens a
# transaction only for a statement that begins with such a word. With INSERT ... SELECT ... ORDER BY, PostgreSQL assigns
# ids in that order. https://www.postgresql.org/message-id/29386.1528813619%40sss.pgh.pa.us
_COLUMNS_WRITTEN: Final = """job_type, payload, meta, queue, priority, run_at, created_at, max_attempts, timeout_s,
                      idempotency_key, concurrency_key, enqueued_by"""
_VALUES: Final = f"""
         r.job_type, CAST(r.payload AS {JSON_TYPE}), CAST(r.meta AS {JSON_TYPE}), r.queue, r.priority, {_DUE_AT}, {NOW},
         r.max_attempts, r.timeout_s, r.idempotency_key, r.concurrency_key, coalesce(r.enqueued_by, {_CALLER})"""
# A separate statement writes ``schedule`` and ``scheduled_for``. Apps may not write these columns, because a row that
# an app inserts could then block a schedule forever.
_COLUMNS_OF_SCHEDULE: Final = f"{_COLUMNS_WRITTEN}, schedule, scheduled_for"
_VALUES_OF_SCHEDULE: Final = f"{_VALUES}, r.schedule, r.scheduled_for"

_REPLACED: Final = f"""
  job_type = r.job_type, payload = CAST(r.payload AS {JSON_TYPE}), meta = CAST(r.meta AS {JSON_TYPE}),
  queue = r.queue, priority = r.priority, run_at = {_DUE_AT}, max_attempts = r.max_attempts, timeout_s = r.timeout_s,
  concurrency_key = r.concurrency_key, enqueued_by = coalesce(r.enqueued_by, {_CALLER})"""

REPLACE_SQLITE: Final = f"""
  UPDATE {JOBS} AS j SET {_REPLACED} FROM {_REPLACING_ROWS} r
  WHERE j.idempotency_key = r.idempotency_key AND {_NOT_STARTED} AND {_HAS_ROOM}
  RETURNING {_KEY_IN_ASCII} AS idempotency_key"""

# Skip rows that another session has locked: usually a runner that claims the row, but perhaps a transaction that never
# ends.
REPLACE_POSTGRESQL: Final = f"""
  WITH there AS MATERIALIZED (
    SELECT j.id FROM {JOBS} j WHERE j.idempotency_key {AMONG_KEYS} AND {_NOT_STARTED}
    ORDER BY j.idempotency_key FOR NO KEY UPDATE OF j SKIP LOCKED
  )
  UPDATE {JOBS} j SET {_REPLACED} FROM there, {_REPLACING_ROWS} r
  WHERE j.id = there.id AND j.idempotency_key = r.idempotency_key AND {_HAS_ROOM}
  RETURNING {_ROW_KEY_IN_ASCII} AS idempotency_key"""

LOOK: Final = f"""
  SELECT j.id, j.status, {_TYPE_IN_ASCII} AS job_type, {_QUEUE_IN_ASCII} AS queue,
    {_ROW_KEY_IN_ASCII} AS idempotency_key,
    CASE WHEN {_NOT_STARTED} THEN 1 ELSE 0 END AS not_started
  FROM {JOBS} j WHERE j.idempotency_key {AMONG_KEYS}"""


@dataclass(frozen=True)
class NewJob:
    """A job to be inserted. Its texts and JSON have been checked.

    If ``run_at`` is None, the job is due ``delay_s`` seconds from now, or at once if ``delay_s`` is also None. The
    fields are named like the columns in ``_COLUMNS``.
    """

    job_type: str
    payload: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)
    run_at: datetime | None = None
    delay_s: float | None = None
    queue: str = "default"
    priority: int = 5
    max_attempts: int | None = None
    timeout_s: float | None = None
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    schedule: str | None = None
    scheduled_for: datetime | None = None
    enqueued_by: str | None = None


class Existing(NamedTuple):
    """A job that already has the key. If ``not_started`` is True, no runner has claimed the job yet, so the job may be
    replaced.
    """

    id: int
    status: Status
    job_type: str
    queue: str
    not_started: bool


def insert_rows(connection: Connection, rows: Sequence[dict[str, Any]], *, into_capped: bool) -> list[int | None]:
    """Insert jobs (from ``row_of``) with distinct keys in one statement. Return the new ids in order.

    An id is None if its job was not inserted, because its key is in use, or because the queue has a cap and
    *into_capped* is False. A key that is already in use raises no error, because an error would abort the caller's
    transaction. Without *into_capped*, all jobs must be for one queue. As with any unique key, this waits only for an
    open transaction that inserts or deletes the same key.
    """
    values = _by_column(_storable(connection, rows))
    # With more than one row, always pass the payloads as JSON, even if all payloads are equal, because each element of
    # that JSON makes one row.
    from_json = _JSON_TEXTS if len(rows) > 1 else ()
    parameters, bound, varying = shaped(connection, values, from_json=from_json, as_json=_JSON_TEXTS)
    statement = _insert(is_postgresql(connection), bound, varying, into_capped)
    if not into_capped:
        parameters["queue"] = rows[0]["queue"]
    made = run(connection, statement, **parameters, **_caller(connection)).all()
    if len(rows) == 1:
        return [made[0].id if made else None]
    by_key = {}
    if any("idempotency_key" in row for row in rows):
        by_key = {
            from_ascii(connection, row.idempotency_key): row.id for row in made if row.idempotency_key is not None
        }
    unkeyed = sorted(row.id for row in made if not by_key or row.idempotency_key is None)  # in the order of the rows
    places = iter(unkeyed)
    return [by_key.get(row["idempotency_key"]) if "idempotency_key" in row else next(places, None) for row in rows]


def _by_column(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of *rows* by column, for each column that at least one row has."""
    if len(rows) == 1:
        return {name: [value] for name, value in rows[0].items()}
    named = set().union(*rows)
    return {name: [row.get(name) for row in rows] for name in _COLUMNS if name in named}


@lru_cache(maxsize=128)
def _insert(postgresql: bool, bound: tuple[str, ...], varying: tuple[str, ...], into_capped: bool) -> str:
    """Return the INSERT. *bound* columns have one value for all rows. Columns that are not named are NULL."""
    columns, values = _COLUMNS_WRITTEN, _VALUES
    if {"schedule", "scheduled_for"}.intersection(bound + varying):
        columns, values = _COLUMNS_OF_SCHEDULE, _VALUES_OF_SCHEDULE
    source = shaped_rows(postgresql, _COLUMNS, bound, varying, _JSON_TEXTS)
    statement = f"INSERT INTO {JOBS} ({columns}) SELECT {values} FROM {source} r WHERE true"
    if not into_capped:
        statement += f" AND NOT {IS_CAPPED}"  # all rows are for one queue, so check the queue's cap only once
    keyed = "idempotency_key" in bound + varying
    statement += f" AND {_NOT_THERE}" if keyed else ""
    statement += " ORDER BY r.n" if varying else ""
    statement += " ON CONFLICT (idempotency_key) DO NOTHING" if keyed else ""
    return statement + " RETURNING id" + (f", {_KEY_IN_ASCII} AS idempotency_key" if keyed and varying else "")


def look(connection: Connection, rows: Sequence[dict[str, Any]]) -> dict[str, Existing]:
    """Return the existing jobs that have the keys of *rows*, by key."""
    return {
        from_ascii(connection, row.idempotency_key): Existing(
            row.id,
            Status(row.status),
            from_ascii(connection, row.job_type),
            from_ascii(connection, row.queue),
            bool(row.not_started),
        )
        for row in run(connection, LOOK, keys=_keys(rows)).all()
    }


def replace_rows(connection: Connection, rows: Sequence[dict[str, Any]]) -> set[str]:
    """Overwrite the jobs that have the keys of *rows* and that no runner has claimed. Return the keys of these jobs.

    If a row's ``stays`` is 1, the job is overwritten only if it is still in that row's queue.
    """
    parameters = {"rows": group_value(connection, _storable(connection, rows))} | _caller(connection)
    statement = REPLACE_SQLITE
    if is_postgresql(connection):
        statement = REPLACE_POSTGRESQL
        parameters["keys"] = _keys(rows)
    return {from_ascii(connection, row.idempotency_key) for row in run(connection, statement, **parameters).all()}


def _storable(connection: Connection, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return *rows*, or raise PayloadError if they contain a character that the database cannot store.

    If the database rejected the character instead, the caller's transaction would be aborted.
    """
    encoding = server_encoding(connection)
    if encoding == UTF8:
        return rows
    written = [row | {name: json.loads(row[name]) for name in ("payload", "meta")} for row in rows]
    character = unfit_character(encoding, json.dumps(written, ensure_ascii=False, default=str))
    if character is not None:
        raise PayloadError(f"{character!r} cannot be stored: the encoding of this database is {encoding}")
    return rows


def _caller(connection: Connection) -> dict[str, str]:
    return {} if is_postgresql(connection) else {"caller_": caller()}


def _keys(rows: Sequence[dict[str, Any]]) -> str:
    return json.dumps([row["idempotency_key"] for row in rows])


def row_of(job: NewJob) -> dict[str, Any]:
    """Return *job* as a row for the JSON parameter. A column that is missing in the row becomes NULL."""
    row = {name: value for name, value in vars(job).items() if value is not None}
    row["payload"] = json_text(job.payload)
    row["meta"] = json_text(job.meta) if job.meta else "{}"
    return row


def insert_jobs(connection: Connection, new: Sequence[NewJob]) -> list[int]:
    """Insert jobs without idempotency keys in one statement, even into full queues. Return their ids in order."""
    if not new:
        return []
    ids = insert_rows(connection, [row_of(job) for job in new], into_capped=True)
    return [id_ for id_ in ids if id_ is not None]


def job_status(connection: Connection, job_id: int) -> Status | None:
    status = connection.execute(select(jobs.c.status).where(jobs.c.id == job_id)).scalar()
    return None if status is None else Status(status)


def has_jobs(connection: Connection) -> bool:
    """Return whether the jobs table exists, according to PostgreSQL's catalogue.

    A query on a missing table would abort the transaction.
    """
    there = run(connection, "SELECT to_regclass(:name) IS NOT NULL AS there", name=qualified(connection, jobs.name))
    return bool(there.scalar_one())
