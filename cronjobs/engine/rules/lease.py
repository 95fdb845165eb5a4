"""A lease, how often it is renewed, and how an attempt ended, as the store reads and writes them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from cronjobs.engine.rules.progress import Reported
from cronjobs.engine.rules.recovery_policy import AttemptPolicy
from cronjobs.model import Job, Status

LOCKED_ROW_S: Final = 0.25  # until the next try to renew, where somebody's open transaction had a row locked


class Lease(NamedTuple):
    """The right to run one attempt: the fence in Python."""

    job_id: int
    attempt: int
    locked_by: str

    def facts(self) -> dict[str, Any]:
        """For a statement about this lease alone."""
        return {"id": self.job_id, "attempt": self.attempt, "locked_by": self.locked_by}


def lease_of(job: Job) -> Lease:
    assert job.locked_by is not None
    return Lease(job.id, job.attempt, job.locked_by)


class Report(NamedTuple):
    """What a renewal writes besides; ``live_output`` None: what the row has of it is still right."""

    lease: Lease
    reported: Reported
    live_output: str | None = None


class Finish(NamedTuple):
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

    @staticmethod
    def columns(ends: Sequence[Finish]) -> list[Sequence[Any]]:
        """What these ends have of each field, in their order, the lease's three values first; spans in seconds."""
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

    ``outcome`` is what its runner recorded about the attempt, None if nothing: lost. ``policy`` None: plain
    SQL claimed it. ``unbegun``: it waited on a cluster, and no worker there
    had begun it. ``doubtful``: an earlier claim of it had ended before its row was read.
    """

    job: Job
    outcome: str | None
    error: str | None
    error_type: str | None
    policy: AttemptPolicy | None = None
    cancel_requested: bool = False
    unbegun: bool = False
    doubtful: bool = False


def lease_margin_s(lease_s: float) -> float:
    """How long before its lease ends the code of an attempt must be gone."""
    return min(2.0, lease_s / 10)


def heartbeat_s(lease_s: float) -> float:
    """How often a lease is renewed: three renewals may fail before it ends."""
    return lease_s / 4


def next_renewal(first_leased: float, renewed_at: float, lease_s: float) -> float:
    """When all leases are renewed next, on the monotonic clock; infinity: none is held.

    A heartbeat after the oldest of them was written, at *first_leased*. A row that somebody had locked when they were
    renewed last, at *renewed_at*, is tried again soon.
    """
    every_s = heartbeat_s(lease_s)
    return max(first_leased + every_s, renewed_at + min(LOCKED_ROW_S, every_s))
