"""Take the ends of attempts from the workers to the database: collect, judge, write, count and report them."""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cronjobs import events
from cronjobs.clock import Clock
from cronjobs.engine.execution.attempt import Attempt, Ended, InFlight, Phase
from cronjobs.engine.execution.worker_threads import Workers, unbegun
from cronjobs.engine.rules.ending import (
    Decided,
    as_cancelled,
    as_stopped,
    decide_end,
    plain_end,
    succeeded_itself,
)
from cronjobs.engine.rules.progress import in_words
from cronjobs.engine.tick.claim_planner import AHEAD_S, GROUP, ClaimPlanner
from cronjobs.engine.tick.hung_handlers import timed_out
from cronjobs.engine.tick.long_jobs import ADOPTED, FULL, STOPPED
from cronjobs.engine.tick.pacing import Pace
from cronjobs.engine.tick.result import Counts
from cronjobs.engine.tick.trouble import Outage
from cronjobs.engine.tick.turn import BatchResult, End, Writer
from cronjobs.errors import BadValue, DatabaseError
from cronjobs.model import Finished, Released, RetryPolicy, Succeeded

NOT_BEGUN: Final = Released()
CLAIM_TOO_SLOW: Final = Released("the database took so long to answer the claim that no time was left in the lease")
STILL_HERE: Final = Released("an earlier attempt of this job lost its lease, and that attempt's code still runs here")
# If jobs take at most this long, write their ends together: it takes less time to wait for the next end than to commit.
BRIEF_S: Final = 0.0005


