"""Random cases. A seed makes a case, a promise judges it, and a failure names the seed that repeats the case alone.

Normally a few cases run. With CRONJOBS_TESTS_LONG=1, two thousand run. CRONJOBS_CASE=17 runs case 17 alone;
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
    """Run *case* once for each seed.

    *case* raises AssertionError if the promise is broken. Normally *few* cases run, and *many* in the long form.
    """
    for seed in seeds(few, many):
        try:
            case(random.Random(seed))
        except BaseException as error:
            error.add_note(f"case {seed}: CRONJOBS_CASE={seed} repeats it alone")
            raise
