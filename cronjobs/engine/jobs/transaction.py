"""Let an attempt end its own job. The transaction that does the work records the job's success in its last statement.

Work and success are committed together or not at all, so the work happens exactly once. The last statement contains the
fence: if the attempt has lost its lease, the statement changes no row, and the work is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from cronjobs.clock import Clock
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.enqueue import Target, connection_of
from cronjobs.engine.rules.ending import NOT_COMMITTED, decide_end
from cronjobs.engine.rules.lease import Finish
from cronjobs.engine.store.leases import finish_here
from cronjobs.errors import LeaseLost, UsageError
from cronjobs.model import Failed, Finished, Job, RetryPolicy, Succeeded


@dataclass
class OwnTransaction:
    """Lets an attempt record its own success. ``check`` raises Cancelled if the attempt must stop. ``worker`` is the
    attempt's thread.
    """

    database: Database
    job: Job
    clock: Clock
    check: Callable[[], None]
    remaining_s: Callable[[], float]
    worker: str = ""
    is_open: bool = False
    committed: bool = False  # True if ``transaction`` has committed the success
    # True if ``finish`` has written the success in a transaction that the user commits.
    given: bool = False

    def __post_init__(self) -> None:
        self.started = self.clock.monotonic()

    @contextmanager
    def transaction(self, result: Callable[[], Any]) -> Iterator[Connection]:
        """Open a transaction on the jobs database. At its end, call *result* for the job's result.

        Raises LeaseLost or TransactionTooLong instead of committing.
        """
        self.refuse_if_over("ctx.transaction()")
        self.check()
        self.is_open = True
        try:
            with self.database.handler_transaction(self.remaining_s()) as (connection, end):
                yield connection
                end()
                self._write(self.database.with_tables(connection), result())
            self.committed = True
        finally:
            self.is_open = False

    def finish(self, target: Target, result: Any) -> None:
        """Write the success in the transaction that is open on *target*. Raises LeaseLost."""
        self.refuse_if_over("ctx.finish()")
        # Imported only here, because user_connections imports the dialects of both databases.
        from cronjobs.engine.database.user_connections import commits_by_itself

        self.check()
        connection = connection_of(target, self.database.address.schema, "ctx.finish")
        if commits_by_itself(connection):
            raise UsageError("ctx.finish() must be called in a transaction: begin one, and do the work in it")
        self._write(connection, result)
        self.given = True

    def _write(self, connection: Connection, result: Any) -> None:
        if not finish_here(connection, self._success(result)):
            raise LeaseLost(
                f"attempt {self.job.attempt} of job {self.job.id} no longer holds its lease, or this "
                "connection does not see the job. A connection sees the job only if it leads to the jobs database (or, "
                "under drain(), if it is the test's connection). Roll this transaction back"
            )

    def _success(self, result: Any) -> Finish:
        ran = timedelta(seconds=max(0.0, self.clock.monotonic() - self.started))
        finished = Finished(self.job, Succeeded(result), ran, self.worker)
        return decide_end(finished, RetryPolicy(), self.clock.now(), max_losses=1).finish

    def refuse_if_over(self, what: str) -> None:
        """Raise UsageError if *what* is called inside or after the transaction that ends the job."""
        if self.is_open:
            raise UsageError(
                f"{what} was called inside ctx.transaction(), but needs a transaction of its own. Do effects and steps "
                "before the block. Inside the block, do only what the database can roll back"
            )
        if self.committed or self.given:
            raise UsageError(
                f"{what} was called after the job's success had been written, so nothing more can be recorded"
            )

    def not_committed(self) -> Failed | None:
        """Return the outcome if the handler called ``finish`` and did not commit, or None if it did not call it.

        If the handler did commit, this outcome is never written: the job has already ended, so the fence rejects the
        write.
        """
        if not self.given:
            return None
        said = "ctx.finish() was called but its transaction was not committed: commit it before the handler returns"
        return Failed(said, NOT_COMMITTED)
