"""Which receipts get into trouble, and what the mail server does to them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Mishap(StrEnum):
    """What the mail server does to a receipt."""

    BUSY = "450 at the address"
    BUSY_AFTER_MESSAGE = "451 after the message"
    HANGS_UP = "hangs up before the message"
    SILENT = "no answer before the message"
    KEPT_UNANSWERED = "takes the message and hangs up without an answer"
    LOST_UNANSWERED = "loses the message and hangs up without an answer"
    NO_SUCH_ADDRESS = "550 until the address is corrected"


@dataclass(frozen=True)
class Planned:
    """``times``: so many tries meet the trouble, then all is well; a wrong address stays so until it is corrected."""

    trouble: Mishap
    times: int = 1


PASSES_BY_ITSELF: Final = frozenset({Mishap.BUSY, Mishap.BUSY_AFTER_MESSAGE, Mishap.HANGS_UP, Mishap.SILENT})

# In this order, and then from the start again: even with few receipts some meet each of the first.
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
FORCED_SHARE: Final = 5  # one in so many
QUIET_START: Final = 0.3  # of the receipts: the first interruption has to come while work goes well


def plan(receipts: int) -> dict[int, Planned]:
    """The trouble of each receipt that is made to fail, by its number from 1; the others have none."""
    forced = receipts // FORCED_SHARE
    first = quiet_start(receipts) + 1
    room = receipts - first + 1
    return {first + index * room // forced: MIX[index % len(MIX)] for index in range(forced)}


def quiet_start(receipts: int) -> int:
    return int(receipts * QUIET_START)


def numbers_of(planned: Mapping[int, Planned], *troubles: Mishap) -> frozenset[int]:
    return frozenset(receipt for receipt, meets in planned.items() if meets.trouble in troubles)


def meets(planned: Planned | None, tried: int, corrected: bool) -> Mishap | None:
    """The trouble of a receipt's next try after *tried* with trouble; None: the mail is accepted and answered."""
    if planned is None:
        return None
    if planned.trouble is Mishap.NO_SUCH_ADDRESS:
        return None if corrected else planned.trouble
    return planned.trouble if tried < planned.times else None
