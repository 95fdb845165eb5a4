"""What ``cronjobs history --around`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from cronjobs.cli.output import (
    UNCUT,
    Times,
    counted,
    first,
    host_of,
    is_cut,
    labelled,
    name_text,
    rough,
    safe,
    took,
    width,
    wrapped,
)
from cronjobs.insight.moment import Moment, TickSeen, unknown
from cronjobs.rules import pausing
from cronjobs.run_due.printing import coloured

LABEL_WIDTH: Final = 11
SHOWN: Final = 20  # lines of each part


def moment_object(moment: Moment) -> dict[str, Any]:
    found = {name: value for name, value in asdict(moment).items() if name not in ("all_runs_read",)}
    return found | {"unknown": [" ".join([what, *([at.isoformat()] if at else [])]) for what, at in unknown(moment)]}


def moment_lines(moment: Moment, times: Times, *, everything: bool) -> list[str]:
    room = (width() if is_cut() else UNCUT) - LABEL_WIDTH
    most = 100_000 if everything else SHOWN
    local = times.local(moment.at)
    lines = labelled("around", [f"{local:%Y-%m-%d %H:%M:%S} {times.timezone}, {times.ago(moment.at)}"])
    lines.append("")
    parts: list[tuple[str, list[str], str | None]] = [
        (
            "wrong",
            list(_wrong(moment, times)) or ["nothing that the rows show"],
            "red" if any(_wrong(moment, times)) else None,
        ),
        ("running", [_running(run, moment, times) for run in moment.running] or ["nothing"], None),
        ("ended", [_ended(run, times) for run in moment.ended] or ["nothing within a minute of it"], None),
        ("settled", [_settled(row, times) for row in moment.settled] or ["no occurrence within a minute of it"], None),
        ("ticks", list(_ticks(moment, times)), None),
        ("unknown", [what + (f" {times.clock(at)}" if at else "") for what, at in unknown(moment)], "bright_black"),
    ]
    for label, told, colour in parts:
        shown = [line for each in first(told, most) for line in wrapped(each, room, "  ")]
        lines += labelled(label, [coloured(line, colour) for line in shown], colour)
    return lines


def _wrong(moment: Moment, times: Times) -> Iterator[str]:
    for finding in moment.findings:
        end = f" until {times.clock(finding['ended_at'])}" if finding["ended_at"] else ", to this day"
        text = f"{safe(finding['severity'])} {safe(finding['finding'], 60)}: {safe(finding['text'], 400)}"
        yield f"- {text}, since {times.clock(finding['began_at'])}{end}"
    if moment.quiet and moment.before is not None:
        last = times.clock(moment.before.ended_at or moment.before.began_at)
        until = f"and {times.clock(moment.after.began_at)}" if moment.after else "and now"
        yield f"- no tick reached the database between {last} {until}"
    for pause in moment.pauses:
        by = f" by {safe(pause.by, 60)}" if pause.by else ""
        why = f": {safe(pause.why, 200)}" if pause.why else ""
        what = safe(pausing.what(pause.scope, pause.name), 200)
        yield f"- {what} was paused{by}, since {times.clock(pause.since)}{why}"
    if moment.waiting.since is not None:
        waited = rough(moment.at - moment.waiting.since)
        yield f"- {counted(moment.waiting.jobs, 'job')} due and not begun, the oldest for {waited}"
    if moment.dead.jobs:
        since = f", the first since {times.clock(moment.dead.since)}" if moment.dead.since else ""
        yield f"- {counted(moment.dead.jobs, 'job')} dead that nobody has dealt with to this day{since}"


def _of(run: Mapping[str, Any]) -> str:
    of = f" of {name_text(run['schedule'])}" if run["schedule"] else ""
    return f"{name_text(run['job_type'])} #{run['job_id']}{of}"


def _running(run: Mapping[str, Any], moment: Moment, times: Times) -> str:
    end = "and runs still"
    if run["finished_at"] is not None:
        end = f"{run['outcome'].replace('_', ' ')} {times.clock(run['finished_at'])}"
    return f"{_of(run)} on {host_of(run['runner'])}, begun {rough(moment.at - run['started_at'])} before; {end}"


def _ended(run: Mapping[str, Any], times: Times) -> str:
    error = f": {safe(run['error'], 200)}" if run["error"] else ""
    word = run["outcome"].replace("_", " ")
    return f"{times.clock(run['finished_at'])} {word}: {_of(run)}, {took(run['started_at'], run['finished_at'])}{error}"


def _settled(row: Mapping[str, Any], times: Times) -> str:
    due = times.clock(row["last_for"])
    if row["count"] > 1:
        due = f"{row['count']:,} from {times.clock(row['first_for'])} to {due}"
    job = f" (job {row['job_id']})" if row["job_id"] is not None else ""
    why = f": {safe(row['reason'], 200)}" if row["reason"] else ""
    return f"{times.clock(row['decided_at'])} {row['outcome']}: {name_text(row['schedule'])}, due {due}{job}{why}"


def _ticks(moment: Moment, times: Times) -> Iterator[str]:
    for tick in moment.ticks:
        yield f"{_tick(tick, times)}, at work"
    if not moment.ticks and moment.before:
        yield f"{_tick(moment.before, times)}, the last before"
    if not moment.ticks and moment.after:
        yield f"{_tick(moment.after, times)}, the next"
    if not (moment.ticks or moment.before or moment.after):
        yield "none"


def _tick(tick: TickSeen, times: Times) -> str:
    end = f"to {times.clock(tick.ended_at)}" if tick.ended_at else "without an end"
    return f"{safe(tick.host, 60)} from {times.clock(tick.began_at)} {end}"
