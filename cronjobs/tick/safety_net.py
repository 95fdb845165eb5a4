"""The loop's one safety net: an unexpected error is reported, and running jobs still come to their end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from traceback import extract_tb
from typing import Final

from cronjobs import events

FAULT: Final = "a fault of cronjobs itself"  # why a tick ended
MOST_FALLS: Final = 10  # after so many errors nothing of the loop works any more, and it ends whatever is running
FRAMES: Final = 6


@dataclass
class SafetyNet:
    """Catches unexpected errors; ``error`` is the first. With ``spread`` False they propagate, for tests to see.

    After the first error nothing more is claimed. Memory changes only after a commit, so a turn that was interrupted is
    done again, and jobs that it may have claimed are found by reading the rows.
    """

    tell: Callable[[events.Event], None]
    spread: bool = True
    error: Exception | None = None
    falls: int = 0

    @property
    def gave_up(self) -> bool:
        return self.falls >= MOST_FALLS

    @property
    def pause_s(self) -> float:
        """Seconds until the next try, so that a permanent error does not keep a processor busy."""
        return min(0.2, 0.01 * 2.0 ** min(self.falls, 10))

    def catch(self, error: Exception) -> None:
        """Note *error* and report the first; raises it if ``spread`` is False."""
        if not self.spread:
            raise error
        self.falls += 1
        if self.error is None:
            self.error = error
            self.emit(events.fault_of_ours(error, place(error)))

    def emit(self, event: events.Event) -> None:
        """Report *event*. A failing report stops nothing, and counts as an error."""
        try:
            self.tell(event)
        except Exception as error:
            if not self.spread:
                raise
            self.error, self.falls = self.error or error, self.falls + 1


def place(error: BaseException) -> str:
    """Where *error* was raised: "loop.py:212 _turn < loop.py:98 run", innermost first."""
    frames = list(reversed(extract_tb(error.__traceback__)))[:FRAMES]
    return " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames)
