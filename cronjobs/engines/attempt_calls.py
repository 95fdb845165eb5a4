"""The guard's side of ``ctx.map``: makes the calls of its handler tasks of the cluster, and hands their ends back.

The other end is ``execution.calls_by_guard``. When a handler maps for the first time the guard's task secedes: it holds
no slot of its worker any more, so that calls can run there, however many handlers wait for theirs. A task that the
cluster has lost is submitted again for as long as the attempt goes on.
"""

from __future__ import annotations

import contextvars
import json
import math
import queue
import socket
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from cronjobs.clock import SYSTEM
from cronjobs.engines import calls_on_worker
from cronjobs.engines.travelling import Spec
from cronjobs.execution.lines import Lines
from cronjobs.rules import calls
from cronjobs.rules.calls import Call, CallEnd

MOST_AT_ONCE: Final = 500  # tasks in one message to the scheduler
PATIENCE_S: Final = 5.0  # for the end of a first call; then each gets a task of its own
AGAIN_S: Final = 1.0  # after an error of the cluster
CONNECT_WITHIN_S: Final = 5.0
PRIORITY: Final = 1  # above those of guards: what has begun comes to its end first


class AttemptCalls:
    """A block around one attempt. ``descriptor``: what its handler's process talks over."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._ends_at = SYSTEM.monotonic() + spec.request.timeout_s
        ours, self._theirs = socket.socketpair()
        self.descriptor = self._theirs.fileno()
        self._lines = Lines(ours)
        self._mail: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._task = contextvars.copy_context()  # by which Dask knows the worker
        self._maps = threading.Event()
        self._seceded = False
        self._client: Any = None
        self._number, self._at_once, self._missing = 0, 0, 0  # of the map: what has not come yet
        self._waiting: deque[Call] = deque()
        self._running: dict[str, tuple[Any, list[Call]]] = {}  # by the task's key
        self._call_s: float | None = None  # how long a call takes; None: nobody knows yet
        self._asked_at = 0.0  # when the first was submitted
        self._submitted = 0
        self._again_at = 0.0

    def __enter__(self) -> AttemptCalls:
        threading.Thread(target=self._listen, name="cronjobs-map-listen", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._mail.put(None)
        with suppress(OSError):
            self._lines.end.shutdown(socket.SHUT_RDWR)
        self._theirs.close()

    def look(self) -> None:
        """In the attempt's thread: give its slot away once its handler maps."""
        if self._maps.is_set() and not self._seceded:
            self._seceded = True
            with suppress(Exception):  # then it keeps a slot
                from distributed import secede

                secede()

    # --- threads of its own -------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Read what the handler says, at any time: it sends a map as a whole before it reads an end."""
        attending = None
        with suppress(OSError):
            while (found := self._lines.receive()) is not None:
                if attending is None:
                    attending = threading.Thread(target=self._attend, name="cronjobs-map", daemon=True)
                    attending.start()
                for line in found:
                    self._mail.put(line)
        self._lines.close()

    def _attend(self) -> None:
        mail: Any = b""
        while mail is not None:
            try:
                mail = self._mail.get(timeout=AGAIN_S)
                self._take(mail)
                self._submit()
            except queue.Empty:
                with suppress(Exception):  # the scheduler is away
                    self._submit()
            except Exception:  # likewise: what is waiting is tried again
                continue
        self._end(forever=True)

    def _take(self, mail: Any) -> None:
        match mail:
            case None:
                pass
            case bytes():
                self._hear(*json.loads(mail))
            case _:
                self._collect(mail)

    def _hear(self, kind: str, *facts: Any) -> None:
        if kind == "map":
            self._number, self._missing, at_once = facts
            self._at_once = at_once or self._missing
            self._waiting.clear()
            self._call_s, self._asked_at = None, math.inf
            self._maps.set()
        elif kind == "call":
            self._waiting.append(Call.decode(facts[0]))
            self._missing -= 1
        else:
            self._end(forever=False)

    def _submit(self) -> None:
        """Submit as many as may run. Raises what Dask raises when its scheduler is away."""
        if self._missing or not self._waiting or SYSTEM.monotonic() < self._again_at:
            return
        if self._client is None:
            self._client = self._task.run(_client)
        need = self._need()
        if need is None:
            self._refuse(list(self._waiting))
            self._waiting.clear()
            return
        spec = self._spec.for_calls(max(0.0, self._ends_at - SYSTEM.monotonic())).encode()
        while bundles := self._bundles():
            try:
                futures = self._client.map(
                    calls_on_worker.run,
                    [[call.encode() for call in these] for these in bundles],
                    spec_text=spec,
                    key=[self._key(these[0]) for these in bundles],
                    pure=False,
                    retries=0,
                    priority=PRIORITY,
                    resources=need or None,
                )
            except BaseException:
                self._waiting.extendleft(call for these in reversed(bundles) for call in reversed(these))
                raise
            self._running |= {str(future.key): (future, these) for future, these in zip(futures, bundles, strict=True)}
            for future in futures:
                future.add_done_callback(self._mail.put)

    def _bundles(self) -> list[list[Call]]:
        """The calls of the next tasks: a few until one has ended and it is known how long they take."""
        slots = max(1, sum(self._client.nthreads().values()))
        now = SYSTEM.monotonic()
        room = self._at_once - len(self._running)
        self._asked_at = min(self._asked_at, now)
        if self._call_s is None and now < self._asked_at + PATIENCE_S:
            room = min(room, 2 * slots - len(self._running))
        found: list[list[Call]] = []
        while self._waiting and len(found) < min(room, MOST_AT_ONCE):
            size = 1 if self._call_s is None else calls.bundle(len(self._waiting), slots, self._call_s)
            found.append([self._waiting.popleft() for _ in range(size)])
        return found

    def _key(self, call: Call) -> str:
        self._submitted += 1
        key = self._spec.key
        # Dask takes the words in front for the name of a kind of task, and estimates by it how long one takes.
        return f"cronjobs-call-{key.job_id}-{key.attempt}-{key.token}-{call.number}-{self._submitted}"

    def _need(self) -> dict[str, float] | None:
        """What the calls need of a worker; None: what their job holds, so that they might wait for it for ever."""
        need = self._spec.calls_need.get(self._waiting[0].job_type, {})
        held = self._spec.calls_need.get(self._spec.request.job.job_type, {})
        return None if need.keys() & held.keys() else need

    def _refuse(self, these: Sequence[Call]) -> None:
        why = (
            f"it needs a resource that its job {self._spec.request.job.job_type} holds while it waits: give the two "
            "types executors of which only that of the calls has resources"
        )
        self._hand_back([calls.failed(call.number, "ResourceHeld", why) for call in these])

    def _collect(self, first: Any) -> None:
        """Take the ends of tasks that are over; look for more of them, to fetch their results together."""
        over: list[Any] = [first]
        others: list[bytes | None] = []
        with suppress(queue.Empty):
            while len(over) < MOST_AT_ONCE:
                mail = self._mail.get_nowait()
                (others if mail is None or isinstance(mail, bytes) else over).append(mail)
        mine = [found for future in over if (found := self._running.pop(str(future.key), None)) is not None]
        finished = [(future, these) for future, these in mine if future.status == "finished"]
        for future, these in mine:
            if future.status == "error":
                self._hand_back(_raised(future, these))
            elif future.status != "finished":  # the scheduler has forgotten it
                self._try_again(these)
        if finished:
            try:
                texts = self._client.gather([future for future, _ in finished])
            except Exception:  # the worker that had one of them died meanwhile
                self._try_again([call for _, these in finished for call in these])
            else:
                ends = [CallEnd.decode(text) for of_task in texts for text in of_task]
                self._call_s = sum(end.took_s for end in ends) / len(ends)
                self._hand_back(ends)
        for mail in others:
            self._take(mail)
            if mail is None:
                self._mail.put(None)

    def _try_again(self, lost: Sequence[Call]) -> None:
        self._waiting.extend(lost)
        self._again_at = SYSTEM.monotonic() + AGAIN_S

    def _hand_back(self, ends: Sequence[CallEnd]) -> None:
        with suppress(OSError):  # the handler has ended
            self._lines.send(*(json.dumps([self._number, end.encode()]) for end in ends))

    def _end(self, *, forever: bool) -> None:
        """Nobody waits for the calls any more: take back what has not begun, and kill what has, on each worker."""
        futures = [future for future, _ in self._running.values()]
        self._running, self._waiting, self._at_once = {}, deque(), 0
        client = self._client
        if client is None:
            return
        with suppress(Exception):
            client.cancel(futures, force=True)
        with suppress(Exception):
            client.run(calls_on_worker.end, self._spec.key.token, forever, on_error="ignore")


def _client() -> Any:
    from distributed import get_client

    return get_client(timeout=CONNECT_WITHIN_S)


def _raised(future: Any, these: Sequence[Call]) -> list[CallEnd]:
    """The ends of calls whose task failed: nothing of ours raises, so its worker could not run it, or died."""
    from distributed.scheduler import KilledWorker

    try:
        raised = future.exception(timeout=CONNECT_WITHIN_S)
    except Exception as error:
        raised = error
    kind, why = type(raised).__name__, f"its worker could not make it: {raised}"
    if isinstance(raised, KilledWorker):
        why = "its worker died, and so did those that were tried next"
    return [calls.failed(call.number, kind, why) for call in these]
