"""A lease, how often a lease is renewed, and the end of an attempt, in the form that the store reads and writes.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from cronjobs.engine.rules.progress import Reported
from cronjobs.engine.rules.recovery_policy import AttemptPolicy
from cronjobs.model import Job, Status

# If another transaction has locked a row, try again after this time to renew the row's lease.
LOCKED_ROW_S: Final = 0.25


class Lease(NamedTuple):
    """The right to run one attempt. Its fields are the fence: each write of the attempt compares them with the row."""

    job_id: int
    attempt: int
    locked_by: str

    def facts(self) -> dict[str, Any]:
        """Return the parameters of an SQL statement about only this lease."""
        return {"id": self.job_id, "attempt": self.attempt, "locked_by": self.locked_by}


def lease_of(job: Job) -> Lease:
    assert job.locked_by is not None
    return Lease(job.id, job.attempt, job.locked_by)


class Report(NamedTuple):
    """A report of a running attempt, written with the renewal. Without ``live_output``, the row keeps its output."""

    lease: Lease
    reported: Reported
    live_output: str | None = None


class Finish(NamedTuple):
    """The end of one attempt, as the store writes it: the job's next state and, with an ``outcome``, the history row.

    ``ended_ago`` and ``duration`` are spans, because instants must come from the database's clock. If ``duration`` is
    None, the attempt began when it was claimed. Texts are already cleaned and capped. ``result`` is JSON text.
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

    @staticmethod
    def columns(ends: Sequence[Finish]) -> list[Sequence[Any]]:
        """Return one list of values per field of *ends*, in the order of the fields, except that the lease's three
        fields come first.

        Spans are in seconds.
        """
        lease, status, failures, losses, interruptions, outcome, run_at, ended_ago, duration, *texts = zip(
            *ends, strict=True
        )
        return [
            *zip(*lease, strict=True),
            [each.value for each in status],
            failures,
            losses,
            interruptions,
            outcome,
            run_at,
            [span.total_seconds() for span in ended_ago],
            [None if span is None else span.total_seconds() for span in duration],
            *texts,
        ]


@dataclass(frozen=True)
class Expired:
    """A job whose lease expired, or whose runner is dead.

    ``outcome`` is what its runner recorded about the attempt, or None if the runner recorded nothing. ``policy`` is
    None if somebody claimed the job with plain SQL. ``unbegun`` is True if the attempt was sent to a cluster, and no
    worker there had begun it. ``doubtful`` is True if an earlier tick claimed the job, but died or ran out of time
    before it had read the job's row.
    """

    job: Job
    outcome: str | None
    error: str | None
    error_type: str | None
    policy: AttemptPolicy | None = None
    cancel_requested: bool = False
    unbegun: bool = False
    doubtful: bool = False
    traceback: str | None = None


def lease_margin_s(lease_s: float) -> float:
    """Return the seconds by which an attempt's code must have stopped before its lease ends."""
    return min(2.0, lease_s / 10)


def heartbeat_s(lease_s: float) -> float:
    """Return the seconds between two renewals of a lease. So three renewals in a row may fail before the lease ends."""
    return lease_s / 4


def next_renewal(first_leased: float, renewed_at: float, lease_s: float) -> float:
    """Return when to renew all leases next, on the monotonic clock, or infinity if no lease is held.

    That is one heartbeat after *first_leased*, when the oldest lease was written. If its row was locked at the last
    renewal, *renewed_at*, try again LOCKED_ROW_S after that.
    """
    every_s = heartbeat_s(lease_s)
    return max(first_leased + every_s, renewed_at + min(LOCKED_ROW_S, every_s))
