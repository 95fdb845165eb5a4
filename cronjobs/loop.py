"""The one loop of a tick: claim, hand to workers, collect ends, write them, renew leases, keep time.

It alone writes leases and outcomes, in one transaction a turn; workers only compute. What a turn changes in memory it
changes after the commit, so that a turn that failed is simply done again.
"""

from __future__ import annotations

import math
import queue
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.clock import Clock, sleep
from cronjobs.database import Database
from cronjobs.ends import Decided, decide_end, lease_of, running_row, without_texts
from cronjobs.errors import BadValue, DatabaseError
from cronjobs.jobtypes import JobType, JobTypes
from cronjobs.model import Failed, Finished, Interrupted, Job, Released, Status, TimedOut, duration_text
from cronjobs.policy import fits
from cronjobs.settings import Settings
from cronjobs.store import leases
from cronjobs.store.leases import Admission, Finish, Renewal, Written
from cronjobs.watchdog import Watchdog
from cronjobs.worker import COMMAND_GRACE, Attempt, Ended, Workers

MOST_AHEAD: Final = 250  # claimed before a slot is free for it
AHEAD_S: Final = 0.05  # how far a claim reaches ahead of what will start
POLL_S: Final = 1.0  # how often a loop with free slots looks for new work while other jobs run
UNBEGUN_S: Final = 1.0  # after this, what was claimed ahead goes back: its turn will not come soon
COMMAND_SLACK: Final = COMMAND_GRACE + timedelta(seconds=6)  # process.py ends a command by itself: TERM, KILL, report
WRITE_PATIENCE_S: Final = 0.25  # for SQLite's write lock; between tries the loop keeps time
CUT_LEASE: Final = timedelta(seconds=2)
LAST_BREATH_S: Final = 1.5  # once leases are cut to 2 s, this process must be gone before they end
PAST_DEADLINE_S: Final = 1.0  # where the watchdog stands


@dataclass
class Counts:
    """What a tick did, as its row and its summary tell it."""

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0  # will retry
    dead: int = 0
    cancelled: int = 0
    interrupted: int = 0
    snoozed: int = 0
    timed_out: int = 0  # among failed and dead, or still running
    released: int = 0
    lost: int = 0
    lease_lost: int = 0


@dataclass(frozen=True)
class Limits:
    """What a caller narrowed a tick to; None: no limit."""

    queue: str | None = None
    only: str | None = None  # a job type
    jobs: int | None = None  # how many are claimed at most


