"""An attempt that ends its own job: its success is the last statement of the transaction that did its work.

Both are committed or neither, so the work happens exactly once. The statement contains the fence: an attempt that lost
its lease rolls its work back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from cronjobs.clock import Clock
from cronjobs.database.connection import Database
from cronjobs.errors import LeaseLost, UsageError
from cronjobs.jobs.enqueue import Target, connection_of
from cronjobs.model import Failed, Finished, Job, RetryPolicy, Succeeded
from cronjobs.rules.ending import NOT_COMMITTED, decide_end
from cronjobs.rules.lease import Finish
from cronjobs.store.leases import finish_here


class OwnTransaction:
    """How an attempt writes its own end. ``check`` raises when the job has to stop; *worker*: its thread's name."""

    def __init__(
        self,
        database: Database,
        job: Job,
        *,
        clock: Clock,
        worker: str = "",
        check: Callable[[], None],
        remaining_s: Callable[[], float],
    ) -> None:
        self._database, self._job, self._worker, self._clock = database, job, worker, clock
        self._check, self._remaining_s = check, remaining_s
        self._started = clock.monotonic()
        self.is_open = False
        self.committed = False  # by ``transaction``
        self.given = False  # to a transaction of the user's own, which they commit

    @contextmanager
    def transaction(self, result: Callable[[], Any]) -> Iterator[Connection]:
        """One transaction on the jobs database; *result* is called at its end.

        Raises LeaseLost or TransactionTooLong instead of committing.
        """
        self.refuse_if_over("ctx.transaction()")
        self._check()
        self.is_open = True
        try:
            with self._database.handler_transaction(self._remaining_s()) as (connection, end):
                yield connection
                end()
                self._write(self._database.with_tables(connection), result())
            self.committed = True
        finally:
            self.is_open = False

    def finish(self, target: Target, result: Any) -> None:
        """Write the success on *target*, in the transaction that is open there. Raises LeaseLost."""
        self.refuse_if_over("ctx.finish()")
        from cronjobs.database.user_connections import commits_by_itself  # both dialects, for few jobs

        self._check()
        connection = connection_of(target, self._database.address.schema)
        if commits_by_itself(connection):
            raise UsageError("ctx.finish() belongs into a transaction: begin one, and do the work in it, too")
        self._write(connection, result)
        self.given = True

    def _write(self, connection: Connection, result: Any) -> None:
        if not finish_here(connection, self._success(result)):
            raise LeaseLost(
                f"attempt {self._job.attempt} of job {self._job.id} does not hold its lease any more, or this is not "
                "the jobs database: its transaction is not to be committed"
            )

    def _success(self, result: Any) -> Finish:
        ran = timedelta(seconds=max(0.0, self._clock.monotonic() - self._started))
        finished = Finished(self._job, Succeeded(result), ran, self._worker)
        return decide_end(finished, RetryPolicy(), self._clock.now(), max_losses=1).finish

    def refuse_if_over(self, what: str) -> None:
        """Raise UsageError if *what* is used inside, or after, the transaction that ends the job."""
        if self.is_open:
            raise UsageError(
                f"{what} inside ctx.transaction(): it needs a transaction of its own. Do effects and steps before it, "
                "and in it only what the database can take back"
            )
        if self.committed or self.given:
            raise UsageError(f"{what} after the job's success was written: nothing of it could be recorded any more")

    def not_committed(self) -> Failed | None:
        """The outcome of a handler that returned without committing its success; None: it did not call ``finish``.

        If it was committed, the row shows that, and the fence keeps this outcome from being written.
        """
        if not self.given:
            return None
        said = "ctx.finish() was called and its transaction not committed: commit it before the handler returns"
        return Failed(said, NOT_COMMITTED)
