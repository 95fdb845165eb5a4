"""What the caller of run-due narrowed a tick to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TickFilter:
    """What a caller narrowed a tick to; None: no limit."""

    queue: str | None = None
    only: str | None = None  # a job type
    jobs: int | None = None  # how many are claimed at most
