"""Enqueue jobs in the user's own transaction, whichever library opened it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypedDict, Unpack, cast

from sqlalchemy import Connection, Engine

from cronjobs import events
from cronjobs.clock import sleep
from cronjobs.engine.jobs.async_targets import AsyncTargetOrEngine, is_async_engine, refuse_async, run_sync_of
from cronjobs.engine.jobs.checking import (
    Key,
    Span,
    for_handler,
    key_text,
    name_fault,
    names_checked,
    new_job,
    no_such_argument,
    require_target,
    span_of,
)
from cronjobs.engine.jobs.insertion import (
    Inserted,
    OnConflict,
    RoomWait,
    Writing,
    wait_for_room,
)
from cronjobs.engine.rules.payload import check_payload
from cronjobs.engine.store.enqueue import NewJob, row_of
from cronjobs.engine.store.queues import count_full
from cronjobs.engine.store.sql import json_text
from cronjobs.errors import PayloadError, QueueFull, UsageError
from cronjobs.model import Status, duration_text

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, scoped_session

# If the queue is full, a call waits at most this long for room, unless it passes ``wait``.
WAIT: Final = timedelta(seconds=30)
LONGEST_WAIT: Final = timedelta(hours=1)
_LOGGER: Final = logging.getLogger("cronjobs")


class DBAPIConnection(Protocol):
    """A connection of psycopg 3 or sqlite3, or Django's."""

    def cursor(self) -> Any: ...


Target: TypeAlias = "Connection | Session | scoped_session[Any] | DBAPIConnection"
TargetOrEngine: TypeAlias = "Target | Engine"


class Options(TypedDict, total=False):
    """The options that ``enqueue`` accepts for one job, besides the job's type and payload."""

    run_at: datetime | None
    delay: timedelta | str | float | None
    queue: str
    priority: int
    idempotency_key: Key | None
    concurrency_key: str | None
    max_attempts: int | None
    timeout: timedelta | str | float | None
    meta: Mapping[str, str] | None
    enqueued_by: str | None


_OF_JOBS: Final = frozenset(Options.__annotations__)


class EnqueueOptions(Options, total=False):
    """All keyword arguments of ``enqueue``: the options of the job, and the options of the call itself."""

    on_conflict: OnConflict
    schema: str | None
    wait: Span | None


Row: TypeAlias = "Mapping[str, Any] | tuple[Mapping[str, Any], Options]"


@dataclass(frozen=True)
class Enqueued:
    """The result of an enqueue: the job's id, whether this call created the job, and the job's status.

    If a full queue dropped the job, ``dropped`` is True and there is no id and no status.
    """

    id: int | None
    new: bool
    status: Status | None

    @property
    def dropped(self) -> bool:
        return self.id is None


