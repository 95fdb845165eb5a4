"""The nouns of the domain, frozen and without I/O: Job, Outcome, Transition, RetryPolicy, events.

Words are those of the README's glossary. Instants end in ``_at``, ``_until``, ``_for`` and are aware UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final


class Status(StrEnum):
    """The six states of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # will retry at run_at
    DEAD = "dead"  # given up; stays, listed, until someone retries or prunes it
    CANCELLED = "cancelled"


WAITING: Final = (Status.QUEUED, Status.FAILED)
FINAL: Final = (Status.SUCCEEDED, Status.DEAD, Status.CANCELLED)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how late a failed job is tried again.

    The n-th charged failure waits ``min(base * factor**(n-1), cap)``, or ``delays[n-1]`` (the last one repeats), spread
    by ±``jitter`` (0.2 = ±20 %). ``max_attempts`` counts charged failures; the job is dead when it is reached.
    Durations are timedeltas, or text such as "90s", "5m", "2h".
    """

    max_attempts: int = 10
    base: timedelta | str = timedelta(minutes=1)
    factor: float = 2.0
    cap: timedelta | str = timedelta(minutes=30)
    jitter: float = 0.2
    delays: tuple[timedelta | str, ...] | list[timedelta | str] | list[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", duration(self.base))
        object.__setattr__(self, "cap", duration(self.cap))
        if self.delays is not None:
            if not self.delays:
                raise ValueError("delays needs at least one delay")
            object.__setattr__(self, "delays", tuple(duration(delay) for delay in self.delays))
        if self.max_attempts < 1:
            raise ValueError("max_attempts is at least 1")
        if not 1 <= self.factor <= 100:
            raise ValueError("factor is between 1 and 100")
        if not 0 <= self.jitter < 1:
            raise ValueError("jitter is at least 0 and below 1")
        if self._base <= timedelta(0) or self._cap < self._base:
            raise ValueError("base is above zero and at most cap")

    @property
    def _base(self) -> timedelta:
        return duration(self.base)

    @property
    def _cap(self) -> timedelta:
        return duration(self.cap)


@dataclass(frozen=True, slots=True)
class Job:
    """One row of cronjobs_jobs as a claim hands it out. ``attempt`` with ``locked_by`` is the fence."""

    id: int
    job_type: str
    payload: Any  # what the row holds: a dict unless plain SQL wrote something else; see payload_error
    meta: dict[str, str] = field(default_factory=dict)
    queue: str = "default"
    priority: int = 5
    run_at: datetime | None = None
    attempt: int = 0
    failures: int = 0
    losses: int = 0
    interruptions: int = 0
    max_attempts: int | None = None  # None: the job type's policy
    timeout_s: float | None = None  # None: the job type's
    locked_by: str | None = None
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    schedule: str | None = None
    scheduled_for: datetime | None = None
    stands_for: int = 1
    timezone: str = "UTC"  # of its schedule
    created_at: datetime | None = None
    started_at: datetime | None = None
    next_occurrence: datetime | None = None  # of its schedule; a retry never waits beyond it
    retry_until: str | None = None  # of its schedule; "next_occurrence": then it gives up instead

    @property
    def gives_up_at(self) -> datetime | None:
        return self.next_occurrence if self.retry_until == "next_occurrence" else None


# --- how an attempt ended -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Succeeded:
    """*result* is JSON or None; *note* says what was wrong with a result that could not be kept."""

    result: Any = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """``permanent``: dead at once. ``retry_after``: the handler's wish. ``at_least``: floor for the policy's delay."""

    error: str
    error_type: str
    traceback: str | None = None
    permanent: bool = False
    retry_after: timedelta | None = None
    at_least: timedelta | None = None


@dataclass(frozen=True, slots=True)
class TimedOut:
    error: str = "timed out"
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """The runner died, or vanished past its lease, holding the job."""

    error: str = "the runner died or lost its lease"


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Shutdown came first; the attempt is not the job's fault."""

    error: str = "interrupted by shutdown"


@dataclass(frozen=True, slots=True)
class CancelledByRequest:
    error: str = "cancelled"


@dataclass(frozen=True, slots=True)
class Snoozed:
    until: datetime


@dataclass(frozen=True, slots=True)
class Released:
    """Claimed, never begun: it goes back untouched and leaves no history row."""


Outcome = Succeeded | Failed | TimedOut | Lost | Interrupted | CancelledByRequest | Snoozed | Released

OUTCOME_WORDS: Final[dict[type, str]] = {
    Succeeded: "succeeded",
    Failed: "failed",
    TimedOut: "timed_out",
    Lost: "lost",
    Interrupted: "interrupted",
    CancelledByRequest: "cancelled",
    Snoozed: "snoozed",
}


@dataclass(frozen=True, slots=True)
class Transition:
    """What one statement writes: the job's next state and counters. ``run_at`` None: unchanged."""

    status: Status
    failures: int
    losses: int
    interruptions: int
    run_at: datetime | None = None
    delay: timedelta | None = None  # what is logged as next_delay_ms


@dataclass(frozen=True, slots=True)
class Finished:
    """An attempt that ended in this process: what the worker hands to the loop.

    ``duration`` is how long the handler ran; ``output`` what it printed and logged, already capped.
    """

    job: Job
    outcome: Outcome
    duration: timedelta = timedelta(0)
    worker: str = ""
    output: str | None = None


def duration(value: timedelta | str | float) -> timedelta:
    """Read "55s", "10m", "24h", "7d", "1h30m" (a bare number is seconds); raises ValueError saying how to write it."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a duration: write it as 55s, 10m, 24h or 7d")
    if isinstance(value, int | float):
        seconds = float(value)
    else:
        seconds = _seconds(value)
    if not 0 <= seconds <= 10 * 366 * 86400:
        raise ValueError(f"{value!r} is not a duration between 0 and ten years")
    return timedelta(seconds=seconds)


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def _seconds(text: str) -> float:
    rest, total, last = text.strip(), 0.0, float("inf")
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789."))
        unit_end = digits
        while unit_end < len(rest) and rest[unit_end].isalpha():
            unit_end += 1
        unit = _UNITS.get(rest[digits:unit_end])
        if not digits or digits > 12 or unit is None or unit >= last or rest[:digits].count(".") > 1:
            raise ValueError(f"{text!r} is not a duration: write it as 55s, 10m, 24h or 7d")
        total, last, rest = total + float(rest[:digits].strip(".") or "nan") * unit, unit, rest[unit_end:]
    if not text.strip() or total != total:
        raise ValueError(f"{text!r} is not a duration: write it as 55s, 10m, 24h or 7d")
    return total


def duration_text(value: timedelta) -> str:
    """Write a duration as people do: "55s", "10m", "1h30m", "2d", "0.25s"."""
    seconds = value.total_seconds()
    if seconds < 60:
        return f"{seconds:g}s" if seconds == int(seconds) else f"{seconds:.2f}".rstrip("0").rstrip(".") + "s"
    parts, rest = [], round(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if rest >= size:
            parts.append(f"{rest // size}{unit}")
            rest %= size
    return "".join(parts[:2])
