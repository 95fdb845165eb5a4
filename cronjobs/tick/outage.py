"""A loop's trouble with the database: reported once, with growing pauses between tries."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cronjobs import events
from cronjobs.clock import Clock
from cronjobs.errors import DatabaseBusy, DatabaseError, TransientTrouble

SHORTEST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
BUSY_IS_TROUBLE_S: Final = 3.0  # waiting for the write lock is normal; report it only after this


@dataclass
class Outage:
    """``error``: of the last try, None if it succeeded. ``told``: it was reported. ``pause_s``: before the next try."""

    clock: Clock
    emit: Callable[[events.Event], None]
    error: DatabaseError | None = None
    told: bool = False
    pause_s: float = SHORTEST_PAUSE_S
    since: float = 0.0  # monotonic

    def note(self, error: DatabaseError) -> None:
        now = self.clock.monotonic()
        if self.error is None:
            self.since, self.told = now, False
        self.error = error
        if not (isinstance(error, DatabaseBusy) and now - self.since < BUSY_IS_TROUBLE_S):
            self.tell()
        # Retry quickly while only the write lock is busy, so that we do not miss our turn.
        longest_s = SHORTEST_PAUSE_S if isinstance(error, DatabaseBusy) else LONGEST_PAUSE_S
        self.pause_s = min(longest_s, self.pause_s * 2) * random.uniform(0.8, 1.2)

    def tell(self) -> None:
        """Report the error, unless there is none or it was reported before."""
        if self.error is not None and not self.told:
            self.emit(events.database_trouble(str(self.error)))
            self.told = True

    def over(self) -> None:
        self.error, self.pause_s = None, SHORTEST_PAUSE_S

    @property
    def stays(self) -> bool:
        """Whether waiting does not help against this kind of error."""
        return self.error is not None and not isinstance(self.error, TransientTrouble)
