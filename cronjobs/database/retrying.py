"""How often, and for how long, an operation is retried after a database error."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, TypeVar

from cronjobs.clock import Clock, sleep
from cronjobs.errors import DatabaseError, DatabaseNotReady, DatabaseUnreachable, TransientTrouble

T = TypeVar("T")

TRIES: Final = 12
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
FIRST_LOOK_S: Final = 3.0  # how long a command that has not done anything yet waits for a server to come back


def pause_s(failed: int, jitter: float) -> float | None:
    """Seconds to wait after *failed* failures in a row; None: that was the last try. *jitter* is within ±1."""
    if failed >= TRIES:
        return None
    # TRIES bounds the exponent. Jitter, so that two deadlocked transactions do not retry together.
    return min(FIRST_PAUSE_S * 2.0 ** (failed - 1), LONGEST_PAUSE_S) * (1 + 0.25 * jitter)


def passes(error: DatabaseError, failed: int) -> bool:
    """Whether the same may work in a moment."""
    return isinstance(error, TransientTrouble)


def server_is_there(error: DatabaseError, failed: int) -> bool:
    """Whether a server has answered, so that a first look may wait for it; a missing server is reported at once."""
    return isinstance(error, DatabaseNotReady) or (failed > 1 and isinstance(error, DatabaseUnreachable))


def patiently(
    do: Callable[[], T],
    *,
    clock: Clock,
    until: float,
    worth: Callable[[DatabaseError, int], bool] = passes,
    go_on: Callable[[], bool] = lambda: True,
    note: Callable[[DatabaseError, int, float], None] = lambda *_: None,
) -> T:
    """Call *do*, which is safe to repeat, until it works; raise its last error if that is not *worth* another try.

    *until* is on the monotonic clock. *note* is called for each error before a retry, with the number of failures and
    the pause in seconds.
    """
    failed = 0
    while True:
        try:
            return do()
        except DatabaseError as error:
            failed += 1
            pause = pause_s(failed, random.uniform(-1, 1))
            if pause is None or not worth(error, failed) or not go_on() or clock.monotonic() + pause >= until:
                raise
            note(error, failed, pause)
        sleep(pause)


def first_look(do: Callable[[], T], clock: Clock) -> T:
    """Call *do*, a command's first use of the database; retry if the server is there but not ready."""
    return patiently(do, clock=clock, until=clock.monotonic() + FIRST_LOOK_S, worth=server_is_there)
