"""What a tick does for metrics: it counts on what has ended, and writes the textfile."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Final

from cronjobs import events
from cronjobs.errors import CronjobsError, DatabaseBusy
from cronjobs.metrics import textfile
from cronjobs.metrics.families import gather
from cronjobs.metrics.openmetrics import lines_of
from cronjobs.store.totals import count_on, far_behind
from cronjobs.tick.context import TickContext

SHARE: Final = 0.25  # of what is left of the tick
LEAST_LEFT_S: Final = 3.0  # of the tick, to read all the figures
STALE: Final = timedelta(seconds=150)  # a tick with so much work that none had time to write does it first


def count(tick: TickContext) -> None:
    """Count what has ended, in short transactions; the next tick goes on where this one's time ends."""
    until = tick.clock.monotonic() + SHARE * (tick.deadline - tick.clock.monotonic())
    more = True
    try:
        while more and tick.go_on() and tick.clock.monotonic() < until:
            with tick.database.write(patience=1.0) as connection:
                more = count_on(connection)
    except DatabaseBusy:
        return  # someone else counts, or prunes, just now


def write_if_stale(tick: TickContext) -> None:
    path = tick.settings.metrics.textfile
    if path is not None and _age(tick, path) > STALE:
        write(tick)


def _age(tick: TickContext, path: Path) -> timedelta:
    try:
        return abs(timedelta(seconds=tick.clock.now().timestamp() - os.lstat(path).st_mtime))
    except OSError:
        return timedelta(0)  # it never was written, which the end of the tick tries


def write(tick: TickContext) -> None:
    """Write the textfile if there is one and time for it. A failure is reported, and fails nothing."""
    path = tick.settings.metrics.textfile
    if path is None or not tick.go_on() or tick.deadline - tick.clock.monotonic() < LEAST_LEFT_S:
        return
    try:
        with tick.database.read() as connection:
            if far_behind(connection):
                return  # a few ticks more, and it takes no time
        with tick.database.read() as connection:
            families = gather(connection, tick.settings.limits)
        textfile.write(path, lines_of(families))
    except CronjobsError as error:
        tick.emit(events.metrics_not_written(str(error)))
    except Exception as error:
        tick.emit(events.metrics_not_written(f"metrics cannot be written to {path}: {type(error).__name__}: {error}"))
