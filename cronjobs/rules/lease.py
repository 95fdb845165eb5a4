"""A lease, how often it is renewed, and how an attempt ended, as the store reads and writes them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from cronjobs.model import Job, Status
from cronjobs.rules.attempt_policy import AttemptPolicy


@dataclass(frozen=True)
class Lease:
    """The right to run one attempt: the fence in Python."""

    job_id: int
    attempt: int
    locked_by: str

    def row(self) -> dict[str, Any]:
        return {"id": self.job_id, "attempt": self.attempt, "locked_by": self.locked_by}


def lease_of(job: Job) -> Lease:
    assert job.locked_by is not None
    return Lease(job.id, job.attempt, job.locked_by)


@dataclass(frozen=True)
class Finish:
    """One attempt's end as it is written: the job's next state, and its history row unless ``outcome`` is None.

    ``ended_ago`` and ``duration`` are spans, because instants have to come from the database's clock. ``duration``
    None: the attempt began when it was claimed. Texts are already cleaned and capped; ``result`` is JSON text.
    """

    lease: Lease
    status: Status
    failures: int
    losses: int
    interruptions: int
    outcome: str | None
    run_at: datetime | None = None
    ended_ago: timedelta = timedelta(0)
    duration: timedelta | None = None
    worker: str | None = None
    error_type: str | None = None
    error: str | None = None
    traceback: str | None = None
    output: str | None = None
    result: str | None = None

    def row(self) -> dict[str, Any]:
        """The values of the JSON parameter; None is left out, and becomes NULL."""
        facts = vars(self) | {"status": str(self.status), "ended_ago": self.ended_ago.total_seconds()}
        del facts["lease"]
        if self.duration is not None:
            facts["duration"] = self.duration.total_seconds()
        return self.lease.row() | {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True)
class Expired:
    """A job whose lease expired, or whose runner is dead.

    ``outcome`` is what its runner recorded about the attempt, None if nothing: lost. ``policy`` None: an older version
    claimed it, and only a host that knows its type can decide.
    """

    job: Job
    outcome: str | None
    error: str | None
    error_type: str | None
    policy: AttemptPolicy | None = None
    cancel_requested: bool = False


def lease_margin_s(lease_s: float) -> float:
    """How long before its lease ends the code of an attempt must be gone."""
    return min(2.0, lease_s / 10)


def heartbeat_s(lease_s: float) -> float:
    """How often a lease is renewed: three renewals may fail before it ends."""
    return lease_s / 4
