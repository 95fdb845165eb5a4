"""The buckets of the histograms: how long jobs waited after they were due, and how long attempts took."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (0.1, 0.5, 1, 5, 15, 30, 60, 120, 300, 900, 3600, 14400)  # ends of buckets; one more has the rest
BOUNDS: Final = tuple(round(bound * 1_000_000) for bound in BOUNDS_S)
NO_BUCKET: Final = -1  # nothing was measured: a job that never began, an attempt whose end nobody saw


def bucket_of(micros: float | None) -> int:
    return NO_BUCKET if micros is None else bisect_left(BOUNDS, micros)
