"""The last 24 hours of a schedule as a strip of 96 quarter-hours. ``macros.html`` draws the strip as SVG.

``engine/rules/quarters.py`` decides which outcome a quarter-hour shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Final

from cronjobs.desk.insight.formatting import LocalTimes
from cronjobs.engine.rules.quarters import NOTHING, QUARTER, WORDS, number_of

QUARTERS: Final = 96
LONGEST: Final = 8  # at most this many quarters (two hours) share a link
LEGEND: Final = tuple(word for letter, word in WORDS.items() if letter != NOTHING)


@dataclass(frozen=True)
class Piece:
    """Consecutive quarter-hours with the same outcome."""

    word: str
    place: int
    count: int
    begin: datetime
    end: datetime

    @property
    def span(self) -> dict[str, str]:
        """The query string of the page that shows this piece."""
        return {"from": iso(self.begin), "to": iso(self.end - timedelta(seconds=1))}


@dataclass(frozen=True)
class Strip:
    """A schedule's strip. ``letters`` has one letter for each quarter, from quarter number ``first`` on."""

    name: str
    letters: str
    first: int

    @property
    def pieces(self) -> list[Piece]:
        pieces = []
        alike = groupby(enumerate(self.letters), key=lambda each: (each[1], (self.first + each[0]) // LONGEST))
        for (letter, _), several in alike:
            places = [place for place, _ in several]
            if letter != NOTHING:
                begin, count = self.first + places[0], len(places)
                instants = (_instant_of(begin), _instant_of(begin + count))
                pieces.append(Piece(WORDS[letter], places[0], count, *instants))
        return pieces

    @property
    def in_words(self) -> str:
        """The strip as text for screen readers, as in "quarter-hours of the last 24 h: 94 succeeded, 2 dead"."""
        counts = {word: self.letters.count(letter) for letter, word in reversed(WORDS.items()) if letter != NOTHING}
        parts = [f"{count} {word}" for word, count in counts.items() if count]
        return "quarter-hours of the last 24 h: " + (", ".join(parts) or "nothing was due")


def first_quarter(now: datetime) -> int:
    """Return the number of the first of the 96 quarters. The last quarter contains *now*."""
    return number_of(now) - QUARTERS + 1


def hours_below(first: int, times: LocalTimes) -> list[tuple[float, str]]:
    """Return where every sixth local hour begins, as a percentage of the strip, with the hour as text."""
    found = []
    for place in range(QUARTERS):
        local = times.local(_instant_of(first + place))
        if local.hour % 6 == 0 and local.minute < QUARTER.total_seconds() / 60:
            found.append((round(100 * place / QUARTERS, 2), f"{local:%H:%M}"))
    return found


def _instant_of(quarter: int) -> datetime:
    return datetime.fromtimestamp(quarter * QUARTER.total_seconds(), UTC)


def iso(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
