"""``cronjobs history``: what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from sqlalchemy import Connection

from cronjobs.desk.cli import typed
from cronjobs.desk.cli.options import JsonOption, Source, schedule_names, type_names
from cronjobs.desk.cli.output import (
    COLOURS,
    UNCUT,
    Times,
    columns_of,
    counted,
    host_of,
    is_cut,
    name_text,
    printable,
    safe,
    since_instant,
    took,
    width,
    wrapped,
    write,
)
from cronjobs.desk.cli.project_database import snapshot
from cronjobs.desk.cli.schedules import unknown_schedule
from cronjobs.desk.insight.schedule_facts import middle
from cronjobs.desk.insight.schedule_history import asked_on_the_clock
from cronjobs.desk.insight.shortened_history import Entry, collapsed, totals, when
from cronjobs.desk.insight.watched import last_sign, quiet_after
from cronjobs.engine.command.printing import coloured, complain, json_text
from cronjobs.engine.store import listing, schedules
from cronjobs.errors import UsageError
from cronjobs.model import rough

Span = tuple[datetime, datetime | None]  # until None: now
READ_AT_MOST: Final = 20_000  # attempts, deaths, occurrences
INDENT: Final = 26  # of the text: behind the times of day and the outcome
SECOND: Final = timedelta(seconds=1)


class HistoryOutcome(StrEnum):
    """How an attempt ended, that a job died, or why an occurrence had no run of its own."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    SNOOZED = "snoozed"
    DEAD = "dead"
    MISSED = "missed"
    SKIPPED = "skipped"
    COALESCED = "coalesced"


ORDER: Final = tuple(HistoryOutcome)


