"""Enqueue from wherever the user's data changes: their transaction carries the job, whichever library opened it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypedDict, Unpack, cast

from sqlalchemy import Connection, Engine

from cronjobs import events
from cronjobs.clock import sleep
from cronjobs.errors import QueueFull, UsageError
from cronjobs.model import Status, duration, duration_text
from cronjobs.payloads import check_meta, check_payload, text_fault
from cronjobs.store.enqueue import NewJob, row_of
from cronjobs.store.sql import json_text
from cronjobs.tables import SQLITE_FIRST_INSTANT, from_microseconds
from cronjobs.writing import OnConflict, Patience, Put, Writing

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session, scoped_session

__all__ = ["OnConflict"]

NAME_LIMIT: Final = 200
KEY_LIMIT: Final = 500
KEY_BYTES: Final = 2000  # PostgreSQL's index takes 2,700
LONGEST_TIMEOUT: Final = timedelta(days=30)
LONGEST_DELAY: Final = timedelta(days=10 * 366)
FIRST_RUN_AT: Final = from_microseconds(SQLITE_FIRST_INSTANT)
LAST_RUN_AT: Final = datetime(9999, 12, 30, tzinfo=UTC)  # the last that has a date in every time zone
WAIT: Final = timedelta(seconds=30)  # for room in a full queue
LONGEST_WAIT: Final = timedelta(hours=1)

Key = str | tuple[object, ...]


_LOGGER: Final = logging.getLogger("cronjobs")


class DBAPIConnection(Protocol):
    """A connection of psycopg 3 or sqlite3, or Django's."""

    def cursor(self) -> Any: ...


Target: TypeAlias = "Connection | Session | scoped_session[Any] | DBAPIConnection"
AsyncTarget: TypeAlias = "AsyncConnection | AsyncSession"
TargetOrEngine: TypeAlias = "Target | Engine"
AsyncTargetOrEngine: TypeAlias = "AsyncTarget | AsyncEngine"
Span: TypeAlias = timedelta | str | float


class Options(TypedDict, total=False):
    """What ``enqueue`` takes about one job, beside its type and payload."""

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


Row: TypeAlias = "Mapping[str, Any] | tuple[Mapping[str, Any], Options]"


