"""Plan which receipts fail and how the mail server makes them fail. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Mishap(StrEnum):
    """The ways in which the mail server makes a receipt fail."""

    BUSY = "450 at the address"
    BUSY_AFTER_MESSAGE = "451 after the message"
    HANGS_UP = "hangs up before the message"
    SILENT = "no answer before the message"
    KEPT_UNANSWERED = "takes the message and hangs up without an answer"
    LOST_UNANSWERED = "loses the message and hangs up without an answer"
    NO_SUCH_ADDRESS = "550 until the address is corrected"


@dataclass(frozen=True)
class Planned:
    """A planned failure: ``times`` tries fail, and the next succeeds. A wrong address fails until it is corrected."""

    trouble: Mishap
    times: int = 1


PASSES_BY_ITSELF: Final = frozenset({Mishap.BUSY, Mishap.BUSY_AFTER_MESSAGE, Mishap.HANGS_UP, Mishap.SILENT})

# The plan repeats this list. Even a drill with few receipts has the first failures.
MIX: Final = (
    Planned(Mishap.NO_SUCH_ADDRESS),
    Planned(Mishap.BUSY_AFTER_MESSAGE, 2),
    Planned(Mishap.KEPT_UNANSWERED),
    Planned(Mishap.LOST_UNANSWERED),
    Planned(Mishap.HANGS_UP),
    Planned(Mishap.BUSY),
    Planned(Mishap.NO_SUCH_ADDRESS),
    Planned(Mishap.SILENT),
    Planned(Mishap.BUSY, 3),
    Planned(Mishap.NO_SUCH_ADDRESS),
    Planned(Mishap.BUSY_AFTER_MESSAGE),
    Planned(Mishap.BUSY),
    Planned(Mishap.NO_SUCH_ADDRESS),
    Planned(Mishap.BUSY_AFTER_MESSAGE, 3),
    Planned(Mishap.HANGS_UP, 2),
    Planned(Mishap.NO_SUCH_ADDRESS),
    Planned(Mishap.BUSY, 2),
    Planned(Mishap.BUSY_AFTER_MESSAGE),
    Planned(Mishap.NO_SUCH_ADDRESS),
    Planned(Mishap.BUSY),
)
FORCED_SHARE: Final = 5  # one in five receipts fails
QUIET_START: Final = 0.3  # this share of the receipts, at the start, does not fail


def plan(receipts: int) -> dict[int, Planned]:
    """Map the numbers of the receipts that will fail to their planned failures. Numbers begin at 1."""
    forced = receipts // FORCED_SHARE
    first = quiet_start(receipts) + 1
    room = receipts - first + 1
    return {first + index * room // forced: MIX[index % len(MIX)] for index in range(forced)}


def quiet_start(receipts: int) -> int:
    return int(receipts * QUIET_START)


def numbers_of(planned: Mapping[int, Planned], *troubles: Mishap) -> frozenset[int]:
    return frozenset(receipt for receipt, meets in planned.items() if meets.trouble in troubles)


def meets(planned: Planned | None, tried: int, corrected: bool) -> Mishap | None:
    """Return how a receipt's next try fails after *tried* failures, or None if the server accepts the mail."""
    if planned is None:
        return None
    if planned.trouble is Mishap.NO_SUCH_ADDRESS:
        return None if corrected else planned.trouble
    return planned.trouble if tried < planned.times else None
