"""The workers of a supervisor's loop: submit each attempt to a cluster, and return its outcome.

One thread attends to all attempts: it writes their tokens, submits them, and gets the cluster's messages. An attempt's
token in the database shows the thread whether the attempt has begun, is running or has ended. The thread does not rely
on the cluster's reports, so no attempt ends because the scheduler is away or has lost its state.
"""

from __future__ import annotations

import queue
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple, Protocol

from cronjobs import events
from cronjobs.clock import Clock, sleep
from cronjobs.contrib.dask import rules
from cronjobs.contrib.dask.messages import Begun, GuardReport, Progressed, Spec, TaskEnd
from cronjobs.engine.config.settings import ExecutorSettings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.execution.attempt import Attempt, Ended, WorkerContext
from cronjobs.engine.execution.handler import as_stored, masked
from cronjobs.engine.execution.worker_threads import Workers, unbegun
from cronjobs.engine.rules.lease import heartbeat_s
from cronjobs.engine.rules.progress import HowFar
from cronjobs.engine.store import tokens
from cronjobs.engine.store.tokens import TokenKey, TokenRow
from cronjobs.errors import DatabaseError
from cronjobs.model import Finished, Lost, Outcome, Released

LOOK_S: Final = 1.0  # seconds between reads of cancel requests, and of the tokens of adrift attempts (see FarAttempt)
IDLE_S: Final = 30.0  # the supervisor exits after this many seconds without an attempt
CONNECT_AGAIN_S: Final = 2.0
WAITING: Final = "waiting"  # why to stop an attempt that has waited too long for a worker
LOST: Final = "the Dask worker died or was disconnected"


class Cluster(Protocol):
    """The methods that this module needs of a cluster. ``DaskCluster`` implements them."""

    @property
    def up(self) -> bool: ...
    def connect(self) -> None: ...
    def submit(self, name: str, spec: str, *, priority: int) -> None: ...
    def forget(self, name: str) -> None: ...
    def avoid(self, worker: str) -> None: ...
    def stop(self, worker: str, job_id: int, attempt: int, reason: str) -> None: ...
    def close(self) -> None: ...


class StopAsked(NamedTuple):
    """The loop asks for an attempt to be stopped."""

    attempt: Attempt
    reason: str


class Connected(NamedTuple):
    """The result of a try to connect to the cluster. If ``error`` is None, we are connected."""

    error: str | None


@dataclass
class FarAttempt:
    """An attempt given to the cluster. ``name`` is the name of its task on the cluster.

    If ``adrift``, this module ignores the cluster's reports, and only the attempt's token shows the attempt's state. If
    ``begun``, a guard on ``worker`` has taken the token. ``if_unbegun`` is the outcome to record if no worker took the
    token in time.
    """

    attempt: Attempt
    key: TokenKey
    since: float
    written: bool = False  # whether the token is in the database
    adrift: bool = False
    begun: bool = False
    worker: str = ""
    asked: str | None = None  # why the attempt has to stop
    why: str = LOST  # the reason to record if no worker runs the attempt any more
    if_unbegun: Outcome = Released()  # noqa: RUF009 Released is frozen, so sharing it is safe

    @property
    def name(self) -> str:
        return f"cronjobs-{self.key.job_id}-{self.key.attempt}-{self.key.token}"


