"""Let an app look up a job that it enqueued, or wait until the job has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection, Engine

from cronjobs.clock import SYSTEM, sleep
from cronjobs.engine.database.column_types import from_microseconds
from cronjobs.engine.jobs.async_targets import is_async_engine, refuse_async, run_sync_of
from cronjobs.engine.jobs.checking import Key, Span, key_text
from cronjobs.engine.jobs.enqueue import TargetOrEngine, connection_of
from cronjobs.engine.jobs.insertion import naming_missing_tables
from cronjobs.engine.rules.payload import BadJson, read_json
from cronjobs.engine.rules.progress import HowFar, reported_of
from cronjobs.engine.store.find_jobs import JobName, find_row, require_ready
from cronjobs.errors import DatabaseError, NoSuchJob, UsageError
from cronjobs.model import FINAL, Status, duration, duration_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

WAIT: Final = timedelta(seconds=30)
LONGEST_WAIT: Final = timedelta(days=1)
# The pauses between two queries.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0


@dataclass(frozen=True)
class FoundJob:
    """A job as ``find`` or ``wait`` read it. Instants are timezone-aware, in UTC.

    ``status`` is queued, running, succeeded, failed (it will be retried), dead or cancelled. ``result`` is the
    handler's return value, or None if the job has not succeeded. ``progress`` is the running attempt's latest report,
    with ``done``, ``of`` (None if the total is unknown) and ``note``. ``next_try`` is when a waiting job is due, or
    None if the job is not waiting. ``attempts`` is how many times a runner has claimed the job, and ``failures`` is how
    many of these attempts count against ``max_attempts``. If the app did not set ``max_attempts``, the limit comes from
    the job type, which only a runner knows. ``max_attempts`` is then None unless the job is running. A ``payload``,
    ``meta`` or ``result`` that cannot be read is None. If the job has been pruned and only its key was kept,
    ``payload`` is {} and ``result`` is None.
    """

    id: int
    job_type: str
    queue: str
    priority: int
    status: Status
    payload: Any
    meta: Any
    result: Any
    progress: HowFar | None
    attempts: int
    failures: int
    max_attempts: int | None
    run_at: datetime
    next_try: datetime | None
    enqueued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    last_error: str | None
    error_type: str | None
    idempotency_key: str | None
    schedule: str | None

    @property
    def is_final(self) -> bool:
        """Whether the job has succeeded, is dead or is cancelled.

        Ticks never change a job that has ended in this way.
        """
        return self.status in FINAL

    @property
    def tries(self) -> str:
        """The failures in words: "failed 3 of 10", or "failed 3" while the limit is unknown."""
        return f"failed {self.failures}" + ("" if self.max_attempts is None else f" of {self.max_attempts}")


def find(
    target: TargetOrEngine, *, id: int | None = None, idempotency_key: Key | None = None, schema: str | None = None
) -> FoundJob | None:
    """Look a job up by its id or by its idempotency key, in *target*'s transaction.

    Args:
        target: anything that ``enqueue`` accepts.
        id: the id that ``enqueue`` returned.
        idempotency_key: the key that was given to ``enqueue``. A key also finds a job that was cancelled before its
            first attempt, until a new job uses the key.
        schema: on PostgreSQL, the schema that contains the tables. If None, the search_path is used.

    Returns:
        The job, or None if the job does not exist or has been deleted.

    Raises:
        UsageError: neither or both of *id* and *idempotency_key* are given, or one of them is invalid.
        DatabaseError: this database role may not read jobs.
        SchemaMissing: the tables do not exist yet. Run ``cronjobs db upgrade``.

    The transaction stays usable after any of these errors.
    """
    name = job_name(id, idempotency_key)
    return in_transaction(target, schema, "find", lambda connection: found_job(connection, name))


def wait(
    engine: Engine,
    *,
    id: int | None = None,
    idempotency_key: Key | None = None,
    timeout: Span = WAIT,
    schema: str | None = None,
) -> FoundJob:
    """Wait until a job has succeeded, is dead or is cancelled, and return it.

    The call queries the job every 0.1 to 1 s. Each query gets a transaction of its own, because a query inside your
    transaction might never see the job end. Commit the transaction that enqueued the job before you wait. Unless ticks
    linger, a job starts only with the next tick, at the next full minute.

    Args:
        engine: an SQLAlchemy Engine.
        id: the id that ``enqueue`` returned.
        idempotency_key: the key that was given to ``enqueue``.
        timeout: how long to wait at most, up to a day: seconds, "90s" or a timedelta.
        schema: on PostgreSQL, the schema that contains the tables. If None, the search_path is used.

    Raises:
        TimeoutError: the job has not ended in time. The message gives the job's status. The job itself continues.
        NoSuchJob: the job does not exist, or has been deleted.
        UsageError: an argument is invalid.
        DatabaseError: this database role may not read jobs, or the tables are missing.
    """
    refuse_async(engine, "wait", "wait_async")
    if not isinstance(engine, Engine):
        raise TypeError(
            f"wait() takes an SQLAlchemy Engine, not {type(engine).__name__}: inside your transaction, wait() "
            "might never see the job end"
        )
    waiting = _Waiting(job_name(id, idempotency_key), timeout)
    while True:
        job = waiting.existing(find(engine, id=id, idempotency_key=idempotency_key, schema=schema))
        if job.is_final:
            return job
        sleep(waiting.pause_s(job))


async def wait_async(
    engine: AsyncEngine,
    *,
    id: int | None = None,
    idempotency_key: Key | None = None,
    timeout: Span = WAIT,
    schema: str | None = None,
) -> FoundJob:
    """Like ``wait``, on an SQLAlchemy AsyncEngine. Other tasks of the event loop keep running while this call waits."""
    import asyncio

    if not is_async_engine(engine):
        raise TypeError(
            f"wait_async() takes an SQLAlchemy AsyncEngine, not {type(engine).__name__}: inside your "
            "transaction, wait_async() might never see the job end"
        )
    waiting = _Waiting(job_name(id, idempotency_key), timeout)
    while True:
        async with run_sync_of(engine, "wait_async") as run_sync:
            found = await run_sync(lambda sync: find(sync, id=id, idempotency_key=idempotency_key, schema=schema))
        job = waiting.existing(found)
        if job.is_final:
            return job
        await asyncio.sleep(waiting.pause_s(job))


class _Waiting:
    """The state of one call that waits for a job's end: its time limit, and the growing pauses between its queries."""

    def __init__(self, name: JobName, timeout: Span) -> None:
        try:
            self._limit = duration(timeout)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if self._limit > LONGEST_WAIT:
            raise UsageError(f"timeout {duration_text(self._limit)} is above {duration_text(LONGEST_WAIT)}")
        self._name = name
        self._give_up_at = SYSTEM.monotonic() + self._limit.total_seconds()
        self._pause_s: float = FIRST_PAUSE_S

    def existing(self, job: FoundJob | None) -> FoundJob:
        if job is None:
            raise NoSuchJob(str(self._name))
        return job

    def pause_s(self, job: FoundJob) -> float:
        """Return the seconds until the next query. Raises TimeoutError when the time is up."""
        left_s = self._give_up_at - SYSTEM.monotonic()
        if left_s <= 0:
            due = f", due at {job.next_try.isoformat(timespec='seconds')}" if job.next_try else ""
            raise TimeoutError(
                f"{self._name} is still {job.status} after {duration_text(self._limit)}{due}; this timeout does not "
                "stop the job"
            )
        pause = min(self._pause_s, left_s)
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 1.5)
        return pause


