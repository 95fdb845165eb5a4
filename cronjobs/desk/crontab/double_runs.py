"""Find the crontab lines whose command a schedule of the file also runs: the command would run twice. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cronjobs.desk.crontab.lines import CrontabEntry, job_lines, unwrapped
from cronjobs.engine.config.settings import JobTypeSettings, Settings


@dataclass(frozen=True)
class DoubleRuns:
    """Schedules whose command cron also runs, each with the number of the first such line.

    ``wrapped`` are those of them whose line runs the command through ``cronjobs exec``.
    """

    lines: Mapping[str, int]
    wrapped: Mapping[str, int]

    @property
    def sentence(self) -> str:
        """A sentence that names the lines, or "" if there are none.

        For example: "cron itself runs line 3 (backup) and line 5 (tidy) of your crontab".
        """
        return f"cron itself runs {_listed(self.lines)} of your crontab" if self.lines else ""

    @property
    def hand_over(self) -> str:
        """What to type so that only ticks run the commands."""
        return ('"cronjobs crontab unwrap", then ' if self.wrapped else "") + '"cronjobs crontab swap"'

    @property
    def sentence_wrapped(self) -> str:
        """A sentence that names the lines that swap cannot take over, or "" if there are none."""
        if not self.wrapped:
            return ""
        return f'cron runs {_listed(self.wrapped)} through "cronjobs exec": run "cronjobs crontab unwrap" first'


def runs_line(job_type: JobTypeSettings | None, line: CrontabEntry) -> bool:
    """Whether *job_type* runs the same command as cron does for *line*: same shell, text and standard input."""
    shell = dict(line.settings).get("SHELL", "/bin/sh")
    return job_type is not None and (job_type.command, job_type.stdin) == ((shell, "-c", line.command), line.stdin)


def doubled(crontab: str, settings: Settings) -> DoubleRuns:
    """Find the lines of *crontab* that run the command of a schedule, also through ``cronjobs exec``."""
    lines = [(line, unwrapped(line)) for line in job_lines(crontab)]
    found: dict[str, int] = {}
    wrapped: dict[str, int] = {}
    for schedule in settings.schedules.values():
        job_type = settings.job_types.get(schedule.job)
        for line, inside in lines:
            if runs_line(job_type, inside or line):
                found.setdefault(schedule.name, line.number)
                if inside is not None:
                    wrapped.setdefault(schedule.name, line.number)
    return DoubleRuns(found, wrapped)


def _listed(lines: Mapping[str, int]) -> str:
    shown = [f"line {number} ({name})" for name, number in list(lines.items())[:3]]
    if len(lines) > len(shown):
        shown.append(f"{len(lines) - len(shown)} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
