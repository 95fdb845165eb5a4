"""The client of a Dask cluster: submit guards to the scheduler, get their reports, and stop running attempts.

This module needs the extra ``cronjobs[dask]``. Only a supervisor and ``check --live`` import it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from distributed import Client, Future
from distributed.scheduler import KilledWorker
from distributed.security import Security

from cronjobs.contrib.dask import guard
from cronjobs.contrib.dask.messages import Begun, Progressed, TaskEnd, news
from cronjobs.engine.config.settings import ExecutorSettings

CONNECT_WITHIN_S: Final = 5.0
STOP_WITHIN_S: Final = 5.0  # seconds to wait for a worker's answer to a stop request
RESULT_WITHIN_S: Final = 5.0  # seconds to wait for a worker's result, which is also in the database


class ClusterAway(Exception):
    """The scheduler cannot be reached."""


class DaskCluster:
    """A connection to one scheduler. Dask's threads call ``heard`` with each end of a task and each guard's message."""

    def __init__(
        self, executor: ExecutorSettings, topic: str, heard: Callable[[TaskEnd | Begun | Progressed], None]
    ) -> None:
        self.executor = executor
        self.topic = topic
        self._heard = heard
        self._client: Client | None = None
        self._futures: dict[str, Future] = {}
        self._stopping: set[tuple[int, int]] = set()  # (job, attempt) of stop calls in progress
        self._avoided: dict[str, float | None] = {}  # avoided worker → when the scheduler last heard from it
        self._calls = ThreadPoolExecutor(1, "cronjobs-cluster-calls")  # runs calls that wait for the scheduler
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # we report Dask's errors ourselves

    @property
    def up(self) -> bool:
        return self._client is not None and self._client.status == "running"

    def connect(self) -> None:
        """Connect or reconnect. Raises ClusterAway."""
        self.close()
        try:
            client = Client(
                self.executor.dask,
                security=_security(self.executor),
                timeout=CONNECT_WITHIN_S,
                set_as_default=False,
                name="cronjobs",
            )
            client.subscribe_topic(self.topic, self._event)
        except Exception as error:
            # OSError, TimeoutError, an SSL error, or any error from a scheduler of another version
            raise ClusterAway(f"{type(error).__name__}: {error}") from None
        self._client = client

    def submit(self, name: str, spec: str, *, priority: int) -> None:
        """Submit a guard as a task with a unique *name*. ``heard`` is called when the task ends. Raises ClusterAway."""
        try:
            assert self._client is not None
            preferred = self._preferred()
            future = self._client.submit(
                guard.run,
                spec,
                key=name,
                pure=False,
                retries=0,
                priority=priority,
                resources=dict(self.executor.resources) or None,
                workers=preferred,
                allow_other_workers=preferred is not None,
            )
            self._futures[name] = future
            future.add_done_callback(self._done)
        except Exception as error:
            raise ClusterAway(f"{type(error).__name__}: {error}") from None

    def forget(self, name: str) -> None:
        """Cancel a task that has not begun, and ignore its result."""
        future = self._futures.pop(name, None)
        if future is not None:
            self._calls.submit(_quietly, future.cancel)

    def avoid(self, worker: str) -> None:
        """*worker* has lost an attempt. Prefer other workers until the scheduler hears from it again.

        A frozen worker looks idle to the scheduler, and stays in the scheduler's list for minutes (``worker-ttl``).
        """
        self._avoided.setdefault(worker, None)

    def stop(self, worker: str, job_id: int, attempt: int, reason: str) -> None:
        """Ask the guard on *worker* to stop an attempt. The request may get lost, so callers repeat it."""
        client, called = self._client, (job_id, attempt)
        if client is not None and called not in self._stopping:
            self._stopping.add(called)
            client.loop.add_callback(self._stop, client, worker, called, reason)

    def examine(self) -> Mapping[str, Any]:
        """Call ``guard.examine`` on each worker. Return the answers by address."""
        assert self._client is not None
        found: Mapping[str, Any] = self._client.run(guard.examine, on_error="return")
        return found

    def workers(self) -> Mapping[str, Any]:
        """Return the scheduler's information on its workers, by address."""
        assert self._client is not None
        found: Mapping[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        return found

    def close(self) -> None:
        client, self._client = self._client, None
        self._futures.clear()
        self._stopping.clear()
        self._avoided.clear()
        if client is not None:
            _quietly(client.close, timeout=1)

    def _preferred(self) -> list[str] | None:
        """Return the workers to prefer, or None if there is no worker to avoid."""
        if not self._avoided:
            return None
        heard = {address: worker["last_seen"] for address, worker in self.workers().items()}
        avoided = {address: before or heard.get(address) for address, before in self._avoided.items()}
        self._avoided = {address: before for address, before in avoided.items() if before == heard.get(address, -1.0)}
        return sorted(heard.keys() - self._avoided.keys()) if self._avoided else None

    # --- in threads of Dask -------------------------------------------------------------------------------------------

    async def _stop(self, client: Client, worker: str, called: tuple[int, int], reason: str) -> None:
        # A frozen worker never answers, and calls to other workers must not wait for it.
        try:
            with suppress(Exception):
                await client.run(
                    guard.stop,
                    *called,
                    reason,
                    workers=[worker],
                    on_error="ignore",
                    asynchronous=True,
                    callback_timeout=STOP_WITHIN_S,
                )
        finally:
            self._stopping.discard(called)

    def _done(self, future: Future) -> None:
        name = str(future.key)
        if self._futures.pop(name, None) is None:
            return
        self._heard(_end_of(name, future))

    def _event(self, event: tuple[float, Any]) -> None:
        found = news(event[1])
        if found is not None:
            self._heard(found)


def _end_of(name: str, future: Future) -> TaskEnd:
    if future.status == "finished":
        try:
            return TaskEnd(name, report=str(future.result(timeout=RESULT_WITHIN_S)))
        except Exception as error:
            return TaskEnd(name, why=f"the result could not be fetched from the cluster: {type(error).__name__}")
    if future.status == "error":
        with suppress(Exception):
            raised = future.exception(timeout=RESULT_WITHIN_S)
            if isinstance(raised, KilledWorker):
                return TaskEnd(name, why="the Dask worker died, and so did the workers that the cluster tried next")
            differs = isinstance(raised, ImportError | AttributeError)
            return TaskEnd(name, why=f"the Dask worker raised {type(raised).__name__}: {raised}", differs=differs)
    return TaskEnd(name, why="the cluster has lost the task")


def _quietly(call: Callable[..., object], *arguments: Any, **more: Any) -> None:
    with suppress(Exception):
        call(*arguments, **more)


def _security(executor: ExecutorSettings) -> Security | None:
    if executor.tls is None:
        return None
    return Security(
        require_encryption=True,
        tls_ca_file=str(executor.tls.ca),
        tls_client_cert=str(executor.tls.cert),
        tls_client_key=str(executor.tls.key),
    )
