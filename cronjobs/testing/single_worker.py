"""The only worker of ``drain``. It runs the jobs in the test's own thread, each job in a savepoint."""

from __future__ import annotations

import asyncio
import functools
import inspect
import queue
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from typing import Any, Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from cronjobs.clock import Clock, sleep
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.execution.attempt import Attempt, Ended, WorkerContext
from cronjobs.engine.execution.handler import run_attempt
from cronjobs.engine.execution.raised import outcome_of
from cronjobs.engine.execution.worker_threads import Workers
from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.engine.store.leases import is_held
from cronjobs.errors import Snooze, UsageError
from cronjobs.model import Finished, Succeeded
from cronjobs.testing.lent_connection import LentDatabase, Savepoint, ended_since

WORKER: Final = "drain"


class _Ends(queue.SimpleQueue["Ended | None"]):
    """The queue from which the loop takes outcomes. When the loop waits for an outcome, the queue runs the next job."""

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


class SingleWorker(Workers):
    """One worker, in the thread that waits for outcomes. Each attempt runs in a savepoint.

    ``raised`` lists the exceptions of the handlers that ``noting`` has wrapped, in order.
    """

    def __init__(self, settings: Settings, database: LentDatabase, clock: Clock) -> None:
        run_async = None if database.lender is None else database.lender.run_async
        super().__init__(1, WorkerContext(settings, database, run_async=run_async), clock)
        self._ends = _Ends(self._attempt)
        self.ended = self._ends
        self.raised: list[BaseException] = []
        self._database = database

    def hand(self, attempt: Attempt) -> bool:
        attempt.on_its_way = True
        self._ends.waiting.append(attempt)
        return True

    def take_back(self) -> list[Attempt]:
        unbegun = list(self._ends.waiting)
        self._ends.waiting.clear()
        return unbegun

    def wake(self) -> None:
        pass

    def _attempt(self, attempt: Attempt) -> Ended:
        attempt.worker, attempt.started = WORKER, self.clock.monotonic()
        attempt.in_child_process = False  # a child process would not see uncommitted rows
        database, raised_before = self._database, len(self.raised)
        database.written.clear()
        lender = database.lender
        assert lender is not None
        connection = lender.connection()
        transaction, savepoint = connection.get_transaction(), lender.savepoint()
        # Run in a copy of the context. Handlers then see the context variables that the test has set, such as a
        # session. Changes that one handler makes to these variables do not affect the next handler.
        finished = copy_context().run(run_attempt, attempt, self.around, self.clock)
        error = next(reversed(self.raised[raised_before:]), None)
        try:
            if ended_since(connection, transaction):
                raise UsageError(_ENDED.format(job_type=attempt.job.job_type))
            finished = self._end(attempt, finished, savepoint)
        except DBAPIError:  # the savepoint does not exist any more
            raise UsageError(_ENDED.format(job_type=attempt.job.job_type)) from error
        if error is not None and _is_the_tests(error):
            raise error
        return Ended(attempt, finished, self.clock.monotonic())

    def _end(self, attempt: Attempt, finished: Finished, savepoint: Savepoint) -> Finished:
        """Keep the handler's writes if the handler succeeded or ended its job itself.

        Otherwise keep only our own writes.
        """
        keep = isinstance(finished.outcome, Succeeded) or self._ended_itself(attempt)
        if keep:
            try:
                savepoint.flush()
            except SQLAlchemyError as error:  # in production, the app's COMMIT would have failed too
                self.raised.append(error)
                keep, finished = False, finished._replace(outcome=outcome_of(error, attempt, self.clock))
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
                return not is_held(connection, attempt.lease)
        except SQLAlchemyError:  # a statement of the handler has failed, so only a rollback is possible
            return False

    # --- the handlers -------------------------------------------------------------------------------------------------

    def noting(self, job_types: JobTypes) -> JobTypes:
        """Wrap the handlers so that ``raised`` keeps their exceptions.

        An outcome contains only an exception's message.
        """
        return replace(job_types, types={name: self._noting(job_type) for name, job_type in job_types.types.items()})

    def _noting(self, job_type: JobType) -> JobType:
        registration = job_type.registration
        if registration is None:
            return job_type
        handler = registration.handler

        @functools.wraps(handler)
        def noting(*args: Any, **kwargs: Any) -> Any:
            with self._noted():
                result = handler(*args, **kwargs)
            return self._awaiting(result) if inspect.isawaitable(result) else result

        return replace(job_type, registration=replace(registration, handler=noting))

    async def _awaiting(self, result: Any) -> Any:
        with self._noted():
            return await result

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Snooze):  # a snooze is not a failure, since the job runs again later
                self.raised.append(error)
            raise


_ENDED: Final = (
    "the handler of {job_type} ended the transaction that drain() uses: give the handler's sessions "
    "the test's connection, "
    'Session(connection, join_transaction_mode="create_savepoint")'
)


def _is_the_tests(error: BaseException) -> bool:
    """Whether *error* is Ctrl-C, ``pytest.fail()`` or the like. Such an error must not become a job's failure."""
    return not isinstance(error, Exception | SystemExit | GeneratorExit | asyncio.CancelledError)