# --- look up one job, on any connection -------------------------------------------------------------------------------


def job_name(id_: int | None, key: Key | None) -> JobName:
    """Return the name of the job with this id or key. Raises UsageError unless exactly one of them is given."""
    if (id_ is None) == (key is None):
        raise UsageError("name one job: give either id or idempotency_key")
    if key is not None:
        return JobName(None, key_text(key))
    if type(id_) is not int or not 1 <= id_ < 2**63:
        raise UsageError(f"id {id_!r} is not a job's id, which is a whole number of at least 1")
    return JobName(id_, None)


def in_transaction(target: Any, schema: str | None, what: str, do: Callable[[Connection], T]) -> T:
    """Call *do* with *target*'s connection. An Engine gets a transaction of its own, which is committed at the end."""
    if isinstance(target, Engine):
        with target.begin() as connection, naming_missing_tables(prepared := connection_of(connection, schema, what)):
            return do(prepared)
    with naming_missing_tables(prepared := connection_of(target, schema, what)):
        return do(prepared)


def found_job(connection: Connection, name: JobName) -> FoundJob | None:
    if not require_ready(connection):
        raise DatabaseError(
            "this database role may enqueue jobs but not read them: ask the database's owner to run what "
            '"cronjobs db grants --find" prints, or use another role'
        )
    row = find_row(connection, name)
    return None if row is None else _job(row)


def _job(row: Mapping[str, Any]) -> FoundJob:
    status = Status(row["status"])
    policy, reported = _json(row["policy"]), None
    if status is Status.RUNNING:
        reported = reported_of(_json(row["progress"]))
    most = row["max_attempts"]
    if most is None and isinstance(policy, dict) and type(policy.get("max_attempts")) is int:
        most = policy["max_attempts"]
    run_at = from_microseconds(row["run_at"])
    return FoundJob(
        id=row["id"],
        job_type=row["job_type"],
        queue=row["queue"],
        priority=row["priority"],
        status=status,
        payload=_json(row["payload"]),
        meta=_json(row["meta"]),
        result=_json(row["result"]),
        progress=None if reported is None or reported.progress.done is None else reported.progress,
        attempts=row["attempts"],
        failures=row["failures"],
        max_attempts=most,
        run_at=run_at,
        next_try=run_at if status in (Status.QUEUED, Status.FAILED) else None,
        enqueued_at=from_microseconds(row["created_at"]),
        started_at=_instant(row["started_at"]),
        finished_at=_instant(row["finished_at"]),
        cancel_requested_at=_instant(row["cancel_requested_at"]),
        last_error=row["last_error"],
        error_type=row["error_type"],
        idempotency_key=row["idempotency_key"] or row["released_key"],
        schedule=row["schedule"],
    )


def _json(text: str | None) -> Any:
    value = None if text is None else read_json(text)
    return None if isinstance(value, BadJson) else value


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_microseconds(micros)