@dataclass(frozen=True)
class _Turn:
    """What one committed transaction did."""

    sent: float
    ends: list[tuple[Ended, Decided]]
    written: Written
    renewal: Renewal | None
    claimed: list[Job]
    database_now: datetime | None


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
        self.held: dict[int, Attempt] = {}  # every lease in our hands, by job id
        self.leased_at: dict[int, float] = {}  # when the statement that last extended it was sent
        self.unwritten: list[Ended] = []
        self.unrecorded: list[Attempt] = []  # overdue, their history row not yet written
        self.stopping: str | None = None
        self.stop_by = math.inf
        self.hurry = False  # a second signal: end now
        self.next_renewal = math.inf
        self.next_claim = 0.0
        self.nothing_due = False
        self.claim_unsettled = False  # a turn that claimed ended in an error: the rows may be ours
        self.typical_s: float | None = None
        self.trouble_pause_s = 0.05

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
        the code still runs here.
        """
        self._release(self.workers.take_back())
        self._collect(0)
        while True:
            ended = {id(end.attempt) for end in self.unwritten}
            stuck = [attempt for attempt in self.held.values() if id(attempt) not in ended]
            for attempt in stuck:
                if attempt.recorded is None:
                    attempt.recorded = "interrupted"
                    attempt.stop.set("shutdown")
                    self.unrecorded.append(attempt)
                    self.counts.interrupted += 1
                    self.emit(events.job_still_running(attempt.job, attempt.worker, self.stopping or "end of the tick"))
            if stuck:
                self.watchdog.stand_at(min(self.clock.monotonic() + LAST_BREATH_S, self.deadline + PAST_DEADLINE_S))

            def write(connection: Connection, stuck: list[Attempt] = stuck) -> None:
                if stuck:
                    leases.cut_leases(connection, [lease_of(attempt.job) for attempt in stuck], CUT_LEASE)
                last_write(connection)

            if self._turn(last=write) or self.clock.monotonic() >= self.deadline:
                return bool(stuck)
            sleep(self.trouble_pause_s)

    # --- one turn -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self.database.write(patience=WRITE_PATIENCE_S, next_in_line=True) as connection:
            self.before_writing(connection)
            yield connection

    def _turn(self, last: Callable[[Connection], None] | None = None) -> bool:
        """Write what ended, renew what is held, claim what comes next, in one transaction; whether it went well."""
        now = self.clock.monotonic()
        room = 0 if last else self._room(now)
        renew = now >= self.next_renewal and not last
        if not (self.unwritten or self.unrecorded or room or renew or self.claim_unsettled or last):
            return True
        try:
            turn = self._transaction(room, renew, last)
        except BadValue:
            return self._write_one_by_one()
        except DatabaseError as error:
            self._note_trouble(error)
            return False
        self.trouble, self.trouble_pause_s = None, 0.05
        self.claim_unsettled = False
        self._after(turn, room)
        if last is None:
            self._move_watchdog()
        return True

    def _transaction(self, room: int, renew: bool, last: Callable[[Connection], None] | None) -> _Turn:
        ends = [(ended, self._decide(ended)) for ended in self.unwritten]
        claimed: list[Job] = []
        renewal, now = None, None
        with self._writing() as connection:
            sent = self.clock.monotonic()
            written = Written(frozenset(), frozenset())
            if ends:
                written = self._write(connection, [decided.finish for _, decided in ends])
            leases.record_overdue(connection, [self._overdue_row(attempt) for attempt in self.unrecorded])
            if renew and self.held:
                renewal = leases.renew(
                    connection, [lease_of(attempt.job) for attempt in self.held.values()], self.settings.run.lease
                )
            if self.claim_unsettled:  # after an error in mid-claim: what the rows say is ours, is ours
                claimed = [job for job in leases.held_by(connection, self.locked_by) if job.id not in self.held]
            if room:
                self.claim_unsettled = True
                now, more = leases.claim(
                    connection,
                    limit=room,
                    locked_by=self.locked_by,
                    lease=self.settings.run.lease,
                    admission=self._admission(),
                )
                claimed += more
            if last is not None:
                last(connection)
        return _Turn(sent, ends, written, renewal, claimed, now)

    def _write(self, connection: Connection, finishes: list[Finish]) -> Written:
        """Finish, and settle by reading what a COMMIT without an answer may have written already."""
        written = leases.finish(connection, finishes)
        ours = leases.settled(connection, [end for end in finishes if end.lease.job_id in written.lost and end.outcome])
        return Written(written.written | ours, written.lost - ours)

    def _write_one_by_one(self) -> bool:
        """One bad value must not hold up a batch: each end for itself, and the bad one without its texts."""
        for ended in list(self.unwritten):
            decided = self._decide(ended)
            for finish in (decided.finish, without_texts(decided.finish)):
                try:
                    with self._writing() as connection:
                        sent = self.clock.monotonic()
                        written = self._write(connection, [finish])
                except BadValue:
                    continue
                except DatabaseError as error:
                    self._note_trouble(error)
                    return False
                self._after(_Turn(sent, [(ended, decided)], written, None, [], None), 0)
                break
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

    def _after(self, turn: _Turn, room: int) -> None:
        self.unrecorded.clear()
        for ended, decided in turn.ends:
            job_id = decided.finish.lease.job_id
            if job_id in turn.written.written:
                self._forget(ended)
                self._count(decided)
            elif job_id in turn.written.lost:
                self.unwritten.remove(ended)
                self._lose(job_id)
        if turn.renewal is not None:
            self._after_renewal(turn.renewal, turn.sent)
        if turn.database_now is not None:
            self.database_now, self.now_read_at = turn.database_now, turn.sent
        self._begin(turn.claimed, turn.sent)
        if room:
            self.nothing_due = len(turn.claimed) < room
            self.next_claim = turn.sent + POLL_S if self.nothing_due else 0.0

    def _begin(self, jobs: list[Job], sent: float) -> None:
        for job in jobs:
            job_type = self.job_types.types.get(job.job_type)
            if job_type is None:  # only by an unsettled claim of a type that is gone: the lease runs out
                continue
            timeout = timedelta(seconds=job.timeout_s) if job.timeout_s is not None else job_type.timeout
            attempt = Attempt(job, job_type, timeout)
            self.held[job.id] = attempt
            self.leased_at[job.id] = sent
            self.counts.claimed += 1
            self.emit(events.job_claimed(job))
            if self.stopping is None:
                self.workers.hand(attempt)
            else:
                self._release([attempt])
        if jobs:
            self.next_renewal = min(self.next_renewal, sent + self._heartbeat_s())

    def _after_renewal(self, renewal: Renewal, sent: float) -> None:
        for job_id in renewal.renewed & self.held.keys():
            self.leased_at[job_id] = sent
        for job_id in renewal.cancel_requested & self.held.keys():
            self.held[job_id].stop.set("cancelled")
        for job_id in renewal.lost & self.held.keys():
            self.unwritten = [ended for ended in self.unwritten if ended.attempt.job.id != job_id]
            self._lose(job_id)
        locked = self.held.keys() - renewal.renewed  # by someone's open transaction: come back soon
        self.next_renewal = sent + (min(0.25, self._heartbeat_s()) if locked else self._heartbeat_s())

    def _forget(self, ended: Ended) -> None:
        self.unwritten.remove(ended)
        self.held.pop(ended.attempt.job.id, None)
        self.leased_at.pop(ended.attempt.job.id, None)
        if not self.held:
            self.next_renewal = math.inf

    def _lose(self, job_id: int) -> None:
        """The lease was taken over or ran out: stop the code, forget the job, record nothing."""
        attempt = self.held.pop(job_id)
        self.leased_at.pop(job_id, None)
        attempt.stop.set("lease lost")
        self.counts.lease_lost += 1
        self.emit(events.lease_lost(attempt.job, attempt.worker))

    def _count(self, decided: Decided) -> None:
        outcome = decided.finished.outcome
        if isinstance(outcome, Released):
            self.counts.released += 1
            return
        if isinstance(outcome, TimedOut) and decided.finished.worker:
            self.counts.timed_out += 1
        match decided.transition.status:
            case Status.QUEUED if isinstance(outcome, Interrupted):
                self.counts.interrupted += 1
            case Status.QUEUED:
                self.counts.snoozed += 1
            case status:
                name = str(status)
                setattr(self.counts, name, getattr(self.counts, name) + 1)
        policy = self.job_types.policy(decided.finished.job.job_type, self.settings)
        self.emit(events.job_ended(decided.finished, decided.transition, policy))

    def _move_watchdog(self) -> None:
        """Nobody runs on past a lease: the kernel's timer stands before the first of them ends."""
        lease_s = self.settings.run.lease.total_seconds()
        margin_s = min(2.0, lease_s / 10)
        first = min(self.leased_at.values(), default=math.inf)
        self.watchdog.stand_at(min(self.deadline + PAST_DEADLINE_S, first + lease_s - margin_s))

    def _note_trouble(self, error: DatabaseError) -> None:
        if self.trouble is None:
            self.emit(events.database_trouble(str(error)))
        self.trouble = error
        self.trouble_pause_s = min(1.0, self.trouble_pause_s * 2) * random.uniform(0.8, 1.2)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _collect(self, wait_s: float) -> None:
        """Wait for an end, then take all that are there."""
        try:
            ended = self.workers.ended.get(timeout=wait_s) if wait_s > 0 else self.workers.ended.get_nowait()
            while True:
                if ended is not None and self.held.get(ended.attempt.job.id) is ended.attempt:
                    self._take(ended)
                ended = self.workers.ended.get_nowait()
        except queue.Empty:
            pass

    def _take(self, ended: Ended) -> None:
        seconds = ended.finished.duration.total_seconds()
        self.typical_s = seconds if self.typical_s is None else 0.9 * self.typical_s + 0.1 * seconds
        if ended.attempt.recorded == "timed_out" and isinstance(ended.finished.outcome, Failed | Interrupted):
            # It ended after its time-out, by an error: it timed out. A result would have counted.
            late = Finished(
                job=ended.finished.job,
                outcome=self._timed_out(ended.attempt),
                duration=ended.finished.duration,
                worker=ended.finished.worker,
                output=ended.finished.output,
            )
            ended = Ended(ended.attempt, late, ended.at)
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
        now = self.clock.monotonic()
        for attempt in self.held.values():
            if attempt.recorded is None and attempt.started is not None and now >= self._overdue_at(attempt):
                attempt.recorded = "timed_out"
                attempt.stop.set("timeout")
                self.unrecorded.append(attempt)
                self.counts.timed_out += 1
                self.emit(events.job_timed_out(attempt.job, attempt.worker, attempt.timeout))

    def _overdue_at(self, attempt: Attempt) -> float:
        assert attempt.started is not None
        slack = COMMAND_SLACK if attempt.is_command else timedelta(0)
        return attempt.started + (attempt.timeout + slack).total_seconds()

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
        waits = any(
            attempt.started is None and now - self.leased_at.get(job_id, now) > UNBEGUN_S
            for job_id, attempt in self.held.items()
        )
        if waits or self.stopping is not None:
            self._release(self.workers.take_back())

    def _release(self, attempts: list[Attempt]) -> None:
        now = self.clock.monotonic()
        taken = {id(ended.attempt) for ended in self.unwritten}
        for attempt in attempts:
            if self.held.get(attempt.job.id) is attempt and id(attempt) not in taken:
                self.unwritten.append(Ended(attempt, Finished(attempt.job, Released()), now))
                self.typical_s = None  # and claim no further ahead until the pace is known again

    def _room(self, now: float) -> int:
        """How many jobs to claim now: free slots, and what will start within about 50 ms."""
        if self.stopping is not None or now < self.next_claim or now >= self.deadline:
            return 0
        ended = {id(end.attempt) for end in self.unwritten}
        busy = [attempt for attempt in self.held.values() if id(attempt) not in ended]
        overdue = sum(attempt.recorded is not None for attempt in busy)
        slots = self.workers.count - overdue
        ahead = 0
        if slots > 1 and self.typical_s is not None:  # one worker takes one job at a time, in exact order
            ahead = min(MOST_AHEAD, int(slots * AHEAD_S / max(self.typical_s, 0.0002)))
        room = slots + ahead - (len(busy) - overdue)
        if slots <= 0:
            return 0
        if self.limits.jobs is not None:
            room = min(room, self.limits.jobs - self.counts.claimed)
        return max(0, room)

    def _ended(self) -> str | None:
        now = self.clock.monotonic()
        ended = {id(end.attempt) for end in self.unwritten}
        busy = [attempt for attempt in self.held.values() if id(attempt) not in ended]
        working = [attempt for attempt in busy if attempt.recorded is None]
        if self.hurry:
            return f"{self.stopping}, twice"
        if now >= self.deadline:
            return "time is up"
        if self.stopping is not None and (not busy or now >= self.stop_by):
            return self.stopping
        if self.unwritten or self.trouble is not None:
            return None
        if self.limits.jobs is not None and self.counts.claimed >= self.limits.jobs and not working:
            return "the limit is reached"
        if len(busy) - len(working) >= self.workers.count:
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
            return self.trouble_pause_s
        if self.unwritten and now >= self.next_claim:
            return 0.005 if self.nothing_due else 0.0  # rows locked by someone else: soon again
        moments = [self.deadline, self.stop_by, self.next_renewal]
        if self.stopping is None and self._has_free_slot():
            moments.append(self.next_claim)
        for job_id, attempt in self.held.items():
            if attempt.recorded is None and attempt.started is not None:
                moments.append(self._overdue_at(attempt))
            elif attempt.started is None:
                moments.append(self.leased_at.get(job_id, now) + UNBEGUN_S + 0.01)
        return max(0.001, min(moments) - now)

    def _has_free_slot(self) -> bool:
        return len(self.held) < self.workers.count

    def _heartbeat_s(self) -> float:
        return self.settings.run.lease.total_seconds() / 4


def _whole_time(job_type: JobType) -> timedelta:
    """What a job may take of the tick: its time-out, and for a command the grace after it."""
    return job_type.timeout + COMMAND_GRACE if job_type.command is not None else job_type.timeout
