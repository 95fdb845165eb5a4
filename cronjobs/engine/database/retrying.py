"""Decide how often, and for how long, an operation is retried after a database error."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any, Final, TypeVar

from cronjobs.clock import SYSTEM, Clock, sleep
from cronjobs.errors import DatabaseBusy, DatabaseError, DatabaseNotReady, DatabaseUnreachable, TransientTrouble

T = TypeVar("T")

TRIES: Final = 12
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
# A command that has done nothing yet waits at most this long for a server that is not ready.
FIRST_LOOK_S: Final = 3.0


def growing_pauses(tries: int | None = None) -> Iterator[float]:
    """Yield the pauses, in seconds, between a number of *tries*. If *tries* is None, the number is not limited."""
    pause = FIRST_PAUSE_S
    for _ in count() if tries is None else range(tries - 1):
        # The pauses have jitter, so that two deadlocked transactions do not retry at the same time.
        yield pause * (1 + 0.25 * random.uniform(-1, 1))
        pause = min(pause * 2, LONGEST_PAUSE_S)


def passes(error: DatabaseError) -> bool:
    """Return whether a statement that failed with *error* may succeed if it is retried soon."""
    return isinstance(error, TransientTrouble)


def fails_every_statement(error: DatabaseError, *, is_sqlite: bool) -> bool:
    """Return whether all other statements would fail as well. On PostgreSQL, a lock affects only one table or row."""
    return isinstance(error, DatabaseUnreachable) or (isinstance(error, DatabaseBusy) and is_sqlite)


def patiently(
    do: Callable[[], T],
    *,
    clock: Clock = SYSTEM,
    until: float = math.inf,
    errors: type[Exception] = DatabaseError,
    worth: Callable[[Any], bool] = passes,
    pauses: Iterable[float] | None = None,
    go_on: Callable[[], bool] = lambda: True,
    note: Callable[[Any, int, float], None] = lambda *_: None,
) -> T:
    """Call *do*, which must be safe to repeat, until it succeeds.

    Raises the last error if no *pauses* are left, if the next try would be after *until* (monotonic clock), if the
    error is not *worth* a retry, or if *go_on* returns False. If *pauses* is None, the pauses grow, and there are 12
    tries. *note* is called before each retry with the error, the number of failures and the pause in seconds.
    """
    pauses_left = iter(growing_pauses(TRIES) if pauses is None else pauses)
    failed = 0
    while True:
        try:
            return do()
        except errors as error:
            failed += 1
            pause = next(pauses_left, None)
            if pause is None or not worth(error) or not go_on() or clock.monotonic() + pause >= until:
                raise
            note(error, failed, pause)
        sleep(pause)


def first_look(do: Callable[[], T], clock: Clock) -> T:
    """Call *do*, a command's first use of the database. Retry while the server exists but is not ready."""
    answered = False

    def server_is_there(error: DatabaseError) -> bool:
        """Return whether to retry after this error.

        A server that is starting may be unreachable for a moment, so retry if it has answered before. If the server has
        never answered, the error is reported at once.
        """
        nonlocal answered
        answered = answered or isinstance(error, DatabaseNotReady)
        return answered and isinstance(error, DatabaseUnreachable)

    return patiently(do, clock=clock, until=clock.monotonic() + FIRST_LOOK_S, worth=server_is_there)
