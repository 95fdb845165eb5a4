"""Find the names that a schedule has had. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Name:
    """A schedule's name from ``since`` until just before ``until``. None means no limit."""

    name: str
    since: datetime | None
    until: datetime | None

    def holds(self, subject: str, at: datetime) -> bool:
        return (
            subject == self.name
            and (self.since is None or self.since <= at)
            and (self.until is None or at < self.until)
        )


def names_of(name: str, renames: Sequence[tuple[datetime, str, str]]) -> list[Name]:
    """Return all names that the schedule *name* has had, newest first. Other schedules may have had the same names."""
    found: list[Name] = []
    until: datetime | None = None
    for at, old, new in reversed(renames):
        if until is not None and at >= until:
            continue
        if new == name:
            found.append(Name(name, at, until))
            name, until = old, at
        elif old == name:
            # Before that time, another schedule had this name.
            return [*found, Name(name, at, until)]
    return [*found, Name(name, None, until)]
