"""The context of an attempt: facts for the handler about its own run, and the request to stop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from cronjobs.clock import SYSTEM, Clock
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.effects import Effect, Ledger, OnUnknown, effect_key, step_key
from cronjobs.engine.jobs.enqueue import Target
from cronjobs.engine.jobs.transaction import OwnTransaction
from cronjobs.engine.rules.lease import Lease
from cronjobs.engine.rules.progress import HowFar, progress
from cronjobs.errors import Cancelled, UsageError
from cronjobs.model import Job, Outcome, in_zone


class StopSignal:
    """A request to stop one attempt: "cancelled", "shutdown", "timeout" or "lease lost". Only the first counts.

    The loop sets the reason, and the handler's thread reads it. No lock is needed, because each of the two threads
    reads or writes only a single attribute.
    """

    __slots__ = ("_listener", "reason")

    def __init__(self) -> None:
        self.reason: str | None = None
        self._listener: Callable[[str], None] | None = None

    def set(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            if self._listener is not None:
                self._listener(reason)

    def when_set(self, listener: Callable[[str], None]) -> None:
        """Call *listener* with the reason when a thread sets it, in that thread.

        If a reason is already set, call *listener* at once. *listener* may be called twice if a thread sets the reason
        during this call.
        """
        self._listener = listener
        if self.reason is not None:
            listener(self.reason)


class Context:
    """The object passed to a handler whose first parameter is named ``ctx``: facts about this run, and ways to end it.

    Attributes:
        job_id: the id of the job.
        job_type: the name that the handler is registered under.
        attempt: how many times a runner has claimed this job, including this time. The number is the fencing token of
            every write. Unlike ``tries``, it also goes up when a runner is lost.
        tries: which of the job's ``max_attempts`` tries this is, counting from 1.
        idempotency_key: the key that the enqueuer gave, otherwise a key made from the job's id. The key is the same in
            every attempt, so pass it to external services.
        scheduled_for: the occurrence in the schedule's time zone, so ``.date()`` is the day that the run is for.
            None if an app enqueued the job. In a triggered run, it is the time of the trigger.
        stands_for: for how many occurrences of the schedule this job runs. With ``catch_up: latest``, this is more than
            1 after an outage.
        enqueued_at: when the job was enqueued, timezone-aware, in UTC. None in a test that did not set it.
        started_at: when a runner claimed the job for this attempt, timezone-aware, in UTC. None outside a runner.
        meta: the strings that the enqueuer attached, such as a trace id.
        log: a logger named ``cronjobs.job.<job_type>``, whose records go into the attempt's output.
        result: set this to the job's result before ``finish()`` or the end of a transaction ends the job. Otherwise the
            handler's return value is the result.
    """

    job_id: int
    job_type: str
    attempt: int
    tries: int
    idempotency_key: str
    scheduled_for: datetime | None
    stands_for: int
    enqueued_at: datetime | None
    started_at: datetime | None
    meta: dict[str, str]
    log: logging.Logger
    result: Any

    def __init__(
        self,
        job: Job,
        *,
        timeout: timedelta,
        stop: StopSignal | None = None,
        clock: Clock = SYSTEM,
        database: Database | None = None,
        worker: str = "",
        report: Callable[[HowFar, float], None] | None = None,
    ) -> None:
        self.result = None
        self._report = report
        self.job_id = job.id
        self.job_type = job.job_type
        self.attempt = job.attempt
        self.tries = job.failures + 1
        self.meta = dict(job.meta)
        self.enqueued_at = job.created_at
        self.started_at = job.started_at
        self.stands_for = job.stands_for
        self.idempotency_key = job.idempotency_key or f"cronjobs-job-{job.id}"
        self.scheduled_for = None
        if job.scheduled_for is not None:
            self.scheduled_for = in_zone(job.scheduled_for, ZoneInfo(job.timezone))
        self.log = logging.getLogger(f"cronjobs.job.{job.job_type}")
        self._due_at = job.scheduled_for or job.run_at
        self._stop = stop or StopSignal()
        self._clock = clock
        self._ends_at = clock.monotonic() + timeout.total_seconds()
        self._ledger: Ledger | None = None
        self._ending: OwnTransaction | None = None
        if database is not None and job.locked_by is not None:
            self._ending = OwnTransaction(
                database, job, clock=clock, worker=worker, check=self.check, remaining_s=lambda: self.remaining_s
            )
            self._ledger = Ledger(
                database,
                Lease(job.id, job.attempt, job.locked_by),
                clock=clock,
                log=self.log,
                remaining_s=lambda: self.remaining_s,
                stopped=lambda: self._stop.reason,
            )

    @property
    def late_by(self) -> timedelta:
        """How long after its due time this attempt started. It is never negative."""
        if self.started_at is None or self._due_at is None:
            return timedelta(0)
        return max(timedelta(0), self.started_at - self._due_at)

    @property
    def remaining_s(self) -> float:
        """Seconds until the timeout, or 0.0 once it has expired. Pass this number as the timeout of calls to other
        services.
        """
        return max(0.0, self._ends_at - self._clock.monotonic())

    @property
    def deadline(self) -> datetime:
        """When the timeout expires, by the host's clock."""
        return self._clock.now() + timedelta(seconds=self.remaining_s)

    @property
    def cancelled(self) -> bool:
        """Whether the job should stop, because of a cancellation, a timeout, a shutdown or a lost lease."""
        return self._stop.reason is not None

    def check(self) -> None:
        """Raise ``Cancelled`` if the job should stop or is out of time. Call this method before and during expensive
        work.
        """
        if self._stop.reason is not None:
            raise Cancelled(self._stop.reason)
        if self.remaining_s <= 0:
            raise Cancelled("timeout")

    def progress(self, done: float, of: float | None = None, note: str | None = None) -> None:
        """Report progress: *done* units out of *of*. A call runs no SQL, so you can call it often.

        The latest report is written with the next renewal of the lease, by default within 15 s (a quarter of the
        lease). "cronjobs jobs tail", "jobs show" and "explain" show it until the attempt ends. Leave *of* out if the
        total is unknown. *note* is a line of text for people. Raises UsageError if a value is negative or not a number.
        """
        how_far = progress(done, of, note)
        if self._report is not None:
            self._report(how_far, self._clock.monotonic())

    def effect(
        self, key: str | tuple[object, ...], on_unknown: OnUnknown = "again", *, single_call: bool = False
    ) -> Effect:
        """Open a block around an action outside the database. Once its result is recorded, no attempt repeats it::

            with ctx.effect(f"invoice-email:{invoice_id}") as effect:
                if not effect.done:
                    effect.result = mail.send(invoice, idempotency_key=effect.key, timeout=ctx.remaining_s)

        *key* (text, or a tuple such as ("invoice-email", 42)) identifies the effect across all jobs. ``on_unknown``
        decides what happens if the effect was begun, but its result was never recorded. "again" repeats it, with
        ``effect.unknown`` True. "skip" treats it as done, without a result. "stop" makes the job dead until someone
        settles the effect. With ``single_call``, the effect does not become unknown if the root cause of the exception
        is a refused connection or a host name that does not resolve, because then nothing was done. Use ``single_call``
        only for a call that connects once and does not retry by itself. If another job is in the middle of the effect,
        entering the block raises EffectBusy, and this job is retried later.
        """
        return Effect(
            self._effects("ctx.effect()"),
            effect_key(key),
            on_unknown,
            lambda: self._outside("ctx.effect()"),
            single_call=single_call,
        )

    def step(self, name: str, on_unknown: OnUnknown = "again") -> Effect:
        """One step of this job: an ``effect`` whose key belongs to this job. Once the step is done, later attempts skip
        it.

        Entering the block calls ``check()`` first.
        """

        def check() -> None:
            self._outside("ctx.step()")
            self.check()

        return Effect(self._effects("ctx.step()"), step_key(self.job_id, name), on_unknown, check)

    def transaction(self) -> AbstractContextManager[Connection]:
        """Open a transaction on the jobs database that also ends the job, so that its work happens exactly once::

            with ctx.transaction() as connection:
                connection.execute(text("UPDATE accounts SET …"), {…})
                enqueue(connection, "billing.send_receipt", {"account": 7})
                ctx.result = {"booked": True}

        Leaving the block commits its work together with the job's success. After an exception, a lost lease (LeaseLost)
        or a kill, neither the work nor the success is committed. The work is what *connection* executes: Django's ORM,
        or a session of yours, uses another connection and commits by itself. For the ORM or such a session, use
        ``finish()`` instead. If the handler raises an exception after the block, the history stores it, but it has no
        other effect. On SQLite the block holds the only write lock, and is rolled back after 2 s (TransactionTooLong).
        Entering the block calls ``check()``. Use effects and steps before the block, not inside it.
        """
        return self._end("ctx.transaction()").transaction(lambda: self.result)

    def finish(self, connection: Target) -> None:
        """End the job successfully in your own transaction on the jobs database. Call it just before you commit.

        *connection* is anything that ``enqueue`` accepts. Your work and the success are committed together or not at
        all. If the handler returns without committing, the attempt counts as failed. ``result`` becomes the job's
        result. Raises LeaseLost if the lease is gone. Let that exception roll your transaction back. On PostgreSQL use
        READ COMMITTED, the default.
        """
        self._end("ctx.finish()").finish(connection, self.result)

    def _end(self, what: str) -> OwnTransaction:
        if self._ending is None:
            raise UsageError(_NO_DATABASE.format(what=f"{what} writes"))
        return self._ending

    def _outside(self, what: str) -> None:
        if self._ending is not None:
            self._ending.refuse_if_over(what)

    def _effects(self, what: str) -> Ledger:
        if self._ledger is None:
            raise UsageError(_NO_DATABASE.format(what=f"{what} records"))
        return self._ledger


def not_committed(ctx: Context) -> Outcome | None:
    """Return the outcome if the handler called ``ctx.finish()`` and did not commit, or None if it did not call it."""
    return None if ctx._ending is None else ctx._ending.not_committed()


def result_of(ctx: Context, returned: Any) -> Any:
    """Return ``ctx.result`` if the handler ended the job with ``ctx.transaction()``, else what it *returned*."""
    return ctx.result if ctx._ending is not None and ctx._ending.committed else returned


_NO_DATABASE: Final = (
    "{what} in the jobs database, but this context has no database: run the handler through a tick or "
    '"cronjobs run", or pass a database and a claimed job, Context(job, timeout=…, database=…). '
    "On a cluster, a worker finds the database through CRONJOBS_DATABASE_URL or a cronjobs.yaml"
)
