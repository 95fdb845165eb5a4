"""A schedule's last runs as one character each, and how tables print cells that have colours of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from cronjobs.desk.cli.output import COLOURS, Painted, printable, status_word
from cronjobs.engine.command.printing import coloured

BLOCKS: Final = {
    "succeeded": "▁",
    "failed": "▄",
    "dead": "█",
    "missed": "▓",
    "cancelled": "▒",
    "early": "▂",
    "skipped": "░",
    "coalesced": "╌",
    "running": ">",
    "queued": "+",
    "pruned": "·",
}
LETTERS: Final = {
    "succeeded": ".",
    "failed": "f",
    "dead": "D",
    "missed": "M",
    "cancelled": "x",
    "early": "e",
    "skipped": "s",
    "coalesced": "c",
    "running": ">",
    "queued": "+",
    "pruned": "?",
}


def signs() -> dict[str, str]:
    """A character for each outcome: blocks, or letters where the encoding of stdout has no blocks."""
    every = "".join(BLOCKS.values())
    return BLOCKS if printable(every, "") else LETTERS


def strip(outcomes: Sequence[str], count: int) -> Painted:
    """The last *count* outcomes, the newest on the right."""
    told = signs()
    shown = outcomes[-count:]
    cell = Painted("".join(told.get(each, "?") for each in shown))
    cell.painted = "".join(coloured(told.get(each, "?"), COLOURS.get(status_word(each))) for each in shown)
    return cell


def legend(outcomes: Iterable[str]) -> str:
    """What each character stands for, of those outcomes that are there."""
    told, seen = signs(), set(outcomes)
    return "  ".join(f"{sign} {status_word(name)}" for name, sign in told.items() if name in seen)