@names_checked("enqueue")
def enqueue(
    target: TargetOrEngine,
    job_type: str,
    payload: Mapping[str, Any] | None = None,
    *,
    run_at: datetime | None = None,
    delay: timedelta | str | float | None = None,
    queue: str = "default",
    priority: int = 5,
    idempotency_key: Key | None = None,
    concurrency_key: str | None = None,
    max_attempts: int | None = None,
    timeout: timedelta | str | float | None = None,
    meta: Mapping[str, str] | None = None,
    enqueued_by: str | None = None,
    on_conflict: OnConflict = "keep",
    schema: str | None = None,
    wait: Span | None = None,
) -> Enqueued:
    """Enqueue a job in *target*'s transaction, which the caller commits.

    Args:
        target: an SQLAlchemy Connection or Session, a psycopg 3 or sqlite3 connection, or ``django.db.connection``.
            With an SQLAlchemy Engine the job gets a transaction of its own, which is committed before the call returns.
        job_type: the name of a handler or of a declared command. This call does not check that such a job type exists.
            Ticks do.
        payload: the handler's keyword arguments, as JSON: a mapping of at most 256 KiB. None means no arguments. If the
            handler is registered in this process, the payload is checked against the handler's annotations, and may
            contain values of the annotated types.
        run_at: the earliest time to start the job, timezone-aware (default: now). Do not combine it with *delay*.
        delay: how long to wait before starting the job, by the database's clock: seconds, "90s" or a timedelta.
        queue: the name that ``queues:``, ``pause --queue`` and ``run-due --queue`` refer to.
        priority: from 0 (first) to 9 (last).
        idempotency_key: text, or a tuple such as ("invoice", order.id). A second call with the same key creates no
            second job and returns the first job's id, even after that job has run. All job types share the same keys.
            If the first job has another type, the call logs a warning.
        concurrency_key: ``limits:`` in the file use this key to limit how many jobs run at once.
        max_attempts: the number of failures after which the job is dead. If None, the job type decides.
        timeout: how long one attempt may take: seconds, "90s" or a timedelta. If None, the job type decides.
        meta: a few short strings for finding the job, such as a trace id.
        enqueued_by: who enqueues the job, for the audit trail. The default is the database user and the application
            name; on SQLite, the user and the program.
        on_conflict: "keep" does not change the job that has the key. "replace" updates that job to match this call,
            unless the job is cancelled or a runner has claimed it.
        schema: on PostgreSQL, the schema that contains the tables. If None, the search_path is used.
        wait: how long to wait for room if *target* is an Engine and the queue is full (default: 30 s).

    Returns:
        The job's id and whether this call created the job. The id is None if a full queue dropped the job.

    Raises:
        PayloadError: the payload or meta cannot be stored, or does not fit the handler.
        TypeError: *target* is no connection, session or engine that this function accepts.
        UsageError: another argument is invalid.
        QueueFull: the queue holds as many jobs as the file allows, and the file says to refuse more.
        QueueHeld: another open transaction has locked the queue's count.
        JobHeld: another transaction has locked the job that this call should replace.
        SchemaMissing: the tables do not exist yet. Run ``cronjobs db upgrade``.

    The transaction stays usable after any of these errors.
    """
    _require(target, "enqueue", job_type, schema)
    new = new_job(
        job_type,
        _encoded(job_type, payload),
        run_at=run_at,
        delay=delay,
        queue=queue,
        priority=priority,
        idempotency_key=idempotency_key,
        concurrency_key=concurrency_key,
        max_attempts=max_attempts,
        timeout=timeout,
        meta=meta,
        enqueued_by=enqueued_by,
    )
    return _enqueue(target, [row_of(new)], on_conflict, schema, wait)[0]


def put_job(connection: Connection, new: NewJob, on_conflict: OnConflict) -> Inserted:
    """Write one job that has already been validated. Raises the errors that ``enqueue`` raises when it writes."""
    writing = Writing([row_of(new)], on_conflict)
    _write(writing, connection)
    [put] = writing.puts()
    return put


@names_checked("enqueue_async", _OF_JOBS)
async def enqueue_async(
    target: AsyncTargetOrEngine,
    job_type: str,
    payload: Mapping[str, Any] | None = None,
    *,
    on_conflict: OnConflict = "keep",
    schema: str | None = None,
    wait: Span | None = None,
    **options: Unpack[Options],
) -> Enqueued:
    """Like ``enqueue``, in the transaction of an SQLAlchemy AsyncConnection or AsyncSession, or on an AsyncEngine."""
    _require(target, "enqueue_async", job_type, schema)
    row = row_of(new_job(job_type, _encoded(job_type, payload), **options))
    return (await _enqueue_async(target, "enqueue_async", [row], on_conflict, schema, wait))[0]


