"""What a tick is working on: the leases it has, and what it has not yet written about them. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from cronjobs.execution.attempt import Attempt, Ended
from cronjobs.rules.ending import lease_of
from cronjobs.rules.lease import Lease


@dataclass
class InFlight:
    """The tick's attempts by their state. Instants are seconds of the monotonic clock."""

    held: dict[int, Attempt] = field(default_factory=dict)  # every leased attempt, by job id
    leased_at: dict[int, float] = field(default_factory=dict)  # when we sent the statement that last extended the lease
    without_lease: list[Attempt] = field(default_factory=list)  # the thread still runs, and keeps its slot
    unwritten: list[Ended] = field(default_factory=list)
    unrecorded: list[Attempt] = field(default_factory=list)  # overdue; their history row is not written yet

    dropped: set[int] = field(default_factory=set)  # jobs whose end the database refuses in any form; leases run out

    def take(self, attempt: Attempt, sent: float) -> None:
        self.held[attempt.job.id] = attempt
        self.leased_at[attempt.job.id] = attempt.leased_at = sent

    def renewed(self, job_ids: Collection[int], sent: float) -> None:
        for job_id in job_ids & self.held.keys():
            self.leased_at[job_id] = self.held[job_id].leased_at = sent

    def leases(self) -> list[Lease]:
        return [lease_of(attempt.job) for attempt in self.held.values()]

    def first_leased(self) -> float:
        """When the lease that ends first was last extended; infinity if there is none."""
        # A copy: the signal handler may call this while the loop changes the dict.
        return min(list(self.leased_at.values()), default=math.inf)

    def holds(self, attempt: Attempt) -> bool:
        return self.held.get(attempt.job.id) is attempt

    def forget(self, job_id: int) -> None:
        self.held.pop(job_id, None)
        self.leased_at.pop(job_id, None)

    def lose(self, job_id: int) -> Attempt:
        """Drop a lost lease and what was to be written about it; its thread may still run."""
        attempt = self.held[job_id]
        ended = any(end.attempt is attempt for end in self.unwritten)
        self.forget(job_id)
        self.unwritten = [end for end in self.unwritten if end.attempt is not attempt]
        if attempt.started is not None and not ended and not attempt.handed_over:
            self.without_lease.append(attempt)
        return attempt

    def drop(self, ended: Ended) -> None:
        """The database takes this end in no form."""
        self.unwritten = [other for other in self.unwritten if other is not ended]
        self.dropped.add(ended.attempt.job.id)
        self.forget(ended.attempt.job.id)

    def end_itself(self, job_id: int) -> None:
        """Drop a job that its handler ended in its own transaction; the handler may still run, and keeps its slot."""
        attempt = self.held[job_id]
        attempt.succeeded, attempt.leased_at = True, attempt.overdue_at
        self.forget(job_id)
        if not any(end.attempt is attempt for end in self.unwritten):
            self.without_lease.append(attempt)

    def running_on(self, now: float) -> list[Attempt]:
        """Attempts that recorded their own success and whose handler is still within its timeout."""
        return [attempt for attempt in self.without_lease if attempt.succeeded and now < attempt.overdue_at]

    def settle(self, job_ids: Collection[int]) -> None:
        """These ends are written, or need not be written any more."""
        self.unwritten = [end for end in self.unwritten if end.attempt.job.id not in job_ids]

    def recorded(self, job_ids: Collection[int]) -> None:
        """The history rows of these overdue attempts are written."""
        self.unrecorded = [a for a in self.unrecorded if a.job.id not in job_ids and a.job.id in self.held]

    def came_back(self, attempt: Attempt) -> None:
        self.without_lease = [other for other in self.without_lease if other is not attempt]

    def busy(self) -> list[Attempt]:
        """Attempts that are claimed and have not ended, started or not, except those being handed over to a process."""
        ended = {id(end.attempt) for end in self.unwritten}
        return [a for a in self.held.values() if id(a) not in ended and not a.handed_over]

    def handing_over(self) -> list[Attempt]:
        """Attempts whose own process has not answered yet."""
        ended = {id(end.attempt) for end in self.unwritten}
        return [a for a in self.held.values() if id(a) not in ended and a.handed_over]
