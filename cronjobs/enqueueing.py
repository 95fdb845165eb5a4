"""Enqueue from wherever the user's data changes: their transaction carries the job, whichever library opened it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypedDict, Unpack, cast, get_args

from sqlalchemy import Connection

from cronjobs.clock import sleep
from cronjobs.errors import JobHeld, SchemaMissing, UsageError
from cronjobs.model import Status, duration, duration_text
from cronjobs.payloads import check_meta, check_payload, text_fault
from cronjobs.store.enqueue import NewJob, Put, has_jobs, json_text, put_jobs, row_of
from cronjobs.tables import SQLITE_FIRST_INSTANT, SQLITE_LAST_INSTANT, from_microseconds

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session, scoped_session

NAME_LIMIT: Final = 200
KEY_LIMIT: Final = 500
KEY_BYTES: Final = 2000  # PostgreSQL's index takes 2,700
LONGEST_TIMEOUT: Final = timedelta(days=30)
LONGEST_DELAY: Final = timedelta(days=10 * 366)
FIRST_RUN_AT: Final = from_microseconds(SQLITE_FIRST_INSTANT)
LAST_RUN_AT: Final = from_microseconds(SQLITE_LAST_INSTANT)
BATCH: Final = 1000  # rows of one statement
PAUSES_S: Final = (0.01, 0.02, 0.03, 0.04)  # a runner holds what it claims for milliseconds

OnConflict = Literal["keep", "replace"]
Key = str | tuple[object, ...]


class DBAPIConnection(Protocol):
    """A connection of psycopg 3 or sqlite3, or Django's."""

    def cursor(self) -> Any: ...


Target: TypeAlias = "Connection | Session | scoped_session[Any] | DBAPIConnection"
AsyncTarget: TypeAlias = "AsyncConnection | AsyncSession"


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


Row: TypeAlias = "Mapping[str, Any] | tuple[Mapping[str, Any], Options]"


@dataclass(frozen=True)
class Enqueued:
    """What became of an enqueue: the job's id, whether this call made it, and its status."""

    id: int
    new: bool
    status: Status


def enqueue(
    target: Target,
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
    on_conflict: OnConflict = "keep",
    schema: str | None = None,
) -> Enqueued:
    """Write a job in *target*'s transaction; never commits.

    *target*: an SQLAlchemy Connection or Session, a connection of psycopg 3 or sqlite3, or ``django.db.connection``.
    Due now, or at ``run_at`` (aware), or ``delay`` from the database's now. ``priority`` 0 (first) to 9. With an
    ``idempotency_key`` (text, or a tuple such as ("invoice", order.id)) a second call makes no second job and returns
    the first one's id, also after it ran. ``on_conflict="replace"``: as long as no runner has had that job, and it is
    not cancelled, it becomes what this call says. ``max_attempts`` and ``timeout`` None: the job type's. ``schema``,
    on PostgreSQL: where the tables are; None: the search_path.
    Raises PayloadError or UsageError for what cannot be stored, SchemaMissing before ``cronjobs db upgrade``, JobHeld
    when the job to replace is locked by somebody else; the transaction is usable after each of them.
    """
    new = new_job(
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
    )
    put = put_job(connection_of(target, schema), new, on_conflict)
    return Enqueued(put.id, put.new, put.status)


def put_job(connection: Connection, new: NewJob, on_conflict: OnConflict) -> Put:
    """Write one job that is checked already; raises as ``enqueue`` does."""
    writing = _Writing([row_of(new)], on_conflict)
    _write(writing, connection)
    return writing.puts()[0]


async def enqueue_async(
    target: AsyncTarget,
    job_type: str,
    payload: Mapping[str, Any] | None = None,
    *,
    on_conflict: OnConflict = "keep",
    schema: str | None = None,
    **options: Unpack[Options],
) -> Enqueued:
    """As ``enqueue``, in the transaction of an SQLAlchemy AsyncConnection or AsyncSession."""
    import asyncio

    run_sync = getattr(target, "run_sync", None)
    if run_sync is None:
        raise TypeError(
            "enqueue_async() takes an SQLAlchemy AsyncConnection or AsyncSession, "
            f"not {type(target).__name__}: use enqueue() for what is not async"
        )
    writing = _Writing([row_of(new_job(job_type, payload, **options))], on_conflict)
    for pause in (*PAUSES_S, None):
        if await run_sync(lambda sync: writing.write(connection_of(sync, schema))) or pause is None:
            break
        await asyncio.sleep(pause)
    put = writing.puts()[0]
    return Enqueued(put.id, put.new, put.status)


