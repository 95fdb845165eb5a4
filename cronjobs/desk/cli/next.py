"""``cronjobs next``: show when an expression, a schedule, or each schedule in the file is due."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, takewhile
from pathlib import Path
from typing import Annotated, Final
from zoneinfo import ZoneInfo

import typer

from cronjobs.clock import SYSTEM
from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import ConfigOption, JsonOption, Source, schedule_names
from cronjobs.desk.cli.output import table, write
from cronjobs.desk.insight.formatting import safe
from cronjobs.desk.insight.instants import iso_instant
from cronjobs.engine.command.printing import complain, json_text
from cronjobs.engine.config.fields import NAME
from cronjobs.engine.config.settings import ScheduleSettings, Settings
from cronjobs.engine.crontime.grammar import parse
from cronjobs.engine.crontime.timing import CronTiming, EveryTiming, Timing, clock_changes, remarks
from cronjobs.engine.crontime.timing import timing as timing_of
from cronjobs.errors import ConfigError, CronError, UsageError
from cronjobs.model import duration, in_zone, rough
from cronjobs.text import nearest, one_line

SHOWN: Final = 5  # how many times of one expression or schedule to show without -n
WINDOW: Final = timedelta(hours=24)  # the list of all schedules covers this span
FREQUENT: Final = 24  # if a schedule has more occurrences in the window, list only the first
# The table's width in columns. It is wider than any terminal, so that the end of a remark is never cut off.
WHOLE: Final = 2000
MARKED: Final = 60  # how many characters of an expression to show around a mistake


@dataclass(frozen=True)
class Upcoming:
    """What to look up: a schedule of the file, or an expression, which has no name."""

    name: str | None
    timing: Timing
    zone: str  # the time zone in which to print


@dataclass(frozen=True)
class Occurrence:
    due: Upcoming
    at: datetime
    remark: str | None

    @property
    def local(self) -> datetime:
        return in_zone(self.at, ZoneInfo(self.due.zone))


def next_occurrences(
    ctx: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="EXPRESSION|SCHEDULE",
            autocompletion=schedule_names,
            help='An expression in quotes, such as "30 2 * * *" or "every 10m"; or the name of a schedule in the file. '
            "Default: all schedules.",
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Start from this instant instead of now.", show_default=False),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(
            metavar="ZONE",
            help="Time zone of the expression and of the local times shown. Default: the file's timezone, else UTC.",
            show_default=False,
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "-n", "--count", min=1, metavar="N", help=f"How many to show. Default: {SHOWN}, or all within 24 h."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the next due times of an expression or a schedule, or of all schedules in the next 24 hours.

    The command prints the local time with its offset, the UTC time, and a remark if a clock change moves, merges or
    doubles an occurrence. It reads only the file, so it needs no database and ignores pauses. An expression needs no
    file either. If a schedule is due more than 24 times in 24 hours, only its first time is listed. With -n or --json,
    its other times are listed as well. --json prints one array of {"schedule", "local", "utc", "remark"}.

    Exit codes: 0 (also if nothing is due), 2 usage, 3 an entry of the file is bad (the others are shown).
    """
    if what and len(what) > 1:
        raise UsageError('give one expression or schedule, in quotes: cronjobs next "30 2 * * *"')
    given = what[0].strip() if what else None
    broken: list[str] = []
    if given is not None and not NAME.fullmatch(given):
        zone = timezone or _default_zone(ctx, config)
        all_due = [_expression(given, zone)]
    else:
        settings = load_settings(Source(ctx, config), need_database=False)
        all_due = _schedules(settings, given, timezone)
        zone = all_due[0].zone if given is not None else timezone or settings.timezone
        broken = [str(problem) for problem in settings.problems] if given is None else []
    start = _start(from_, zone)
    if given is not None:
        count = count or SHOWN
    found = list(islice(_merged(all_due, start, None if count else start + WINDOW), count))
    for due in all_due if given is not None else ():
        if isinstance(due.timing, CronTiming) and (said := due.timing.expression.day_remark):
            complain(f"note: {said}")
    if as_json:
        objects = [
            {"schedule": one.due.name, "local": one.local.isoformat(), "utc": one.at, "remark": one.remark}
            for one in found
        ]
        write([json_text(objects)])
    else:
        _print(found if count else _thinned(found, start))
        if not found:
            complain(_nothing(all_due, start, windowed=count is None))
    for problem in broken:
        complain(problem)
    if broken:
        raise typer.Exit(3)


# --- arguments --------------------------------------------------------------------------------------------------------


def _expression(text: str, zone: str) -> Upcoming:
    """Parse an expression. Raises UsageError with a caret below the column of the mistake."""
    timing: Timing
    if text.startswith("every "):
        try:
            timing = EveryTiming(duration(text.removeprefix("every ").strip()))
        except (ValueError, OverflowError) as error:
            raise UsageError(f"{one_line(text, MARKED)}: {one_line(str(error), 200)}") from None
        _require_zone(zone)
        return Upcoming(None, timing, zone)
    try:
        expression = parse(text)
    except CronError as error:
        raise UsageError(f"column {error.column}: {error}", below=_marked(text, error)) from None
    return Upcoming(None, CronTiming(expression, zone), zone)


