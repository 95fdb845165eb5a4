"""The buckets of the histograms: how long jobs waited after they were due, and how long attempts took."""

from __future__ import annotations

from typing import Final

# The upper bounds of the buckets. One more bucket counts all longer times.
BOUNDS_S: Final = (0.1, 0.5, 1, 5, 15, 30, 60, 120, 300, 900, 3600, 14400)
BOUNDS: Final = tuple(round(bound * 1_000_000) for bound in BOUNDS_S)
# This bucket number means that nothing was measured: the job never began, or nobody saw the attempt end.
NO_BUCKET: Final = -1
