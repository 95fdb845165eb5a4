"""Validate what an app wants to enqueue. Every option is accepted or refused before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, Final, TypeAlias, TypeVar, cast

from cronjobs.engine.database.column_types import SQLITE_FIRST_INSTANT, from_microseconds
from cronjobs.engine.jobs.tracing import with_trace
from cronjobs.engine.rules.payload import check_meta, check_payload, text_fault
from cronjobs.engine.store.enqueue import NewJob
from cronjobs.errors import PayloadError, UsageError
from cronjobs.model import RetryPolicy, duration, duration_text
from cronjobs.reserved import EXEC_PREFIX
from cronjobs.text import nearest, one_line

CO_COROUTINE: Final = 0x80  # the value from ``inspect``, which is slow to import
NAME_LIMIT: Final = 200
KEY_LIMIT: Final = 500
# An entry in a PostgreSQL index can hold at most 2,700 bytes.
KEY_BYTES: Final = 2000
LONGEST_TIMEOUT: Final = timedelta(days=30)
LONGEST_DELAY: Final = timedelta(days=10 * 366)
FIRST_RUN_AT: Final = from_microseconds(SQLITE_FIRST_INSTANT)
# This is roughly the last instant that can be converted to every time zone.
LAST_RUN_AT: Final = datetime(9999, 12, 30, tzinfo=UTC)
Key = str | tuple[object, ...]
# Matches the address that Python's default repr contains.
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+>")
Span: TypeAlias = timedelta | str | float


class ForHandler:
    """Checks a payload against the handler of its job type, if that handler is registered in this process.

    The registry sets ``encoded``. This module cannot import the registry, because the registry imports this module.
    """

    encoded: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] = staticmethod(lambda _type, payload: payload)


for_handler: Final = ForHandler()


Call = TypeVar("Call", bound=Callable[..., Any])


def names_checked(said: str, more: Collection[str] = ()) -> Callable[[Call], Call]:
    """Return a decorator. If a call misspells a keyword, the decorated function suggests the right one.

    *said* is the function's public name. *more* lists the keywords that the function accepts through ``**options``.
    """

    def decorate(call: Call) -> Call:
        code = getattr(call, "__wrapped__", call).__code__
        known = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], *more}

        @wraps(call)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if not known.issuperset(kwargs):
                raise no_such_argument(said, kwargs, known)
            return call(*args, **kwargs)

        @wraps(call)
        async def checked_async(*args: Any, **kwargs: Any) -> Any:
            return await checked(*args, **kwargs)

        return cast("Call", checked_async if code.co_flags & CO_COROUTINE else checked)

    return decorate


# Names that Celery uses. ``nearest`` would suggest "meta" for "eta".
OF_CELERY: Final = {"eta": "run_at", "countdown": "delay"}


def no_such_argument(said: str, given: Iterable[str], known: Collection[str]) -> TypeError:
    """Return the error for the first name of *given* that is not in *known*."""
    wrong = next(name for name in given if name not in known)
    meant = OF_CELERY.get(wrong)
    meant = meant if meant in known else nearest(wrong, known)
    if "retry" in known and wrong in RetryPolicy.__dataclass_fields__:
        return TypeError(f"{said}() has no argument {wrong!r}: write retry=RetryPolicy({wrong}=…)")
    return TypeError(f"{said}() has no argument {wrong!r}" + (f", did you mean {meant!r}?" if meant else ""))


def require_target(target: object, called: str) -> None:
    """Raise TypeError if *target* cannot be a connection, for example because the caller forgot to pass one."""
    if target is not None and not isinstance(target, str | bytes | int | float | Mapping | list | tuple):
        return
    kinds = "an SQLAlchemy Connection, Session or Engine, a connection of psycopg 3 or sqlite3, or Django's"
    if called.endswith("_async"):
        kinds = "an SQLAlchemy AsyncConnection, AsyncSession or AsyncEngine"
    raise TypeError(f"{called}(connection, …): the first argument must be the connection of the transaction ({kinds})")


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
    """Validate the arguments of ``enqueue``, and return the job to insert. Raises PayloadError or UsageError."""
    for what, name, fault in (
        ("job_type", job_type, type_fault(job_type)),
        ("queue", queue, name_fault(queue)),
        ("enqueued_by", enqueued_by, None if enqueued_by is None else name_fault(enqueued_by)),
    ):
        if fault:
            raise UsageError(f"{what} {name!r} {fault}")
    if run_at is not None and delay is not None:
        raise UsageError("give run_at or delay, not both")
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 9:
        raise UsageError(f"priority {priority!r} is not a whole number from 0 (first) to 9")
    if max_attempts is not None and (type(max_attempts) is not int or not 1 <= max_attempts <= 1_000_000):
        raise UsageError(f"max_attempts {max_attempts!r} is not a whole number from 1 to 1,000,000")
    limit = None if timeout is None else span_of("timeout", timeout)
    wait = None if delay is None else delay_of(delay)
    if limit is not None and limit > LONGEST_TIMEOUT:
        raise UsageError(f"timeout {duration_text(limit)} is above {duration_text(LONGEST_TIMEOUT)}")
    if limit is not None and limit <= timedelta(0):
        raise UsageError("timeout must be above zero")
    if meta is not None and not isinstance(meta, Mapping):
        raise PayloadError("meta must map strings to strings")
    meta = with_trace(meta)
    return NewJob(
        job_type=job_type,
        payload={} if payload is None else check_payload(payload),
        meta={} if meta is None else check_meta(dict(meta)),
        run_at=None if run_at is None else instant_of(run_at),
        delay_s=None if wait is None else wait.total_seconds(),
        queue=queue,
        priority=priority,
        max_attempts=max_attempts,
        timeout_s=None if limit is None else limit.total_seconds(),
        idempotency_key=None if idempotency_key is None else key_text(idempotency_key),
        concurrency_key=None if concurrency_key is None else _key_part(concurrency_key, "concurrency_key"),
        enqueued_by=enqueued_by,
    )


def span_of(what: str, value: Span) -> timedelta:
    """Return the duration *value*. Raises UsageError, whose message begins with *what*, the argument's name."""
    try:
        return duration(value)
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from None


