"""How the caller of run-due restricts a tick."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TickFilter:
    """What a tick is restricted to; None: not restricted."""

    queue: str | None = None
    only: str | None = None  # a job type
    jobs: int | None = None  # how many are claimed at most
