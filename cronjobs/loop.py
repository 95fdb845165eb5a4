"""The one loop of a tick: claim, hand to workers, collect ends, have them written, renew leases, keep time.

It alone writes leases and outcomes, in one transaction a turn (``turn``); workers only compute. What a turn changes in
memory is changed after the commit, so that a turn that failed is simply done again.
"""

from __future__ import annotations

import math
import queue
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.clock import Clock, sleep
from cronjobs.counts import Counts
from cronjobs.database import Database
from cronjobs.ends import Decided, decide_end, lease_of, running_row
from cronjobs.errors import BadValue, DatabaseBusy, DatabaseError
from cronjobs.jobtypes import JobType, JobTypes
from cronjobs.model import CancelledByRequest, Failed, Finished, Interrupted, Job, Released, TimedOut, duration_text
from cronjobs.policy import fits
from cronjobs.settings import Settings
from cronjobs.store import leases
from cronjobs.store.claims import Admission
from cronjobs.store.leases import Finish, Renewal
from cronjobs.turn import Order, Turn, Writer
from cronjobs.watchdog import Watchdog
from cronjobs.worker import COMMAND_GRACE, Attempt, Ended, Workers

MOST_AHEAD: Final = 250  # claimed before a slot is free for it
AHEAD_S: Final = 0.05  # how far a claim reaches ahead of what will start
POLL_S: Final = 1.0  # how often a loop with free slots looks for new work while other jobs run
UNBEGUN_S: Final = 1.0  # after this, what was claimed ahead goes back: its turn will not come soon
CUT_LEASE: Final = timedelta(seconds=2)
LAST_BREATH_S: Final = 1.5  # once leases are cut to 2 s, this process must be gone before they end
PAST_DEADLINE_S: Final = 1.0  # where the watchdog stands
LINGER_S: Final = 0.25  # what stops when it is told to, at its time-out, still ends in this tick
LOCKED_PAUSE_S: Final = 0.1  # until the next try for a row that somebody's transaction holds
BUSY_IS_TROUBLE_S: Final = 3.0  # others write too: waiting for a turn is nothing to tell before this
LONGEST_TIMEOUT_S: Final = 1e8  # plain SQL can write any number, and a timedelta cannot hold it


@dataclass(frozen=True)
class Limits:
    """What a caller narrowed a tick to; None: no limit."""

    queue: str | None = None
    only: str | None = None  # a job type
    jobs: int | None = None  # how many are claimed at most


