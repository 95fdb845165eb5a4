"""Find runs that take much longer than usual for their schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk.insight.schedule_facts import ScheduleFacts, schedule_facts
from cronjobs.desk.store.schedule_runs import with_long_runs

SHORT: Final = timedelta(seconds=5)  # a shorter run never counts as slow
TIMES_USUAL: Final = 3  # a slow run takes more than this many times the median
AMONG_LAST: Final = 1000  # search this many of the last runs of all schedules
LOOKED_AT: Final = 200  # examine at most this many schedules


@dataclass(frozen=True)
class SlowRun:
    """A schedule's running or newest run, which is or was slow. ``usual``: the median of its successful runs."""

    schedule: str
    job_id: int | None
    took: timedelta
    usual: timedelta
    since: datetime
    running: bool


def slow_runs(connection: Connection, now: datetime) -> list[SlowRun]:
    ids = with_long_runs(connection, longer_than=SHORT, among_last=AMONG_LAST, limit=LOOKED_AT)
    return slower_than_usual(schedule_facts(connection, ids).values(), now)


def slower_than_usual(schedules: Iterable[ScheduleFacts], now: datetime) -> list[SlowRun]:
    """Return the running and newest runs that took longer than the 95th percentile and TIMES_USUAL × the median."""
    found = []
    for schedule in schedules:
        run = schedule.running or schedule.last
        if run is None or schedule.median is None or schedule.p95 is None:
            continue
        running = run is schedule.running
        took = now - run.at if running else run.took
        if took is None or took < SHORT or took <= schedule.p95 or took <= TIMES_USUAL * schedule.median:
            continue
        begun = run.at if running else run.at - took
        found.append(SlowRun(schedule.name, run.job_id, took, schedule.median, begun, running))
    return sorted(found, key=lambda each: each.schedule)