def history(
    source: Source,
    since: Annotated[
        str,
        typer.Option(metavar="WHEN", help="How far back: 90m, 24h, 7d, 02:00, or an instant like 2026-03-29T02:00."),
    ] = "24h",
    schedule: Annotated[
        str | None, typer.Option(metavar="NAME", autocompletion=schedule_names, help="Only of this schedule.")
    ] = None,
    job_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", autocompletion=type_names, help="Only of this job type.")
    ] = None,
    outcome: Annotated[
        HistoryOutcome | None,
        typer.Option(metavar="OUTCOME", help=f"Only this outcome: {', '.join(HistoryOutcome)}."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=100_000, help="At most this many lines, or entries as JSON, the newest."),
    ] = 200,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", show_default=False, help="Only before: 90m (ago), 05:30, or an instant; else now."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="A line for every run.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List what happened, oldest first: "what happened last night?".

    Shows attempts that ended; jobs that died; occurrences of schedules that had no run of their own (missed, skipped,
    coalesced), with the reason; and, without --type and --outcome, the times in which no tick reached the
    database. The first line counts them. Repeated successes of a schedule are one line, with their number, the times
    of the first and the last, and how long they usually took; --json has each. Errors in full, tracebacks and outputs:
    "cronjobs jobs show ID".
    """
    with snapshot(source, only_database=True) as (settings, connection, times):
        span = _span(since, until, times)
        read = limit + 1 if as_json else max(limit + 1, READ_AT_MOST)
        entries = _entries(connection, span, read, schedule, job_type, outcome)
        if job_type is None and outcome is None:
            entries += _gaps(connection, span, settings.run.every, times.now)
        if schedule is not None and (mistake := unknown_schedule(connection, schedule)) is not None:
            complain(mistake)
    entries.sort(key=when)
    if as_json:
        lines: Sequence[Sequence[Entry]] = [[entry] for entry in entries]
    else:
        lines = [[entry] for entry in entries] if everything else collapsed(entries, lambda at: times.local(at).date())
    left_out = max(0, len(lines) - limit)
    lines = lines[left_out:]
    if as_json:
        write([json_text([entry for [entry] in lines])])
    else:
        write(_history_lines(lines, totals(entries), times, span, all_read=_all_read(entries, read)))
    if left_out:
        typer.echo(f"the newest {limit} are shown; there are older ones: --limit, or a later --since", err=True)


def _instant(text: str, times: Times, option: str) -> datetime:
    """A duration back from now, an instant, or a time of day, which is the last such one."""
    with suppress(ValueError):
        wall = typed.of_day(text, times.local(times.now).replace(tzinfo=None))
        if wall is not None:
            return asked_on_the_clock(wall, times.timezone).at
    return since_instant(text, times.now, times.timezone, option)


def _span(since: str, until: str | None, times: Times) -> Span:
    begin = _instant(since, times, "--since")
    end = None if until is None else _instant(until, times, "--until")
    if end is not None and end <= begin:
        raise UsageError("--until is not after --since: nothing can have happened in between")
    return begin, end


def _entries(
    connection: Connection, span: Span, limit: int, schedule: str | None, job_type: str | None, outcome: str | None
) -> list[dict[str, Any]]:
    """What happened to jobs and occurrences, the newest *limit* of each kind."""
    found: dict[str, Sequence[Any]] = {}
    begin, end = span
    of_job: dict[str, Any] = {"schedule": schedule, "job_type": job_type, "until": end}
    if outcome not in (*listing.DID_NOT_RUN, "dead"):
        found["attempt"] = listing.attempts_since(connection, begin, limit, outcome=outcome, **of_job)
    if outcome in (None, "dead"):
        found["death"] = listing.deaths_since(connection, begin, limit, **of_job)
    if outcome in (None, *listing.DID_NOT_RUN):
        ids = None
        if schedule is not None or job_type is not None:
            ids = [
                stored.id
                for stored in schedules.all_schedules(connection)
                if schedule in (None, stored.name)
                and job_type in (None, stored.definition.get("job") if isinstance(stored.definition, dict) else None)
            ]
        outcomes = listing.DID_NOT_RUN if outcome is None else (str(outcome),)
        wanted: dict[str, Any] = {"schedule_ids": ids, "outcomes": outcomes, "until": end}
        found["occurrence"] = listing.not_run_since(connection, begin, limit, **wanted)
    return [{"kind": kind} | columns_of(row) for kind, rows in found.items() for row in rows]


def _all_read(entries: Sequence[Entry], limit: int) -> bool:
    """Whether no kind has as many entries as were asked for."""
    return max(Counter(entry["kind"] for entry in entries).values(), default=0) < limit


def _gaps(connection: Connection, span: Span, every: timedelta, now: datetime) -> list[dict[str, Any]]:
    limit = quiet_after(every)
    begin, end = span
    gaps = [{"kind": "gap"} | columns_of(row) for row in listing.tick_gaps(connection, begin, limit)]
    last = last_sign([columns_of(row) for row in listing.last_ticks(connection)])
    if last is not None and now - last > limit:
        gaps.append({"kind": "gap", "started_at": last, "finished_at": None})
    return [gap for gap in gaps if end is None or gap["started_at"] < end]


# --- lines ------------------------------------------------------------------------------------------------------------


def _history_lines(
    lines_of: Sequence[Sequence[Entry]], count: Counter[str], times: Times, span: Span, *, all_read: bool
) -> list[str]:
    begin, end = span
    to = f" until {times.clock(end)}" if end is not None else ""
    if not lines_of:
        between = f"between {times.clock(begin)} and {times.clock(end)}" if end else f"since {times.clock(begin)}"
        return [f"nothing happened {between} {times.timezone}"]
    room = width() if is_cut() else UNCUT
    told = [f"{number:,} {name.replace('_', ' ')}" for name in ORDER if (number := count[name])]
    told += [counted(count["gap"], "time without ticks", "times without ticks")] if count["gap"] else []
    lines = wrapped(f"since {times.clock(begin)}{to} {times.timezone}: {', '.join(told)}", room)
    if not all_read:
        lines += wrapped(f"only the newest {READ_AT_MOST:,} of a kind are counted", room)
    day = ""
    for entries in lines_of:
        local = times.local(when(entries[0]))
        if f"{local:%Y-%m-%d}" != day:
            day = f"{local:%Y-%m-%d}"
            lines += ["", coloured(f"{local:%A} {day}", "bright_black")]
        word, text = _told(entries[0], times) if len(entries) == 1 else ("succeeded", _repeated(entries))
        colour = "red" if word == "no tick" else COLOURS.get(word)
        head, *rest = wrapped(text, max(30, room - INDENT))
        painted = coloured(f"{word.replace('_', ' '):<11}", colour)
        lines.append(f"{_clock(entries, times):<11}  {painted}  {head}")
        lines += [" " * INDENT + line for line in rest]
    return lines


def _clock(entries: Sequence[Entry], times: Times) -> str:
    """ "03:00:12"; of several runs "03:00–03:55"."""
    first, last = (times.local(when(entry)) for entry in (entries[0], entries[-1]))
    if len(entries) == 1:
        return f"{first:%H:%M:%S}"
    return f"{first:%H:%M}{printable('–', '-')}{last:%H:%M}"


def _repeated(entries: Sequence[Entry]) -> str:
    """ "sync_stock ×12, 1.2 s usual"."""
    durations = [entry["finished_at"] - entry["started_at"] for entry in entries]
    usual, longest = middle(durations), max(durations)
    text = f"{name_text(entries[0]['schedule'])} {printable('×', 'x')}{len(entries):,}, {rough(usual)} usual"
    return text + (f", the longest {rough(longest)}" if longest > 3 * usual and longest > SECOND else "")


def _told(entry: Entry, times: Times) -> tuple[str, str]:
    """One word, and the rest as text."""
    match entry["kind"]:
        case "attempt" | "death" as kind:
            of = f" of {name_text(entry['schedule'])}" if entry["schedule"] else ""
            text = f"{name_text(entry['job_type'])} #{entry['job_id']}{of}, "
            if kind == "attempt":
                text += f"{took(entry['started_at'], entry['finished_at'])} on {host_of(entry['runner'])}"
            else:
                text += "and dismissed" if entry["dismissed"] else "and nobody has dealt with it"
            error = f": {safe(entry['error'], 200)}" if entry["error"] else ""
            return entry["outcome"] if kind == "attempt" else "dead", text + error
        case "occurrence":
            what = name_text(entry["schedule"])
            if entry["count"] > 1:
                what += f", {entry['count']:,} occurrences from {times.clock(entry['first_for'])} to "
                what += times.clock(entry["last_for"])
            into = f" (job {entry['job_id']})" if entry["job_id"] is not None else ""
            return entry["outcome"], what + into + (f": {safe(entry['reason'], 200)}" if entry["reason"] else "")
        case _:
            began = times.clock(entry["started_at"])
            if entry["finished_at"] is None:
                return "no tick", f"reached the database since {began}"
            return "no tick", f"reached the database between {began} and {times.clock(entry['finished_at'])}"