@dataclass
class EndWriter:
    """Writes the ends of attempts. Ends that are not written yet wait in ``in_flight``.

    ``database_now`` was read when the monotonic clock showed ``now_read_at``. The writer calls ``caught`` with each
    unexpected error. ``last`` is the most recently recorded end.
    """

    clock: Clock
    workers: Workers
    in_flight: InFlight
    planner: ClaimPlanner
    pace: Pace
    outage: Outage
    writer: Writer
    counts: Counts
    emit: Callable[[events.Event], None]
    caught: Callable[[Exception], None]
    database_now: datetime
    now_read_at: float
    # If False, report only the first success of each type.
    tells_each: bool = True
    named_types: set[str] = field(default_factory=set)
    last: Decided | None = None
    progress_at: float = -math.inf  # when progress was last reported
    # Why the process of a long job did not start, by job type.
    without_process: dict[str, str] = field(default_factory=dict)

    # --- collecting ---------------------------------------------------------------------------------------------------

    def collect(self, wait_s: float) -> None:
        """Wait for an end, then take all that have arrived. If the jobs are short, wait a moment for further ends."""
        try:
            ended = self.workers.ended.get(timeout=wait_s) if wait_s > 0 else self.workers.ended.get_nowait()
            first = self.clock.monotonic()
            while True:
                if ended is not None:
                    self._take_safely(ended)
                if wait_s > 0 and len(self.in_flight.unwritten) >= GROUP:
                    break
                ended = self._next_end(first + AHEAD_S / 2, wait_s > 0)
        except queue.Empty:
            pass

    def _next_end(self, until: float, may_wait: bool) -> Ended | None:
        try:
            return self.workers.ended.get_nowait()
        except queue.Empty:
            patience_s = self._patience_s(until) if may_wait else 0.0
            if not patience_s:
                raise
        return self.workers.ended.get(timeout=patience_s)

    def _patience_s(self, until: float) -> float:
        """Return how long to wait for another end, so that one write covers many."""
        left = until - self.clock.monotonic()
        running = len(self.in_flight.held) - len(self.in_flight.unwritten)
        # These workers start their next job only after the end of their last job is written.
        waiting = sum(each.let_go is not None for each in self.in_flight.unwritten)
        if left > 0 and not waiting and running > max(self.workers.count, self.planner.ahead() // 2):
            return left
        return BRIEF_S if running and waiting < self.workers.count and self.planner.last_s <= BRIEF_S else 0.0

    def _take_safely(self, ended: Ended) -> None:
        try:
            self._take(ended)
        # The end has left the queue, so keep a plain form of it.
        except Exception as error:
            self.caught(error)
            if ended.attempt.is_leased and not ended.attempt.has_ended:
                self.in_flight.end(_plain(ended, error))

    def _take(self, ended: Ended) -> None:
        attempt = ended.attempt
        if ended.answer is not None:
            self._answered(attempt, ended.answer)
            return
        if attempt.phase is Phase.LOST:
            self.in_flight.move(attempt, Phase.GONE)
        if attempt.phase is Phase.GONE:
            # The attempt has lost its lease, so its end must not be recorded.
            return
        if isinstance(ended.finished.outcome, Released):
            self.release([attempt], ended.finished.outcome)
            return
        # The job may have enqueued further jobs.
        self.pace.look_again()
        self.planner.note(attempt.job.job_type, ended.finished.duration)
        late = timed_out(attempt) if attempt.recorded == "timed_out" else None
        outcome = as_stopped(ended.finished.outcome, attempt.stop.reason, process=attempt.has_process, late=late)
        if outcome is not ended.finished.outcome:
            ended = ended._replace(finished=ended.finished._replace(outcome=outcome))
        self.in_flight.end(ended)

    def _answered(self, attempt: Attempt, answer: str) -> None:
        """Handle the answer of a long job's process, or its failure to start."""
        if answer == ADOPTED:
            if attempt.is_leased:
                self.in_flight.move(attempt, Phase.GONE)
            self.counts.handed_over += 1
            self.emit(events.job_handed_over(attempt.job, attempt.timeout))
            return
        # Hand over no more long jobs. The next tick will try again.
        self.pace.no_more_long_jobs()
        if answer != FULL:
            self.emit(events.not_handed_over(attempt.job, answer))
            if answer != STOPPED:
                self.without_process[attempt.job.job_type] = answer
        self.release([attempt])

    def release(self, attempts: Sequence[Attempt], why: Released = NOT_BEGUN) -> None:
        """Release the jobs of *attempts*, as if they had never been claimed."""
        now = self.clock.monotonic()
        # If one process or thread could not be started, another probably could not either. So pause.
        if why.error is not None:
            self.pace.pause(now)
        for attempt in attempts:
            if attempt.is_leased and not attempt.has_ended:
                outcome = unbegun(attempt) or why
                self.in_flight.end(Ended(attempt, Finished(attempt.job, outcome), now))
                # Claim no jobs ahead until the ends of further jobs show how long jobs take.
                self.planner.typical_s = None

    def lost(self, attempt: Attempt) -> None:
        """Report that the attempt's lease was taken over or has expired."""
        self.counts.lease_lost += 1
        self.emit(events.lease_lost(attempt.job, attempt.worker))

    def say_progress(self, every_s: float) -> None:
        """Report the progress of running jobs, at most once in *every_s* seconds."""
        now = self.clock.monotonic()
        if now < self.progress_at + every_s:
            return
        self.progress_at = now
        for attempt in self.in_flight.busy():
            reporting = attempt.reporting
            if reporting.progress is not None and reporting.progress is not reporting.shown:
                reporting.shown = reporting.progress
                self.emit(events.job_progress(attempt.job, attempt.worker, in_words(reporting.shown)))

    # --- deciding -----------------------------------------------------------------------------------------------------

    def decided(self) -> list[End]:
        """Return the ends to write, each with the decision about what happens to its job."""
        return [(ended, self._decide(ended)) for ended in self.in_flight.unwritten.values()]

    def _decide(self, ended: Ended) -> Decided:
        policy = self.planner.retry_policy(ended.attempt)
        try:
            return self._decide_by(ended, policy)
        except Exception as error:
            self.caught(error)
            return self._decide_by(_plain(ended, error), RetryPolicy())

    def _decide_by(self, ended: Ended, policy: RetryPolicy) -> Decided:
        run, now = self.planner.settings.run, self.clock.monotonic()
        return decide_end(
            ended.finished,
            policy,
            self.database_now + timedelta(seconds=now - self.now_read_at),
            ended_ago=timedelta(seconds=max(0.0, now - ended.at)),
            max_losses=run.max_losses,
            every=run.every,
        )

    # --- writing ------------------------------------------------------------------------------------------------------

    def write_one_by_one(self) -> bool:
        """Write each outcome in its own transaction, so that one bad value does not block the other outcomes.

        Return False if the database failed for a reason other than a bad value.
        """
        for ended in list(self.in_flight.unwritten.values()):
            try:
                turn = self._write_one(ended)
            except DatabaseError as error:
                if not isinstance(error, BadValue):
                    self.outage.note(error)
                    return False
                # The database refused the outcome even without its texts. Drop it: the lease will expire, and a tick
                # will record the attempt as lost.
                self._drop(ended, error)
            except Exception as error:
                self.caught(error)
                self._drop(ended, error)
            else:
                self.written(turn)
        self.outage.over()
        return True

    def _write_one(self, ended: Ended) -> BatchResult:
        try:
            return self.writer.write_one((ended, self._decide(ended)))
        except DatabaseError:
            raise
        except Exception as error:
            self.caught(error)
            return self.writer.write_one((ended, self._decide(_plain(ended, error))))

    def _drop(self, ended: Ended, error: Exception) -> None:
        self.in_flight.drop(ended.attempt)
        self._report_unwritten([ended], str(error))

    def written(self, turn: BatchResult) -> None:
        """Report the ends that a committed turn wrote, and stop tracking their attempts.

        If reporting an end raises an error, the ends after it stay in ``unwritten``. The next turn will find them in
        the history.
        """
        answered = turn.written.written | turn.written.lost
        for ended, decided in turn.ends:
            if ended.attempt.job.id in answered:
                self.in_flight.move(ended.attempt, Phase.GONE)
                self._after_end(ended, decided, turn)

    def _after_end(self, ended: Ended, decided: Decided, turn: BatchResult) -> None:
        job_id, written = ended.attempt.job.id, turn.written
        released = isinstance(decided.finished.outcome, Released)
        if job_id in written.written:
            if released:
                # The job is due again, and perhaps no other runner will take it. So look for work again.
                self.pace.nothing_due = False
            if job_id in written.cancelled:
                decided = as_cancelled(decided, written.cancelled[job_id])
            elif job_id in written.succeeded:
                decided = succeeded_itself(decided)
            self._report(ended.attempt, decided)
        elif not (released or ended.attempt.handed_over):
            # A released job is not lost. If only the reply to the COMMIT was lost, another runner may have the job by
            # now.
            self.lost(ended.attempt)

    def _report(self, attempt: Attempt, decided: Decided) -> None:
        """Count and report an outcome that is certainly in the database."""
        self.last, outcome = decided, decided.finished.outcome
        self.counts.count(decided, attempt.recorded)
        if not self.tells_each and isinstance(outcome, Succeeded) and outcome.note is None:
            if attempt.job.job_type in self.named_types:
                return
            self.named_types.add(attempt.job.job_type)
        if not isinstance(outcome, Released):
            policy = self.planner.retry_policy(attempt)
            folder = self.workers.around.settings.folder
            self.emit(events.job_ended(decided.finished, decided.transition, policy, folder))
        elif outcome.error is None:
            self.emit(events.job_released(attempt.job))
        else:
            self.emit(events.job_not_begun(attempt.job, outcome.error))

    def _report_unwritten(self, ends: Iterable[Ended], why: str) -> None:
        for ended in ends:
            self.emit(events.end_not_recorded(ended.finished.job, ended.finished.worker, why))

    def report_the_rest(self) -> None:
        """At the tick's end, report unwritten ends, and attempts that recorded their own success and still run."""
        self.outage.report()
        why = "the database could not be reached" if self.outage.error else "another session kept the job's row locked"
        self._report_unwritten(self.in_flight.unwritten.values(), why)
        now = self.clock.monotonic()
        for attempt in [each for each in self.in_flight.without_lease if each.phase is Phase.RUNS_ON]:
            ran = timedelta(seconds=now - (attempt.started or now))
            finished = Finished(attempt.job, Succeeded(None), ran, attempt.worker)
            self._report(attempt, self._decide(Ended(attempt, finished, now)))


def _plain(ended: Ended, error: Exception) -> Ended:
    return ended._replace(finished=plain_end(ended.finished, type(error).__name__))
