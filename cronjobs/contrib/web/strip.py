"""The last 24 hours of a schedule as a strip of 96 quarter-hours, as SVG: no style, no script."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Final

from cronjobs.contrib.web.html import Html, h
from cronjobs.contrib.web.view import View
from cronjobs.engine.rules.quarters import NOTHING, QUARTER, WAITING, WORDS, number_of

QUARTERS: Final = 96
LONGEST: Final = 8  # quarters that one link shows at most: two hours


def first_quarter(now: datetime) -> int:
    """The number of the first of the 96; the last one is that of *now*."""
    return number_of(now) - QUARTERS + 1


def with_next(letters: str, next_at: datetime | None, first: int, now: datetime) -> str:
    """*letters*, and the quarter of an occurrence that is due and that no tick has settled yet, as waiting."""
    place = QUARTERS if next_at is None or next_at > now else number_of(next_at) - first
    if not 0 <= place < QUARTERS or letters[place] != NOTHING:
        return letters
    return letters[:place] + WAITING + letters[place + 1 :]


def strip(view: View, name: str, letters: str, first: int) -> Html:
    """The strip, for the mouse; beside it the same in words, for everyone else."""
    pieces = []
    for (letter, _), several in groupby(enumerate(letters), key=lambda each: (each[1], (first + each[0]) // LONGEST)):
        places = [place for place, _ in several]
        if letter != NOTHING:
            pieces.append(_piece(view, name, letter, first, places[0], len(places)))
    svg = h(
        "svg",
        h("rect", class_="q-none", width=QUARTERS, height=10),
        pieces,
        class_="strip",
        view_box=f"0 0 {QUARTERS} 10",
        preserve="none",
        aria_hidden="true",
        focusable="false",
    )
    return h("div", svg, h("span", in_words(letters), class_="unseen"))


def _piece(view: View, name: str, letter: str, first: int, place: int, count: int) -> Html:
    begin, end = instant_of(first + place), instant_of(first + place + count)
    word = WORDS[letter]
    rect = h("rect", class_=f"q-{word}", x=place, width=count, height=10)
    if view.alone:
        return rect
    span = f"{view.times.clock(begin)} to {view.times.clock(end)}: {word}"
    where = view.url("/schedule", name=name, **{"from": iso(begin), "to": iso(end - timedelta(seconds=1))})
    return h("a", h("title", span), rect, href=where, tabindex="-1")


def in_words(letters: str) -> str:
    """ "In the last 24 h: 94 quarter-hours succeeded, 2 dead"."""
    counts = {word: letters.count(letter) for letter, word in reversed(WORDS.items()) if letter != NOTHING}
    told = [f"{count} {word}" for word, count in counts.items() if count]
    return "in the last 24 h, by quarter-hours: " + (", ".join(told) or "nothing was due")


def instant_of(quarter: int) -> datetime:
    return datetime.fromtimestamp(quarter * QUARTER.total_seconds(), UTC)


def iso(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
