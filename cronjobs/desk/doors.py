"""The names of the extras' modules that the desk calls. The desk imports a module only when it calls the module."""

from __future__ import annotations

from typing import Final

FINDINGS: Final = ("cronjobs.contrib.exec.findings", "cronjobs.contrib.alerts.findings")  # each module has found()
# This module has the settings of commands that are run without a project, and settle().
WITHOUT_PROJECT: Final = "cronjobs.contrib.exec.settling"
RUN_BY_CRON: Final = "cronjobs.contrib.exec.rows"  # has the crontab lines that cron itself runs, for status
EXECUTORS: Final = "cronjobs.contrib.dask.check_cluster"  # checks each executor of the file, for check --live
REPORT: Final = "cronjobs.contrib.web.report"  # writes the pages to one file
