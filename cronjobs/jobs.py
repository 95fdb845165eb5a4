"""How an app speaks to cronjobs: ``@job`` registers a handler, ``enqueue`` puts a job beside the app's own rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from cronjobs.errors import SchemaMissing, UsageError
from cronjobs.model import (
    LEAST_MEMORY,
    Isolation,
    OnLost,
    OnShutdown,
    RetryPolicy,
    Status,
    duration,
    duration_text,
    size,
)
from cronjobs.payloads import check_meta, check_payload, text_fault
from cronjobs.store.enqueue import NewJob, insert_job

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)

NAME_LIMIT: Final = 200
KEY_LIMIT: Final = 500
LONGEST_TIMEOUT: Final = timedelta(days=30)


@dataclass(frozen=True)
class Registration:
    """What ``@job`` said; None: by the configuration's defaults. ``max_memory`` is in bytes."""

    name: str
    handler: Handler
    timeout: timedelta | None = None
    retry: RetryPolicy | None = None
    isolation: Isolation | None = None
    max_memory: int | None = None
    on_shutdown: OnShutdown | None = None
    on_lost: OnLost | None = None

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.handler)

    @cached_property
    def takes_ctx(self) -> bool:
        return next(iter(self.signature.parameters), None) == "ctx"

    def bind(self, payload: Mapping[str, Any]) -> str | None:
        """Say how *payload*'s keys do not fit the handler's parameters, or None."""
        try:
            self.signature.bind(*([None] if self.takes_ctx else []), **payload)
        except TypeError as error:
            return f"payload does not fit {self.name}{self.signature}: {error}"
        return None


_registered: dict[str, Registration] = {}


def job(
    name: str,
    *,
    timeout: timedelta | str | float | None = None,
    retry: RetryPolicy | None = None,
    isolation: Isolation | None = None,
    max_memory: int | str | None = None,
    on_shutdown: OnShutdown | None = None,
    on_lost: OnLost | None = None,
) -> Callable[[H], H]:
    """Register the decorated function as the handler of job type *name*; the function stays what it is.

    ``timeout``: "20s", seconds or timedelta; None: min(30s, budget / 3). One above ``run.budget`` makes a long job,
    which has a process of its own. ``retry`` None: the configuration's defaults. ``isolation``: "thread" (the default)
    or "process", which can be stopped whatever it does, and can have a ``max_memory`` ("512MiB", or bytes).
    ``on_shutdown``: what becomes of a job that was claimed and not begun: "release" (the default) leaves it for the
    next tick, "drop" cancels it. ``on_lost``: what becomes of one whose runner died: "retry" (the default) or "dead",
    for work that must not repeat by itself. The file's ``job_types:`` wins over all of these.
    Raises UsageError for a name that is taken by another function, or an option that cannot be meant.
    """
    fault = name_fault(name)
    if fault:
        raise UsageError(f"@job({name!r}): the name {fault}")
    try:
        limit = None if timeout is None else duration(timeout)
    except ValueError as error:
        raise UsageError(f"@job({name!r}): timeout: {error}") from None
    if limit is not None and limit <= timedelta(0):
        raise UsageError(f"@job({name!r}): timeout must be above zero")
    if limit is not None and limit > LONGEST_TIMEOUT:
        raise UsageError(f"@job({name!r}): timeout {timeout!r} is above {duration_text(LONGEST_TIMEOUT)}")
    for what, value, words in (
        ("isolation", isolation, get_args(Isolation)),
        ("on_shutdown", on_shutdown, get_args(OnShutdown)),
        ("on_lost", on_lost, get_args(OnLost)),
    ):
        if value is not None and value not in words:
            raise UsageError(f"@job({name!r}): {what} {value!r} is not one of {', '.join(words)}")
    memory = None if max_memory is None else _memory(name, max_memory)
    if memory is not None and isolation != "process":
        raise UsageError(f'@job({name!r}): max_memory needs a process: write isolation="process" too')

    def register(handler: H) -> H:
        there = _registered.get(name)
        if there and (there.handler.__module__, there.handler.__qualname__) != (
            handler.__module__,
            handler.__qualname__,
        ):
            raise UsageError(
                f"@job({name!r}) is registered twice: by {there.handler.__module__}.{there.handler.__qualname__} "
                f"and by {handler.__module__}.{handler.__qualname__}"
            )
        _registered[name] = Registration(name, handler, limit, retry, isolation, memory, on_shutdown, on_lost)
        return handler

    return register


