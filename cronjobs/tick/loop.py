"""The one loop of a tick: claim, hand to workers, collect ends, have them written, renew leases, keep time.

It writes leases and outcomes, in one transaction a turn (``writer``). Workers only compute, with one exception: a
handler that ends its own job in a transaction (``ctx.transaction()``, ADR 11). What a turn changes in memory is changed
after the commit, so that a turn that failed is simply done again.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.clock import Clock, process_age, sleep
from cronjobs.config.settings import Settings
from cronjobs.database.connection import Database
from cronjobs.errors import BadValue, DatabaseError
from cronjobs.execution.attempt import Attempt, Ended, heartbeat_s, lease_margin_s
from cronjobs.execution.handler import refusal
from cronjobs.execution.worker_threads import Workers, unbegun
from cronjobs.jobs.job_types import JobTypes
from cronjobs.model import (
    Finished,
    Interrupted,
    Job,
    Released,
    RetryPolicy,
    Succeeded,
    TimedOut,
    duration_text,
)
from cronjobs.rules.ending import (
    Decided,
    as_stopped,
    called_off,
    decide_end,
    lease_of,
    plain_end,
    running_row,
    succeeded_itself,
)
from cronjobs.rules.lease import Finish
from cronjobs.rules.retry import fits
from cronjobs.store import leases
from cronjobs.store.claims import ClaimFilter
from cronjobs.store.leases import Renewal, Written
from cronjobs.tick.claiming import AHEAD_S, ClaimPlanner
from cronjobs.tick.counts import Counts
from cronjobs.tick.deadline import PAST_DEADLINE_S
from cronjobs.tick.in_flight import InFlight
from cronjobs.tick.long_jobs import ADOPTED, FULL, Handovers
from cronjobs.tick.outage import Outage
from cronjobs.tick.pacing import UNBEGUN_S, LoopState, wait_s, why_ended
from cronjobs.tick.report import Teller
from cronjobs.tick.safety_net import FAULT, SafetyNet
from cronjobs.tick.tick_filter import TickFilter
from cronjobs.tick.watchdog import Watchdog
from cronjobs.tick.writer import Batch, BatchResult, Writer

POLL_S: Final = 1.0  # how often a loop with free slots looks for new work while other jobs run
CUT_LEASE: Final = timedelta(seconds=2)
LAST_BREATH_S: Final = 1.5  # once leases are cut to 2 s, this process must be gone before they end
UNSEEN_S: Final = 0.02  # until the next claim, where another runner was judging what limits let begin
HANDOVER_S: Final = 5.0  # what must be left of a tick for it to hand a long job over
LONGEST_TIMEOUT_S: Final = 1e8  # plain SQL can write any number, and a timedelta cannot hold it

NOT_BEGUN: Final = Released()


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
    host: str = ""  # long jobs are counted by host
    limits: TickFilter = field(default_factory=TickFilter)
    counts: Counts = field(default_factory=Counts)
    crashing: Collection[str] = ()  # types that took runners down: their jobs run in child processes
    suspected: Collection[str] = ()  # types that one runner died with
    many_queues: bool = False  # see ``Overview``
    catches: bool = True  # errors that nobody expected; not in a test that is to see them

    def __post_init__(self) -> None:
        self.net = SafetyNet(self.emit, self.catches)
        self.emit = self.net.emit
        self.writer = Writer(
            self.database,
            self.clock,
            locked_by=self.locked_by,
            lease=self.settings.run.lease,
            before_writing=self.before_writing,
        )
        self.teller = Teller(self.counts, self.job_types, self.settings, self.emit)
        self.hands = InFlight()
        self.trouble = Outage(self.clock, self.emit)
        self.intake = ClaimPlanner(
            self.settings,
            self.job_types,
            self.limits,
            self.workers.count,
            runner=timedelta(seconds=process_age() + self.deadline - self.clock.monotonic()),
            many_queues=self.many_queues,
        )
        self.in_threads = self.job_types
        self._isolate(self.crashing)
        self.handovers = Handovers(self.settings, self.clock, self.workers.ended)
        self.stopping: str | None = None
        self.stop_by = math.inf
        self.stop_told = False
        self.hurry = False  # a second signal: end now
        self.next_renewal = math.inf
        self.next_claim = 0.0
        self.next_long_claim = 0.0
        self.handover_s = min(HANDOVER_S, (self.deadline - self.clock.monotonic()) / 2)
        self.nothing_due = False
        self.gone_by = math.inf  # the process must be gone by then, whatever else is

    # --- the story ----------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Work until nothing is due, time is up, or no slot will come free; say which.

        An error that nobody expected stops the claims: what has not begun goes back, what runs comes to its end.
        """
        while not self.net.gave_up:
            try:
                ended = self._round()
            except Exception as error:
                self._caught(error)
                sleep(self.net.pause_s)
            else:
                if ended is not None:
                    return ended
        return FAULT

    def _round(self) -> str | None:
        self._tell_stopping()
        self._note_overdue()
        self._give_back_what_waits()
        self._turn()
        state = self._state()
        ended = why_ended(state)
        if ended is None:
            self._collect(wait_s(state))
        return ended

    def _caught(self, error: Exception) -> None:
        self.net.catch(error)
        # Whatever was broken off behind a commit: what it claimed and nobody took is read from the rows, and goes back.
        self.writer.claim_unsettled = True

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
            for attempt in [*self.hands.held.values(), *self.hands.adrift]:
                attempt.stop.set("shutdown")
        self.workers.wake()

    def _tell_stopping(self) -> None:
        # Not in stop(): a signal handler may interrupt the very line that writes to the log.
        if self.stopping is not None and not self.stop_told:
            self.stop_told = True
            self.emit(events.signalled(self.stopping))

    def finish(self, last_write: Callable[[Connection], None]) -> bool:
        """The last transaction: ends, history of what still runs, leases cut to 2 s; whether a thread still runs.

        If one does, the caller must end the process before those leases end, so that no second owner can begin while
        the code still runs here. From the first try on they may be cut, whatever its answer was.
        """
        try:
            return self._finish(last_write)
        except Exception as error:
            self._caught(error)
        try:  # the tick's row alone: leases that could not be cut end by themselves, after this process
            self.writer.write_alone(last_write)
        except Exception as error:
            self.net.catch(error)
        return bool(self.hands.busy() or self.hands.adrift)

    def _finish(self, last_write: Callable[[Connection], None]) -> bool:
        self._collect(0)
        self._release([*self.workers.take_back(), *self.hands.handing_over()])
        while True:
            self._collect(0)
            stuck = self._stuck()

            def write(connection: Connection, stuck: list[Attempt] = stuck) -> None:
                if stuck:
                    self.gone_by = min(self.gone_by, self.clock.monotonic() + LAST_BREATH_S)
                    self._move_watchdog()
                    leases.cut_leases(connection, [lease_of(attempt.job) for attempt in stuck], CUT_LEASE)
                last_write(connection)

            unsettled = self.writer.claim_unsettled  # what this turn finds of it goes back in another one
            done = self._turn(last=write) and not unsettled
            until = min(self.deadline, self.gone_by - LAST_BREATH_S / 2)
            hopeless = (self.trouble.stays and not self.hands.held) or self.net.gave_up
            if done or self.hurry or hopeless or self.clock.monotonic() >= until:
                self._tell_unwritten()
                self._tell_succeeded()
                return bool(stuck or self.hands.adrift)
            sleep(max(0.0, min(self.trouble.pause_s, until - self.clock.monotonic())))

    def _stuck(self) -> list[Attempt]:
        """What runs on although the tick ends; noted as interrupted, if it was not overdue before."""
        stuck = self.hands.busy()
        for attempt in stuck:
            if attempt.recorded is None:
                attempt.recorded = "interrupted"
                attempt.stop.set("shutdown")
                self.hands.unrecorded.append(attempt)
                self.counts.interrupted += 1
                self.emit(events.job_still_running(attempt.job, attempt.worker, self.stopping or "end of the tick"))
        return stuck

    def _tell_succeeded(self) -> None:
        """Jobs that ended themselves, and whose code runs on: nothing more will be known of them."""
        for attempt in [attempt for attempt in self.hands.adrift if attempt.succeeded]:
            ran = timedelta(seconds=self.clock.monotonic() - (attempt.started or self.clock.monotonic()))
            decided = self._decide(Ended(attempt, Finished(attempt.job, Succeeded(None), ran, attempt.worker), 0.0))
            self.teller.ended(attempt, decided)

    def _tell_unwritten(self) -> None:
        self.trouble.tell()
        why = "the database was not there" if self.trouble.error else "its row stayed locked by another session"
        self.teller.unwritten(self.hands.unwritten, why)

    # --- one turn -----------------------------------------------------------------------------------------------------

    def _turn(self, last: Callable[[Connection], None] | None = None) -> bool:
        """Write what ended, renew what is held, claim what comes next, in one transaction; whether it went well."""
        now = self.clock.monotonic()
        room = 0 if last else self._room(now)
        renew = now >= self.next_renewal and not last
        long = self._long_admission(now) if last is None else None
        todo = self.hands.unwritten or self.hands.unrecorded or room or renew or long or self.writer.claim_unsettled
        if not (todo or last):
            return True
        order = Batch(
            ends=[(ended, self._decide(ended)) for ended in self.hands.unwritten],
            overdue=[self._overdue_row(attempt) for attempt in self.hands.unrecorded],
            held=self.hands.leases(),
            renew=renew,
            room=room,
            admission=self.intake.admission(timedelta(seconds=self.deadline - now), self.hands),
            long=long,
            long_jobs=self.settings.run.long_jobs - len(self.hands.handing_over()),
            long_room=self.intake.left(),
            host=self.host,
            watched={*self.crashing, *self.suspected},
            last=last,
        )
        try:
            turn = self.writer.write(order)
        except BadValue as error:
            if self.hands.unwritten and self._write_one_by_one():
                return last is None
            if not self.writer.may_work_row_by_row(error):
                self.trouble.note(error)
            return False
        except DatabaseError as error:
            if not self.writer.may_work_row_by_row(error):
                self.trouble.note(error)
            return False
        except Exception as error:  # of one end's values, or of a claim's: the ends are written in any case
            self._caught(error)
            self._write_one_by_one()
            return False
        self.trouble.over()
        self._after(turn)
        if long is not None:
            self.next_long_claim = turn.sent + (UNSEEN_S if turn.unseen else POLL_S)
        if room:
            self.nothing_due = len(turn.claimed) < room and not turn.unseen
            self.next_claim = turn.sent + (POLL_S if self.nothing_due else UNSEEN_S if turn.unseen else 0.0)
        if last is None:
            self._move_watchdog()
        return True

    def _write_one_by_one(self) -> bool:
        """One bad value must not hold up a batch: each end for itself; whether the database was there for all."""
        for ended in list(self.hands.unwritten):
            try:
                turn = self._write_one(ended)
            except BadValue as error:  # in no form: its lease runs out, and the next tick finds it lost
                self._drop(ended, error)
            except DatabaseError as error:
                self.trouble.note(error)
                return False
            except Exception as error:
                self._caught(error)
                self._drop(ended, error)
            else:
                self._after(turn)
        self.trouble.over()
        return True

    def _write_one(self, ended: Ended) -> BatchResult:
        try:
            return self.writer.write_one((ended, self._decide(ended)))
        except DatabaseError:
            raise
        except Exception as error:
            self._caught(error)
            plain = replace(ended, finished=plain_end(ended.finished, type(error).__name__))
            return self.writer.write_one((ended, self._decide(plain)))

    def _drop(self, ended: Ended, error: Exception) -> None:
        self.hands.unwritten = [other for other in self.hands.unwritten if other is not ended]
        self.hands.dropped.add(ended.attempt.job.id)
        self._forget(ended.attempt)
        self.emit(events.end_not_recorded(ended.finished.job, ended.finished.worker, str(error)))

    def _isolate(self, names: Collection[str]) -> None:
        """Run handlers of these types in child processes, all others as their types say."""
        types = self.in_threads.types
        self.crashing = frozenset(name for name in names if name in types and types[name].isolation == "thread")
        self.job_types = self.in_threads.isolating(self.crashing)
        self.intake.take_types(self.job_types)

    # --- after the commit ---------------------------------------------------------------------------------------------

    def _after(self, turn: BatchResult) -> None:
        self.hands.recorded(turn.recorded)
        settled: set[int] = set()
        try:
            for ended, decided in turn.ends:
                self._after_end(ended, decided, turn.written, settled)
        finally:  # what was not come to is written again, and found in the history
            self.hands.settle(settled)
        if turn.cleared:
            for name in sorted(set(turn.cleared) & set(self.crashing)):
                self.emit(events.type_cleared(name))
            self.suspected = set(self.suspected) - set(turn.cleared)
            self._isolate(set(self.crashing) - set(turn.cleared))
        if turn.renewal is not None:
            self._after_renewal(turn.renewal, turn.sent)
        if turn.database_now is not None:
            self.database_now, self.now_read_at = turn.database_now, turn.sent
        for job_id, why in turn.refused.items():
            self.emit(events.database_trouble(f"job {job_id} cannot be claimed: {why}"))
        self._begin(turn.settled, turn.sent, late=True)
        self._begin([*turn.claimed, *turn.long], turn.sent)

    def _after_end(self, ended: Ended, decided: Decided, written: Written, settled: set[int]) -> None:
        job_id = decided.finish.lease.job_id
        if job_id in written.written:
            self._forget(ended.attempt)
            settled.add(job_id)
            if isinstance(decided.finished.outcome, Released):
                self.nothing_due = False  # it is due again, and perhaps nobody else takes it
            if job_id in written.called_off:
                decided = called_off(decided, written.called_off[job_id])
            elif job_id in written.succeeded:
                decided = succeeded_itself(decided)
            self.teller.ended(ended.attempt, decided)
        elif job_id in written.lost:
            self._forget(ended.attempt)
            settled.add(job_id)
            # Given back by a COMMIT without an answer, and taken by another: of this attempt nothing is missing.
            if not isinstance(decided.finished.outcome, Released):
                self.teller.lost(ended.attempt)

    def _begin(self, jobs: Sequence[Job], sent: float, late: bool = False) -> None:
        """Hand claimed jobs to the workers; of those found *late* only what still fits into the tick."""
        attempts = []
        for job in jobs:
            job_type = self.job_types.types.get(job.job_type)
            if job.id in self.hands.dropped:  # it has run here, and how it ended can be written in no form
                continue
            if job_type is None:  # only by an unsettled claim of a type that is gone: the lease runs out
                continue
            timeout = job_type.timeout
            if job.timeout_s is not None:
                timeout = timedelta(seconds=min(LONGEST_TIMEOUT_S, job.timeout_s))  # NaN too gives the first
            attempt = Attempt(job, job_type, timeout, claimed=sent, lease_s=self.settings.run.lease.total_seconds())
            self.hands.take(attempt, sent)
            self.counts.claimed = self.intake.claimed = self.counts.claimed + 1
            self.emit(events.job_claimed(job))
            attempts.append(attempt)
        if attempts:
            self.next_renewal = min(self.next_renewal, sent + self._heartbeat_s())
            self._move_watchdog()  # before any of their code runs: this process may be frozen at any line
        for attempt in attempts:
            self._begin_one(attempt, late)

    def _begin_one(self, attempt: Attempt, late: bool) -> None:
        long = attempt.timeout > self.settings.run.longest_in_tick
        remaining = timedelta(seconds=self.deadline - self.clock.monotonic())
        if self.stopping is not None:
            attempt.stop.set("shutdown")  # it was claimed while the signal came: on_shutdown: drop is for it, too
        if self._takes_nothing or (late and not long and not fits(attempt.timeout, remaining)):
            self._release([attempt])
        elif long and refusal(attempt) is None:
            self.handovers.begin(attempt, self.deadline - self.handover_s / 2)
        else:
            self._hand(attempt)

    def _hand(self, attempt: Attempt) -> None:
        before = self.workers.fault
        handed = self.workers.hand(attempt)
        if self.workers.fault is not None and before is None:
            self.intake.workers = self.workers.count
            self.emit(events.worker_not_started(self.workers.fault, self.workers.count))
        if not handed:  # and nothing more is claimed: no slot is left
            self.net.error = self.net.error or RuntimeError(self.workers.fault)
            self._release([attempt])

    def begin_adopted(self, attempt: Attempt, sent: float) -> None:
        """Run an attempt whose lease this process has adopted, by a statement sent at the monotonic instant *sent*."""
        self.hands.take(attempt, sent)
        self.counts.claimed = self.intake.claimed = self.counts.claimed + 1
        self.next_renewal = sent + self._heartbeat_s()
        self._move_watchdog()
        self._hand(attempt)

    def _after_renewal(self, renewal: Renewal, sent: float) -> None:
        self.hands.renewed(renewal.renewed, sent)
        for job_id in renewal.cancel_requested & self.hands.held.keys():
            self.hands.held[job_id].stop.set("cancelled")
        for job_id in renewal.succeeded & self.hands.held.keys():
            self.hands.end_itself(job_id)
        for job_id in renewal.lost & self.hands.held.keys():
            self._lose(job_id)
        locked = self.hands.held.keys() - renewal.renewed  # by someone's open transaction: come back soon
        self.next_renewal = sent + (min(0.25, self._heartbeat_s()) if locked else self._heartbeat_s())

    def _forget(self, attempt: Attempt) -> None:
        self.hands.forget(attempt.job.id)
        if not self.hands.held:
            self.next_renewal = math.inf

    def _lose(self, job_id: int) -> None:
        """The lease was taken over or ran out: stop the code, forget the job, record nothing."""
        attempt = self.hands.lose(job_id)
        attempt.stop.set("lease lost")
        if not attempt.handed_over:  # else by its own process, which is as it should be
            self.teller.lost(attempt)

    def _move_watchdog(self) -> None:
        """Nobody runs on past a lease: the kernel's timer stands before the first of them ends."""
        lease_s = self.settings.run.lease.total_seconds()
        first = self.hands.first_leased() + lease_s - lease_margin_s(lease_s)
        self.watchdog.stand_at(min(self.deadline + PAST_DEADLINE_S, first, self.gone_by))

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _collect(self, wait_s: float) -> None:
        """Wait for an end, then take all that are there."""
        try:
            ended = self.workers.ended.get(timeout=wait_s) if wait_s > 0 else self.workers.ended.get_nowait()
            first = self.clock.monotonic()
            while True:
                if ended is not None:
                    self._take_safely(ended)
                ended = self._next_end(first + AHEAD_S / 2, wait_s > 0)
        except queue.Empty:
            pass

    def _next_end(self, until: float, may_wait: bool) -> Ended | None:
        """The next end that is there. With many short jobs in hand, wait a little, so that one write takes a heap."""
        left = until - self.clock.monotonic()
        if (
            may_wait
            and left > 0
            and len(self.hands.held) - len(self.hands.unwritten) > max(self.workers.count, self.intake.ahead() // 2)
        ):
            return self.workers.ended.get(timeout=left)
        return self.workers.ended.get_nowait()

    def _take_safely(self, ended: Ended) -> None:
        try:
            self._take(ended)
        except Exception as error:  # it is on no queue any more: it must not be forgotten
            self._caught(error)
            if self.hands.holds(ended.attempt) and all(
                each.attempt is not ended.attempt for each in self.hands.unwritten
            ):
                self.hands.unwritten.append(replace(ended, finished=plain_end(ended.finished, type(error).__name__)))

    def _take(self, ended: Ended) -> None:
        attempt = ended.attempt
        if ended.answer is not None:
            self._answered(attempt, ended.answer)
            return
        self.hands.came_back(attempt)
        if not self.hands.holds(attempt) and not attempt.succeeded:
            return  # its lease is lost: whatever it did, nothing of it is recorded
        if isinstance(ended.finished.outcome, Released):
            self._release([attempt], ended.finished.outcome)
            return
        self.nothing_due, self.next_claim = False, 0.0  # it may have enqueued more
        self.intake.note(ended.finished.duration)
        late = self._timed_out(attempt) if attempt.recorded == "timed_out" else None
        outcome = as_stopped(ended.finished.outcome, attempt.stop.reason, process=attempt.has_process, late=late)
        ended = Ended(attempt, replace(ended.finished, outcome=outcome), ended.at)
        self.hands.unwritten.append(ended)

    def _answered(self, attempt: Attempt, answer: str) -> None:
        """What became of a long job's way to a process of its own."""
        if answer == ADOPTED:
            self._forget(attempt)
            self.counts.handed_over += 1
            self.emit(events.job_handed_over(attempt.job, attempt.timeout))
            return
        self.next_long_claim = math.inf  # the next tick tries again
        if answer != FULL:
            self.emit(events.not_handed_over(attempt.job, answer))
        self._release([attempt])

    def _decide(self, ended: Ended) -> Decided:
        policy = self.job_types.policy(ended.attempt.job.job_type, self.settings)
        try:
            return self._decide_by(ended, policy)
        except Exception as error:
            self._caught(error)
            plain = replace(ended, finished=plain_end(ended.finished, type(error).__name__))
            return self._decide_by(plain, RetryPolicy())

    def _decide_by(self, ended: Ended, policy: RetryPolicy) -> Decided:
        now = self.clock.monotonic()
        return decide_end(
            ended.finished,
            policy,
            self.database_now + timedelta(seconds=now - self.now_read_at),
            ended_ago=timedelta(seconds=max(0.0, now - ended.at)),
            max_losses=self.settings.run.max_losses,
            every=self.settings.run.every,
        )

    # --- keeping time -------------------------------------------------------------------------------------------------

    def _note_overdue(self) -> None:
        """A thread cannot be killed: past its time-out it is recorded so, and keeps its slot, row and lease."""
        self._collect(0)  # what ended while a turn took its time is not overdue
        now = self.clock.monotonic()
        for attempt in self.hands.busy():
            if attempt.recorded is None and now >= attempt.overdue_at:
                attempt.recorded, attempt.recorded_at = "timed_out", now
                attempt.stop.set("timeout")
                self.hands.unrecorded.append(attempt)
                self.counts.timed_out += 1
                self.emit(events.job_timed_out(attempt.job, attempt.worker, attempt.timeout))

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
        waits = any(attempt.started is None and now - attempt.claimed > UNBEGUN_S for attempt in self.hands.busy())
        if waits or self._takes_nothing:
            self._release(self.workers.take_back())
        if self.net.error is not None:  # perhaps what broke off was their way to the workers
            self._release([attempt for attempt in self.hands.busy() if not attempt.on_its_way])

    def _release(self, attempts: list[Attempt], why: Released = NOT_BEGUN) -> None:
        now = self.clock.monotonic()
        if why.error is not None:  # the next one would hardly fare better at once
            self.next_claim = max(self.next_claim, now + POLL_S)
        taken = {id(ended.attempt) for ended in self.hands.unwritten}
        for attempt in attempts:
            if self.hands.holds(attempt) and id(attempt) not in taken:
                outcome = unbegun(attempt) or why
                self.hands.unwritten.append(Ended(attempt, Finished(attempt.job, outcome), now))
                self.intake.typical_s = None  # and claim no further ahead until the pace is known again

    @property
    def _takes_nothing(self) -> bool:
        return self.stopping is not None or self.net.error is not None

    def _room(self, now: float) -> int:
        if self._takes_nothing or now < self.next_claim or now >= self.deadline:
            return 0
        return self.intake.room(self.hands)

    def _long_admission(self, now: float) -> ClaimFilter | None:
        """Which long jobs to look for now, if it is time to, and time enough to hand them over; else None."""
        if self._takes_nothing or now < self.next_long_claim or self.deadline - now < self.handover_s:
            return None
        return self.intake.long_admission()

    def _state(self) -> LoopState:
        now = self.clock.monotonic()
        return LoopState(
            now=now,
            deadline=self.deadline,
            workers=self.workers.count,
            busy=self.hands.busy(),
            running_on=self.hands.running_on(now),
            adrift=len(self.hands.adrift),
            handing_over=bool(self.hands.handing_over()),
            holds_leases=bool(self.hands.held),
            unwritten=bool(self.hands.unwritten),
            unrecorded=bool(self.hands.unrecorded),
            nothing_due=self.nothing_due,
            left=self.intake.left(),
            stopping=self.stopping,
            stop_by=self.stop_by,
            hurry=self.hurry,
            fault=self.net.error is not None,
            outage_pause_s=None if self.trouble.error is None else self.trouble.pause_s,
            outage_stays=self.trouble.stays,
            next_renewal=self.next_renewal,
            next_claim=self.next_claim,
        )

    def _heartbeat_s(self) -> float:
        return heartbeat_s(self.settings.run.lease.total_seconds())
