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
    """Return why *ticks* never recorded their end. *importing* of them were importing the handlers."""
    which = "" if ticks == 1 else "each " if importing == ticks else f"{importing:,} of them "
    during = f", {which}while importing the handlers" if importing else ""
    return f"{'it was' if ticks == 1 else 'they were'} killed or lost the database{during}"


class Away(NamedTuple):
    """A time in which a tick could not use the database."""

    began: datetime
    ended: datetime
    why: str


def outages_in(did: Any) -> Iterator[Away]:
    """Yield the times in which a tick could not use the database, oldest first."""
    recorded = did_of(did).get("outages")
    for each in recorded if isinstance(recorded, list) else ():
        with suppress(KeyError, TypeError, ValueError):
            began, ended = (datetime.fromisoformat(each[name]) for name in ("since", "until"))
            if began.tzinfo and ended.tzinfo:
                yield Away(began, ended, str(each["why"]))