def enqueue_many(
    target: Target,
    job_type: str,
    rows: Iterable[Row],
    *,
    on_conflict: OnConflict = "keep",
    schema: str | None = None,
    **options: Unpack[Options],
) -> list[Enqueued]:
    """Write many jobs of one type in *target*'s transaction, a thousand in a statement; what became of each, in order.

    A row is a payload, or a payload and its own options: ``({"invoice_id": 7}, {"idempotency_key": ("invoice", 7)})``.
    Other *options* are for all rows. Of rows with one key the first counts, or with ``on_conflict="replace"`` the last.
    Rows with a key are written in the order of their keys, so that two such calls cannot deadlock.
    """
    if "idempotency_key" in options:
        raise UsageError("one idempotency_key cannot be for all rows: give each its own, (payload, {…})")
    template = row_of(new_job(job_type, {}, **options))
    writing = _Writing([_row(template, row, options) for row in rows], on_conflict)
    _write(writing, connection_of(target, schema))
    told: set[int] = set()
    results = []
    for put in writing.puts():
        results.append(Enqueued(put.id, put.new and put.id not in told, put.status))
        told.add(put.id)
    return results


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


class _Writing:
    """Jobs on their way into the table; what somebody else holds just now is written at the next try."""

    def __init__(self, rows: Sequence[dict[str, Any]], on_conflict: OnConflict) -> None:
        if on_conflict not in get_args(OnConflict):
            raise UsageError(f"on_conflict {on_conflict!r} is not one of {', '.join(get_args(OnConflict))}")
        self._replace = on_conflict == "replace"
        # One row for each key, as a statement cannot meet one row twice.
        self._places: list[str | int] = [row.get("idempotency_key", n) for n, row in enumerate(rows)]
        self._left: dict[str | int, dict[str, Any]] = {}
        for place, row in zip(self._places, rows, strict=True):
            if self._replace or place not in self._left:
                self._left[place] = row
        self._found: dict[str | int, Put] = {}
        self._held: JobHeld | None = None

    def write(self, connection: Connection) -> bool:
        """Write what is not written yet; say whether that is all."""
        self._held = None
        with _SchemaTold(connection):
            for batch in _batches(sorted(self._left, key=_in_order_of_keys)):
                puts = put_jobs(connection, [self._left[place] for place in batch], replace=self._replace)
                for place, put in zip(batch, puts, strict=True):
                    if put is None or put.held:
                        self._held = JobHeld(str(place), None if put is None else put.id)
                    else:
                        self._found[place] = put
                        del self._left[place]
        return not self._left

    def puts(self) -> list[Put]:
        """What is in the table for each job, in the order in which they were given."""
        if self._held is not None:
            raise self._held
        return [self._found[place] for place in self._places]


def _write(writing: _Writing, connection: Connection) -> None:
    for pause in (*PAUSES_S, None):
        if writing.write(connection) or pause is None:
            return
        sleep(pause)


def _in_order_of_keys(place: str | int) -> tuple[int, str]:
    return (place, "") if isinstance(place, int) else (-1, place)


def _batches(places: Iterable[str | int]) -> Iterator[list[str | int]]:
    rest = iter(places)
    while batch := list(islice(rest, BATCH)):
        yield batch


# PostgreSQL databases, and the schemas in them, where the table was seen: it is asked for once.
_seen: set[tuple[str, str | None]] = set()


class _SchemaTold:
    """Tells of a missing table by name; PostgreSQL is asked first, since the error would end the user's transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        connection = self._connection
        if connection.dialect.name != "postgresql":
            return
        place = (_where(connection), (connection.get_execution_options().get("schema_translate_map") or {}).get(None))
        if place not in _seen:
            if not has_jobs(connection):
                raise SchemaMissing(place[0])
            _seen.add(place)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        origin = getattr(error, "orig", None) or error
        state = getattr(origin, "sqlstate", None) or getattr(origin.__cause__, "sqlstate", None)  # Django's has a cause
        if "no such table: cronjobs_" in str(origin) or state == "42P01":
            raise SchemaMissing(_where(self._connection)) from error


def _where(connection: Connection) -> str:
    """The database's name, without what may hold a password."""
    where = getattr(connection, "where", None)
    if where is not None:
        return str(where())
    url = connection.engine.url
    return url.set(drivername=url.get_backend_name(), query={}).render_as_string(hide_password=True)


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
            "enqueue() takes an SQLAlchemy Connection or Session, a connection of psycopg 3 or sqlite3, or Django's "
            f"on PostgreSQL or SQLite, not {type(target).__module__}.{type(target).__qualname__}"
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
    )


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
