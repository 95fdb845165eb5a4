"""A schedule's last runs as a strip of coloured characters, and the strip's legend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from cronjobs.desk.cli.output import COLOURS, ColouredCell, printable
from cronjobs.desk.insight.formatting import status_word
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
    """Map each outcome to a block character, or to a letter if stdout's encoding has no blocks."""
    every = "".join(BLOCKS.values())
    return BLOCKS if printable(every, "") else LETTERS


def strip(outcomes: Sequence[str], count: int) -> ColouredCell:
    """Return the last *count* outcomes as a strip, newest on the right."""
    sign_of = signs()
    shown = outcomes[-count:]
    cell = ColouredCell("".join(sign_of.get(each, "?") for each in shown))
    cell.painted = "".join(coloured(sign_of.get(each, "?"), COLOURS.get(status_word(each))) for each in shown)
    return cell


def legend(outcomes: Iterable[str]) -> str:
    """Return an explanation of the character of each outcome in *outcomes*."""
    sign_of, seen = signs(), set(outcomes)
    return "  ".join(f"{sign} {status_word(name)}" for name, sign in sign_of.items() if name in seen)
