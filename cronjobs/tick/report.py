"""How a loop reports and counts the ends of its attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cronjobs import events
from cronjobs.config.settings import Settings
from cronjobs.execution.attempt import Attempt, Ended
from cronjobs.jobs.job_types import JobTypes
from cronjobs.model import Released, RetryPolicy
from cronjobs.rules.ending import Decided
from cronjobs.tick.counts import Counts


@dataclass
class EndReporter:
    """Counts and emits each end once it is known to be in the database, or known not to get there."""

    counts: Counts
    job_types: JobTypes
    settings: Settings
    emit: Callable[[events.Event], None]

    def policy(self, attempt: Attempt) -> RetryPolicy:
        return self.job_types.policy(attempt.job.job_type, self.settings)

    def ended(self, attempt: Attempt, decided: Decided) -> None:
        self.counts.count(decided, attempt.recorded)
        if isinstance(decided.finished.outcome, Released):
            error = decided.finished.outcome.error
            self.emit(events.job_released(attempt.job) if error is None else events.job_not_begun(attempt.job, error))
        else:
            self.emit(events.job_ended(decided.finished, decided.transition, self.policy(attempt)))

    def timed_out(self, attempt: Attempt) -> None:
        self.counts.timed_out += 1
        self.emit(events.job_timed_out(attempt.job, attempt.worker, attempt.timeout))

    def interrupted(self, attempt: Attempt, stopping: str | None) -> None:
        self.counts.interrupted += 1
        self.emit(events.job_still_running(attempt.job, attempt.worker, stopping or "end of the tick"))

    def handed_over(self, attempt: Attempt) -> None:
        self.counts.handed_over += 1
        self.emit(events.job_handed_over(attempt.job, attempt.timeout))

    def lost(self, attempt: Attempt) -> None:
        self.counts.lease_lost += 1
        self.emit(events.lease_lost(attempt.job, attempt.worker))

    def unwritten(self, ends: Iterable[Ended], why: str) -> None:
        for ended in ends:
            self.emit(events.end_not_recorded(ended.finished.job, ended.finished.worker, why))
