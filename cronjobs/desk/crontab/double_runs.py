"""Find the crontab lines whose command a schedule of the file also runs: the command would run twice. Pure."""

from __future__ import annotations

from cronjobs.desk.crontab.lines import CrontabEntry, job_lines
from cronjobs.engine.config.settings import JobTypeSettings, Settings


def runs_line(job_type: JobTypeSettings | None, line: CrontabEntry) -> bool:
    """Whether *job_type* runs the same command as cron does for *line*: same shell, text and standard input."""
    shell = dict(line.settings).get("SHELL", "/bin/sh")
    return job_type is not None and (job_type.command, job_type.stdin) == ((shell, "-c", line.command), line.stdin)


def doubled(crontab: str, settings: Settings) -> dict[str, int]:
    """Return the schedules whose command cron also runs, each with the number of the first such line of *crontab*."""
    lines = job_lines(crontab)
    found = {
        schedule.name: next((line.number for line in lines if runs_line(settings.job_types.get(schedule.job), line)), 0)
        for schedule in settings.schedules.values()
    }
    return {name: number for name, number in found.items() if number}


def sentence(found: dict[str, int]) -> str:
    """Return a sentence that names the lines in *found*, or "" if *found* is empty.

    For example: "cron itself runs line 3 (backup) and line 5 (tidy) of your crontab".
    """
    if not found:
        return ""
    shown = [f"line {number} ({name})" for name, number in list(found.items())[:3]]
    if len(found) > len(shown):
        shown.append(f"{len(found) - len(shown)} more")
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"cron itself runs {listed} of your crontab"
