"""``drain``: runs due jobs inside a test's own transaction, with a tick's loop and one worker.

Unlike in a tick, the connection is the test's, the worker is the test's own thread, and each job runs in a savepoint.
Claims, retry policies, outcomes and history are the tick's own code.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import queue
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from cronjobs.clock import SYSTEM, Clock, sleep
from cronjobs.config.settings import RunSettings
from cronjobs.errors import Snooze, UsageError
from cronjobs.events import Event
from cronjobs.execution.attempt import Attempt, Ended, WorkerContext
from cronjobs.execution.handler import run_attempt
from cronjobs.execution.raised import outcome_of
from cronjobs.execution.worker_threads import Workers
from cronjobs.jobs.enqueue import Target
from cronjobs.jobs.job_types import JobType, JobTypes
from cronjobs.model import Finished, Succeeded
from cronjobs.rules.ending import lease_of
from cronjobs.store import upcoming
from cronjobs.store.leases import is_held
from cronjobs.store.sql import database_now
from cronjobs.testing.clocks import FakeClock
from cronjobs.testing.configured import handlers_of, settings_of
from cronjobs.testing.lending import LentDatabase, Savepoint, ended_since, require_tables
from cronjobs.testing.ran import EventCollector, JobFailed, Ran, ran_by
from cronjobs.tick.loop import Loop
from cronjobs.tick.pacing import LIMIT_REACHED
from cronjobs.tick.tick_filter import TickFilter
from cronjobs.tick.watchdog import Unarmed

MOST_JOBS: Final = 1000  # after so many, a job must be enqueueing itself
NO_LIMIT: Final = timedelta(days=31)  # no job is too long for a test
WORKER: Final = "drain"


@dataclass(frozen=True)
class Drained(EventCollector):
    """What ``drain`` did: ``ran``, in order. ``unresolved``: due jobs by type that is not registered here."""

    ran: tuple[Ran, ...] = ()
    unresolved: Mapping[str, int] = field(default_factory=dict)


def drain(
    connection: Target,
    *,
    config: str | Path | None = None,
    imports: Iterable[str] = (),
    at: datetime | None = None,
    queue: str | None = None,
    only: str | None = None,
    limit: int | None = None,
    raise_errors: bool = False,
    schema: str | None = None,
    clock: Clock | None = None,
) -> Drained:
    """Run every job that is due on *connection*, including uncommitted ones, in this thread; never commits.

    *connection*: what ``enqueue`` accepts, in the test's transaction. Each job runs in a savepoint, which is kept when
    it succeeds; its end and its history are written as a tick does. Jobs that these jobs enqueue run as well, if they
    are due; retries do not. ``at``: as if it were then (aware); *clock*: by that clock. ``config``: the cronjobs.yaml
    whose ``imports`` and ``job_types`` count; None: ``imports``, and whatever ``@job`` has registered. ``queue``,
    ``only`` (a job type) and ``limit`` restrict it. ``raise_errors``: raise the exception of the first handler that
    failed, after all is written. Time-outs of threads and ``isolation: process`` do not apply. Raises UsageError if the
    handlers cannot be imported, if a handler ends the transaction, and after 1,000 jobs without a ``limit``.
    """
    clock = clock or (SYSTEM if at is None else FakeClock(at))
    settings = settings_of(config, imports)
    settings = replace(settings, run=_alone(settings.run), limits=())
    raised: list[BaseException] = []
    job_types = _noted(handlers_of(settings), raised)
    database = LentDatabase(connection, "drain()", schema=schema, clock=clock)
    workers = OneHere(WorkerContext(settings, database), clock, raised)
    events: list[Event] = []
    with database.read() as lent:
        require_tables(lent, "drain()")
        now_read_at, now = clock.monotonic(), database_now(lent)
    loop = Loop(
        database=database,
        settings=settings,
        job_types=job_types,
        workers=workers,
        watchdog=Unarmed(),
        clock=clock,
        locked_by=WORKER,
        deadline=now_read_at + NO_LIMIT.total_seconds(),
        database_now=now,
        now_read_at=now_read_at,
        emit=events.append,
        before_writing=lambda _: None,
        limits=TickFilter(queue=queue, only=only, jobs=limit or MOST_JOBS),
        catches=False,
    )
    ended = loop.run()
    with database.read() as lent:
        drained = Drained(ran_by(events), dict(upcoming.unresolved(lent, job_types.types.keys())))
    if limit is None and ended == LIMIT_REACHED:
        raise UsageError(
            f"drain() ran {MOST_JOBS} jobs, the last of type {drained.ran[-1].job_type}, and more may be due: does one "
            "enqueue itself? Say limit=… to stop there"
        )
    if raise_errors:
        _raise(drained, raised)
    return drained


def _alone(run: RunSettings) -> RunSettings:
    return replace(run, workers=1, budget=NO_LIMIT, lease=NO_LIMIT, long_jobs=0)


def _raise(drained: Drained, raised: list[BaseException]) -> None:
    if raised:
        raise raised[0]
    for ran in drained.ran:
        if ran.became in ("failed", "dead"):
            raise JobFailed(ran)
    for job_type, waiting in drained.unresolved.items():
        raise UsageError(
            f"drain(): {waiting} due, of type {job_type}, which no @job or job_types: entry has registered"
        )


# --- the one worker ---------------------------------------------------------------------------------------------------


class _Ends(queue.SimpleQueue["Ended | None"]):
    """The loop's queue of ends, which does the work when the loop waits on it."""

    def __init__(self, run: Callable[[Attempt], Ended]) -> None:
        self.waiting: deque[Attempt] = deque()
        self._run = run

    def get(self, block: bool = True, timeout: float | None = None) -> Ended | None:
        if self.waiting:
            return self._run(self.waiting.popleft())
        sleep(min(timeout or 0.0, 0.01))
        raise queue.Empty

    def get_nowait(self) -> Ended | None:
        return self.get(block=False)


