"""Find when a run is due: at the times of ``--cron``, else at the times of the crontab line that has the run's name."""

from __future__ import annotations

import os
import subprocess
from typing import Final

from cronjobs.desk.crontab.lines import CrontabEntry, exec_config, exec_name
from cronjobs.desk.crontab.program import lines_of_user
from cronjobs.engine.config.host_timezone import host_timezone
from cronjobs.engine.crontime import grammar
from cronjobs.errors import CronjobsError

LONGEST: Final = 200  # a longer cron expression is cut to this many characters


def due_by(name: str, cron: str | None) -> dict[str, str]:
    """Return entries for ``meta`` in the run's row: "cron", "timezone", and also "from" if the crontab gave the times.

    Return {} if there is no valid cron expression, or if several crontab lines have the run's name.
    """
    zone, source = host_timezone(), {}
    if cron is None:
        lines = [line for line in lines_of_user() or () if exec_name(line) == name]
        if len(lines) != 1:  # no line has the name, or several lines have it, with perhaps different times
            return {}
        cron, zone, source = lines[0].when, _zone_of(lines[0]) or zone, {"from": "crontab"}
    try:
        grammar.parse(cron)
    except (CronjobsError, ValueError):  # @reboot, or syntax that only this host's cron understands
        return {}
    return {"cron": cron[:LONGEST], "timezone": zone} | source


def names_in_crontab(config: str | None) -> set[str] | None:
    """Return the names that this user's crontab passes to exec, or None if the crontab cannot be read.

    Lines that name a project other than *config* are left out. *config* is None if the runs belong to no project.
    """
    lines = lines_of_user()
    if lines is None:
        return None
    there = None if config is None else os.path.realpath(config)
    named = [(exec_name(line), exec_config(line)) for line in lines]
    return {name for name, project in named if name and (project is None or os.path.realpath(project) == there)}


def _zone_of(line: CrontabEntry) -> str | None:
    """Return the line's CRON_TZ if this host's cron is cronie. Other crons ignore CRON_TZ."""
    zone = dict(line.settings).get("CRON_TZ")
    if zone is None:
        return None
    try:
        answer = subprocess.run(["crontab", "-V"], capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return zone if b"cronie" in answer.stdout + answer.stderr else None
