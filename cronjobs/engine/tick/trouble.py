"""Handle errors in a loop.

After an error caused by a bug in cronjobs, running jobs still finish. After a database error, the loop retries.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from traceback import extract_tb
from typing import Final, NamedTuple

from cronjobs import events
from cronjobs.clock import Clock
from cronjobs.errors import DatabaseBusy, DatabaseError, TransientTrouble

# The reason that is recorded for a tick that ended because of a bug in cronjobs.
FAULT: Final = "an internal error in cronjobs"
# After this many errors the loop gives up and ends, even if jobs are running.
MOST_FALLS: Final = 10
FRAMES: Final = 6


@dataclass
class SafetyNet:
    """Catches unexpected errors. ``error`` is the first one. Tests set ``catches`` to False, so that errors propagate.

    After the first error, the loop claims no more jobs. It changes its memory only after a commit, so it can simply
    repeat a turn that an error interrupted. It reads the rows to find jobs that such a turn may have claimed.
    """

    write_event: Callable[[events.Event], None]
    catches: bool = True
    error: Exception | None = None
    falls: int = 0

    @property
    def gave_up(self) -> bool:
        return self.falls >= MOST_FALLS

    @property
    def pause_s(self) -> float:
        """How many seconds to wait before the next try, so that a permanent error does not keep a processor busy."""
        return min(0.2, 0.01 * 2.0 ** min(self.falls, 10))

    def catch(self, error: Exception) -> None:
        """Note *error*, and report it if it is the first one. If ``catches`` is False, raise it instead."""
        if not self.catches:
            raise error
        self.falls += 1
        if self.error is None:
            self.error = error
            self.emit(events.fault_of_ours(error, place(error)))

    def emit(self, event: events.Event) -> None:
        """Report *event*. If reporting fails, the loop continues, but the failure counts as an error."""
        try:
            self.write_event(event)
        except Exception as error:
            if not self.catches:
                raise
            self.error, self.falls = self.error or error, self.falls + 1


def place(error: BaseException) -> str:
    """Return where *error* was raised: "loop.py:212 _turn < loop.py:98 run", innermost first."""
    frames = list(reversed(extract_tb(error.__traceback__)))[:FRAMES]
    return " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames)


# --- with the database ------------------------------------------------------------------------------------------------

SHORTEST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
# Waiting for the write lock is normal, so it is reported only if it takes longer than this.
BUSY_IS_TROUBLE_S: Final = 3.0
# Collect garbage at most this often, because collecting stops all handlers, for 0.1 s if the app is large.
COLLECT_EVERY_S: Final = 1.0


class PastOutage(NamedTuple):
    """A time in which a tick could not use the database, on the monotonic clock. ``why`` is the last error."""

    began: float
    ended: float
    why: str


@dataclass
class Outage:
    """The loop's current database error, and when to try again.

    ``error`` is None if the last try succeeded. ``reported`` is True if the error was reported. ``pause_s`` is how long
    to wait before the next try. ``past`` has the reported errors that are over.
    """

    clock: Clock
    emit: Callable[[events.Event], None]
    past: list[PastOutage] = field(default_factory=list)
    error: DatabaseError | None = None
    reported: bool = False
    pause_s: float = SHORTEST_PAUSE_S
    since: float = 0.0  # on the monotonic clock
    collect_at: float = 0.0  # on the monotonic clock: when garbage may be collected again

    def note(self, error: DatabaseError) -> None:
        now = self.clock.monotonic()
        if self.error is None:
            self.since, self.reported = now, False
        self.error = error
        if isinstance(error, DatabaseBusy) and now >= self.collect_at:
            # A handler may have returned without ending its transaction. If nothing refers to its connection any more,
            # collecting garbage closes the connection. On its own, Python rarely collects during a tick.
            gc.collect()
            self.collect_at = now + COLLECT_EVERY_S
        if not (isinstance(error, DatabaseBusy) and now - self.since < BUSY_IS_TROUBLE_S):
            self.report()
        # Retry quickly while only the write lock is busy, so that we do not miss the moment when it becomes free.
        longest_s = SHORTEST_PAUSE_S if isinstance(error, DatabaseBusy) else LONGEST_PAUSE_S
        self.pause_s = min(longest_s, self.pause_s * 2) * random.uniform(0.8, 1.2)

    def report(self) -> None:
        """Report the current error, if there is one that has not been reported yet."""
        if self.error is not None and not self.reported:
            self.emit(events.database_trouble(str(self.error), self.error.cause))
            self.reported = True

    def over(self) -> None:
        self.past += self.until_now()
        self.error, self.pause_s = None, SHORTEST_PAUSE_S

    def until_now(self) -> list[PastOutage]:
        """Return the current error as if it ended now, or [] if none was reported."""
        if self.error is None or not self.reported:
            return []
        return [PastOutage(self.since, self.clock.monotonic(), str(self.error))]

    @property
    def stays(self) -> bool:
        """Whether the error is one that waiting cannot fix."""
        return self.error is not None and not isinstance(self.error, TransientTrouble)
