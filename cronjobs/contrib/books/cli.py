"""``cronjobs books``: compare what was due with the results, per schedule and day."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, Final

import typer

from cronjobs.contrib.books.evidence import books as all_books
from cronjobs.contrib.books.judging import BESIDE, OPEN, SETTLED, Book, DayBook, Difference, total_of
from cronjobs.desk.cli.options import JsonOption, Source, schedule_names
from cronjobs.desk.cli.output import table, width, wrapped, write
from cronjobs.desk.cli.project_database import jobs_database
from cronjobs.desk.insight.finding import several
from cronjobs.desk.insight.formatting import Times, counted, safe
from cronjobs.desk.insight.instants import since_instant
from cronjobs.engine.command.printing import json_text
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import CronjobsError, UsageError

DIFFERENCES_SHOWN: Final = 20
NOTES_SHOWN: Final = 20
NAME_SHOWN: Final = 40  # a longer name is cut to this many columns
# The table shows every other column only if that column has a value.
ALWAYS: Final = ("due", "ran", "failed", "missed", "wrong")


def books(
    source: Source,
    since: Annotated[
        str,
        typer.Option("--from", metavar="T", help="The start of the period: 2026-03-01, 2026-03-01T08:00, or 7d (ago)."),
    ] = "7d",
    until: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="T",
            show_default=False,
            help="The end of the period, inclusive. Default: now.",
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(metavar="NAME", autocompletion=schedule_names, show_default=False, help="Only this schedule."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check, per schedule and day, that every due occurrence ran or is accounted for.

    For each schedule and each day in its time zone, due = ran + failed + skipped + missed + coalesced + open. The due
    occurrences are computed from the definitions in force at the time, and compared with the ledger and the jobs.
    "failed" means that the job is dead or cancelled. "open" means that the job is waiting or running now, or that no
    tick has settled the occurrence yet. Consecutive days on which everything ran share one line.

    --json prints one object: from, to, balanced, days (an object per schedule and day), total, differences, notes. The
    exit code is 1 if an occurrence is not accounted for, or if a row belongs to no due occurrence. Rows older than
    their retention period are not judged; a note says so.
    """
    with jobs_database(source, only_database=True) as (settings, database), database.read() as connection:
        times = Times(database_now(connection), settings.timezone)
        begin = since_instant(since, times.now, times.timezone, "--from")
        end = times.now if until is None else since_instant(until, times.now, times.timezone, "--to")
        if begin >= end:
            raise UsageError("--from must be before --to")
        found = all_books(connection, settings, begin, end, schedule)
    if schedule is not None and not found:
        raise CronjobsError(
            f'schedule "{safe(schedule, 80)}" had nothing due in this period: "cronjobs schedules list" lists all names'
        )
    days = [day for book in found for day in book.days]
    differences = [difference for book in found for difference in book.differences]
    if as_json:
        whole = {
            "from": begin,
            "to": end,
            "balanced": not differences,
            "days": [_object(day) for day in days],
            "total": _figures(total_of(days)) if days else {},
            "differences": [vars(difference) for difference in differences],
            "notes": [{"schedule": name, "text": note} for name, note in _notes(found)],
        }
        write([json_text(whole)])
    else:
        write(_lines(found, days, differences, times, f"{times.both(begin)} to {times.both(end)}"))
    if differences:
        raise typer.Exit(1)


def _object(day: DayBook) -> dict[str, Any]:
    return {"schedule": day.schedule, "day": day.day.isoformat(), "timezone": day.timezone} | _figures(day)


def _figures(day: DayBook) -> dict[str, Any]:
    counts = {word: day.counts[word] for word in SETTLED}
    open_ = {"open": day.open} | {word: day.counts[word] for word in OPEN}
    beside = {word: day.counts[word] for word in BESIDE}
    return {"due": day.due} | counts | {"cancelled": day.cancelled} | open_ | beside | {"differences": day.differences}


def _notes(found: Sequence[Book]) -> Iterator[tuple[str, str]]:
    return ((book.days[0].schedule, note) for book in found for note in book.notes if book.days)


def _lines(
    found: Sequence[Book], days: Sequence[DayBook], differences: Sequence[Difference], times: Times, period: str
) -> Iterator[str]:
    yield f"{period}, by the definitions in force at the time"
    if not days:
        yield "nothing was due"
        return
    total = _columns(total_of(days))
    shown = [word for word, count in total.items() if count or word in ALWAYS]
    rows = [row for book in found for row in _rows(book.days, shown)]
    if len(rows) > 1:
        rows.append(["total", "", *_cells(total_of(days), shown), ""])
    header = ["schedule", "day", *(f">{word}" for word in shown), ""]
    yield from table(rows, header, room=width(), at_most={0: NAME_SHOWN})
    notes: dict[str, list[str]] = {}
    for name, note in _notes(found):
        notes.setdefault(note, []).append(name)
    if notes:
        yield ""
    for note, names in list(notes.items())[:NOTES_SHOWN]:
        yield from wrapped(f"{safe(several(names), 200)}: {safe(note)}", width(), "  ")
    if len(notes) > NOTES_SHOWN:
        yield f"… and {len(notes) - NOTES_SHOWN} more notes (--json lists all)"
    yield ""
    if not differences:
        yield "the books balance"
        return
    wrong = sum(difference.count for difference in differences)
    yield f"the books do not balance: {counted(wrong, 'occurrence')} differ, in {counted(len(differences), 'group')}"
    for each in differences[:DIFFERENCES_SHOWN]:
        at = times.clock(each.first) + (f" to {times.clock(each.last)} ({each.count:,})" if each.count > 1 else "")
        yield from wrapped(f"{safe(each.schedule, 80)}, {at}: {each.text}", width(), "  ")
        yield f"  {safe(each.command)}"
    if len(differences) > DIFFERENCES_SHOWN:
        yield f"… and {len(differences) - DIFFERENCES_SHOWN} more (--json lists all)"


def _rows(days: Sequence[DayBook], shown: Sequence[str]) -> Iterator[list[str]]:
    """Yield a row per day. Consecutive days on which everything ran share a row."""
    for quiet, alike in groupby(days, _is_quiet):
        group = list(alike)
        for part in [group] if quiet else [[day] for day in group]:
            first, last = part[0].day, part[-1].day
            said = first.isoformat()
            if first != last:
                said += f" … {last:%m-%d}" if first.year == last.year else f" … {last}"
                said += f" ({len(part)})"
            yield [safe(part[0].schedule), said, *_cells(total_of(part), shown), ""]


def _is_quiet(day: DayBook) -> bool:
    return day.due == day.counts["ran"] == day.counts.total() and not day.differences


def _columns(day: DayBook) -> dict[str, int]:
    counts = {word: day.counts[word] for word in SETTLED} | {"open": day.open}
    return {"due": day.due} | counts | {word: day.counts[word] for word in BESIDE} | {"wrong": day.differences}


def _cells(day: DayBook, shown: Sequence[str]) -> list[str]:
    columns = _columns(day)
    return [f"{columns[word]:,}" if columns[word] else "·" for word in shown]
