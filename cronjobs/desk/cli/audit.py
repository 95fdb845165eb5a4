"""``cronjobs audit``: list who did what, when, and the reason they gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from cronjobs.desk.cli import parse_values
from cronjobs.desk.cli.options import JsonOption, Source
from cronjobs.desk.cli.output import columns_of, width, wrapped, write
from cronjobs.desk.cli.project_database import snapshot
from cronjobs.desk.insight.formatting import LocalTimes, Times, safe
from cronjobs.desk.store import trail
from cronjobs.engine.command.printing import coloured, complain, json_text
from cronjobs.engine.rules.payload import BadJson
from cronjobs.engine.store.given_up import KINDS
from cronjobs.masking import hidden_json

INDENT: Final = 22  # the time of day and the action fill this many columns before the text
DETAIL_SHOWN: Final = 200  # an entry's detail is cut to this many characters


def audit(
    source: Source,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            show_default=False,
            help="Only entries since this time: 90m, 24h or 7d (ago), 02:00, or an instant like 2026-03-29T02:00.",
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Only actions on this job (its id), schedule, queue or effect.",
        ),
    ] = None,
    actor: Annotated[
        str | None, typer.Option(metavar="NAME", show_default=False, help="Only what this user did.")
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            show_default=False,
            help="Only this action: cancel, retry, pause, resume, trigger, define, sync …",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1_000_000, help="Show only the newest N entries.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List who did what, in chronological order: cancels, retries, pauses, and the files that each host applied.

    A changed file has an entry only if its schedules, queues or limits differ from those of the previous file.

    This list does not show who enqueued a job: see the job's enqueued_by. --json prints an array with one object per
    entry. The keys are the columns of cronjobs_audit.
    """
    with snapshot(source, only_database=True) as (settings, connection, times):
        begin = None if since is None else parse_values.since(since, times)
        actions = None if action is None else [action]
        found = trail.entries(connection, actions, about=subject, actor=actor, since=begin, limit=limit + 1)
        rows = [columns_of(row) for row in found[-limit:]]
    entries = [entry | {"detail": settings.shown_definition(entry["detail"])} for entry in rows]
    write([json_text(entries)] if as_json else _lines(entries, times))
    if not entries and not as_json:
        complain("no entry" if since is subject is actor is action is None else "no such entry")
    if len(found) > limit:
        complain(f"only the newest {limit} entries are shown: raise --limit, or give a later --since")


def _lines(entries: Sequence[Mapping[str, Any]], times: Times) -> list[str]:
    if not entries:
        return []
    lines, day, room = [f"times are {times.timezone}"], "", width() - INDENT
    for entry in entries:
        local = times.local(entry["at"])
        if f"{local:%Y-%m-%d}" != day:
            day = f"{local:%Y-%m-%d}"
            lines += ["", coloured(f"{local:%A} {day}", "bright_black")]
        action = safe(entry["action"], 60)
        # A heading shows the date, so the texts below it show only the time of day.
        text = _text(entry, LocalTimes(entry["at"], times.timezone))
        # A long action gets its own line. Only rows that other programs wrote have a long action.
        head, *rest = wrapped(text, room) if len(action) <= INDENT - 12 else ["", *wrapped(text, room)]
        lines.append(f"{local:%H:%M:%S}  {action:<{INDENT - 12}}  {head}".rstrip())
        lines += [" " * INDENT + line for line in rest]
    return lines


def _text(entry: Mapping[str, Any], times: LocalTimes) -> str:
    """Return text such as "job 17 by ada on web1: the provider is down (filter: queue mail)"."""
    by = f"by {safe(entry['actor'], 80) or 'somebody'}" + (f" on {safe(entry['host'], 60)}" if entry["host"] else "")
    why = f": {safe(entry['why'])}" if entry["why"] else ""
    detail = entry["detail"]
    if entry["action"] == "ack" and entry["subject"] in KINDS and isinstance(detail, dict):
        # The entry stores an end time for every ack. Omit it here, since an ack ends findings of these kinds for good.
        rest = {name: value for name, value in detail.items() if name not in ("until", "up_to")}
        detail = {"holds": "for good"} | rest
    shown = _detail(detail, times)
    return f"{safe(entry['subject'], 200)} {by}{why}".lstrip() + (f" ({shown})" if shown else "")


def _detail(detail: Any, times: LocalTimes) -> str:
    """Format *detail* in at most DETAIL_SHOWN characters.

    Instead of ids, show only their number. Show instants in the time zone of *times*.
    """
    if isinstance(detail, BadJson):
        return f"cannot be read: {safe(detail.reason)}"
    if not isinstance(detail, dict):
        return "" if detail is None else safe(_plain(detail), DETAIL_SHOWN)
    ids = detail.get("ids")
    shown = {"jobs": f"{len(ids):,}"} if isinstance(ids, list) else {}
    shown |= {
        str(name): _on_the_clock(value, times) or _plain(value)
        for name, value in detail.items()
        if name != "ids" or not shown
    }
    return safe(", ".join(f"{name}: {value}" for name, value in shown.items() if value), DETAIL_SHOWN)


def _on_the_clock(value: Any, times: LocalTimes) -> str:
    """Format a stored instant in the time zone of *times*, or return "" if *value* is not an instant."""
    try:
        read = datetime.fromisoformat(value) if isinstance(value, str) else None
        return times.clock(read) if read is not None and read.tzinfo is not None else ""
    except (ValueError, OverflowError):
        return ""


def _plain(value: Any) -> str:
    if value in (None, "", [], {}):
        return ""
    return value if isinstance(value, str) else hidden_json(value)
