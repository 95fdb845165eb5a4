"""How a job is fetched: as much of it as is readable, whatever plain SQL wrote into its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from cronjobs.engine.rules.payload import NOT_UTF8, BadJson
from cronjobs.engine.store.sizes import UNREAD, if_not_too_large
from cronjobs.engine.store.sql import Fragment, define, json_value, run
from cronjobs.model import Job
from cronjobs.text import BrokenText

# In the order of Job's fields; see job_from.
_ROW: Final = """
      j.id, j.job_type, {job_payload} AS payload, {job_meta} AS meta, {job_queue} AS queue, j.priority, j.run_at,
      j.attempts, j.failures, j.losses, j.interruptions, j.max_attempts, j.timeout_s, j.locked_by,
      {job_key} AS idempotency_key, {job_concurrency} AS concurrency_key, j.schedule, j.scheduled_for,
      {of_schedule} (SELECT CAST(1 + coalesce(sum(c.count), 0) AS integer) FROM {occurrences} c
                     WHERE c.job_id = j.id AND c.outcome = 'coalesced') ELSE 1 END AS stands_for,
      coalesce({of_schedule} (SELECT {timezone_key} FROM {its_schedule}) END, 'UTC') AS timezone,
      j.created_at, j.started_at,
      {of_schedule} (SELECT s.next_at FROM {its_schedule} AND s.status = 'active') END AS next_occurrence,
      {of_schedule} (SELECT {retry_until_key} FROM {its_schedule}) END AS retry_until"""
_AS_WRITTEN: Final = {
    "{job_payload}": if_not_too_large("j.payload"),
    "{job_meta}": if_not_too_large("j.meta"),
    "{job_queue}": "j.queue",
    "{job_key}": "j.idempotency_key",
    "{job_concurrency}": "j.concurrency_key",
}
_UNREAD: Final = {
    "{job_payload}": f"""CAST('"{UNREAD}"' AS {{json_type}})""",
    "{job_meta}": "NULL",
    "{job_queue}": "'?'",
    "{job_key}": "NULL",
    "{job_concurrency}": "NULL",
}


def _facts(columns: Mapping[str, Fragment]) -> Fragment:
    def written(postgresql: bool) -> str:
        row = _ROW
        for name, column in columns.items():
            row = row.replace(name, column if isinstance(column, str) else column(postgresql))
        return row

    return written


define(
    facts=_facts(_AS_WRITTEN),
    # For a row that cannot be fetched, and where the payload does not matter.
    facts_unread=_facts(_UNREAD),
    of_schedule="CASE WHEN j.schedule IS NOT NULL THEN",  # most jobs have none, and need not look for it
    its_schedule="{schedules} s WHERE s.name = j.schedule",
    timezone_key=json_value("s.definition", "timezone"),
    retry_until_key=json_value("s.definition", "retry_until"),
    runner_s=json_value("j.policy", "runner_s"),
    lease_length_s=json_value("j.policy", "lease_s"),
)

FACTS: Final = 24  # columns
_TEXTS: Final = ("payload", "meta", "job_type", "queue", "idempotency_key", "concurrency_key", "schedule")
_texts_of: Final = attrgetter(*_TEXTS)
_PLAIN: Final = frozenset({str, type(None), dict, list, int, float, bool})


def jobs_from(rows: Sequence[Sequence[Any]]) -> list[Job]:
    """What ``job_from`` makes of each of *rows*. It looks through them by columns: a drain claims hundreds at once."""
    columns = list(zip(*rows, strict=True))[:FACTS]
    if columns and _is_harmless(dict(zip(Job._fields, columns, strict=True))):
        return list(map(Job._make, zip(*columns, strict=True)))
    return [job_from(row) for row in rows]


def _is_harmless(columns: Mapping[str, Sequence[Any]]) -> bool:
    """Whether ``job_from`` would find nothing to change in any of these rows."""
    texts = [columns[name] for name in _TEXTS]
    return columns["meta"].count({}) == len(columns["meta"]) and all(
        _PLAIN.issuperset(map(type, found)) and UNREAD not in found for found in texts
    )


def job_from(row: Sequence[Any]) -> Job:
    """The job of a row that begins with ``{facts}``; whatever plain SQL wrote into it is made harmless here."""
    job = Job._make(row[:FACTS])
    for name, value in zip(_TEXTS, _texts_of(job), strict=True):
        if value.__class__ in (BrokenText, BadJson) or value == UNREAD:
            fault = _fault(name, value)
            if fault is not None:
                job = job._replace(payload=fault)  # the job dies of this when it comes to run
                break
    meta: Any = job.meta
    if meta != {}:
        job = job._replace(meta={str(key): str(value) for key, value in meta.items()} if isinstance(meta, dict) else {})
    return job


def _fault(name: str, value: Any) -> BadJson | None:
    """Why a job with this *value* must not run, since we cannot know what was meant; None: it may."""
    if isinstance(value, BrokenText):
        return BadJson(NOT_UTF8, name)
    if value == UNREAD:
        return BadJson("such that the row cannot be fetched", name)
    if isinstance(value, BadJson) and name == "meta" and not value.reason.startswith("not JSON"):
        return replace(value, what="meta")
    return None


_TOO_MUCH: Final = ("57014", "53200")  # query_canceled: it took too long; out_of_memory


def fetch_by_itself(connection: Connection, job_id: int) -> Job:
    """Fetch one job in a savepoint of its own; if its row cannot be read, return what is needed to end it.

    Raises DBAPIError or MemoryError where it took too much, of which another time may know better.
    """
    statement = "SELECT {facts} FROM {jobs} j WHERE j.id = :id"
    try:
        with connection.begin_nested():
            return job_from(run(connection, statement, id=job_id).one())
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) in _TOO_MUCH:
            raise
        return job_from(run(connection, statement.replace("{facts}", "{facts_unread}"), id=job_id).one())
