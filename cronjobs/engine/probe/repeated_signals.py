"""Recognise a signal that reaches a process twice: directly, and passed on by the process that started it.

systemd and container runtimes signal every process of a service. The receiver must count such a pair as one request,
because a second request ends its grace period.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SAME_SIGNAL_S = 1.0


class RepeatedSignals:
    """The signals that arrived, with the time of each on the clock *monotonic*."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._at: dict[int, float] = {}

    def again(self, number: int) -> bool:
        """Return whether the signal *number* already arrived less than SAME_SIGNAL_S ago. If it did not, record its
        arrival.
        """
        now = self._monotonic()
        if number in self._at and now - self._at[number] < SAME_SIGNAL_S:
            return True
        self._at[number] = now
        return False
