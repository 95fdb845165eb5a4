"""Deal with handlers in threads that run past their timeout, or past the end of the tick. A thread cannot be killed.

So record the attempt and ask it to stop, while it keeps its worker, its row and its lease. When no other job can start,
the loop ends (``pacing``) and cuts the leases of these attempts to 2 s (``loop``). The process exits before these
leases end (``command.leaving``). If a handler has its own process, ``execution.process`` kills it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from cronjobs import events
from cronjobs.clock import Clock
from cronjobs.engine.execution.attempt import Attempt, InFlight, Phase
from cronjobs.engine.execution.raised import stack_of
from cronjobs.engine.rules.ending import running_row
from cronjobs.engine.rules.lease import Finish
from cronjobs.engine.tick.result import Counts
from cronjobs.masking import mask
from cronjobs.model import Interrupted, Job, TimedOut, duration_text


@dataclass
class HungHandlers:
    """Records which handlers run past their time.

    ``collect`` takes the ends that workers have reported so far. ``secrets_of`` returns the values to mask in a job's
    output.
    """

    clock: Clock
    in_flight: InFlight
    counts: Counts
    emit: Callable[[events.Event], None]
    collect: Callable[[], None]
    secrets_of: Callable[[Job], frozenset[str]]

    def note_overdue(self) -> None:
        """Record attempts whose thread has run past its timeout, and ask them to stop."""
        if not self._overdue():
            return
        # Collect the ends first, because an attempt that ended during a slow turn is not overdue.
        self.collect()
        now = self.clock.monotonic()
        for attempt in self._overdue():
            attempt.stack = mask(stack_of(attempt) or "", self.secrets_of(attempt.job)) or None
            self.in_flight.note_overdue(attempt, "timed_out", now)
            attempt.stop.set("timeout")
            self.counts.timed_out += 1
            self.emit(events.job_timed_out(attempt.job, attempt.worker, attempt.timeout))

    def _overdue(self) -> list[Attempt]:
        now = self.clock.monotonic()
        return [each for each in self.in_flight.busy() if each.phase is Phase.HELD and now >= each.overdue_at]

    def note_stuck(self, stopping: str | None) -> list[Attempt]:
        """Return the attempts that still run as the tick ends. Record those that are not overdue as interrupted."""
        stuck = self.in_flight.busy()
        for attempt in stuck:
            if attempt.phase is Phase.HELD:
                self.in_flight.note_overdue(attempt, "interrupted", self.clock.monotonic())
                attempt.stop.set("shutdown")
                self.counts.interrupted += 1
                self.emit(events.job_still_running(attempt.job, attempt.worker, stopping or "end of the tick"))
        return stuck

    def rows(self) -> list[Finish]:
        """Return the history rows to write for overdue attempts, whose handlers are still running."""
        return [self._overdue_row(attempt) for attempt in self.in_flight.unrecorded()]

    def _overdue_row(self, attempt: Attempt) -> Finish:
        outcome = timed_out(attempt) if attempt.recorded == "timed_out" else Interrupted()
        started = attempt.started if attempt.started is not None else self.clock.monotonic()
        ran = timedelta(seconds=max(0.0, self.clock.monotonic() - started))
        output = attempt.reporting.output_so_far(self.secrets_of(attempt.job))
        return running_row(attempt.job, outcome, ran, attempt.worker, output)


def timed_out(attempt: Attempt) -> TimedOut:
    return TimedOut(f"still running after its timeout of {duration_text(attempt.timeout)}", attempt.stack)