@names_checked("enqueue_many", _OF_JOBS)
def enqueue_many(
    target: TargetOrEngine,
    job_type: str,
    rows: Iterable[Row],
    *,
    on_conflict: OnConflict = "keep",
    schema: str | None = None,
    wait: Span | None = None,
    **options: Unpack[Options],
) -> list[Enqueued]:
    """Enqueue many jobs of one type in *target*'s transaction, a thousand per statement.

    Returns one result per row, in order.

    A row is a payload, or a payload and its own options: ``({"invoice_id": 7}, {"idempotency_key": ("invoice", 7)})``.
    Other *options* apply to all rows. If several rows have the same key, only the first of them counts, or with
    ``on_conflict="replace"`` only the last. New ids ascend in the order of *rows*. But on PostgreSQL, rows with a key
    come first, in the order of their keys (``call:9`` before ``call:10``), so that two concurrent calls cannot
    deadlock. If a queue is full and drops jobs, it accepts the first rows that fit. If a full queue does not drop jobs,
    it refuses the whole call, and nothing is written.
    """
    _require(target, "enqueue_many", job_type, schema)
    return _enqueue(target, _rows(job_type, rows, options), on_conflict, schema, wait)


@names_checked("enqueue_many_async", _OF_JOBS)
async def enqueue_many_async(
    target: AsyncTargetOrEngine,
    job_type: str,
    rows: Iterable[Row],
    *,
    on_conflict: OnConflict = "keep",
    schema: str | None = None,
    wait: Span | None = None,
    **options: Unpack[Options],
) -> list[Enqueued]:
    """Like ``enqueue_many``, on the targets of ``enqueue_async``."""
    _require(target, "enqueue_many_async", job_type, schema)
    made = _rows(job_type, rows, options)
    return await _enqueue_async(target, "enqueue_many_async", made, on_conflict, schema, wait)


def _require(target: object, called: str, job_type: object, schema: object) -> None:
    """Refuse misplaced arguments before they are used."""
    require_target(target, called)
    if fault := name_fault(job_type):
        raise UsageError(f"job_type {job_type!r} {fault}")
    if schema is not None and (fault := name_fault(schema)):
        raise UsageError(f"schema {schema!r} {fault}")