@dataclass
class Loop:
    """State of one tick's loop. Instants are seconds of the monotonic clock."""

    database: Database
    settings: Settings
    job_types: JobTypes
    workers: Workers
    watchdog: Watchdog
    clock: Clock
    locked_by: str
    deadline: float
    database_now: datetime  # as read at ``now_read_at``; between readings the monotonic clock counts on
    now_read_at: float
    emit: Callable[[events.Event], None]
    before_writing: Callable[[Connection], None]
    limits: Limits = field(default_factory=Limits)
    counts: Counts = field(default_factory=Counts)
    trouble: DatabaseError | None = None  # what the last turn's database said; None: it went well

    def __post_init__(self) -> None:
        self.writer = Writer(
            self.database,
            self.clock,
            locked_by=self.locked_by,
            lease=self.settings.run.lease,
            before_writing=self.before_writing,
        )
        self.held: dict[int, Attempt] = {}  # every lease in our hands, by job id
        self.leased_at: dict[int, float] = {}  # when the statement that last extended it was sent
        self.adrift: list[Attempt] = []  # their lease is lost, their thread still runs and keeps its slot
        self.unwritten: list[Ended] = []
        self.unrecorded: list[Attempt] = []  # overdue, their history row not yet written
        self.stopping: str | None = None
        self.stop_by = math.inf
        self.hurry = False  # a second signal: end now
        self.next_renewal = math.inf
        self.next_claim = 0.0
        self.nothing_due = False
        self.gone_by = math.inf  # the process must be gone by then, whatever else is
        self.typical_s: float | None = None
        self.trouble_pause_s = 0.05
        self.trouble_since = 0.0
        self.trouble_told = False

    # --- the story ----------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Work until nothing is due, time is up, or no slot will come free; say which."""
        while True:
            self._note_overdue()
            self._give_back_what_waits()
            self._turn()
            ended = self._ended()
            if ended is not None:
                return ended
            self._collect(self._wait_s())

    def stop(self, reason: str) -> None:
        """Begin shutdown (called from a signal handler): contexts say so at once, no more claims; again: end now."""
        if self.stopping is not None:
            self.hurry = True
            self.gone_by = min(self.gone_by, self.clock.monotonic() + LAST_BREATH_S)
            self._move_watchdog()
        else:
            self.stopping = reason
            grace_s = self.settings.run.shutdown_grace.total_seconds()
            self.stop_by = min(self.clock.monotonic() + grace_s, self.deadline)
            for attempt in list(self.held.values()):
                attempt.stop.set("shutdown")
        self.workers.wake()

    def finish(self, last_write: Callable[[Connection], None]) -> bool:
        """The last transaction: ends, history of what still runs, leases cut to 2 s; whether a thread still runs.

        If one does, the caller must end the process before those leases end, so that no second owner can begin while
        the code still runs here. From the first try on they may be cut, whatever its answer was.
        """
        self._release(self.workers.take_back())
        while True:
            self._collect(0)
            stuck = self._stuck()

            def write(connection: Connection, stuck: list[Attempt] = stuck) -> None:
                if stuck:
                    self.gone_by = min(self.gone_by, self.clock.monotonic() + LAST_BREATH_S)
                    self._move_watchdog()
                    leases.cut_leases(connection, [lease_of(attempt.job) for attempt in stuck], CUT_LEASE)
                last_write(connection)

            done = self._turn(last=write)
            until = min(self.deadline, self.gone_by - LAST_BREATH_S / 2)
            if done or self.hurry or self.clock.monotonic() >= until:
                self._tell_unwritten()
                return bool(stuck or self.adrift)
            sleep(max(0.0, min(self.trouble_pause_s, until - self.clock.monotonic())))

    def _stuck(self) -> list[Attempt]:
        """What runs on although the tick ends; noted as interrupted, if it was not overdue before."""
        stuck = self._busy()
        for attempt in stuck:
            if attempt.recorded is None:
                attempt.recorded = "interrupted"
                attempt.stop.set("shutdown")
                self.unrecorded.append(attempt)
                self.counts.interrupted += 1
                self.emit(events.job_still_running(attempt.job, attempt.worker, self.stopping or "end of the tick"))
        return stuck

    def _tell_unwritten(self) -> None:
        if self.trouble is not None and not self.trouble_told:
            self.emit(events.database_trouble(str(self.trouble)))
        for ended in self.unwritten:
            why = "the database was not there" if self.trouble else "its row stayed locked by another session"
            self.emit(events.end_not_recorded(ended.finished.job, ended.finished.worker, why))

    # --- one turn -----------------------------------------------------------------------------------------------------

    def _turn(self, last: Callable[[Connection], None] | None = None) -> bool:
        """Write what ended, renew what is held, claim what comes next, in one transaction; whether it went well."""
        now = self.clock.monotonic()
        room = 0 if last else self._room(now)
        renew = now >= self.next_renewal and not last
        if not (self.unwritten or self.unrecorded or room or renew or self.writer.claim_unsettled or last):
            return True
        order = Order(
            ends=[(ended, self._decide(ended)) for ended in self.unwritten],
            overdue=[self._overdue_row(attempt) for attempt in self.unrecorded],
            held=[lease_of(attempt.job) for attempt in self.held.values()],
            renew=renew,
            room=room,
            admission=self._admission(),
            last=last,
        )
        try:
            turn = self.writer.write(order)
        except BadValue as error:
            if self.unwritten and self._write_one_by_one():
                return last is None
            return self._note_trouble(error)
        except DatabaseError as error:
            return self._note_trouble(error)
        self._well()
        self._after(turn)
        if room:
            self.nothing_due = len(turn.claimed) < room
            self.next_claim = turn.sent + POLL_S if self.nothing_due else 0.0
        if last is None:
            self._move_watchdog()
        return True

    def _write_one_by_one(self) -> bool:
        """One bad value must not hold up a batch: each end for itself; whether the database was there for all."""
        for ended in list(self.unwritten):
            try:
                turn = self.writer.write_one((ended, self._decide(ended)))
            except BadValue as error:  # in no form: its lease runs out, and the next tick finds it lost
                self.unwritten = [other for other in self.unwritten if other is not ended]
                self._forget(ended)
                self.emit(events.database_trouble(str(error)))
            except DatabaseError as error:
                self._note_trouble(error)
                return False
            else:
                self._after(turn)
        self._well()
        return True

    def _admission(self) -> Admission:
        remaining = timedelta(seconds=self.deadline - self.clock.monotonic())
        known = {n: t for n, t in self.job_types.types.items() if self.limits.only in (None, n)}
        return Admission(
            known=known.keys(),
            fitting=[name for name, job_type in known.items() if fits(_whole_time(job_type), remaining)],
            remaining_s=remaining.total_seconds(),
            longest_s=self.settings.run.budget.total_seconds(),
            queue=self.limits.queue,
        )

    # --- after the commit ---------------------------------------------------------------------------------------------

    def _after(self, turn: Turn) -> None:
        self.unrecorded = [a for a in self.unrecorded if a.job.id not in turn.recorded and a.job.id in self.held]
        settled = turn.written.written | turn.written.lost
        self.unwritten = [ended for ended in self.unwritten if ended.attempt.job.id not in settled]
        for ended, decided in turn.ends:
            job_id = decided.finish.lease.job_id
            if job_id in turn.written.written:
                self._forget(ended)
                self.counts.count(decided, ended.attempt.recorded)
                if isinstance(decided.finished.outcome, Released):
                    self.emit(events.job_released(ended.attempt.job))
                else:
                    policy = self.job_types.policy(ended.attempt.job.job_type, self.settings)
                    self.emit(events.job_ended(decided.finished, decided.transition, policy))
            elif job_id in turn.written.lost:
                self._forget(ended)
                # Given back by a COMMIT without an answer, and taken by another: of this attempt nothing is missing.
                if not isinstance(decided.finished.outcome, Released):
                    self._tell_lost(ended.attempt)
        if turn.renewal is not None:
            self._after_renewal(turn.renewal, turn.sent)
        if turn.database_now is not None:
            self.database_now, self.now_read_at = turn.database_now, turn.sent
        self._begin(turn.settled, turn.sent, late=True)
        self._begin(turn.claimed, turn.sent)

    def _begin(self, jobs: Sequence[Job], sent: float, late: bool = False) -> None:
        """Hand claimed jobs to the workers; of those found *late* only what still fits into the tick."""
        for job in jobs:
            job_type = self.job_types.types.get(job.job_type)
            if job_type is None:  # only by an unsettled claim of a type that is gone: the lease runs out
                continue
            timeout = job_type.timeout
            if job.timeout_s is not None:
                timeout = timedelta(seconds=min(LONGEST_TIMEOUT_S, job.timeout_s))  # NaN too gives the first
            attempt = self.held[job.id] = Attempt(job, job_type, timeout, claimed=sent)
            self.leased_at[job.id] = sent
            self.counts.claimed += 1
            self.emit(events.job_claimed(job))
            remaining = timedelta(seconds=self.deadline - self.clock.monotonic())
            if self.stopping is not None or (late and not fits(timeout, remaining)):
                self._release([attempt])
            else:
                self.workers.hand(attempt)
        if jobs:
            self.next_renewal = min(self.next_renewal, sent + self._heartbeat_s())

    def _after_renewal(self, renewal: Renewal, sent: float) -> None:
        for job_id in renewal.renewed & self.held.keys():
            self.leased_at[job_id] = sent
        for job_id in renewal.cancel_requested & self.held.keys():
            self.held[job_id].stop.set("cancelled")
        for job_id in renewal.lost & self.held.keys():
            self._lose(job_id)
        locked = self.held.keys() - renewal.renewed  # by someone's open transaction: come back soon
        self.next_renewal = sent + (min(0.25, self._heartbeat_s()) if locked else self._heartbeat_s())

    def _forget(self, ended: Ended) -> None:
        self.held.pop(ended.attempt.job.id, None)
        self.leased_at.pop(ended.attempt.job.id, None)
        if not self.held:
            self.next_renewal = math.inf

    def _lose(self, job_id: int) -> None:
        """The lease was taken over or ran out: stop the code, forget the job, record nothing."""
        attempt = self.held.pop(job_id)
        self.leased_at.pop(job_id, None)
        ended = any(end.attempt is attempt for end in self.unwritten)
        self.unwritten = [end for end in self.unwritten if end.attempt is not attempt]
        attempt.stop.set("lease lost")
        if attempt.started is not None and not ended:
            self.adrift.append(attempt)
        self._tell_lost(attempt)

    def _tell_lost(self, attempt: Attempt) -> None:
        self.counts.lease_lost += 1
        self.emit(events.lease_lost(attempt.job, attempt.worker))

    def _move_watchdog(self) -> None:
        """Nobody runs on past a lease: the kernel's timer stands before the first of them ends."""
        lease_s = self.settings.run.lease.total_seconds()
        margin_s = min(2.0, lease_s / 10)
        first = min(list(self.leased_at.values()), default=math.inf)
        self.watchdog.stand_at(min(self.deadline + PAST_DEADLINE_S, first + lease_s - margin_s, self.gone_by))

    def _note_trouble(self, error: DatabaseError) -> bool:
        now = self.clock.monotonic()
        if self.trouble is None:
            self.trouble_since, self.trouble_told = now, False
        self.trouble = error
        patient = isinstance(error, DatabaseBusy) and now - self.trouble_since < BUSY_IS_TROUBLE_S
        if not self.trouble_told and not patient:
            self.emit(events.database_trouble(str(error)))
            self.trouble_told = True
        self.trouble_pause_s = min(1.0, self.trouble_pause_s * 2) * random.uniform(0.8, 1.2)
        return False

    def _well(self) -> None:
        self.trouble, self.trouble_pause_s = None, 0.05

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _collect(self, wait_s: float) -> None:
        """Wait for an end, then take all that are there."""
        try:
            ended = self.workers.ended.get(timeout=wait_s) if wait_s > 0 else self.workers.ended.get_nowait()
            first = self.clock.monotonic()
            while True:
                if ended is not None:
                    self._take(ended)
                ended = self._next_end(first + AHEAD_S / 2, wait_s > 0)
        except queue.Empty:
            pass

    def _next_end(self, until: float, may_wait: bool) -> Ended | None:
        """The next end that is there. With many short jobs in hand, wait a little, so that one write takes a heap."""
        left = until - self.clock.monotonic()
        if may_wait and left > 0 and len(self.held) - len(self.unwritten) > max(self.workers.count, self._ahead() // 2):
            return self.workers.ended.get(timeout=left)
        return self.workers.ended.get_nowait()

    def _take(self, ended: Ended) -> None:
        attempt = ended.attempt
        self.adrift = [other for other in self.adrift if other is not attempt]
        if self.held.get(attempt.job.id) is not attempt:
            return  # its lease is lost: whatever it did, nothing of it is recorded
        if isinstance(ended.finished.outcome, Released):
            self._release([attempt])
            return
        self.nothing_due, self.next_claim = False, 0.0  # it may have enqueued more
        seconds = ended.finished.duration.total_seconds()
        self.typical_s = seconds if self.typical_s is None else 0.9 * self.typical_s + 0.1 * seconds
        if attempt.stop.reason == "cancelled" and isinstance(ended.finished.outcome, Failed | Interrupted | TimedOut):
            # Whatever it raised on its way out: somebody called it off, and it is not tried again.
            ended = Ended(attempt, replace(ended.finished, outcome=CancelledByRequest()), ended.at)
        elif attempt.recorded == "timed_out" and isinstance(ended.finished.outcome, Failed | Interrupted):
            # It ended after its time-out, by an error: it timed out. A result would have counted.
            late = replace(ended.finished, outcome=self._timed_out(attempt))
            ended = Ended(attempt, late, ended.at)
        self.unwritten.append(ended)

    def _decide(self, ended: Ended) -> Decided:
        now = self.clock.monotonic()
        return decide_end(
            ended.finished,
            self.job_types.policy(ended.attempt.job.job_type, self.settings),
            self.database_now + timedelta(seconds=now - self.now_read_at),
            ended_ago=timedelta(seconds=max(0.0, now - ended.at)),
            max_losses=self.settings.run.max_losses,
        )

    # --- keeping time -------------------------------------------------------------------------------------------------

    def _note_overdue(self) -> None:
        """A thread cannot be killed: past its time-out it is recorded so, and keeps its slot, row and lease."""
        self._collect(0)  # what ended while a turn took its time is not overdue
        now = self.clock.monotonic()
        for attempt in self._busy():
            if attempt.recorded is None and now >= attempt.overdue_at:
                attempt.recorded, attempt.recorded_at = "timed_out", now
                attempt.stop.set("timeout")
                self.unrecorded.append(attempt)
                self.counts.timed_out += 1
                self.emit(events.job_timed_out(attempt.job, attempt.worker, attempt.timeout))

    def _lingers_until(self) -> float:
        return max((a.recorded_at + LINGER_S for a in self.held.values() if a.recorded is not None), default=0.0)

    def _timed_out(self, attempt: Attempt) -> TimedOut:
        return TimedOut(f"still running after its timeout of {duration_text(attempt.timeout)}")

    def _overdue_row(self, attempt: Attempt) -> Finish:
        outcome = self._timed_out(attempt) if attempt.recorded == "timed_out" else Interrupted()
        started = attempt.started if attempt.started is not None else self.clock.monotonic()
        ran = timedelta(seconds=max(0.0, self.clock.monotonic() - started))
        return running_row(attempt.job, outcome, ran, attempt.worker)

    def _give_back_what_waits(self) -> None:
        """Jobs claimed ahead behind ones that turn out slow: other runners shall have them."""
        now = self.clock.monotonic()
        waits = any(attempt.started is None and now - attempt.claimed > UNBEGUN_S for attempt in self.held.values())
        if waits or self.stopping is not None:
            self._release(self.workers.take_back())

    def _release(self, attempts: list[Attempt]) -> None:
        now = self.clock.monotonic()
        taken = {id(ended.attempt) for ended in self.unwritten}
        for attempt in attempts:
            if self.held.get(attempt.job.id) is attempt and id(attempt) not in taken:
                self.unwritten.append(Ended(attempt, Finished(attempt.job, Released()), now))
                self.typical_s = None  # and claim no further ahead until the pace is known again

    def _busy(self) -> list[Attempt]:
        """What is claimed and has not ended, begun or not."""
        ended = {id(end.attempt) for end in self.unwritten}
        return [attempt for attempt in self.held.values() if id(attempt) not in ended]

    def _room(self, now: float) -> int:
        """How many jobs to claim now: free slots, and what will start within about 50 ms."""
        if self.stopping is not None or now < self.next_claim or now >= self.deadline:
            return 0
        busy = self._busy()
        overdue = sum(attempt.recorded is not None for attempt in busy)
        slots = self.workers.count - overdue - len(self.adrift)
        if slots <= 0:
            return 0
        room = slots + self._ahead() - (len(busy) - overdue)
        if self.limits.jobs is not None:
            room = min(room, self.limits.jobs - self.counts.claimed)
        return max(0, room)

    def _ahead(self) -> int:
        """How many jobs will start within about 50 ms; one worker takes one at a time, in exact order."""
        if self.workers.count == 1 or self.typical_s is None:
            return 0
        return min(MOST_AHEAD, int(self.workers.count * AHEAD_S / max(self.typical_s, 0.0001)))

    def _ended(self) -> str | None:
        now = self.clock.monotonic()
        busy = self._busy()
        working = [attempt for attempt in busy if attempt.recorded is None]
        if self.hurry:
            return f"{self.stopping}, twice"
        if now >= self.deadline:
            return "time is up"
        if self.stopping is not None and (not busy or now >= self.stop_by):
            return self.stopping
        if self.unwritten or self.trouble is not None or now < self._lingers_until():
            return None
        if self.limits.jobs is not None and self.counts.claimed >= self.limits.jobs and not working:
            return "the limit is reached"
        if len(busy) - len(working) + len(self.adrift) >= self.workers.count:
            return "no slot will come free"
        if not busy and self.nothing_due:
            return "nothing is due"
        if not working and self.nothing_due and busy:
            return "nothing else is due"
        return None

    def _wait_s(self) -> float:
        """Until the next thing to do by the clock; an end cuts it short."""
        now = self.clock.monotonic()
        if self.trouble is not None:
            return max(0.001, min(self.trouble_pause_s, self.deadline - now, self.stop_by - now))
        moments = [self.deadline, self.stop_by, self.next_renewal]
        if now < self._lingers_until():
            moments.append(self._lingers_until())
        if self.unwritten or self.unrecorded:  # their rows are locked by someone else
            moments.append(now + LOCKED_PAUSE_S)
        if self.stopping is None and len(self._busy()) + len(self.adrift) < self.workers.count:
            moments.append(self.next_claim)
        for attempt in self.held.values():
            if attempt.started is None:
                moments.append(attempt.claimed + UNBEGUN_S + 0.01)
            elif attempt.recorded is None:
                moments.append(attempt.overdue_at)
        return max(0.001, min(moments) - now)

    def _heartbeat_s(self) -> float:
        return self.settings.run.lease.total_seconds() / 4


def _whole_time(job_type: JobType) -> timedelta:
    """What a job may take of the tick: its time-out, and for a command the grace after it."""
    return job_type.timeout + COMMAND_GRACE if job_type.command is not None else job_type.timeout
