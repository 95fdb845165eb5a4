"""How peers.py speaks to a contestant in the contestant's own environment: ``python on_it.py verb [n]``.

setup makes the schema; fill empties everything and adds n due jobs, as the contestant does it best; left counts jobs
that are not done; run works until nothing is due; single and bulk enqueue n jobs and tell the seconds it took.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

URL = os.environ["BENCH_URL"]
SQLITE_FILE = URL.removeprefix("sqlite:///") if URL.startswith("sqlite") else None


def serve(**verbs: Callable[..., object]) -> None:
    verb, *numbers = sys.argv[1:]
    answer = verbs[verb](*map(int, numbers))
    if answer is not None:
        print(answer)


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def one_by_one(enqueue: Callable[[int], object]) -> Callable[[int], float]:
    """The verb ``single``, for an *enqueue* that commits each job alone."""

    def single(count: int) -> float:
        def all_of_them() -> None:
            for n in range(count):
                enqueue(n)

        return timed(all_of_them)

    return single
