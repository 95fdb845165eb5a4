"""Read schedules' recent facts: last results, usual duration, the last 20 runs, the next run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice, repeat
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk.store.schedule_runs import (
    EARLY,
    RunFacts,
    ScheduleRow,
    longest_running,
    newest_runs,
    newest_triggered,
    ran_early_ahead,
    schedule_rows,
)
from cronjobs.engine.crontime.timing import next_after
from cronjobs.engine.schedules.planning import read
from cronjobs.model import Status

LOOKED_AT: Final = 100  # read at most this many ledger rows of each schedule
STRIP: Final = 20  # show this many runs
ENOUGH: Final = 20  # state a usual duration only after this many successful runs
SUCCEEDED: Final = (Status.SUCCEEDED, EARLY)
NO_RESULT: Final = frozenset({"queued", "running"})


@dataclass(frozen=True)
class ScheduleFacts:
    """One schedule's recent facts.

    ``runs`` are the last runs, newest first, at most STRIP. They do not include ``triggered``, the newest run triggered
    by hand. ``durations`` says how long the last successful runs took, newest first.

    ``status`` is active, retired, or "run by cron". ``next_at`` is None if the schedule is never due again, or if a
    crontab line's next time is unknown.
    """

    id: int
    name: str
    status: str
    next_at: datetime | None
    paused: str | None  # text such as "paused by ada: deploy", or None
    runs: tuple[RunFacts, ...] = ()
    durations: tuple[timedelta, ...] = ()
    triggered: RunFacts | None = None
    # The run that has been running for longest, whether a tick or an operator made it.
    running: RunFacts | None = None

    @property
    def last(self) -> RunFacts | None:
        """The run with the newest result, including triggered runs. A waiting or running job has no result yet."""
        return newest_result(self.runs, self.triggered)

    @property
    def median(self) -> timedelta | None:
        """The median duration, or None if fewer than ENOUGH runs succeeded."""
        return middle(self.durations) if len(self.durations) >= ENOUGH else None

    @property
    def p95(self) -> timedelta | None:
        """The 95th percentile of durations, or None if fewer than ENOUGH runs succeeded."""
        return p95(self.durations) if len(self.durations) >= ENOUGH else None

    @property
    def strip(self) -> tuple[str, ...]:
        """The outcomes of the last STRIP occurrences, oldest first. A row for several occurrences counts as several."""
        signs = (outcome for each in self.runs for outcome in repeat(each.outcome, min(each.count, STRIP)))
        return tuple(reversed(list(islice(signs, STRIP))))


def middle(durations: Sequence[timedelta]) -> timedelta:
    ordered, half = sorted(durations), len(durations) // 2
    return (ordered[half] + ordered[-1 - half]) / 2


def p95(durations: Sequence[timedelta]) -> timedelta:
    """Return the 95th percentile by nearest rank. Of 20 durations this is the second longest."""
    return sorted(durations)[-(-len(durations) * 95 // 100) - 1]


def newest_result(runs: Sequence[RunFacts], triggered: RunFacts | None) -> RunFacts | None:
    """Return the run that ended or failed last, among *runs* (newest first) and *triggered*."""
    due = next((each for each in runs if each.outcome not in NO_RESULT), None)
    by_hand = triggered if triggered is not None and triggered.outcome not in NO_RESULT else None
    return max((each for each in (due, by_hand) if each is not None), key=lambda each: each.at, default=None)


def schedule_facts(connection: Connection, schedule_ids: Collection[int]) -> dict[int, ScheduleFacts]:
    """Map the ids of existing schedules to their facts. Each schedule costs about 200 index steps."""
    if not schedule_ids:
        return {}
    runs = newest_runs(connection, schedule_ids, LOOKED_AT)
    by_hand, running = newest_triggered(connection, schedule_ids), longest_running(connection, schedule_ids)
    found = {}
    for row in rows_with_next(connection, schedule_ids):
        its = runs.get(row.id, [])
        found[row.id] = ScheduleFacts(
            **vars(row),
            runs=tuple(its[:STRIP]),
            durations=tuple(each.took for each in its if each.outcome in SUCCEEDED and each.took is not None),
            triggered=by_hand.get(row.id),
            running=running.get(row.id),
        )
    return found


def last_runs(connection: Connection, schedule_ids: Collection[int]) -> dict[int, RunFacts]:
    """Map each id to the run that has been running for longest, or else to the run with the newest result.

    Runs triggered by hand count as well.
    """
    found, by_hand = newest_runs(connection, schedule_ids, STRIP), newest_triggered(connection, schedule_ids)
    results = {each: newest_result(found.get(each, []), by_hand.get(each)) for each in found.keys() | by_hand}
    shown = {each: result for each, result in results.items() if result is not None}
    return shown | longest_running(connection, schedule_ids)


def rows_with_next(connection: Connection, schedule_ids: Collection[int]) -> list[ScheduleRow]:
    """Return the schedules, each with the next occurrence that will really run."""
    rows = schedule_rows(connection, schedule_ids)
    due = really_next(connection, {row.name: row.next_at for row in rows})
    return [replace(row, next_at=due[row.name]) for row in rows]


def really_next(connection: Connection, due: Mapping[str, datetime | None]) -> dict[str, datetime | None]:
    """Return *due* (schedule → next occurrence) without the occurrences that a wrong clock has already run."""
    early: dict[str, set[datetime]] = {}
    definitions = {}
    for row in ran_early_ahead(connection):
        early.setdefault(row.name, set()).add(row.last_for)
        definitions[row.name] = row.definition
    found = dict(due)
    for name in early.keys() & due.keys():
        with suppress(ValueError):
            when, at = read(name, definitions[name]).when, found[name]
            while at in early[name]:
                at = next_after(when, at)
            found[name] = at
    return found
