"""Decide which jobs the next turn claims: how many, of which types, and whether they fit into the rest of the tick.

The decisions are pure. The planner remembers only facts: the jobs it knows, and how long they took.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, Final

from cronjobs.engine.config.settings import Settings
from cronjobs.engine.execution.attempt import Attempt, InFlight, Phase
from cronjobs.engine.jobs.job_types import JobType, JobTypes, policy_of
from cronjobs.engine.rules.recovery_policy import ClaimPolicies
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.engine.tick.result import TickFilter
from cronjobs.model import RetryPolicy

# Write at most this many outcomes at once. While the loop writes them, workers run the other claimed jobs.
GROUP: Final = 400
# Claim at most this many jobs before a worker is free for them.
MOST_AHEAD: Final = 2 * GROUP
AHEAD_S: Final = 0.05  # a claim covers the jobs that will start within this time
NO_LIMIT: Final = 1_000_000
# After one tick has died, the next tick claims this many rows one at a time: a row that killed the tick is among the
# first that are due. If this next tick dies, too, the tick after it claims all rows one at a time.
WARY_ROWS: Final = 50

# Predict the run time of a type's next job only after this many jobs of the type have ended.
LEAST_ENDS: Final = 20
# For each type, keep only this many of the latest run times.
MOST_ENDS: Final = 100
# The expected time is the longest of these run times multiplied by this factor, plus EXPECTED_MORE.
EXPECTED_TIMES: Final = 2.0
EXPECTED_MORE: Final = timedelta(seconds=0.5)


@dataclass
class Experience:
    """Predicts how long a type's next job will take. The prediction uses the run times of the type's jobs in this tick.

    Without a prediction, jobs with the default timeout could not start in the last third of each minute.

    ``overran`` returns the types of jobs that took longer than expected in the last 24 hours, or None if that is
    unknown. ``overran`` is called only once, when it is first needed.
    """

    overran: Callable[[], Collection[str] | None]
    _took: dict[str, deque[timedelta]] = field(default_factory=dict)

    @cached_property
    def _overran(self) -> Collection[str] | None:
        return self.overran()

    def note(self, job_type: str, took: timedelta) -> None:
        self._took.setdefault(job_type, deque(maxlen=MOST_ENDS)).append(took)

    def expected(self, job_type: JobType) -> timedelta | None:
        """Return a time that the type's next job is unlikely to exceed, or None if only the timeout counts.

        Only the timeout counts if the type declares one, or if a lost job of the type would not be retried.
        """
        if not self._predicts(job_type) or self._overran is None or job_type.name in self._overran:
            return None
        return max(self._took[job_type.name]) * EXPECTED_TIMES + EXPECTED_MORE

    def is_distrusted(self, job_type: JobType) -> bool:
        """Return whether we could predict how long jobs of this type take, but do not, because a tick interrupted one
        in the last 24 hours.
        """
        return self._predicts(job_type) and job_type.name in (self._overran or ())

    def _predicts(self, job_type: JobType) -> bool:
        enough = len(self._took.get(job_type.name, ())) >= LEAST_ENDS
        return enough and not job_type.timeout_declared and job_type.on_lost != "dead"


def unknown() -> None:
    """Stands in for ``overran`` in loops that cannot read the history. It returns None, so these loops use only
    timeouts.
    """


@dataclass
class ClaimPlanner:
    """Plans the claims of one tick.

    ``typical_s`` is the usual run time of recent jobs that may be claimed ahead, or None if unknown. ``last_s`` is how
    long the last job took, and ``write_s`` how long the last turn's transaction took. ``claimed`` counts the jobs
    claimed so far. ``runner`` is how old this tick's process can get, or None if unknown.
    ``many_queues`` is explained in ``Overview``.
    """

    settings: Settings
    job_types: JobTypes
    limits: TickFilter
    workers: int
    claimed: int = 0
    typical_s: float | None = None
    last_s: float = math.inf
    write_s: float = 0.0
    runner: timedelta | None = None
    many_queues: bool = False
    experience: Experience = field(default_factory=lambda: Experience(unknown))
    _policies: ClaimPolicies | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.longest = self.settings.run.longest_in_tick

    def note(self, job_type: str, took: timedelta) -> None:
        self.experience.note(job_type, took)
        self.last_s = seconds = took.total_seconds()
        known = self.job_types.types.get(job_type)
        # A job that starts at once is never claimed ahead, so its run time does not count.
        if known is not None and known.starts_at_once:
            return
        # With ``durable: each``, the job's worker was busy until the commit.
        if known is not None and known.durable == "each":
            seconds += self.write_s
        self.typical_s = seconds if self.typical_s is None else 0.9 * self.typical_s + 0.1 * seconds

    # --- how many -----------------------------------------------------------------------------------------------------

    def free(self, in_flight: InFlight) -> int:
        """Return how many workers are free. If the number is negative, that many claimed jobs wait for a worker."""
        return self.workers - len(in_flight.busy()) - len(in_flight.without_lease)

    def room(self, in_flight: InFlight) -> int:
        """Return how many jobs to claim: enough for the workers that are free now or will be free within about 50 ms.

        The next claim comes when half of the jobs that were claimed ahead are left.
        """
        overdue = sum(attempt.phase is Phase.OVERDUE for attempt in in_flight.busy())
        free, ahead = self.free(in_flight), self.ahead()
        # These handlers may run until the tick ends, so do not count on their workers.
        occupied = overdue + len(in_flight.without_lease)
        if occupied >= self.workers or -free > ahead // 2:
            return 0
        return max(0, min(free + ahead, self.left()))

    def ahead(self) -> int:
        """Return how many jobs to claim ahead: as many as will start within about 50 ms.

        With one worker, claim none ahead, so that jobs run exactly in their order.
        """
        if self.workers == 1 or self.typical_s is None:
            return 0
        return min(MOST_AHEAD, int(self.workers * AHEAD_S / max(self.typical_s, 0.0001)))

    def left(self) -> int:
        """Return how many more jobs ``--limit`` allows."""
        return NO_LIMIT if self.limits.jobs is None else self.limits.jobs - self.claimed

    # --- which --------------------------------------------------------------------------------------------------------

    def admission(self, remaining: timedelta, in_flight: InFlight) -> ClaimFilter:
        """Return the filter for jobs that end before the tick does, so that the tick need not interrupt any.

        A job passes if its timeout, or the run time that ``experience`` predicts, fits into *remaining*.
        """
        longest, known = self.longest, self._known()
        short = {name: job_type for name, job_type in known.items() if not job_type.is_long(longest)}
        fitting = [name for name, job_type in short.items() if _whole_time(job_type) <= remaining]
        expected = [name for name in short.keys() - fitting if self._is_expected_to_fit(short[name], remaining)]
        return self._filter(
            known,
            fitting + expected,
            expected=expected,
            remaining_s=min(remaining, longest).total_seconds(),
            no_prefetch=[name for name, job_type in known.items() if job_type.starts_at_once],
            free=max(0, self.free(in_flight)),
        )

    def _is_expected_to_fit(self, job_type: JobType, remaining: timedelta) -> bool:
        expected = self.experience.expected(job_type)
        return expected is not None and _whole_time(job_type, expected) <= remaining

    def long_admission(self) -> ClaimFilter | None:
        """Return the filter for jobs that are too long for any tick, or None if this tick may not start any."""
        longest, known = self.longest, self._known()
        if not self.settings.run.long_jobs or self.left() <= 0:
            return None
        fitting = [name for name, job_type in known.items() if job_type.is_long(longest)]
        return self._filter(known, fitting, remaining_s=-1, longest_s=longest.total_seconds())

    def _filter(self, known: Mapping[str, JobType], fitting: Sequence[str], **more: Any) -> ClaimFilter:
        return ClaimFilter(
            known=known.keys(),
            fitting=fitting,
            queue=self.limits.queue,
            limits=self.settings.limits,
            policies=self.policies(),
            runnable=self.job_types.runnable,
            many_queues=self.many_queues,
            **more,
        )

    def take_types(self, job_types: JobTypes) -> None:
        """Use these job types from now on, also for the policies that claims write."""
        self.job_types, self._policies = job_types, None

    def policies(self) -> ClaimPolicies:
        """The policies that claims write on rows, so that recovery on any host can settle a lost attempt."""
        if self._policies is None:
            run = self.settings.run
            types = self.job_types.types
            self._policies = ClaimPolicies.of(
                {name: policy_of(job_type, run, runner=self.runner) for name, job_type in types.items()}
            )
        return self._policies

    def retry_policy(self, attempt: Attempt) -> RetryPolicy:
        return self.job_types.policy(attempt.job.job_type, self.settings.retry)

    def _known(self) -> dict[str, JobType]:
        return {
            name: job_type
            for name, job_type in self.job_types.types.items()
            if self.limits.only in (None, name) and job_type.executor == self.limits.executor
        }


def _whole_time(job_type: JobType, expected: timedelta | None = None) -> timedelta:
    """Return the time to reserve for a job: the shorter of its timeout and *expected*, plus the time to stop it."""
    longest = job_type.timeout if expected is None else min(expected, job_type.timeout)
    return longest + job_type.stop_grace