def _memory(name: str, value: int | str) -> int:
    try:
        memory = size(value)
    except ValueError as error:
        raise UsageError(f"@job({name!r}): max_memory: {error}") from None
    if memory < size(LEAST_MEMORY):
        raise UsageError(f"@job({name!r}): max_memory {value!r} is below {LEAST_MEMORY}")
    return memory


def registered() -> Mapping[str, Registration]:
    """Every handler that ``@job`` has registered in this process."""
    return _registered


# --- enqueue ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Enqueued:
    """What became of an enqueue: the job's id, whether this call made it, and its status."""

    id: int
    new: bool
    status: Status


def enqueue(
    target: Connection | Session,
    job_type: str,
    payload: Mapping[str, Any] | None = None,
    *,
    run_at: datetime | None = None,
    delay: timedelta | str | float | None = None,
    queue: str = "default",
    priority: int = 5,
    idempotency_key: str | tuple[object, ...] | None = None,
    concurrency_key: str | None = None,
    max_attempts: int | None = None,
    timeout: timedelta | str | float | None = None,
    meta: Mapping[str, str] | None = None,
) -> Enqueued:
    """Write a job in *target*'s transaction (an SQLAlchemy Connection or Session); never commits.

    Due now, or at ``run_at`` (aware), or ``delay`` from the database's now. ``priority`` 0 (first) to 9. With an
    ``idempotency_key`` (text, or a tuple such as ("invoice", order.id)) a second call makes no second job and returns
    the first one's id, also after it ran. ``max_attempts`` and ``timeout`` None: the job type's.
    Raises PayloadError or UsageError for what cannot be stored, SchemaMissing before ``cronjobs db upgrade``.
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
    connection = _connection(target)
    try:
        return Enqueued(*insert_job(connection, new))
    except DBAPIError as error:
        if "no such table" in str(error.orig) or getattr(error.orig, "sqlstate", None) == "42P01":
            raise SchemaMissing(connection.engine.url.render_as_string(hide_password=True)) from error
        raise


def new_job(
    job_type: str,
    payload: Mapping[str, Any] | None = None,
    *,
    run_at: datetime | None = None,
    delay: timedelta | str | float | None = None,
    queue: str = "default",
    priority: int = 5,
    idempotency_key: str | tuple[object, ...] | None = None,
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
    if run_at is not None and run_at.tzinfo is None:
        raise UsageError(f"run_at {run_at!r} has no time zone: pass an aware datetime, e.g. datetime.now(UTC)")
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 9:
        raise UsageError(f"priority {priority!r} is not a whole number from 0 (first) to 9")
    if max_attempts is not None and (isinstance(max_attempts, bool) or not 1 <= max_attempts <= 1_000_000):
        raise UsageError(f"max_attempts {max_attempts!r} is not a whole number of at least 1")
    try:
        wait = None if delay is None else duration(delay)
        limit = None if timeout is None else duration(timeout)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if limit is not None and limit > LONGEST_TIMEOUT:
        raise UsageError(f"timeout {duration_text(limit)} is above {duration_text(LONGEST_TIMEOUT)}")
    if limit is not None and limit <= timedelta(0):
        raise UsageError("timeout must be above zero")
    return NewJob(
        job_type=job_type,
        payload=check_payload({} if payload is None else payload),
        meta=check_meta({} if meta is None else dict(meta)),
        run_at=run_at,
        delay=wait,
        queue=queue,
        priority=priority,
        max_attempts=max_attempts,
        timeout_s=None if limit is None else limit.total_seconds(),
        idempotency_key=None if idempotency_key is None else key_text(idempotency_key),
        concurrency_key=None if concurrency_key is None else _key_part(concurrency_key, "concurrency_key"),
    )


def key_text(key: str | tuple[object, ...], what: str = "idempotency key") -> str:
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
    return ":".join(_key_part(part, what).replace("\\", "\\\\").replace(":", "\\:") for part in parts)


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


def _connection(target: Any) -> Connection:
    if isinstance(target, Connection):
        return target
    module = type(target).__module__
    if (hasattr(target, "connection") and module.startswith("sqlalchemy.")) or hasattr(target, "get_bind"):
        if "asyncio" in module or hasattr(target, "run_sync"):
            raise TypeError("enqueue() takes a Connection or Session; from async code pass it through session.run_sync")
        connection = target.connection()
        if isinstance(connection, Connection):
            return connection
    raise TypeError(f"enqueue() takes an SQLAlchemy Connection or Session, not {type(target).__name__}")
