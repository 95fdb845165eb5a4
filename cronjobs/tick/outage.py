"""What the database said to a loop that goes on trying: told once, with growing pauses between tries."""

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
BUSY_IS_TROUBLE_S: Final = 3.0  # others write too: waiting for a turn is nothing to tell before this


@dataclass
class Outage:
    """``error``: what the last try came to; None: it went well. ``told``: it was; ``pause_s``: before the next try."""

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
        # Who waits for a turn is to be there when it comes.
        longest_s = SHORTEST_PAUSE_S if isinstance(error, DatabaseBusy) else LONGEST_PAUSE_S
        self.pause_s = min(longest_s, self.pause_s * 2) * random.uniform(0.8, 1.2)

    def tell(self) -> None:
        """Tell it, unless there is none, or it was told before."""
        if self.error is not None and not self.told:
            self.emit(events.database_trouble(str(self.error)))
            self.told = True

    def over(self) -> None:
        self.error, self.pause_s = None, SHORTEST_PAUSE_S

    @property
    def stays(self) -> bool:
        """Whether it is of a kind that no waiting mends."""
        return self.error is not None and not isinstance(self.error, TransientTrouble)