def _marked(text: str, error: CronError) -> list[str]:
    """Return the expression and a caret line. Text before the mistake is valid, so each character takes one column."""
    begin = max(0, error.column - MARKED // 2)
    before = one_line(text[begin : error.column - 1], MARKED)
    after = one_line(text[error.column - 1 :], MARKED // 2)
    dots = "…" if begin else ""
    caret = " " * len(dots + before) + "^"
    return [f"  {dots}{before}{after}", f"  {caret}"]


def _require_zone(zone: str) -> None:
    timing_of("@daily", None, zone)


def _default_zone(ctx: typer.Context, config: Path | None) -> str:
    """Return the file's timezone, or UTC if there is no valid file.

    If the file was given by name and cannot be used, raise ConfigError.
    """
    try:
        return load_settings(Source(ctx, config), need_database=False).timezone
    except ConfigError:
        if config or ctx.find_root().params.get("config") or os.environ.get("CRONJOBS_CONFIG"):
            raise
        return "UTC"


def _schedules(settings: Settings, name: str | None, zone: str | None) -> list[Upcoming]:
    """Return the file's schedules, or only *name*.

    Raises UsageError if *name* is missing, ConfigError if it is invalid.
    """
    if zone is not None:
        _require_zone(zone)
    if name is None:
        return [_schedule(schedule, zone) for schedule in settings.schedules.values()]
    if name in settings.schedules:
        return [_schedule(settings.schedules[name], zone)]
    if name in settings.disabled_schedules:
        raise ConfigError(settings.problems_of(name) or list(settings.problems))
    if name in settings.elsewhere:
        raise UsageError(f'schedule "{name}" is not for environment "{settings.environment}"')
    near = nearest(name, settings.schedules)
    hint = '"cronjobs next" lists all schedules; an expression looks like "30 2 * * *" or "every 10m"'
    hint = f"did you mean {near}?" if near else hint
    raise UsageError(f'there is no schedule "{name}" in {settings.file}: {hint}')


def _schedule(schedule: ScheduleSettings, zone: str | None) -> Upcoming:
    return Upcoming(
        schedule.name, timing_of(schedule.cron, schedule.every, schedule.timezone), zone or schedule.timezone
    )


def _start(given: str | None, zone: str) -> datetime:
    """Return the start of the search: now, or just before ``--from`` (in *zone* if it has no offset)."""
    if given is None:
        return SYSTEM.now()
    try:
        return iso_instant(given, zone) - timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise UsageError(
            f"--from {one_line(given, 60)!r} is not an ISO time: write 2026-03-29T02:00, or 2026-03-29T02:00+01:00"
        ) from None


# --- occurrences ------------------------------------------------------------------------------------------------------


def _merged(all_due: Sequence[Upcoming], start: datetime, until: datetime | None) -> Iterator[Occurrence]:
    """Yield all occurrences, sorted by time, then by name."""

    def of(due: Upcoming) -> Iterator[Occurrence]:
        coming = due.timing.after(start)
        for at in coming if until is None else takewhile(until.__ge__, coming):
            yield Occurrence(due, at, remarks(due.timing, at))

    return heapq.merge(*(of(due) for due in all_due), key=lambda one: (one.at, one.due.name or ""))


def _thinned(found: Sequence[Occurrence], start: datetime) -> list[Occurrence]:
    """Keep only the first occurrence of a frequent schedule. Its remark gives the number of occurrences."""
    counts = {due: due.timing.span(start, start + WINDOW)[0] for due in {one.due for one in found}}
    shown: list[Occurrence] = []
    named: set[Upcoming] = set()
    for one in found:
        if counts[one.due] <= FREQUENT:
            shown.append(one)
        elif one.due not in named:
            named.add(one.due)
            changes = [said for _, said in clock_changes(one.due.timing, start, start + WINDOW)]
            first = f"the first of {counts[one.due]:,} in 24 h"
            shown.append(Occurrence(one.due, one.at, "; ".join([first, *changes])))
    return shown


def _print(found: Sequence[Occurrence]) -> None:
    zones = {one.due.zone for one in found}
    named = any(one.due.name for one in found)
    header = [
        f"local ({zones.pop()})" if len(zones) == 1 else "local",
        "UTC",
        *(["schedule"] if named else []),
        "remark",
    ]
    clock = "%H:%M:%S" if any(one.at.second for one in found) else "%H:%M"
    rows = []
    for one in found:
        zone = f" {one.due.zone}" if header[0] == "local" else ""
        local = f"{one.local:%a %Y-%m-%d {clock} %z}{zone}"
        rows.append([local, f"{one.at:%Y-%m-%d {clock}}", *([safe(one.due.name)] if named else []), one.remark or ""])
    write(table(rows, header, room=WHOLE))


def _nothing(all_due: Sequence[Upcoming], start: datetime, *, windowed: bool) -> str:
    if not all_due:
        return "the file has no schedule that runs here"
    first = next(_merged(all_due, start, None), None) if windowed else None
    if first is None:
        return "nothing more is due before the year 10,000"
    return f"nothing is due in these 24 h; the next is {first.due.name} in {rough(first.at - start)} (-n 1 shows it)"
