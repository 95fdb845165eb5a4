"""Compare a crontab with the schedules that replace it: match lines to schedules, and find differences. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cronjobs.contrib.take_over.convert_lines import ImportedLine
from cronjobs.contrib.take_over.minute_loop import started_seconds
from cronjobs.desk.crontab.double_runs import runs_line
from cronjobs.desk.crontab.lines import Cron
from cronjobs.engine.config.settings import JobTypeSettings, ScheduleSettings, Settings
from cronjobs.engine.crontime.timing import timing
from cronjobs.engine.schedules.decide import spread_offset

OTHER_COMMAND: Final = "the schedule runs something else"
OTHER_SETTINGS: Final = "the crontab and the schedule set these variables to different values"
OTHER_INSTANTS: Final = "cron and the schedule are not due at the same times"


@dataclass(frozen=True)
class Pair:
    """A crontab line and the schedule that matches it, or None.

    If ``same_command`` is false, only the names match, and the schedule runs another command. ``other_settings`` names
    the line's variables that the schedule's command lacks, or has with another value.
    """

    taken: ImportedLine
    schedule: ScheduleSettings | None
    same_command: bool = False
    other_settings: tuple[str, ...] = ()

    @property
    def timed_by_import(self) -> bool:
        """Whether the schedule has the times that ``import`` writes for the line."""
        schedule, line = self.schedule, self.taken
        if schedule is None:
            return False
        return (schedule.cron, schedule.timezone, schedule.spread) == (line.cron, line.timezone, None)


@dataclass(frozen=True)
class LineDifference:
    """A difference between a line and its schedule.

    ``instants`` holds (instant, starts under cron, starts under cronjobs) wherever the two numbers differ.
    """

    taken: ImportedLine
    schedule: ScheduleSettings
    why: str
    instants: tuple[tuple[datetime, int, int], ...] = ()


def paired(lines: Sequence[ImportedLine], settings: Settings) -> list[Pair]:
    """Match each line to a schedule, and each schedule to at most one line. Prefer the same command, name and time."""
    free = dict(settings.schedules)
    found: dict[int, Pair] = {}

    def runs_it(line: ImportedLine, schedule: ScheduleSettings) -> bool:
        return runs_line(settings.job_types.get(schedule.job), line.line, schedule.payload)

    def is_called_so(line: ImportedLine, schedule: ScheduleSettings) -> bool:
        return schedule.name == line.name

    def is_due_so(line: ImportedLine, schedule: ScheduleSettings) -> bool:
        return schedule.cron == line.cron

    ways: list[list[Callable[[ImportedLine, ScheduleSettings], bool]]] = [
        [runs_it, is_called_so, is_due_so],
        [runs_it, is_due_so],
        [runs_it, is_called_so],
        [runs_it],
        [is_called_so],
    ]
    for way in ways:
        for number, line in enumerate(lines):
            if number in found:
                continue
            fitting = (each for each in free.values() if all(fits(line, each) for fits in way))
            if schedule := next(fitting, None):
                same = runs_it in way
                other = _other_settings(line, settings.job_types[schedule.job]) if same else ()
                found[number] = Pair(line, schedule, same, other)
                del free[schedule.name]
    return [found.get(number, Pair(line, None)) for number, line in enumerate(lines)]


def _other_settings(line: ImportedLine, job_type: JobTypeSettings) -> tuple[str, ...]:
    under_schedule = dict(job_type.env)
    return tuple(name for name, value in line.env if under_schedule.get(name) != value)


def differences(
    pairs: Sequence[Pair], timezone: str, after: datetime, until: datetime, cron: Cron
) -> list[LineDifference]:
    """Return the differences from *after* (exclusive) to *until* between lines and schedules. Cron uses *timezone*."""
    found = []
    by_cron = started_seconds([pair.taken.cron_line for pair in pairs], timezone, after, until, cron)
    for pair, old in zip(pairs, by_cron, strict=True):
        schedule = pair.schedule
        if schedule is None:
            continue
        if not pair.same_command:
            found.append(LineDifference(pair.taken, schedule, OTHER_COMMAND))
        if pair.other_settings:
            why = f"{OTHER_SETTINGS}: {', '.join(pair.other_settings)}"
            found.append(LineDifference(pair.taken, schedule, why))
        if instants := _unequal(old, _due(schedule, after, until)):
            found.append(LineDifference(pair.taken, schedule, OTHER_INSTANTS, instants))
    return found


def _due(schedule: ScheduleSettings, after: datetime, until: datetime) -> list[float]:
    """Return when jobs of *schedule* may begin, after the delay of its ``spread``, in seconds since 1970."""
    late = spread_offset(schedule)
    seconds = timing(schedule.cron, schedule.every, schedule.timezone).seconds(after - late, until - late)
    return [second + late.total_seconds() for second in seconds] if late else [*seconds]


def _unequal(old: Sequence[float], new: Sequence[float]) -> tuple[tuple[datetime, int, int], ...]:
    # A line that runs every minute has half a million instants, and most lists are equal.
    if old == new or (before := Counter(old)) == (now := Counter(new)):
        return ()
    return tuple(
        (datetime.fromtimestamp(at, UTC), before[at], now[at])
        for at in sorted(before.keys() | now.keys())
        if before[at] != now[at]
    )
