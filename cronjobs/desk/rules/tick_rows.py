"""Read the JSON column of a tick's row. The rules are pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple


def did_of(did: Any) -> Mapping[str, Any]:
    """Return what a tick did. *did*: the column ``did``, into which plain SQL may have written any value."""
    return did if isinstance(did, Mapping) else {}


def texts_in(did: Any, kind: str) -> dict[str, str]:
    """Return the texts that a tick recorded by place, such as why parts of its file are "broken"."""
    found = did_of(did).get(kind)
    return {str(where): str(what) for where, what in found.items()} if isinstance(found, Mapping) else {}


def was_importing(did: Any) -> bool:
    """Return whether a tick without an end was importing the handlers when it last wrote its row."""
    return did_of(did).get("importing") is True


def no_end(ticks: int, importing: int) -> str:
    """Say why *ticks* never recorded their end. *importing* of them were importing the handlers."""
    which = "" if ticks == 1 else "each " if importing == ticks else f"{importing:,} of them "
    during = f", {which}while importing the handlers" if importing else ""
    return f"{'it was' if ticks == 1 else 'they were'} killed or lost the database{during}"


class DoubledLines(NamedTuple):
    """The lines of a *user*'s crontab whose work ticks do, too: the schedules, and the numbers of the lines.

    ``wrapped``: some lines run through ``cronjobs exec``.
    """

    user: str
    lines: Mapping[str, str]
    wrapped: bool


def doubled_in(did: Any) -> DoubledLines | None:
    """Return the doubled lines that a tick found in the crontab, or None if it found none."""
    found = did_of(did_of(did).get("doubled"))
    lines = {str(name): str(number) for name, number in did_of(found.get("lines")).items()}
    return DoubledLines(str(found.get("user")), lines, found.get("wrapped") is True) if lines else None


class Away(NamedTuple):
    """A time in which a tick could not use the database."""

    began: datetime
    ended: datetime
    why: str


def outages_in(did: Any) -> Iterator[Away]:
    """Yield the times in which a tick could not use the database, the first first."""
    recorded = did_of(did).get("outages")
    for each in recorded if isinstance(recorded, list) else ():
        with suppress(KeyError, TypeError, ValueError):
            began, ended = (datetime.fromisoformat(each[name]) for name in ("since", "until"))
            if began.tzinfo and ended.tzinfo:
                yield Away(began, ended, str(each["why"]))
