"""What the desk asks of extras, by name. A module is imported when it is asked."""

from __future__ import annotations

from typing import Final

FINDINGS: Final = ("cronjobs.contrib.exec.findings", "cronjobs.contrib.alerts.findings")  # each has found()
WITHOUT_PROJECT: Final = "cronjobs.contrib.exec.settling"  # what is shown where there is no project
RUN_BY_CRON: Final = "cronjobs.contrib.exec.rows"  # what cron itself runs, in the table of schedules in status
EXECUTORS: Final = "cronjobs.contrib.dask.looking"  # check --live asks it about each executor of the file
REPORT: Final = "cronjobs.contrib.web.report"  # the pages as a file
