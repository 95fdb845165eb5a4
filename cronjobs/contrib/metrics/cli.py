"""``cronjobs metrics``: figures for Prometheus, on stdout."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from cronjobs.clock import SYSTEM
from cronjobs.contrib.metrics.families import gather
from cronjobs.contrib.metrics.openmetrics import lines_of
from cronjobs.desk.cli.options import Source
from cronjobs.desk.cli.output import write
from cronjobs.desk.cli.project_database import jobs_database
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store.totals import count_on, far_behind
from cronjobs.errors import DatabaseError

CATCH_UP_S: Final = 5.0


def metrics(source: Source) -> None:
    """Print metrics of the whole database as OpenMetrics text, for Prometheus.

    Counters and histograms of what ended, by job type and schedule; how many wait and run, by queue; what limits and
    caps are used; and when schedules and ticks last ran. Points in time are timestamps, which do not freeze when cron
    stops. It needs the database only, and works while the file's schedules are broken; limits are the file's.
    """
    with jobs_database(source, only_database=True) as (settings, database):
        _catch_up(database)
        with database.read() as connection:
            families = gather(connection, settings.limits)
    write(lines_of(families))


def _catch_up(database: Database) -> None:
    """Count as ticks do where there is very much to count, as after an upgrade; who may only read reads it all."""
    give_up_at = SYSTEM.monotonic() + CATCH_UP_S
    with suppress(DatabaseError):
        with database.read() as connection:
            more = far_behind(connection)
        while more and SYSTEM.monotonic() < give_up_at:
            with database.write(patience=1.0) as connection:
                more = count_on(connection)
