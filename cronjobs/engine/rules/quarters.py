"""What became of a schedule's occurrences, a letter for each quarter of an hour: that of the worst. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

QUARTER: Final = timedelta(minutes=15)
HOUR: Final = timedelta(hours=1)
IN_AN_HOUR: Final = 4
NOTHING: Final = "."

# From the best to the worst. ``cronjobs_quarters`` stores the letters.
WORDS: Final = {
    NOTHING: "nothing was due",
    "s": "succeeded",
    "c": "coalesced",
    "k": "skipped",
    "w": "waiting",
    "r": "running",
    "x": "cancelled",
    "f": "retrying",
    "m": "missed",
    "d": "dead",
}
_RANK: Final = {letter: rank for rank, letter in enumerate(WORDS)}
# What stays as it is, unless somebody runs the occurrence again by a backfill. Jobs that died may be retried.
FINAL_LETTERS: Final = frozenset({NOTHING, "s", "c", "k", "m"})
_OF_LEDGER: Final = {"coalesced": "c", "skipped": "k", "missed": "m"}
_OF_JOB: Final = {"queued": "w", "running": "r", "failed": "f", "cancelled": "x", "dead": "d"}


class Became(NamedTuple):
    """Occurrences of a schedule in the quarters from *first* to *last*, numbered since 1970, that became the same.

    ``status``: of the job, if one was made for it and is still there.
    """

    schedule_id: int
    first: int
    last: int
    outcome: str
    status: str | None

    @property
    def letter(self) -> str:
        if self.outcome != "enqueued":
            return _OF_LEDGER.get(self.outcome, "m")
        return _OF_JOB.get(self.status or "", "s")  # a job that is not there any more has ended long ago


def worse(one: str, other: str) -> str:
    return max(one, other, key=_RANK.__getitem__)


def number_of(instant: datetime) -> int:
    """The number of the quarter that *instant* is in."""
    return int(instant.timestamp() // QUARTER.total_seconds())


def painted(rows: Iterable[Became], first: int, count: int) -> dict[int, str]:
    """By schedule id, a letter for each of *count* quarters from the one numbered *first*."""
    cells: dict[int, list[str]] = {}
    for row in rows:
        line = cells.setdefault(row.schedule_id, [NOTHING] * count)
        letter = row.letter
        for place in range(max(0, row.first - first), min(count, row.last - first + 1)):
            line[place] = worse(line[place], letter)
    return {schedule_id: "".join(line) for schedule_id, line in cells.items()}


def gaps(first: int, count: int, hours: Collection[int]) -> list[tuple[int, int]]:
    """The ranges of quarters, without their ends, that are not in *hours* (each by its first quarter)."""
    found: list[tuple[int, int]] = []
    for start in range(first - first % IN_AN_HOUR, first + count, IN_AN_HOUR):
        if start in hours:
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], start + IN_AN_HOUR)
        else:
            found.append((start, start + IN_AN_HOUR))
    return found
