"""``cronjobs metrics``: print metrics for Prometheus."""

from __future__ import annotations

from cronjobs.contrib.metrics.families import gather
from cronjobs.contrib.metrics.openmetrics import lines_of
from cronjobs.desk.cli.options import Source
from cronjobs.desk.cli.output import write
from cronjobs.desk.cli.project_database import jobs_database


def metrics(source: Source) -> None:
    """Print metrics of the whole database as OpenMetrics text, for Prometheus.

    There are counters and histograms of ended attempts and jobs, by job type and schedule; numbers of waiting and
    running jobs, by queue; the use of limits and caps; and the times when schedules and ticks last ran. Times are
    timestamps, because an age would freeze when cron stops. The limits are read from the file. The command works even
    if the file's schedules are broken, since everything else comes from the database.
    """
    with jobs_database(source, only_database=True) as (settings, database), database.read() as connection:
        families = gather(connection, settings.limits, settings.run.workers)
    write(lines_of(families))