class ClusterWorkers(Workers):
    """Keeps at most ``count`` attempts on the cluster. Calls ``connected`` when the connection is made or lost."""

    def __init__(
        self,
        executor: ExecutorSettings,
        around: WorkerContext,
        clock: Clock,
        *,
        cluster: Callable[[str, Callable[[object], None]], Cluster],
        emit: Callable[[events.Event], None],
        connected: Callable[[bool], None],
    ) -> None:
        super().__init__(executor.in_flight, around, clock)
        self.executor = executor
        self.topic = f"cronjobs-{secrets.token_hex(8)}"
        self._mail: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.cluster = cluster(self.topic, self._mail.put)
        self._emit = emit
        self._connected = connected
        self._far: dict[int, FarAttempt] = {}
        # The final report of these attempts has arrived, but their tokens are not deleted yet.
        self._over: list[tuple[FarAttempt, GuardReport]] = []
        self._differs: dict[str, tuple[float, float]] = {}  # job type → when workers first and last refused it
        self._looked_at = self._tried_at = self._asked_at = -1e9
        self._connecting = self._was_up = self._reported_away = self._left = False

    # --- what the loop calls ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        threading.Thread(target=self._attend, name="cronjobs-cluster", daemon=True).start()

    def hand(self, attempt: Attempt) -> bool:
        attempt.on_its_way = True
        self._mail.put(attempt)
        attempt.stop.when_set(lambda reason: self._mail.put(StopAsked(attempt, reason)))
        return True

    def take_back(self) -> list[Attempt]:
        """Return [], because an unbegun attempt ends only through its token, after a ``StopAsked``."""
        return []

    def leave(self) -> None:
        """Stop the attending thread, before the process exits."""
        self._left = True
        self._mail.put(None)

    # --- the attending thread -----------------------------------------------------------------------------------------

    def _attend(self) -> None:
        while not self._left:
            try:
                self._take_mail(self._wait_s())
                self.attend()
            except DatabaseError:
                sleep(0.2)  # the loop reports the error, and the next round retries the writes
            except Exception as error:  # this is a bug in cronjobs, but the running attempts still need this thread
                self._emit(events.fault_of_ours(error, type(error).__name__))
                sleep(1.0)
        self.cluster.close()

    def attend(self) -> None:
        """Do one round: read the mailbox, then do the work that is due."""
        self._take_mail(0)
        self._attend_to_link()
        self._submit()
        self._look_for_cancels()
        self._look()
        self._let_go()

    def _take_mail(self, wait_s: float) -> None:
        try:
            mail = self._mail.get(timeout=wait_s) if wait_s else self._mail.get_nowait()
            while True:
                self._take(mail)
                mail = self._mail.get_nowait()
        except queue.Empty:
            return

    def _wait_s(self) -> float:
        if self._over or any(not far.written for far in self._far.values()):
            return 0.2  # retry the failed write soon
        if any(self._is_urgent(far) for far in self._far.values()) or not self.cluster.up:
            return LOOK_S / 4
        return LOOK_S

    def _take(self, mail: object) -> None:
        match mail:
            case Attempt():
                key = TokenKey(mail.job.id, mail.job.attempt, secrets.token_hex(16))
                self._far[mail.job.id] = FarAttempt(mail, key, self.clock.monotonic())
            case StopAsked(attempt, reason):
                if (far := self._of(attempt.job.id, attempt.job.attempt)) is not None and far.asked is None:
                    far.asked, far.if_unbegun = reason, unbegun(attempt) or Released()
                    self._looked_at = -1e9
            case Begun(job_id, number, worker):
                if (far := self._of(job_id, number)) is not None:
                    self._note_begun(far, worker, 0.0)
            case Progressed():
                if (far := self._of(mail.job_id, mail.attempt)) is not None:
                    how_far = HowFar(mail.done, mail.of, mail.note)
                    far.attempt.reporting.say(how_far, self.clock.monotonic())
            case Connected(error):
                self._connecting = False
                if error is not None and not self._reported_away:
                    self._reported_away = True
                    self._emit(events.cluster_away(self.executor.name, self.executor.dask, error))
            case TaskEnd():
                self._task_over(mail)

    def _of(self, job_id: int, attempt: int) -> FarAttempt | None:
        far = self._far.get(job_id)
        return far if far is not None and far.key.attempt == attempt else None

    def _note_begun(self, far: FarAttempt, worker: str, ago_s: float) -> None:
        attempt = far.attempt
        if not far.begun:
            far.begun = attempt.begun = True
            self._note_worker(far, worker)
            attempt.started = self.clock.monotonic() - ago_s
            if self.around.on_start is not None:
                self.around.on_start(attempt)

    def _note_worker(self, far: FarAttempt, holder: str | None) -> None:
        """Note which worker runs the attempt. The token's *holder* begins with the worker's address."""
        far.worker = far.worker or (holder or "").partition(" ")[0]
        far.attempt.worker = f"{self.executor.name} {far.worker}".rstrip()

    # --- the link -----------------------------------------------------------------------------------------------------

    def _attend_to_link(self) -> None:
        up, now = self.cluster.up, self.clock.monotonic()
        if up != self._was_up:
            self._was_up = up
            if up and self._reported_away:
                self._reported_away = False
                self._emit(events.cluster_back(self.executor.name, self.executor.dask))
            if not up:
                for far in self._far.values():
                    far.adrift = far.adrift or far.written
            self._connected(up)
        if not up and not self._connecting and now >= self._tried_at + CONNECT_AGAIN_S:
            self._connecting, self._tried_at = True, now
            threading.Thread(target=self._connect, name="cronjobs-connect", daemon=True).start()

    def _connect(self) -> None:
        try:
            self.cluster.connect()
        except Exception as error:
            self._mail.put(Connected(str(error) or type(error).__name__))
        else:
            self._mail.put(Connected(None))

    # --- to the cluster -----------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        ready = []
        for far in [far for far in self._far.values() if not far.written]:
            if far.asked is not None:
                self._end(far, far.if_unbegun)
            elif self.cluster.up:
                ready.append(far)
            else:
                why = f"the scheduler of executor {self.executor.name} cannot be reached"
                self._end(far, rules.not_begun(why))
        if not ready:
            return
        with self._database.write() as connection:
            written = tokens.put(connection, [far.key for far in ready])
        for far in ready:
            far.written = far.key.job_id in written
            if far.written:
                self._submit_one(far)
            else:
                why = "an earlier attempt may keep running on the cluster until its permit to run expires"
                self._end(far, rules.not_begun(why))

    def _submit_one(self, far: FarAttempt) -> None:
        spec = Spec.of(far.attempt, far.key, self.around.settings, self.topic)
        try:
            self.cluster.submit(far.name, spec.encode(), priority=-far.attempt.job.priority)
        except Exception as error:
            far.adrift = True
            far.if_unbegun = rules.not_begun(f"the job could not be submitted to {self.executor.name}: {error}")

    # --- from the cluster ---------------------------------------------------------------------------------------------

    def _task_over(self, end: TaskEnd) -> None:
        far = next((far for far in self._far.values() if far.name == end.name), None)
        if far is None:
            return
        report = None if end.report is None else GuardReport.decode(end.report)
        if report is not None and report.said == "ended":
            self._note_begun(far, far.worker, report.took.total_seconds())
            self._over.append((far, report))
            return
        far.adrift = True
        if far.asked is not None:
            return
        if end.differs or (report is not None and report.said == "differs"):
            far.if_unbegun = self._of_difference(far, report.why if report is not None else end.why)
        elif report is not None and report.said == "cannot":
            far.if_unbegun = rules.not_begun(report.why)
        elif report is None:
            far.why = end.why
            far.if_unbegun = rules.not_begun(f"executor {self.executor.name}: {end.why}")

    def _of_difference(self, far: FarAttempt, why: str) -> Outcome:
        job_type, now = far.attempt.job.job_type, self.clock.monotonic()
        since = rules.differing_since(now, self._differs.get(job_type))
        self._differs[job_type] = (since, now)
        return rules.of_difference(why, now - since)

    # --- by tokens --------------------------------------------------------------------------------------------------

    def _is_urgent(self, far: FarAttempt) -> bool:
        """Whether only the attempt's token can show the attempt's state."""
        return far.adrift or far.asked is not None

    def _look(self) -> None:
        """If it is time to look again, read the tokens in the database, and act on what each says about its attempt.

        Look more often while an attempt is urgent.
        """
        now = self.clock.monotonic()
        written = [far for far in self._far.values() if far.written]
        self._note_waiting(written, now)
        urgent = any(self._is_urgent(far) for far in written)
        every_s = min(LOOK_S, self._heartbeat_s) if urgent else self._heartbeat_s
        if not written or now < self._looked_at + every_s:
            return
        with self._database.read() as connection:
            rows = tokens.look(connection, [far.key for far in written])
        self._looked_at = now
        reported = {id(far) for far, _ in self._over}
        for far in written:
            if id(far) not in reported:
                self._look_at(far, rows.get(far.key.job_id))
        self._close([far for far in written if self._is_urgent(far)])

    def _look_at(self, far: FarAttempt, row: TokenRow | None) -> None:
        if row is None:  # the token is gone, so the attempt no longer belongs to us
            self._end(far, Lost() if far.begun else far.if_unbegun)
            return
        if row.holder is not None:
            self._note_begun(far, "", row.taken_s or 0.0)
            self._note_worker(far, row.holder)
        if (row.left_s or 0.0) < 0 and not far.attempt.ended_itself:
            far.adrift = True  # the permit has expired, so the worker is dead, frozen or cut off
        if row.ended is not None and far.adrift:
            self._over.append((far, GuardReport.decode(row.ended)))

    def _close(self, some: list[FarAttempt]) -> None:
        """End the attempts in *some* that no worker runs. If a running attempt must stop, ask its guard to stop it."""
        some = [far for far in some if far.key.job_id in self._far and all(far is not other for other, _ in self._over)]
        if not some:
            return
        with self._database.write() as connection:
            closed = tokens.close(connection, [far.attempt.lease for far in some]).over
        for far in some:
            if far.key.job_id in closed:
                self.cluster.forget(far.name)
                if far.worker:
                    self.cluster.avoid(far.worker)
                self._end(far, Lost(f"{far.why}, and its permit to run has expired") if far.begun else far.if_unbegun)
            elif far.asked == WAITING:
                far.asked = None  # the attempt has begun after all
            elif far.asked is not None and far.worker and self.cluster.up:
                self.cluster.stop(far.worker, far.key.job_id, far.key.attempt, far.asked)

    def _look_for_cancels(self) -> None:
        """Read cancel requests, more often than the loop does when it renews leases."""
        now, running = self.clock.monotonic(), [far for far in self._far.values() if far.asked is None]
        if not running or now < self._asked_at + LOOK_S:
            return
        with self._database.read() as connection:
            found = tokens.cancelled(connection, [far.key for far in running])
        self._asked_at = now
        for job_id in found:
            self._far[job_id].attempt.stop.set("cancelled")
        self._take_mail(0)

    def _note_waiting(self, written: list[FarAttempt], now: float) -> None:
        """Mark attempts that have waited too long for a worker. Those that no worker has begun are then released."""
        for far in written:
            if not far.begun and far.asked is None and now >= far.since + self.executor.queue_wait.total_seconds():
                far.asked = WAITING
                far.if_unbegun = rules.of_waiting(self.executor.name, self.executor.queue_wait)
                self._looked_at = -1e9

    def _let_go(self) -> None:
        """Delete the tokens of attempts whose report has arrived, then give their outcomes to the loop."""
        if not self._over:
            return
        with self._database.write() as connection:
            holders = tokens.drop(connection, [far.key for far, _ in self._over])
        over, self._over = self._over, []
        for far, report in over:
            assert report.outcome is not None
            self._note_worker(far, holders.get(far.key.job_id))
            outcome = report.outcome
            # A Released with an error: the worker has different code, so the attempt has not begun.
            if isinstance(outcome, Released) and outcome.error is not None:
                outcome = self._of_difference(far, f"worker {far.worker}: {outcome.error}")
            else:
                self._differs.pop(far.attempt.job.job_type, None)
            self._end(far, outcome, report)

    def _end(self, far: FarAttempt, outcome: Outcome, report: GuardReport | None = None) -> None:
        if self._far.get(far.key.job_id) is not far:
            return
        del self._far[far.key.job_id]
        took = report.took if report is not None else timedelta(0)
        if report is None and far.attempt.started is not None:
            took = timedelta(seconds=max(0.0, self.clock.monotonic() - far.attempt.started))
        secrets_ = self.around.settings.secrets_of(far.attempt.job)
        output = None if report is None else report.output
        finished = Finished(
            far.attempt.job,
            masked(outcome, secrets_),
            took,
            far.attempt.worker,
            as_stored(output, secrets_),
        )
        if far.begun and self.around.on_end is not None:
            self.around.on_end(finished)
        self.ended.put(Ended(far.attempt, finished, self.clock.monotonic()))

    @property
    def _database(self) -> Database:
        assert self.around.database is not None
        return self.around.database

    @property
    def _heartbeat_s(self) -> float:
        return heartbeat_s(self.around.settings.run.lease.total_seconds())
