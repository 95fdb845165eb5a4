"""What a tick has in its hands: the leases it holds, and what is not yet written about them. Nothing here does I/O."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from cronjobs.execution.attempt import Attempt, Ended
from cronjobs.rules.ending import lease_of
from cronjobs.rules.lease import Lease


@dataclass
class InFlight:
    """Attempts by what is known of them. Instants are seconds of the monotonic clock."""

    held: dict[int, Attempt] = field(default_factory=dict)  # every lease, by job id
    leased_at: dict[int, float] = field(default_factory=dict)  # when the statement that last extended it was sent
    adrift: list[Attempt] = field(default_factory=list)  # their lease is lost; the thread still runs, in its slot
    unwritten: list[Ended] = field(default_factory=list)
    unrecorded: list[Attempt] = field(default_factory=list)  # overdue, their history row not yet written

    dropped: set[int] = field(default_factory=set)  # jobs whose end the database takes in no form: their leases run out

    def take(self, attempt: Attempt, sent: float) -> None:
        self.held[attempt.job.id] = attempt
        self.leased_at[attempt.job.id] = attempt.leased_at = sent

    def renewed(self, job_ids: Collection[int], sent: float) -> None:
        for job_id in job_ids & self.held.keys():
            self.leased_at[job_id] = self.held[job_id].leased_at = sent

    def leases(self) -> list[Lease]:
        return [lease_of(attempt.job) for attempt in self.held.values()]

    def first_leased(self) -> float:
        """When the lease that ends first was extended; infinity: none is held."""
        # A copy: a signal handler may ask while the loop changes it.
        return min(list(self.leased_at.values()), default=math.inf)

    def holds(self, attempt: Attempt) -> bool:
        return self.held.get(attempt.job.id) is attempt

    def forget(self, job_id: int) -> None:
        self.held.pop(job_id, None)
        self.leased_at.pop(job_id, None)

    def lose(self, job_id: int) -> Attempt:
        """Its lease is gone, and with it whatever was to be written; its thread may run on."""
        attempt = self.held[job_id]
        ended = any(end.attempt is attempt for end in self.unwritten)
        self.forget(job_id)
        self.unwritten = [end for end in self.unwritten if end.attempt is not attempt]
        if attempt.started is not None and not ended and not attempt.handed_over:
            self.adrift.append(attempt)
        return attempt

    def drop(self, ended: Ended) -> None:
        """The database takes this end in no form."""
        self.unwritten = [other for other in self.unwritten if other is not ended]
        self.dropped.add(ended.attempt.job.id)
        self.forget(ended.attempt.job.id)

    def end_itself(self, job_id: int) -> None:
        """Its attempt ended it in a transaction of its own: no lease is left, its code may still run, in its slot."""
        attempt = self.held[job_id]
        attempt.succeeded, attempt.leased_at = True, attempt.overdue_at
        self.forget(job_id)
        if not any(end.attempt is attempt for end in self.unwritten):
            self.adrift.append(attempt)

    def running_on(self, now: float) -> list[Attempt]:
        """What ended its job itself, and whose code still has time to come to its own end."""
        return [attempt for attempt in self.adrift if attempt.succeeded and now < attempt.overdue_at]

    def settle(self, job_ids: Collection[int]) -> None:
        """These ends are in the database, or nobody's business any more."""
        self.unwritten = [end for end in self.unwritten if end.attempt.job.id not in job_ids]

    def recorded(self, job_ids: Collection[int]) -> None:
        """The history rows of these overdue attempts are in the database."""
        self.unrecorded = [a for a in self.unrecorded if a.job.id not in job_ids and a.job.id in self.held]

    def came_back(self, attempt: Attempt) -> None:
        self.adrift = [other for other in self.adrift if other is not attempt]

    def busy(self) -> list[Attempt]:
        """What is claimed and has not ended, begun or not; not what goes to a process of its own."""
        ended = {id(end.attempt) for end in self.unwritten}
        return [a for a in self.held.values() if id(a) not in ended and not a.handed_over]

    def handing_over(self) -> list[Attempt]:
        """What waits for its own process to answer."""
        ended = {id(end.attempt) for end in self.unwritten}
        return [a for a in self.held.values() if id(a) not in ended and a.handed_over]
