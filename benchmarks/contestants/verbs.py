"""The commands by which peers.py calls a contestant in the contestant's own environment: ``python on_it.py verb [n]``.

``setup`` creates the schema. ``fill`` deletes everything and adds n due jobs, in the way that is best for the
contestant. ``left`` counts jobs that are not done. ``run`` works until nothing is due. ``single`` and ``bulk`` enqueue
n jobs and print how many seconds that took.
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
    """Return the verb ``single`` for an *enqueue* that commits each job separately."""

    def single(count: int) -> float:
        def all_of_them() -> None:
            for n in range(count):
                enqueue(n)

        return timed(all_of_them)

    return single