class OneHere(Workers):
    """One worker, in the thread that waits for the ends, with a savepoint around each attempt."""

    def __init__(self, around: WorkerContext, clock: Clock, raised: list[BaseException]) -> None:
        assert isinstance(around.database, LentDatabase)
        self.count = 1
        self.fault: str | None = None
        self._ends = _Ends(self._attempt)
        self.ended = self._ends
        self._around, self._clock, self._raised = around, clock, raised
        self._database: LentDatabase = around.database

    def hand(self, attempt: Attempt) -> bool:
        self._ends.waiting.append(attempt)
        return True

    def take_back(self) -> list[Attempt]:
        unbegun = list(self._ends.waiting)
        self._ends.waiting.clear()
        return unbegun

    def wake(self) -> None:
        pass

    def _attempt(self, attempt: Attempt) -> Ended:
        attempt.worker, attempt.started = WORKER, self._clock.monotonic()
        attempt.in_child_process = False  # a process of its own would not see uncommitted rows
        database, raised_before = self._database, len(self._raised)
        database.written.clear()
        lender = database.lender
        assert lender is not None
        connection = lender.connection()
        transaction, savepoint = connection.get_transaction(), lender.savepoint()
        finished = run_attempt(attempt, self._around, self._clock)
        error = next(reversed(self._raised[raised_before:]), None)
        try:
            if ended_since(connection, transaction):
                raise UsageError(_ENDED.format(job_type=attempt.job.job_type))
            finished = self._end(attempt, finished, savepoint)
        except DBAPIError:  # "no such savepoint"
            raise UsageError(_ENDED.format(job_type=attempt.job.job_type)) from error
        if error is not None and _is_the_tests(error):
            raise error
        return Ended(attempt, finished, self._clock.monotonic())

    def _end(self, attempt: Attempt, finished: Finished, savepoint: Savepoint) -> Finished:
        """Keep what the handler did if it succeeded, or ended its job itself; else only what we wrote beside it."""
        keep = isinstance(finished.outcome, Succeeded) or self._ended_itself(attempt)
        if keep:
            try:
                savepoint.flush()
            except SQLAlchemyError as error:  # the handler's own COMMIT would have failed
                self._raised.append(error)
                keep, finished = False, replace(finished, outcome=outcome_of(error, attempt, self._clock))
        if keep:
            savepoint.commit()
            return finished
        written = list(self._database.written)
        savepoint.rollback()
        self._database.write_again(written)
        return finished

    def _ended_itself(self, attempt: Attempt) -> bool:
        try:
            with self._database.read() as connection:
                return not is_held(connection, lease_of(attempt.job))
        except SQLAlchemyError:  # the handler's last statement failed: only a rollback helps
            return False


_ENDED: Final = (
    "the handler of {job_type} ended the transaction that drain() works in: give its sessions the test's connection, "
    'Session(connection, join_transaction_mode="create_savepoint")'
)


def _is_the_tests(error: BaseException) -> bool:
    """Whether it is Ctrl-C, ``pytest.fail()`` or the like, which must not end as a job's failure."""
    return not isinstance(error, Exception | SystemExit | GeneratorExit | asyncio.CancelledError)


# --- the handlers -----------------------------------------------------------------------------------------------------


def _noted(job_types: JobTypes, raised: list[BaseException]) -> JobTypes:
    return replace(job_types, types={name: _noted_one(job_type, raised) for name, job_type in job_types.types.items()})


def _noted_one(job_type: JobType, raised: list[BaseException]) -> JobType:
    """*job_type* with a handler that appends its exceptions to *raised*, since an outcome keeps only the message."""
    registration = job_type.registration
    if registration is None:
        return job_type
    handler = registration.handler

    @functools.wraps(handler)
    def noting(*args: Any, **kwargs: Any) -> Any:
        try:
            result = handler(*args, **kwargs)
        except BaseException as error:
            _note(error, raised)
            raise
        return _noting(result, raised) if inspect.isawaitable(result) else result

    return replace(job_type, registration=replace(registration, handler=noting))


async def _noting(result: Any, raised: list[BaseException]) -> Any:
    try:
        return await result
    except BaseException as error:
        _note(error, raised)
        raise


def _note(error: BaseException, raised: list[BaseException]) -> None:
    if not isinstance(error, Snooze):  # the job comes back later, and nothing went wrong
        raised.append(error)