def _encoded(job_type: str, payload: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Encode the payload if its handler is registered here. Non-mappings pass through; check_payload refuses them."""
    if payload is None:
        payload = {}
    # Compare the type first, because isinstance() with an abstract class is slow.
    is_mapping = type(payload) is dict or isinstance(payload, Mapping)
    return for_handler.encoded(job_type, payload) if is_mapping else payload


def _rows(job_type: str, rows: Iterable[Row], options: Options) -> list[dict[str, Any]]:
    if "idempotency_key" in options:
        raise UsageError("rows cannot share one idempotency_key: give each row its own, as (payload, {…})")
    template = row_of(new_job(job_type, {}, **options))
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise UsageError(f"rows is {type(rows).__name__}: pass a list of payloads, or of (payload, {{…}})")
    made = []
    for index, row in enumerate(rows):
        try:
            made.append(_row(template, row, options))
        except (PayloadError, UsageError, TypeError) as error:
            error.args = (f"rows[{index}]: {error}",)
            raise
    return made


def _row(template: dict[str, Any], row: Row, common: Options) -> dict[str, Any]:
    if isinstance(row, tuple) and (len(row) != 2 or not isinstance(row[1], Mapping)):
        raise UsageError("this tuple is not a pair of a payload and the job's options: (payload, {…})")
    payload, own = row if isinstance(row, tuple) else (row, Options())
    if not own.keys() <= _OF_JOBS:
        raise no_such_argument("enqueue_many", own, _OF_JOBS)
    payload = _encoded(template["job_type"], payload)
    if own.keys() - {"idempotency_key"}:
        return row_of(new_job(template["job_type"], payload, **cast("Options", {**common, **own})))
    made = template | {"payload": json_text(check_payload(payload))}
    key = own.get("idempotency_key")
    if key is not None:
        made["idempotency_key"] = key_text(key)
    return made


# --- writing ----------------------------------------------------------------------------------------------------------


def _enqueue(
    target: TargetOrEngine,
    rows: Sequence[dict[str, Any]],
    on_conflict: OnConflict,
    schema: str | None,
    wait: Span | None,
) -> list[Enqueued]:
    patience = _patience(wait, in_own_transaction=isinstance(target, Engine))

    def write_all() -> list[Enqueued]:
        writing = Writing(rows, on_conflict)
        if isinstance(target, Engine):
            with target.begin() as connection:
                _write(writing, connection_of(connection, schema))
        else:
            _write(writing, connection_of(target, schema))
        return _results(rows, writing)

    try:
        return wait_for_room(write_all, patience)
    except QueueFull as full:
        if isinstance(target, Engine):
            with suppress(Exception), target.begin() as connection:
                _count_refused(connection, schema, full)
        raise


async def _enqueue_async(
    target: AsyncTargetOrEngine,
    called: str,
    rows: Sequence[dict[str, Any]],
    on_conflict: OnConflict,
    schema: str | None,
    wait: Span | None,
) -> list[Enqueued]:
    import asyncio

    is_engine = is_async_engine(target)
    patience = _patience(wait, in_own_transaction=is_engine)
    while True:
        writing = Writing(rows, on_conflict)
        try:
            await _write_async(writing, target, called, schema)
            return _results(rows, writing)
        except QueueFull as full:
            try:
                pause_s = patience.pause_s(full)
            except QueueFull:
                if is_engine:
                    with suppress(Exception):
                        async with run_sync_of(target, called) as run_sync:
                            await run_sync(partial(_count_refused, schema=schema, full=full))
                raise
            await asyncio.sleep(pause_s)


async def _write_async(writing: Writing, target: AsyncTargetOrEngine, called: str, schema: str | None) -> None:
    import asyncio

    async with run_sync_of(target, called) as run_sync:
        while not await run_sync(lambda sync: writing.write(connection_of(sync, schema))):
            await asyncio.sleep(writing.pause_s())


def _count_refused(target: Any, schema: str | None, full: QueueFull) -> None:
    count_full(connection_of(target, schema), full.queue, "refused", full.wanted)


def _results(rows: Sequence[dict[str, Any]], writing: Writing) -> list[Enqueued]:
    """Return the results of the call. Log dropped jobs, and keys that already belonged to jobs of other types."""
    dropped = [events.jobs_dropped(rows[0]["job_type"], *each) for each in sorted(writing.dropped.items())]
    for event in dropped + writing.keys_of_other_types():
        _LOGGER.warning("%s", events.line(event))
    seen: set[int | None] = set()
    results = []
    for put in writing.puts():
        results.append(Enqueued(put.id, put.new and put.id not in seen, put.status))
        seen.add(put.id)
    return results


def _patience(wait: Span | None, *, in_own_transaction: bool) -> RoomWait:
    if not in_own_transaction:
        if wait is not None:
            raise UsageError(
                "wait= needs an Engine: your own transaction would stay open, and keep its locks, while the call waits"
            )
        return RoomWait(None)
    limit = WAIT if wait is None else span_of("wait", wait)
    if not timedelta(0) <= limit <= LONGEST_WAIT:
        raise UsageError(f"wait= is {duration_text(limit)}: give a time between 0s and {duration_text(LONGEST_WAIT)}")
    return RoomWait(limit)


def _write(writing: Writing, connection: Connection) -> None:
    """Write all rows, and wait in between for rows that another session has locked."""
    while not writing.write(connection):
        sleep(writing.pause_s())


def connection_of(target: Any, schema: str | None = None, what: str = "enqueue") -> Connection:
    """Return the connection on which ``run`` executes statements, for any target that ``enqueue`` accepts.

    Raises TypeError for anything else. The message contains *what*, the name of the function that the user called.
    """
    from cronjobs.engine.database.user_connections import in_schema, no_connection, plain_connection

    refuse_async(target, what, "enqueue_async" if what == "enqueue" else None)
    if isinstance(target, Connection):
        return in_schema(target, schema)
    # *target* is a Session or a scoped_session.
    if hasattr(target, "get_bind"):
        connection = target.connection()
        if isinstance(connection, Connection):
            return in_schema(connection, schema)
    plain = plain_connection(target, schema)
    if plain is None:
        raise no_connection(f"{what}()", "Connection, Session or Engine", target)
    # *plain* has every attribute of a Connection that run() uses.
    return cast("Connection", plain)