@dataclass(frozen=True)
class Enqueued:
    """What became of an enqueue: the job's id, whether this call made it, and its status.

    ``dropped``: its queue was full, and drops; then there is no id and no status.
    """

    id: int | None
    new: bool
    status: Status | None

    @property
    def dropped(self) -> bool:
        return self.id is None


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
    """Write a job in *target*'s transaction, which is the caller's to commit.

    *target*: an SQLAlchemy Connection or Session, a connection of psycopg 3 or sqlite3, or ``django.db.connection``;
    an SQLAlchemy Engine: a transaction of its own, committed when this returns.
    Due now, or at ``run_at`` (aware), or ``delay`` from the database's now. ``priority`` 0 (first) to 9. With an
    ``idempotency_key`` (text, or a tuple such as ("invoice", order.id)) a second call makes no second job and returns
    the first one's id, also after it ran. ``on_conflict="replace"``: as long as no runner has had that job, and it is
    not cancelled, it becomes what this call says. ``max_attempts`` and ``timeout`` None: the job type's.
    ``enqueued_by``, for the audit trail, None: the database's user and application; on SQLite the user and the program.
    ``schema``, on PostgreSQL: where the tables are; None: the search_path.
    A queue that the file caps may be full. By its on_full that is QueueFull; or the job is dropped, which is told and
    counted; or, with an Engine, the call waits for room, for ``wait`` (None: 30 s), and then raises QueueFull.
    Raises PayloadError or UsageError for what cannot be stored, SchemaMissing before ``cronjobs db upgrade``, JobHeld
    when the job to replace is locked by somebody else, QueueHeld when another open transaction holds a capped queue;
    the transaction is usable after each of them.
    """
    row = row_of(
        new_job(
            job_type,
            payload,
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
    )
    [told] = _enqueue(target, [row], on_conflict, schema, wait)
    return told


def put_job(connection: Connection, new: NewJob, on_conflict: OnConflict) -> Put:
    """Write one job that is checked already; raises as ``enqueue`` does."""
    writing = Writing([row_of(new)], on_conflict)
    _write(writing, connection)
    return writing.puts()[0]


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
    """As ``enqueue``, in the transaction of an SQLAlchemy AsyncConnection or AsyncSession, or on an AsyncEngine."""
    row = row_of(new_job(job_type, payload, **options))
    [told] = await _enqueue_async(target, [row], on_conflict, schema, wait)
    return told


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
    """Write many jobs of one type in *target*'s transaction, a thousand in a statement; what became of each, in order.

    A row is a payload, or a payload and its own options: ``({"invoice_id": 7}, {"idempotency_key": ("invoice", 7)})``.
    Other *options* are for all rows. Of rows with one key the first counts, or with ``on_conflict="replace"`` the last.
    Rows with a key are written in the order of their keys, so that two such calls cannot deadlock.
    A full queue that drops takes the first that fit; one that does not refuses the call, of which nothing is written.
    """
    return _enqueue(target, _rows(job_type, rows, options), on_conflict, schema, wait)


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
    """As ``enqueue_many``, on what ``enqueue_async`` takes."""
    return await _enqueue_async(target, _rows(job_type, rows, options), on_conflict, schema, wait)


def _rows(job_type: str, rows: Iterable[Row], options: Options) -> list[dict[str, Any]]:
    if "idempotency_key" in options:
        raise UsageError("one idempotency_key cannot be for all rows: give each its own, (payload, {…})")
    template = row_of(new_job(job_type, {}, **options))
    return [_row(template, row, options) for row in rows]


def _row(template: dict[str, Any], row: Row, common: Options) -> dict[str, Any]:
    payload, own = row if isinstance(row, tuple) else (row, Options())
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
    if isinstance(target, Engine):
        patience = Patience(_limit(wait))
        while True:
            writing = Writing(rows, on_conflict)
            try:
                with target.begin() as connection:
                    _write(writing, connection_of(connection, schema))
                    puts = writing.puts()
                break
            except QueueFull as full:
                sleep(patience.pause_s(full))
    else:
        _require_no(wait)
        writing = Writing(rows, on_conflict)
        _write(writing, connection_of(target, schema))
        puts = writing.puts()
    return _told(rows, puts, writing)


async def _enqueue_async(
    target: AsyncTargetOrEngine,
    rows: Sequence[dict[str, Any]],
    on_conflict: OnConflict,
    schema: str | None,
    wait: Span | None,
) -> list[Enqueued]:
    import asyncio

    if _is_async(target) and hasattr(target, "begin") and not hasattr(target, "run_sync"):  # an AsyncEngine
        patience = Patience(_limit(wait))
        while True:
            writing = Writing(rows, on_conflict)
            try:
                async with target.begin() as connection:
                    await _write_async(writing, connection, schema)
                    puts = writing.puts()
                break
            except QueueFull as full:
                await asyncio.sleep(patience.pause_s(full))
    else:
        _require_no(wait)
        writing = Writing(rows, on_conflict)
        await _write_async(writing, cast("AsyncTarget", target), schema)
        puts = writing.puts()
    return _told(rows, puts, writing)


async def _write_async(writing: Writing, target: AsyncTarget, schema: str | None) -> None:
    import asyncio

    run_sync: Any = getattr(target, "run_sync", None)
    if run_sync is None:
        raise TypeError(
            "enqueue_async() takes an SQLAlchemy AsyncConnection, AsyncSession or AsyncEngine, "
            f"not {type(target).__name__}: use enqueue() for what is not async"
        )
    while not await run_sync(lambda sync: writing.write(connection_of(sync, schema))):
        pause = writing.pause_s()
        if pause is None:
            return
        await asyncio.sleep(pause)


def _told(rows: Sequence[dict[str, Any]], puts: Sequence[Put], writing: Writing) -> list[Enqueued]:
    """What the caller is told; what was dropped is logged, too."""
    for queue, count in sorted(writing.dropped.items()):
        _LOGGER.warning("%s", events.line(events.jobs_dropped(rows[0]["job_type"], queue, count)))
    seen: set[int | None] = set()
    results = []
    for put in puts:
        results.append(Enqueued(put.id, put.new and put.id not in seen, put.status))
        seen.add(put.id)
    return results


def _limit(wait: Span | None) -> timedelta:
    try:
        limit = WAIT if wait is None else duration(wait)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not timedelta(0) <= limit <= LONGEST_WAIT:
        raise UsageError(f"wait {duration_text(limit)} is not between 0s and {duration_text(LONGEST_WAIT)}")
    return limit


def _require_no(wait: Span | None) -> None:
    if wait is not None:
        raise UsageError(
            "wait= is for an Engine: a transaction of yours would stay open, and keep its locks, meanwhile"
        )


def _write(writing: Writing, connection: Connection) -> None:
    while not writing.write(connection):
        pause = writing.pause_s()
        if pause is None:
            return
        sleep(pause)


def connection_of(target: Any, schema: str | None = None) -> Connection:
    """What ``run`` executes statements on, for anything that ``enqueue`` takes; raises TypeError for the rest."""
    from cronjobs.store.plain import in_schema, plain_connection

    if _is_async(target):
        raise TypeError(f"enqueue() takes no {type(target).__name__}: write await enqueue_async(…)")
    if isinstance(target, Connection):
        return in_schema(target, schema)
    if hasattr(target, "get_bind"):  # a Session, or a scoped one
        connection = target.connection()
        if isinstance(connection, Connection):
            return in_schema(connection, schema)
    plain = plain_connection(target, schema)
    if plain is None:
        raise TypeError(
            "enqueue() takes an SQLAlchemy Connection, Session or Engine, a connection of psycopg 3 or sqlite3, "
            f"or Django's on PostgreSQL or SQLite, not {type(target).__module__}.{type(target).__qualname__}"
        )
    return plain


def _is_async(target: Any) -> bool:
    return hasattr(target, "run_sync") or type(target).__module__.startswith("sqlalchemy.ext.asyncio")


# --- checking ---------------------------------------------------------------------------------------------------------


def new_job(
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
) -> NewJob:
    """Check what a caller wants enqueued; raises PayloadError or UsageError."""
    for what, name in (("job_type", job_type), ("queue", queue)):
        fault = name_fault(name)
        if fault:
            raise UsageError(f"{what} {name!r} {fault}")
    if run_at is not None and delay is not None:
        raise UsageError("give run_at or delay, not both")
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 9:
        raise UsageError(f"priority {priority!r} is not a whole number from 0 (first) to 9")
    if max_attempts is not None and (type(max_attempts) is not int or not 1 <= max_attempts <= 1_000_000):
        raise UsageError(f"max_attempts {max_attempts!r} is not a whole number of at least 1")
    try:
        wait = None if delay is None else duration(delay)
        limit = None if timeout is None else duration(timeout)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if wait is not None and abs(wait) > LONGEST_DELAY:
        raise UsageError(f"delay {wait} is above ten years")
    if limit is not None and limit > LONGEST_TIMEOUT:
        raise UsageError(f"timeout {duration_text(limit)} is above {duration_text(LONGEST_TIMEOUT)}")
    if limit is not None and limit <= timedelta(0):
        raise UsageError("timeout must be above zero")
    return NewJob(
        job_type=job_type,
        payload=check_payload({} if payload is None else payload),
        meta=check_meta({} if meta is None else dict(meta)),
        run_at=None if run_at is None else _instant(run_at),
        delay=wait,
        queue=queue,
        priority=priority,
        max_attempts=max_attempts,
        timeout_s=None if limit is None else limit.total_seconds(),
        idempotency_key=None if idempotency_key is None else key_text(idempotency_key),
        concurrency_key=None if concurrency_key is None else _key_part(concurrency_key, "concurrency_key"),
        enqueued_by=None if enqueued_by is None else _who(enqueued_by),
    )


def _who(enqueued_by: str) -> str:
    fault = name_fault(enqueued_by)
    if fault:
        raise UsageError(f"enqueued_by {enqueued_by!r} {fault}")
    return enqueued_by


def _instant(run_at: datetime) -> datetime:
    if run_at.tzinfo is None:
        raise UsageError(f"run_at {run_at!r} has no time zone: pass an aware datetime, e.g. datetime.now(UTC)")
    try:
        instant = run_at.astimezone(UTC)
    except OverflowError:
        instant = None
    # The tables' CHECKs refuse the rest, and that would end the user's transaction.
    if instant is None or not FIRST_RUN_AT <= instant <= LAST_RUN_AT:
        raise UsageError(f"run_at {run_at} is not between {FIRST_RUN_AT.date()} and {LAST_RUN_AT.date()}")
    return instant


def key_text(key: Key, what: str = "idempotency key") -> str:
    """A key as it is stored: ("invoice", 42) becomes "invoice:42". *what* it is, is for the error's sentence.

    Raises UsageError for an empty or None part: an id that is still None would give every row the same key.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if not parts:
        raise UsageError(f"the {what} {key!r} is empty: a key has at least one part")
    for part in parts:
        if part is None or part == "":
            raise UsageError(f"the {what} {key!r} has an empty part: flush the session first, so that ids exist")
    # Parts are told apart also when they contain the separator themselves: ("a:b", "c") is not ("a", "b:c").
    if len(parts) == 1:
        return _key_part(parts[0], what)
    written = ":".join(_key_part(part, what).replace("\\", "\\\\").replace(":", "\\:") for part in parts)
    if len(written.encode()) > KEY_BYTES:
        raise UsageError(f"the {what} {written[:40]!r}… is longer than {KEY_BYTES} bytes")
    return written


def _key_part(part: object, what: str) -> str:
    written = str(part)
    fault = "is empty" if not written else text_fault(written)
    if len(written) > KEY_LIMIT:
        fault = f"is longer than {KEY_LIMIT} characters"
    if fault:
        raise UsageError(f"{what} {written[:40]!r} {fault}")
    return written


def name_fault(name: object) -> str | None:
    """Say why *name* cannot name a job type or queue, or None."""
    if not isinstance(name, str):
        return "is not text"
    if not name or len(name) > NAME_LIMIT:
        return f"must have 1 to {NAME_LIMIT} characters"
    if not name.isprintable() or name != name.strip():
        return "has characters that cannot be printed, or spaces around it"
    return text_fault(name)
