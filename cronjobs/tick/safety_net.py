"""The loop's one safety net: an error that nobody expected is reported, and what is in hand still comes to an end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from traceback import extract_tb
from typing import Final

from cronjobs import events

FAULT: Final = "a fault of cronjobs itself"  # why a tick ended
MOST_FALLS: Final = 10  # then nothing of the loop works any more, and it ends whatever runs
FRAMES: Final = 6


@dataclass
class SafetyNet:
    """``error``: the first one that was caught. ``spread`` False: errors go through, for a test to see them.

    Nothing is claimed from the first one on. What is in memory is changed after each commit, so a turn that was broken
    off is done again, and what it may have claimed is found by reading.
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
        """Until the next try, so that an error that stays does not keep a processor busy."""
        return min(0.2, 0.01 * 2.0 ** min(self.falls, 10))

    def catch(self, error: Exception) -> None:
        """Note *error*, reported once; raises it if the net is not spread."""
        if not self.spread:
            raise error
        self.falls += 1
        if self.error is None:
            self.error = error
            self.emit(events.fault_of_ours(error, place(error)))

    def emit(self, event: events.Event) -> None:
        """Report *event*. A report that fails stops nothing, and is a fault."""
        try:
            self.tell(event)
        except Exception as error:
            if not self.spread:
                raise
            self.error, self.falls = self.error or error, self.falls + 1


def place(error: BaseException) -> str:
    """Where *error* was raised: "loop.py:212 _turn < loop.py:98 run", the innermost first."""
    frames = list(reversed(extract_tb(error.__traceback__)))[:FRAMES]
    return " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames)