def delay_of(delay: Span) -> timedelta:
    wait = span_of("delay", delay)
    if abs(wait) > LONGEST_DELAY:
        raise UsageError(f"delay {wait} is longer than ten years")
    return wait


def instant_of(run_at: datetime) -> datetime:
    if not isinstance(run_at, datetime):
        raise UsageError(f"run_at {run_at!r} is not a datetime: pass an aware one, e.g. datetime.now(UTC)")
    if run_at.utcoffset() is None:
        raise UsageError(f"run_at {run_at!r} has no time zone: pass an aware datetime, e.g. datetime.now(UTC)")
    try:
        instant = run_at.astimezone(UTC)
    except OverflowError:
        instant = None
    # Check the range here, because an error of the table's CHECK would abort the user's transaction.
    if instant is None or not FIRST_RUN_AT <= instant <= LAST_RUN_AT:
        raise UsageError(f"run_at {run_at} is not between {FIRST_RUN_AT.date()} and {LAST_RUN_AT.date()}")
    return instant


def key_text(key: Key, what: str = "idempotency key") -> str:
    """Return a key in its stored form: ("invoice", 42) becomes "invoice:42". *what* names the key in error messages.

    Raises UsageError if a part is empty or None, so that rows whose id the database has not set yet do not all share a
    key.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if not parts:
        raise UsageError(f"the {what} {key!r} is empty: a key has at least one part")
    for part in parts:
        if part is None or part == "":
            raise UsageError(f"the {what} {key!r} has an empty part: flush the session first, so that ids exist")
    # Escape separators inside parts, so that ("a:b", "c") and ("a", "b:c") stay different keys.
    if len(parts) == 1:
        return _key_part(parts[0], what)
    written = ":".join(_key_part(part, what).replace("\\", "\\\\").replace(":", "\\:") for part in parts)
    if len(written.encode()) > KEY_BYTES:
        raise UsageError(f'the {what} "{one_line(written, 40)}" is longer than {KEY_BYTES} bytes')
    return written


def _key_part(part: object, what: str) -> str:
    written = str(part)
    fault = "is empty" if not written else text_fault(written)
    if isinstance(part, set | frozenset) or (not isinstance(part, str) and _ADDRESS.search(written)):
        fault = "would be different in each process: use the object's id, or sorted values"
    if len(written) > KEY_LIMIT:
        fault = f"is longer than {KEY_LIMIT} characters"
    if fault:
        raise UsageError(f'{what} "{one_line(written, 40)}" {fault}')
    return written


def type_fault(name: object) -> str | None:
    """Return why *name* cannot be the name of a job type, or None if it can."""
    if isinstance(name, str) and name.startswith(EXEC_PREFIX):
        return f'begins with "{EXEC_PREFIX}", which is reserved for "cronjobs exec": choose another name'
    return name_fault(name)


def name_fault(name: object) -> str | None:
    """Return why *name* cannot be the name of a job type or queue, or None if it can."""
    if not isinstance(name, str):
        return "is not text"
    if not name or len(name) > NAME_LIMIT:
        return f"must have 1 to {NAME_LIMIT} characters"
    if not name.isprintable() or name != name.strip():
        return "contains unprintable characters, or has leading or trailing spaces"
    return text_fault(name)
