"""``drain``: runs due jobs inside a test's own transaction, with a tick's loop and one worker.

``drain`` differs from a tick in three ways: it uses the test's connection, the worker is the test's own thread, and
each job runs in a savepoint. The code for claims, retry policies, outcomes and history is the same as in a tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cronjobs.clock import SYSTEM, Clock
from cronjobs.engine.jobs.enqueue import Target
from cronjobs.engine.store import upcoming
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.tick.loop import Loop
from cronjobs.engine.tick.pacing import LIMIT_REACHED
from cronjobs.engine.tick.result import TickFilter
from cronjobs.errors import UsageError
from cronjobs.events import Event
from cronjobs.testing.attempt_collector import EventCollector, JobFailed, Ran, ran_by
from cronjobs.testing.clocks import FakeClock
from cronjobs.testing.configured import handlers_of, settings_of
from cronjobs.testing.foreign_jobs import refuse_jobs_from_outside
from cronjobs.testing.lent_connection import LentDatabase, require_tables
from cronjobs.testing.single_worker import WORKER, SingleWorker

MOST_JOBS: Final = 1000  # if more jobs run, a job is probably enqueueing itself
NO_LIMIT: Final = timedelta(days=31)  # the budget and the lease, which no job in a test exceeds


@dataclass(frozen=True)
class Drained(EventCollector):
    """The result of ``drain``.

    ``ran`` has the attempts, in order. ``unresolved`` maps each unregistered job type to the number of its due jobs.
    """

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
    outside: bool = False,
    schema: str | None = None,
    clock: Clock | None = None,
) -> Drained:
    """Run every job that is due on *connection* in this thread, including uncommitted jobs. Never commits.

    *connection* is anything that ``enqueue`` accepts, in the test's transaction. Each job runs in a savepoint, which is
    kept if the job succeeds. The job's outcome and history are written as in a tick, but what the handler prints is not
    kept, and the runner is named ``drain``. If the jobs enqueue other jobs that are due, those other jobs run as well.
    Retries of failed jobs do not run. With ``at``, the jobs run as if it were this time (timezone-aware). With
    ``clock``, the jobs use this clock. ``config`` is the cronjobs.yaml whose ``imports`` and ``job_types`` are used.
    Without ``config``, the handlers come from ``imports``, and from whatever ``@job`` has registered. ``queue``,
    ``only`` (a job type) and ``limit`` restrict which jobs run. With ``raise_errors``, the exception of the first
    handler that failed is raised after everything is written. Jobs that were committed before this process began cannot
    come from the tests. With ``outside``, ``drain`` runs these jobs, too. Without ``outside``, if there are any,
    ``drain`` raises UsageError and runs nothing. Thread timeouts and ``isolation: process`` have no effect. Raises
    UsageError if the handlers cannot be imported, if a handler ends the transaction, and after 1,000 jobs without a
    ``limit``.
    """
    clock = clock or (SYSTEM if at is None else FakeClock(at))
    settings = settings_of(config, imports)
    alone = replace(settings.run, workers=1, budget=NO_LIMIT, lease=NO_LIMIT, long_jobs=0)
    settings = replace(settings, run=alone, limits=())
    handlers = handlers_of(settings)
    database = LentDatabase(connection, "drain()", schema=schema, clock=clock)
    workers = SingleWorker(settings, database, clock)
    events: list[Event] = []
    with database.read() as lent:
        require_tables(lent, "drain()")
        now_read_at, now = clock.monotonic(), database_now(lent)
        if not outside:
            refuse_jobs_from_outside(lent, handlers.types.keys() & {only} if only else handlers.types.keys(), queue)
    loop = Loop(
        database=database,
        job_types=workers.noting(handlers),
        workers=workers,
        locked_by=WORKER,
        deadline=now_read_at + NO_LIMIT.total_seconds(),
        database_now=now,
        now_read_at=now_read_at,
        emit=events.append,
        limits=TickFilter(queue=queue, only=only, jobs=limit or MOST_JOBS),
        catches=False,
    )
    ended = loop.run()
    with database.read() as lent:
        drained = Drained(ran_by(events), dict(upcoming.unresolved(lent, handlers.types.keys())))
    if limit is None and ended == LIMIT_REACHED:
        raise UsageError(
            f"drain() ran {MOST_JOBS} jobs, the last of type {drained.ran[-1].job_type}, and more may "
            "be due: perhaps a job "
            "enqueues itself. Pass limit=… to stop earlier"
        )
    if raise_errors:
        _raise(drained, workers.raised)
    return drained


def _raise(drained: Drained, raised: list[BaseException]) -> None:
    if raised:
        raise raised[0]
    for ran in drained.ran:
        if ran.became in ("failed", "dead"):
            raise JobFailed(ran)
    for job_type, waiting in drained.unresolved.items():
        raise UsageError(
            f"drain(): jobs of type {job_type} are due ({waiting}), but neither @job nor job_types registers this type"
        )
