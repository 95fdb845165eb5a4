"""The last 24 hours of a schedule as a strip of 96 quarter-hours; ``macros.html`` draws it, without style or script."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Final

from cronjobs.desk.insight.saying import LocalTimes
from cronjobs.engine.rules.quarters import NOTHING, QUARTER, WAITING, WORDS, number_of, worse

QUARTERS: Final = 96
LONGEST: Final = 8  # quarters that one link shows at most: two hours
LEGEND: Final = tuple(word for letter, word in WORDS.items() if letter != NOTHING)


@dataclass(frozen=True)
class Piece:
    """Quarters in a row of which the same is to be said."""

    word: str
    place: int
    count: int
    begin: datetime
    end: datetime

    @property
    def span(self) -> dict[str, str]:
        """For the address of the page that shows it."""
        return {"from": iso(self.begin), "to": iso(self.end - timedelta(seconds=1))}


@dataclass(frozen=True)
class Strip:
    """``letters``: one for each quarter, from the *first* on."""

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
        """ "in the last 24 h, by quarter-hours: 94 succeeded, 2 dead": for everyone without a mouse."""
        counts = {word: self.letters.count(letter) for letter, word in reversed(WORDS.items()) if letter != NOTHING}
        told = [f"{count} {word}" for word, count in counts.items() if count]
        return "in the last 24 h, by quarter-hours: " + (", ".join(told) or "nothing was due")


def first_quarter(now: datetime) -> int:
    """The number of the first of the 96; the last one is that of *now*."""
    return number_of(now) - QUARTERS + 1


def hours_below(first: int, times: LocalTimes) -> list[tuple[float, str]]:
    """Where on the strip every sixth hour of the local clock begins, in per cent of its width, and which it is."""
    found = []
    for place in range(QUARTERS):
        local = times.local(_instant_of(first + place))
        if local.hour % 6 == 0 and local.minute < QUARTER.total_seconds() / 60:
            found.append((round(100 * place / QUARTERS, 2), f"{local:%H:%M}"))
    return found


def strip(name: str, letters: str, next_at: datetime | None, now: datetime) -> Strip:
    """The quarter of an occurrence that is due and that no tick has settled yet is shown as waiting."""
    first = first_quarter(now)
    place = QUARTERS if next_at is None or next_at > now else number_of(next_at) - first
    if 0 <= place < QUARTERS:
        letters = letters[:place] + worse(letters[place], WAITING) + letters[place + 1 :]
    return Strip(name, letters, first)


def _instant_of(quarter: int) -> datetime:
    return datetime.fromtimestamp(quarter * QUARTER.total_seconds(), UTC)


def iso(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
