"""``cronjobs metrics``: print metrics for Prometheus."""

from __future__ import annotations

from cronjobs.contrib.metrics.families import gather
from cronjobs.contrib.metrics.openmetrics import lines_of
from cronjobs.desk.cli.options import Source
from cronjobs.desk.cli.output import write
from cronjobs.desk.cli.project_database import jobs_database


def metrics(source: Source) -> None:
    """Print metrics of the whole database as OpenMetrics text, for Prometheus.

    Counters and histograms of what ended, by job type and schedule; how many wait and run, by queue; what limits and
    caps are used; and when schedules and ticks last ran. Points in time are timestamps, which do not freeze when cron
    stops. It needs the database only, and works while the file's schedules are broken; limits are the file's.
    """
    with jobs_database(source, only_database=True) as (settings, database), database.read() as connection:
        families = gather(connection, settings.limits, settings.run.workers)
    write(lines_of(families))
