"""Random cases: a seed makes a case, a promise judges it, and a failure names the seed that repeats it alone.

Every day a few cases run, with CRONJOBS_TESTS_LONG=1 two thousand. CRONJOBS_CASE=17 runs case 17 alone;
CRONJOBS_CASES=50000 and CRONJOBS_CASES_FROM=2000 choose others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable

from support.rounds import rounds

MANY = 2_000


def seeds(few: int, many: int = MANY) -> Iterable[int]:
    if alone := os.environ.get("CRONJOBS_CASE"):
        return [int(alone)]
    first = int(os.environ.get("CRONJOBS_CASES_FROM", "0"))
    return range(first, first + int(os.environ.get("CRONJOBS_CASES", rounds(few, many))))


def judge(case: Callable[[random.Random], None], few: int, many: int = MANY) -> None:
    """Run *case* once for each seed; it raises AssertionError where the promise is broken.

    *few* cases run every day, *many* in the long form.
    """
    for seed in seeds(few, many):
        try:
            case(random.Random(seed))
        except BaseException as error:
            error.add_note(f"case {seed}: CRONJOBS_CASE={seed} repeats it alone")
            raise
