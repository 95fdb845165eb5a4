"""Which jobs a tick claims next: what fits into the rest of it, how many at once, and how far ahead of the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from cronjobs.config.settings import Settings
from cronjobs.execution.attempt import PROCESS_GRACE
from cronjobs.jobs.job_types import JobType, JobTypes, policy_of
from cronjobs.rules.attempt_policy import ClaimPolicies
from cronjobs.rules.retry import fits
from cronjobs.store.claims import ClaimFilter
from cronjobs.tick.in_flight import InFlight
from cronjobs.tick.tick_filter import TickFilter

MOST_AHEAD: Final = 250  # at most so many are claimed before a worker is free
AHEAD_S: Final = 0.05  # a claim covers the jobs that will start within this time
NO_LIMIT: Final = 1_000_000


@dataclass
class ClaimPlanner:
    """Plans the claims of one tick. ``typical_s``: how long jobs took lately; None: unknown.

    ``claimed``: how many jobs so far. ``runner``: the highest age this tick's process can reach; None: unknown.
    ``many_queues``: see ``Overview``.
    """

    settings: Settings
    job_types: JobTypes
    limits: TickFilter
    workers: int
    claimed: int = 0
    typical_s: float | None = None
    runner: timedelta | None = None
    many_queues: bool = False
    _policies: ClaimPolicies | None = field(default=None, init=False)

    def note(self, took: timedelta) -> None:
        seconds = took.total_seconds()
        self.typical_s = seconds if self.typical_s is None else 0.9 * self.typical_s + 0.1 * seconds

    # --- how many -----------------------------------------------------------------------------------------------------

    def free(self, in_flight: InFlight) -> int:
        """How many more jobs would start at once; negative: so many already wait for a worker."""
        busy = in_flight.busy()
        overdue = sum(attempt.recorded is not None for attempt in busy)
        return self._slots(overdue, in_flight) - (len(busy) - overdue)

    def room(self, in_flight: InFlight) -> int:
        """How many jobs to claim: for free slots, and what will start within about 50 ms."""
        overdue = sum(attempt.recorded is not None for attempt in in_flight.busy())
        if self._slots(overdue, in_flight) <= 0:
            return 0
        return max(0, min(self.free(in_flight) + self.ahead(), self.left()))

    def ahead(self) -> int:
        """How many jobs will start within about 50 ms; with one worker none, so that jobs run in exact order."""
        if self.workers == 1 or self.typical_s is None:
            return 0
        return min(MOST_AHEAD, int(self.workers * AHEAD_S / max(self.typical_s, 0.0001)))

    def left(self) -> int:
        """How many more jobs ``--limit`` allows."""
        return NO_LIMIT if self.limits.jobs is None else self.limits.jobs - self.claimed

    def _slots(self, overdue: int, in_flight: InFlight) -> int:
        """Workers that are not occupied by an overdue attempt or by one whose lease is lost."""
        return self.workers - overdue - len(in_flight.without_lease)

    # --- which --------------------------------------------------------------------------------------------------------

    def admission(self, remaining: timedelta, in_flight: InFlight) -> ClaimFilter:
        """The filter for jobs whose time-out ends before the tick does, so that the tick never has to interrupt one."""
        longest = self.settings.run.longest_in_tick
        known = self._known()
        return ClaimFilter(
            known=known.keys(),
            fitting=[
                name
                for name, job_type in known.items()
                if fits(_whole_time(job_type), remaining) and not job_type.is_long(longest)
            ],
            remaining_s=min(remaining, longest).total_seconds(),
            queue=self.limits.queue,
            no_prefetch=[name for name, job_type in known.items() if job_type.on_lost == "dead"],
            free=max(0, self.free(in_flight)),
            limits=self.settings.limits,
            policies=self.policies(),
            runnable=self.job_types.runnable,
            many_queues=self.many_queues,
        )

    def long_admission(self) -> ClaimFilter | None:
        """The filter for jobs that are too long for any tick; None: this tick may not start any."""
        longest = self.settings.run.longest_in_tick
        if not self.settings.run.long_jobs or self.left() <= 0:
            return None
        known = self._known()
        return ClaimFilter(
            known=known.keys(),
            fitting=[name for name, job_type in known.items() if job_type.is_long(longest)],
            remaining_s=-1,
            longest_s=longest.total_seconds(),
            queue=self.limits.queue,
            limits=self.settings.limits,
            policies=self.policies(),
            runnable=self.job_types.runnable,
            many_queues=self.many_queues,
        )

    def take_types(self, job_types: JobTypes) -> None:
        """Use these job types from now on, also for the policies that claims write."""
        self.job_types, self._policies = job_types, None

    def policies(self) -> ClaimPolicies:
        """The policies that claims write on rows, by which any host's recovery can settle a lost attempt."""
        if self._policies is None:
            run = self.settings.run
            types = self.job_types.types
            self._policies = ClaimPolicies.of(
                {name: policy_of(job_type, run, runner=self.runner) for name, job_type in types.items()}
            )
        return self._policies

    def _known(self) -> dict[str, JobType]:
        return {n: t for n, t in self.job_types.types.items() if self.limits.only in (None, n)}


def _whole_time(job_type: JobType) -> timedelta:
    """How much of the tick a job may take: its time-out, and the grace period if it runs in a process.

    Types that are isolated only because they crashed get no grace: one whose time-out just fits would wait for an hour.
    """
    with_grace = job_type.isolation == "process" and not job_type.for_crashes
    return job_type.timeout + PROCESS_GRACE if with_grace else job_type.timeout
