"""The outcomes of a schedule's occurrences, as one letter per quarter of an hour.

Each letter stands for the worst outcome of the occurrences that were due in that quarter. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from cronjobs.engine.rules.occurrences import only_ran_early

QUARTER: Final = timedelta(minutes=15)
HOUR: Final = timedelta(hours=1)
IN_AN_HOUR: Final = 4
NOTHING: Final = "."
WAITING: Final = "w"
EARLY: Final = "e"
PRUNED: Final = "p"  # the job has been deleted, so nobody knows how it ended

# From the best to the worst. ``cronjobs_quarters`` stores the letters.
WORDS: Final = {
    NOTHING: "nothing was due",
    "s": "succeeded",
    "c": "coalesced",
    "k": "skipped",
    PRUNED: "pruned",
    WAITING: "waiting",
    "r": "running",
    "x": "cancelled",
    "f": "retrying",
    EARLY: "early",
    "m": "missed",
    "d": "dead",
}
_RANK: Final = {letter: rank for rank, letter in enumerate(WORDS)}
# Only a backfill changes these outcomes. The letter of a dead job is missing, because a dead job may be retried.
FINAL_LETTERS: Final = frozenset({NOTHING, "s", "c", "k", PRUNED, "m"})
_OF_LEDGER: Final = {"coalesced": "c", "skipped": "k", "missed": "m"}
_OF_JOB: Final = {"succeeded": "s", "queued": WAITING, "running": "r", "failed": "f", "cancelled": "x", "dead": "d"}


class ResultSpan(NamedTuple):
    """Occurrences of a schedule with the same result, due from quarter ``first`` to ``last`` (numbered from 1970).

    ``status`` is the job's status, or None if there was no job or it no longer exists. ``first_for`` and ``last_for``
    are the due times of the first and the last of these occurrences. They are set only if other occurrences lie
    between. If a wrong clock ran an occurrence before it was due, ``early`` is the ledger's reason, ``last_for`` is
    set, ``attempts`` is the number of attempts of its job, and ``began_at`` is when the last attempt began. ``job_id``
    is the job that the occurrence created.
    """

    schedule_id: int
    first: int
    last: int
    outcome: str
    status: str | None
    many: int = 1
    first_for: datetime | None = None
    last_for: datetime | None = None
    early: str | None = None
    attempts: int | None = None
    began_at: datetime | None = None
    job_id: int | None = None

    @property
    def span(self) -> tuple[datetime, datetime] | None:
        """The due times of the first and the last occurrence, or None if no quarter between them can have another."""
        if self.many < 3 or self.last - self.first < 2 or self.first_for is None or self.last_for is None:
            return None
        return self.first_for, self.last_for

    @property
    def letter(self) -> str:
        if self.outcome != "enqueued":
            return _OF_LEDGER.get(self.outcome, "m")
        if self.last_for is not None and only_ran_early(
            self.early, self.last_for, self.status, self.attempts, self.began_at
        ):
            return EARLY
        return _OF_JOB.get(self.status or "", PRUNED)


def worse(one: str, other: str) -> str:
    return max(one, other, key=_RANK.__getitem__)


def number_of(instant: datetime) -> int:
    """Return the number of the quarter that contains *instant*."""
    return int(instant.timestamp() // QUARTER.total_seconds())


def evenly(row: ResultSpan, first: int, count: int) -> Iterable[int]:
    """Return the quarters in which the occurrences of *row* were due, on the assumption that they are evenly spread.

    Only the *count* quarters from *first* on matter.
    """
    if row.span is None:
        return {row.first, row.last}
    (begin, end), steps = row.span, row.many - 1
    if (end - begin) / QUARTER <= steps:
        return range(max(row.first, first), min(row.last, first + count) + 1)
    # How many occurrences were due before *first*, or one fewer.
    before = int((first - row.first) * QUARTER * steps / (end - begin))
    # There is at most one occurrence per quarter.
    places = range(max(0, before - 1), min(steps, before + count + 1) + 1)
    return {number_of(begin + (end - begin) * place / steps) for place in places}


def painted(
    rows: Iterable[ResultSpan], first: int, count: int, due: Callable[[ResultSpan, int, int], Iterable[int]] = evenly
) -> dict[int, str]:
    """Return, by schedule id, a letter for each of *count* quarters from the quarter numbered *first*.

    *due* returns which of these quarters had occurrences of a row.
    """
    cells: dict[int, list[str]] = {}
    for row in rows:
        line = cells.setdefault(row.schedule_id, [NOTHING] * count)
        letter = row.letter
        for quarter in due(row, first, count):
            if 0 <= (place := quarter - first) < count:
                line[place] = worse(line[place], letter)
    return {schedule_id: "".join(line) for schedule_id, line in cells.items()}


def gaps(first: int, count: int, hours: Collection[int]) -> list[tuple[int, int]]:
    """Return the ranges of quarters that are not in *hours*.

    A range is a pair: its first quarter, and the quarter after its last. *hours* names each hour by its first quarter.
    """
    found: list[tuple[int, int]] = []
    for start in range(first - first % IN_AN_HOUR, first + count, IN_AN_HOUR):
        if start in hours:
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], start + IN_AN_HOUR)
        else:
            found.append((start, start + IN_AN_HOUR))
    return found
