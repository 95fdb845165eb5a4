"""The loop of a tick: claim jobs, hand them to workers, collect and write their outcomes, renew leases, keep time.

In each round the loop does one turn (module ``turn``): one transaction that writes leases and outcomes. Workers do not
write to the database, with two exceptions: a handler may record its own success in ``ctx.transaction()`` (ADR 11), and
handlers write effects. The loop changes its own memory only after the commit of a turn, so it can simply repeat a
failed turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.clock import process_age, sleep
from cronjobs.engine.database.connection import Database
from cronjobs.engine.execution.attempt import Attempt, InFlight, Phase, timeout_of
from cronjobs.engine.execution.worker_threads import Workers
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.lease import lease_margin_s, next_renewal
from cronjobs.engine.store.alerts import look_soon
from cronjobs.engine.store.leases import cut_leases
from cronjobs.engine.store.ticks import NO_SIGNS, DeathSigns
from cronjobs.engine.tick.claim_planner import WARY_ROWS, ClaimPlanner, Experience, unknown
from cronjobs.engine.tick.ends import CLAIM_TOO_SLOW, STILL_HERE, EndWriter
from cronjobs.engine.tick.hung_handlers import HungHandlers
from cronjobs.engine.tick.long_jobs import Handovers
from cronjobs.engine.tick.pacing import UNBEGUN_S, LoopState, Pace, wait_s, why_ended
from cronjobs.engine.tick.result import Counts, TickFilter
from cronjobs.engine.tick.trouble import FAULT, Outage, PastOutage, SafetyNet
from cronjobs.engine.tick.turn import Batch, BatchResult, Writer
from cronjobs.engine.tick.watchdog import PAST_DEADLINE_S, Unarmed, Watchdog
from cronjobs.errors import BadValue, DatabaseError

# When the loop ends, it cuts the leases of attempts that are still running to this length.
CUT_LEASE: Final = timedelta(seconds=2)
# After the loop has cut the leases, this process must exit within this time, before the leases end.
EXIT_MARGIN_S: Final = 1.5
# A stopped process must exit within this time after its grace, even if a statement hangs on a dead connection. So a
# service manager that waits 5 s longer than the grace never has to kill it (docs/how-to/containers.md).
STOP_MARGIN_S: Final = 4.0
# A tick hands over a long job only if at least this much of its time is left.
HANDOVER_S: Final = 5.0


def nothing(_connection: Connection) -> None:
    """Do nothing. Used as ``before_writing`` by loops that have no tick row."""


@dataclass
class Loop:
    """The loop of one tick, or of one job outside a tick. Instants are seconds of the monotonic clock."""

    database: Database
    job_types: JobTypes
    workers: Workers
    locked_by: str
    deadline: float
    # The database's time at the instant ``now_read_at``. The loop computes later times from these two values.
    database_now: datetime
    now_read_at: float
    emit: Callable[[events.Event], None]
    before_writing: Callable[[Connection], None] = nothing
    watchdog: Watchdog = field(default_factory=Unarmed)
    host: str = ""  # long jobs on this host count towards ``long_jobs``
    limits: TickFilter = field(default_factory=TickFilter)
    counts: Counts = field(default_factory=Counts)
    # Job types that crashed runners. Jobs of these types run in child processes.
    crashing: Collection[str] = ()
    # Types of the jobs that a runner held when it died.
    suspected: Collection[str] = ()
    many_queues: bool = False  # see ``Overview``
    tells_each: bool = True  # report every job's start and success
    # Returns the types of jobs that took longer than expected in the last 24 hours, or None if that is unknown.
    overran: Callable[[], Collection[str] | None] = unknown
    overran_now: set[str] = field(default_factory=set)  # types of the jobs that this tick had to interrupt
    outages: list[PastOutage] = field(default_factory=list)  # the times in which this tick could not use the database
    # Signs that earlier ticks died while they were reading a job's row.
    signs: DeathSigns = NO_SIGNS
    say_progress_s: float = math.inf  # seconds between progress lines on a terminal
    catches: bool = True  # see ``SafetyNet``

    def __post_init__(self) -> None:
        self.settings, self.clock = self.workers.around.settings, self.workers.clock
        self.lease_s = self.settings.run.lease.total_seconds()
        self.net = SafetyNet(self.emit, self.catches)
        self.emit = self.net.emit
        self.writer = Writer(
            self.database,
            self.clock,
            locked_by=self.locked_by,
            lease=self.settings.run.lease,
            before_writing=self.before_writing,
            warily=self.signs.deaths > 0,
            wary_rows=WARY_ROWS if self.signs.deaths == 1 else math.inf,
            doubtful=self.signs.doubtful,
        )
        self.in_flight = InFlight()
        self.outage = Outage(self.clock, self.emit, self.outages)
        self.planner = ClaimPlanner(
            self.settings,
            self.job_types,
            self.limits,
            self.workers.count,
            runner=timedelta(seconds=process_age() + self.deadline - self.clock.monotonic()),
            many_queues=self.many_queues,
            experience=Experience(self.overran),
        )
        self.pace = Pace()
        self.ends = EndWriter(
            clock=self.clock,
            workers=self.workers,
            in_flight=self.in_flight,
            planner=self.planner,
            pace=self.pace,
            outage=self.outage,
            writer=self.writer,
            counts=self.counts,
            emit=self.emit,
            caught=self._caught,
            database_now=self.database_now,
            now_read_at=self.now_read_at,
            tells_each=self.tells_each,
        )
        self.hung = HungHandlers(
            self.clock,
            self.in_flight,
            self.counts,
            self.emit,
            lambda: self.ends.collect(0),
            self.settings.secrets_of,
        )
        self._isolate(self.crashing)
        self.handovers = Handovers(self.settings, self.clock, self.workers.ended)
        self.stopping: str | None = None
        self.stop_by = math.inf
        self.stop_reported = False
        self.hurry = False  # True after a second signal: end now
        self.renewed_at = -math.inf
        self.handover_s = min(HANDOVER_S, (self.deadline - self.clock.monotonic()) / 2)
        self.takes_reports = True
        self.gone_by = math.inf  # this process must have exited by this instant
        self.finishing = False  # True once ``finish`` has begun. From then on, no job starts

    @classmethod
    def for_one_job(
        cls,
        attempt: Attempt,
        database: Database,
        workers: Workers,
        *,
        deadline: float,
        database_now: datetime,
        emit: Callable[[events.Event], None],
        watchdog: Watchdog | None = None,
    ) -> Loop:
        """Return a loop that runs only *attempt*, whose lease this process holds. ``begin_adopted`` starts the attempt.

        *database_now* was read when the lease was taken over.
        """
        return cls(
            database=database,
            job_types=JobTypes({attempt.job.job_type: attempt.job_type}),
            workers=workers,
            locked_by=attempt.lease.locked_by,
            deadline=deadline,
            database_now=database_now,
            now_read_at=attempt.claimed,
            emit=emit,
            watchdog=watchdog or Unarmed(),
            limits=TickFilter(jobs=1),
        )

    # --- the story ----------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Work until nothing is due, time is up, no worker will become free, or a stop is requested. Return the reason.

        After an unexpected error the loop claims no more jobs, releases those that have not started, and lets running
        jobs finish.
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
        self._report_stopping()
        self.hung.note_overdue()
        self._release_waiting()
        self._turn()
        self._lose_expired()
        state = self._state()
        ended = why_ended(state)
        if ended is None:
            self.ends.collect(min(wait_s(state), self.say_progress_s))
            self.ends.say_progress(self.say_progress_s)
        return ended

    def _caught(self, error: Exception) -> None:
        self.net.catch(error)
        # The failed turn may have committed a claim. The next turn re-reads our leases, and releases jobs that never
        # started.
        self.writer.claim_unsettled = True

    def stop(self, reason: str) -> None:
        """Begin shutdown: notify running handlers at once, and claim no more jobs. A second call ends the loop at once.

        Signal handlers call this.
        """
        if self.stopping is not None:
            self.hurry = True
            self.gone_by = min(self.gone_by, self.clock.monotonic() + EXIT_MARGIN_S)
        else:
            self.stopping = reason
            grace_s = self.settings.run.shutdown_grace.total_seconds()
            self.stop_by = min(self.clock.monotonic() + grace_s, self.deadline)
            self.gone_by = min(self.gone_by, self.stop_by + STOP_MARGIN_S)
            for attempt in [*self.in_flight.held.values(), *self.in_flight.without_lease]:
                attempt.stop.set("shutdown")
        self._move_watchdog()
        self.workers.wake()

    def _report_stopping(self) -> None:
        # Do this here and not in stop(): a signal handler calls stop(), and the signal may interrupt the very line that
        # writes to the log.
        if self.stopping is not None and not self.stop_reported:
            self.stop_reported = True
            self.emit(events.signalled(self.stopping))

    def finish(self, last_write: Callable[[Connection], None] = look_soon) -> bool:
        """Run the last transaction. Return whether a thread is still running.

        The transaction writes the outcomes, and the history rows of attempts that are still running. It cuts the leases
        of these attempts to 2 s, and then calls *last_write*, which by default marks that findings may have changed.

        If a thread is still running, the caller must end the process before the lease of its attempt ends. Otherwise
        another runner could start the job while its code is still running here. Assume that the lease has been cut as
        soon as the first try begins: the try may seem to fail although it was committed.
        """
        self.finishing = True
        try:
            return self._finish(last_write)
        except Exception as error:
            self._caught(error)
        # Write only the tick's row. Leases that were not cut will expire only after this process has ended.
        try:
            self.writer.write_alone(last_write)
        except Exception as error:
            self.net.catch(error)
        return bool(self.in_flight.busy() or self.in_flight.without_lease)

    def _finish(self, last_write: Callable[[Connection], None]) -> bool:
        began = self.clock.monotonic()
        while True:
            tried = self.clock.monotonic()
            self.ends.collect(0)
            self.ends.release([*self.workers.take_back(), *self.in_flight.handing_over()])
            stuck = self.hung.note_stuck(self.stopping)
            if self.stopping is None:
                self.overran_now |= {each.job.job_type for each in stuck if each.recorded == "interrupted"}

            def write(connection: Connection, stuck: list[Attempt] = stuck) -> None:
                if stuck:
                    self.gone_by = min(self.gone_by, self.clock.monotonic() + EXIT_MARGIN_S)
                    self._move_watchdog()
                    cut_leases(connection, [attempt.lease for attempt in stuck], CUT_LEASE)
                last_write(connection)

            # If an earlier claim got no answer, this turn finds its jobs, and a further turn must release them.
            unsettled = self.writer.claim_unsettled
            went_well = self._turn(last=write)
            done = went_well and not unsettled
            # A second signal ends the loop at once. But if this turn has just found jobs of an unanswered claim, the
            # database works, so one further turn can release them.
            hurried = self.hurry and not (went_well and unsettled)
            # After a stop, give a busy database a moment. If it is away, the leases expire, as after a crash. Compute
            # ``stop_by`` in each round, because the stop may come while this loop retries.
            stop_by = max(self.stop_by, began + EXIT_MARGIN_S)
            until = min(self.deadline, stop_by, self.gone_by - EXIT_MARGIN_S / 2)
            hopeless = (self.outage.stays and not self.in_flight.held) or self.net.gave_up
            now = self.clock.monotonic()
            pause_s = max(0.0, min(self.outage.pause_s, until - now))
            # A further try may take as long as this one did. The watchdog must not kill the tick meanwhile.
            late = not went_well and now + pause_s + (now - tried) > self.deadline + PAST_DEADLINE_S / 2
            if done or hurried or hopeless or late or now >= until:
                self.ends.report_the_rest()
                return bool(stuck or self.in_flight.without_lease)
            sleep(pause_s)

    # --- one turn -----------------------------------------------------------------------------------------------------

    def _turn(self, last: Callable[[Connection], None] | None = None) -> bool:
        """Write outcomes, renew leases and claim jobs, all in one transaction. Return whether it succeeded."""
        batch = self._decide(self.clock.monotonic(), last)
        if batch is None:
            return True
        try:
            turn = self.writer.write(batch)
        except Exception as error:
            return self._after_failure(batch, error)
        self._after(batch, turn)
        return True

    def _decide(self, now: float, last: Callable[[Connection], None] | None) -> Batch | None:
        """Return what to write at *now*, on the monotonic clock, or None if there is nothing. Changes nothing."""
        # Claim nothing while an earlier claim has no answer. Otherwise a series of unanswered claims would lease more
        # and more jobs.
        no_claim = last is not None or self.writer.claim_unsettled
        room = 0 if no_claim or now >= self.deadline or now < self._next_claim() else self.planner.room(self.in_flight)
        renew = now >= self._next_renewal() and not last
        # Look for long jobs only if enough time is left to hand a long job over.
        may_look = not (no_claim or self._claims_nothing or now < self.pace.next_long_claim)
        long = self.planner.long_admission() if may_look and self.deadline - now >= self.handover_s else None
        to_write = self.in_flight.unwritten or self.in_flight.unrecorded() or self.writer.claim_unsettled
        if not (to_write or room or renew or long or last):
            return None
        return Batch(
            now=now,
            ends=self.ends.decided(),
            overdue=self.hung.rows(),
            held=self.in_flight.leases() if renew or self.writer.claim_unsettled else (),
            alone=not self.in_flight.held,
            unsettled=self.writer.claim_unsettled,
            given_up=self.in_flight.given_up,
            renew=renew,
            reports=self.in_flight.reports(self.settings.secrets_of) if renew and self.takes_reports else {},
            room=room,
            admission=self.planner.admission(timedelta(seconds=self.deadline - now), self.in_flight),
            long=long,
            long_jobs=self.settings.run.long_jobs - len(self.in_flight.handing_over()),
            long_room=self.planner.left(),
            host=self.host,
            watched={*self.crashing, *self.suspected},
            last=last,
        )

    def _after_failure(self, batch: Batch, error: Exception) -> bool:
        """Handle *error*, which writing *batch* raised. The batch may have been committed all the same.

        Return whether the turn counts as done.
        """
        if not isinstance(error, DatabaseError):
            # One outcome or one claimed row has a bad value. Still write the other outcomes.
            self._caught(error)
            self.ends.write_one_by_one()
            return False
        self._begin(BatchResult(batch.now, unsure=self.writer.unconfirmed))
        if batch.reports and isinstance(error, BadValue):
            # Renew leases without reports from now on, so that a bad value in a report costs no lease.
            self.takes_reports = False
            return False
        if isinstance(error, BadValue) and self.in_flight.unwritten and self.ends.write_one_by_one():
            return batch.last is None
        if not self.writer.may_work_row_by_row(error):
            self.outage.note(error)
        return False

    def _isolate(self, names: Collection[str]) -> None:
        """Run the handlers of these types in child processes, and all other handlers as their own types say."""
        types = self.job_types.types
        self.crashing = frozenset(name for name in names if name in types and types[name].isolation == "thread")
        self.planner.take_types(self.job_types.isolating(self.crashing))

    # --- after the commit ---------------------------------------------------------------------------------------------

    def _after(self, batch: Batch, turn: BatchResult) -> None:
        """Update memory with the results of the committed *turn*."""
        self.planner.write_s = self.clock.monotonic() - turn.sent
        self.outage.over()
        if batch.long is not None:
            self.pace.looked_for_long_jobs(turn.sent, more_due=turn.more_due)
        if batch.room:
            # After a row that cannot be read, a claim takes one job at a time. Count it as if it had taken as many jobs
            # as there was room for, so that the next claim follows at once.
            found = batch.room if turn.unread else len(turn.claimed)
            self.pace.looked(turn.sent, room=batch.room, found=found, more_due=turn.more_due)
            if turn.postponed:
                self.pace.nothing_due = False
        self.in_flight.recorded(turn.recorded)
        # After ``looked``, because ``written`` may reset ``nothing_due``: jobs that this turn released may be due.
        self.ends.written(turn)
        if turn.cleared:
            for name in sorted(set(turn.cleared) & set(self.crashing)):
                self.emit(events.type_cleared(name))
            self.suspected = set(self.suspected) - set(turn.cleared)
            self._isolate(set(self.crashing) - set(turn.cleared))
        self._after_renewal(batch, turn)
        if turn.database_now is not None:
            self.ends.database_now, self.ends.now_read_at = turn.database_now, turn.now_read_at
        for job_id, why in turn.refused.items():
            self.emit(events.database_trouble(f"job {job_id} cannot be claimed: {why}", "jobs that cannot be claimed"))
        self._begin(turn)
        if batch.last is None:
            self._move_watchdog()

    def _begin(self, turn: BatchResult) -> None:
        """Hand the claimed jobs to the workers.

        Jobs of an earlier claim that got no answer start only if they still fit into the tick's remaining time. If the
        claim took as long as its leases last, no job starts, because another tick may have taken the jobs by now.
        """
        attempts = []
        for job in (*turn.settled, *turn.unsure, *turn.claimed, *turn.long):
            job_type = self.planner.job_types.types.get(job.job_type)
            # This loop no longer knows the job's type. Let the lease expire.
            if job_type is None:
                continue
            # This loop already runs the job. Somebody has reset its row by hand, or a clock has jumped.
            if job.id in self.in_flight.held:
                self._lose(self.in_flight.held[job.id])
            attempt = Attempt(job, job_type, timeout_of(job, job_type), claimed=turn.sent, lease_s=self.lease_s)
            self._take(attempt)
            if self.tells_each:
                self.emit(events.job_claimed(job))
            attempts.append(attempt)
        now = self.clock.monotonic()
        if any(attempt.safe_until <= now for attempt in attempts):
            self.ends.release(attempts, CLAIM_TOO_SLOW)
            return
        if attempts:
            # Move the watchdog before any code of the jobs runs, because this process may be frozen at any line.
            self._move_watchdog()
        still_here = {attempt.job.id for attempt in self.in_flight.without_lease}
        for attempt in attempts:
            if attempt.job.id in still_here:
                self.ends.release([attempt], STILL_HERE)
            elif attempt.job in turn.unsure:
                self.ends.release([attempt])
            else:
                self._begin_one(attempt, late=attempt.job in turn.settled)

    def _take(self, attempt: Attempt) -> None:
        attempt.taken = self.clock.monotonic()
        self.in_flight.take(attempt)
        self.counts.claimed = self.planner.claimed = self.counts.claimed + 1

    def _begin_one(self, attempt: Attempt, late: bool) -> None:
        long = attempt.timeout > self.planner.longest
        if self.stopping is not None:
            # The job was claimed when the signal came, so ``on_shutdown: drop`` applies to this job, too.
            attempt.stop.set("shutdown")
        # The claim itself may have taken all the remaining time.
        left_s = self.deadline - self.clock.monotonic()
        time_is_up = left_s <= 0
        if self._takes_nothing or time_is_up or (late and not long and attempt.timeout.total_seconds() > left_s):
            self.ends.release([attempt])
        elif long and attempt.refusal() is None:
            self.in_flight.move(attempt, Phase.HANDING_OVER)
            self.handovers.begin(attempt, self.deadline - self.handover_s / 2)
        else:
            self._hand(attempt)

    def _hand(self, attempt: Attempt) -> None:
        before = self.workers.fault
        handed = self.workers.hand(attempt)
        if self.workers.fault is not None and before is None:
            self.planner.workers = self.workers.count
            self.emit(events.worker_not_started(self.workers.fault, self.workers.count))
        # No worker exists and none can be started. Set the error, so that the loop claims no more jobs.
        if not handed:
            self.net.error = self.net.error or RuntimeError(self.workers.fault)
            self.ends.release([attempt])

    def begin_adopted(self, attempt: Attempt) -> None:
        """Run an attempt whose lease this process took over. ``attempt.claimed`` is when it sent the takeover."""
        self._take(attempt)
        self._move_watchdog()
        self._hand(attempt)

    def _after_renewal(self, batch: Batch, turn: BatchResult) -> None:
        if turn.renewal is None:
            return
        self.in_flight.renewed(turn.renewal.renewed, turn.sent, batch.reports)
        for job_id in turn.renewal.cancel_requested & self.in_flight.held.keys():
            self.in_flight.held[job_id].stop.set("cancelled")
        for job_id in turn.renewal.succeeded & self.in_flight.held.keys():
            self.in_flight.end_itself(self.in_flight.held[job_id])
        for job_id in turn.renewal.lost & self.in_flight.held.keys():
            self._lose(self.in_flight.held[job_id])
        self.renewed_at = turn.sent

    def _lose(self, attempt: Attempt) -> None:
        """Stop and forget an attempt whose lease was taken over or has expired. Record nothing about it."""
        self.in_flight.lose(attempt)
        attempt.stop.set("lease lost")
        # If the attempt was handed over, the job's own process has taken the lease, as intended.
        if not attempt.handed_over:
            self.ends.lost(attempt)

    def _lose_expired(self) -> None:
        """Stop and forget attempts whose lease was not renewed in time. (In a tick, the kernel's timer fires first.)"""
        leased_since = self.clock.monotonic() - self.lease_s + lease_margin_s(self.lease_s)
        for attempt in self.in_flight.busy():
            if attempt.started is not None and attempt.leased_at <= leased_since:
                self._lose(attempt)

    def _move_watchdog(self) -> None:
        """Set the kernel's timer to fire before the first lease ends, so that no job's code outlives its lease."""
        first = self.in_flight.first_leased(working=True) + self.lease_s - lease_margin_s(self.lease_s)
        self.watchdog.stand_at(min(self.deadline + PAST_DEADLINE_S, first, self.gone_by))

    # --- keeping time -------------------------------------------------------------------------------------------------

    def _release_waiting(self) -> None:
        """Release jobs that were claimed ahead, if one waits too long behind slow jobs, or if none may start now."""
        now = self.clock.monotonic()
        waits = any(attempt.started is None and now - attempt.taken > UNBEGUN_S for attempt in self.in_flight.busy())
        if waits or self._takes_nothing:
            untaken = [attempt for attempt in self.in_flight.busy() if not attempt.on_its_way]
            self.ends.release([*self.workers.take_back(), *untaken])

    @property
    def _takes_nothing(self) -> bool:
        return self.finishing or self.stopping is not None or self.net.error is not None

    @property
    def _claims_nothing(self) -> bool:
        return self._takes_nothing or self.planner.left() <= 0

    def _next_claim(self) -> float:
        stands_still = self._claims_nothing or self.pace.closed
        return math.inf if stands_still else max(self.pace.next_claim, self.pace.not_before)

    def _state(self) -> LoopState:
        now = self.clock.monotonic()
        return LoopState(
            now=now,
            deadline=self.deadline,
            workers=self.workers.count,
            busy=self.in_flight.busy(),
            running_on=self.in_flight.running_on(now),
            without_lease=len(self.in_flight.without_lease),
            handing_over=bool(self.in_flight.handing_over()),
            holds_leases=bool(self.in_flight.held),
            unwritten=bool(self.in_flight.unwritten),
            unrecorded=bool(self.in_flight.unrecorded()),
            nothing_due=self.pace.nothing_due or self.pace.closed,
            left=self.planner.left(),
            stopping=self.stopping,
            stop_by=self.stop_by,
            hurry=self.hurry,
            fault=self.net.error is not None,
            outage_pause_s=None if self.outage.error is None else self.outage.pause_s,
            outage_stays=self.outage.stays,
            next_renewal=self._next_renewal(),
            next_claim=self._next_claim(),
        )

    def _next_renewal(self) -> float:
        return next_renewal(self.in_flight.first_leased(), self.renewed_at, self.lease_s)
