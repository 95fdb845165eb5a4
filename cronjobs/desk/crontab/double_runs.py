"""Find the crontab lines that a schedule of the file also runs, so that their work would be done twice.

All functions here are pure.

``import`` gives a schedule the name of its line. If somebody then changes the schedule's command, only the name shows
that the schedule and the line do the same work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cronjobs.desk.crontab.lines import CrontabEntry, job_lines, unwrapped
from cronjobs.desk.crontab.naming import name_of, unused
from cronjobs.desk.crontab.swapping import unswapped
from cronjobs.engine.config.settings import JobTypeSettings, Settings
from cronjobs.engine.rules.shell_words import words_of


@dataclass(frozen=True)
class DoubleRuns:
    """Schedules whose work cron also does. Each field maps a schedule's name to the number of a crontab line.

    ``lines``: the first line that runs the schedule's command. ``wrapped``: the first line that runs it through
    ``cronjobs exec``. ``changed``: the line with the schedule's name, if the line and the schedule have different
    commands.
    """

    lines: Mapping[str, int]
    wrapped: Mapping[str, int]
    changed: Mapping[str, int]

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

    @property
    def sentence_changed(self) -> str:
        """A sentence that names the lines whose schedule has another command, or "" if there are none."""
        if not self.changed:
            return ""
        of_that_name = "a schedule with that name has" if len(self.changed) == 1 else "schedules with those names have"
        return f"cron runs {_listed(self.changed)}, and {of_that_name} another command: both commands would run"

    @property
    def settle_changed(self) -> str:
        """What to do so that either cron or the schedule runs each line, but not both."""
        one = ("line", "schedule", "line's command")
        its = one if len(self.changed) == 1 else ("lines", "schedules", "lines' commands")
        return f"take the {its[0]} out of the crontab, or make the {its[1]} run the {its[2]} again"


def runs_line(
    job_type: JobTypeSettings | None, line: CrontabEntry, payload: Mapping[str, Any] = MappingProxyType({})
) -> bool:
    """Return whether *job_type* runs the same command as cron does for *line*, with the same text as its input.

    Two forms of the job type's command match: the line's shell with the line's text, as ``import`` writes them, and the
    arguments into which a shell splits the text, as people write them. Without ``stdin:``, the input is *payload*. If
    *payload* is empty, the command needs no input.
    """
    if job_type is None or (job_type.stdin is None and payload) or (job_type.stdin or "") != line.stdin:
        return False
    shell = dict(line.settings).get("SHELL", "/bin/sh")
    return job_type.command in ((shell, "-c", line.command), tuple(words_of(line.command) or ()))


def doubled(crontab: str, settings: Settings) -> DoubleRuns:
    """Find crontab lines that run a schedule's command, directly or through exec, or that have a schedule's name."""
    lines = [(line, unwrapped(line)) for line in job_lines(crontab)]
    found: dict[str, int] = {}
    wrapped: dict[str, int] = {}
    own = _run_by(settings, lines)
    for line, inside in lines:
        for schedule in own.get(line.number, ()):
            found.setdefault(schedule, line.number)
            if inside is not None:
                wrapped.setdefault(schedule, line.number)
    changed: dict[str, int] = {}
    names = names_of_lines(crontab)
    for line, _ in lines:
        name = names.get(line.number)
        if line.number not in own and name in settings.schedules and name not in found:
            changed[name] = line.number
    return DoubleRuns(found, wrapped, changed)


def types_of_lines(crontab: str, job_types: Mapping[str, JobTypeSettings]) -> set[str]:
    """Return the *job_types* that run a line of *crontab*, with or without a schedule."""
    lines = [unwrapped(line) or line for line in job_lines(crontab)]
    return {name for name, job_type in job_types.items() if any(runs_line(job_type, line) for line in lines)}


def orphans(crontab: str, settings: Settings, numbers: Collection[int]) -> list[int]:
    """Return those *numbers* whose swapped lines are run by a schedule of *settings*."""
    lines = [(line, unwrapped(line)) for line in job_lines(unswapped(crontab)) if line.number in numbers]
    return sorted(_run_by(settings, lines))


def _run_by(settings: Settings, lines: Sequence[tuple[CrontabEntry, CrontabEntry | None]]) -> dict[int, list[str]]:
    """Map a line's number to the schedules that run the same command. The line may run it through ``cronjobs exec``."""
    found: dict[int, list[str]] = {}
    for schedule in settings.schedules.values():
        job_type = settings.job_types.get(schedule.job)
        for line, inside in lines:
            if runs_line(job_type, inside or line, schedule.payload):
                found.setdefault(line.number, []).append(schedule.name)
    return found


def left_to_cron(crontab: str, schedules: Collection[str]) -> list[str]:
    """Return the names of the lines that cron runs, except the names of *schedules* in the file.

    The database may still hold a schedule with one of these names, if ``restore`` has given the line back to cron.
    """
    names = names_of_lines(crontab)
    named = (names.get(line.number) for line in job_lines(crontab))
    return [name for name in named if name is not None and name not in schedules]


def names_of_lines(crontab: str) -> dict[int, str]:
    """Map each line's number to the name that ``import`` gave the line. Includes lines swapped or wrapped since."""
    names: dict[int, str] = {}
    for line in job_lines(unswapped(crontab)):
        if line.when != "@reboot":  # ``import`` leaves an @reboot line in the crontab and gives it no name
            names[line.number] = unused(name_of((unwrapped(line) or line).command), names.values())
    return names


def _listed(lines: Mapping[str, int]) -> str:
    shown = [f"line {number} ({name})" for name, number in list(lines.items())[:3]]
    if len(lines) > len(shown):
        shown.append(f"{len(lines) - len(shown)} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
