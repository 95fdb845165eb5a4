"""Find the crontab lines that cron runs and that schedules of a file would run as well. Pure."""

from __future__ import annotations

from cronjobs.desk.crontab.lines import CrontabEntry, job_lines
from cronjobs.engine.config.settings import JobTypeSettings, Settings


def runs_line(job_type: JobTypeSettings | None, line: CrontabEntry) -> bool:
    """Whether the command of *job_type* is what cron runs for *line*: the same shell, text and standard input."""
    shell = dict(line.settings).get("SHELL", "/bin/sh")
    return job_type is not None and (job_type.command, job_type.stdin) == ((shell, "-c", line.command), line.stdin)


def doubled(crontab: str, settings: Settings) -> dict[str, int]:
    """Return the schedules whose command a live line of *crontab* runs, each with the number of its first line."""
    lines = job_lines(crontab)
    found = {
        schedule.name: next((line.number for line in lines if runs_line(settings.job_types.get(schedule.job), line)), 0)
        for schedule in settings.schedules.values()
    }
    return {name: number for name, number in found.items() if number}


def sentence(found: dict[str, int]) -> str:
    """Say which lines those are, or return "" if there are none.

    For example: "cron itself runs line 3 (backup) and line 5 (tidy) of your crontab".
    """
    if not found:
        return ""
    shown = [f"line {number} ({name})" for name, number in list(found.items())[:3]]
    if len(found) > len(shown):
        shown.append(f"{len(found) - len(shown)} more")
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"cron itself runs {listed} of your crontab"
