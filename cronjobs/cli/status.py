"""``cronjobs status`` and ``cronjobs history``: how things stand, and what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from cronjobs.cli import leaving
from cronjobs.cli.known_types import known_types, most_tries
from cronjobs.cli.options import JsonOption, Source
from cronjobs.cli.output import (
    COLOURS,
    Times,
    coloured,
    columns_of,
    counted,
    did,
    first,
    host_of,
    json_text,
    labelled,
    rough,
    safe,
    sentence,
    since_instant,
    table,
    took,
    tries,
    width,
    wrapped,
    write,
)
from cronjobs.cli.project_database import jobs_database, snapshot
from cronjobs.config.settings import Settings
from cronjobs.database.connection import Database
from cronjobs.insight.findings import Finding, troubles
from cronjobs.insight.health import Health, look
from cronjobs.insight.watched import last_sign, quiet_after
from cronjobs.jobs.job_types import JobTypes
from cronjobs.rules import pausing
from cronjobs.store import listing, schedules

LABEL_WIDTH: Final = 11


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


# --- status -----------------------------------------------------------------------------------------------------------


def status(source: Source, as_json: JsonOption = False) -> None:
    """Show on one screen how things are: ticks, what runs, waits, is late or dead, and what comes next.

    Problems come first, in red, with since when and what to type: no tick, or none that fires schedules; late jobs;
    dead jobs that were not retried, cancelled or dismissed; schedules whose last three runs failed, that missed runs
    in an outage (until one succeeds, or you trigger one), or that ticks do not settle; pauses that hold something back
    or are a day old; files that are refused, or differ between hosts for 15 minutes.
    It only reads: the exit code is 0 whatever it finds. Times are the database's.
    """
    with jobs_database(source) as (settings, database):
        types = known_types(settings)
        with database.read() as connection:
            health = look(connection, settings, types)
    found = troubles(health, settings)
    if as_json:
        write([json_text(_status_object(health, found, settings, database))])
    else:
        write(_status_lines(health, found, settings, database, types))
    leaving.leave(0, stuck=False)  # whatever threads the user's modules began


def _status_object(health: Health, found: Sequence[Finding], settings: Settings, database: Database) -> dict[str, Any]:
    return {
        "database": str(database.address),
        **{name: getattr(health, name) for name in ("project", "environment", "schema_revision")},
        "config": str(settings.file),
        "now": health.now,
        "timezone": settings.timezone,
        "trouble": [vars(trouble) for trouble in found],
        "ticks": [dict(tick) for tick in health.ticks],
        "running": {
            "total": health.running_total,
            "overdue": health.overdue,
            "jobs": [dict(job) | {"overdue": job["locked_until"] < health.now} for job in health.running],
        },
        "waiting": {
            **{what: health.total(what) for what in ("due", "future", "late", "failed")},
            "oldest_due_at": health.oldest_due_at,
            "limited": [vars(limit) | {"waiting": count} for limit, count in health.limited.items()],
            "queues": [{"queue": name} | vars(queue) for name, queue in health.queues.items()],
        },
        "unresolved": [{"job_type": name, "waiting": count} for name, count in health.unresolved.items()],
        "dead": health.dead,
        "pauses": [dict(pause) for pause in health.pauses],
        "schedules": [
            {"name": schedule.name, "next_at": schedule.next_at, "paused": schedule.paused}
            for schedule in health.schedules
            if schedule.status == "active"
        ],
        "problems": [vars(problem) for problem in settings.problems],
    }


def _status_lines(
    health: Health, found: Sequence[Finding], settings: Settings, database: Database, types: JobTypes
) -> list[str]:
    times = Times(health.now, settings.timezone)
    room = width() - LABEL_WIDTH
    whose = [f"{name} {safe(value)}" for name in ("project", "environment") if (value := getattr(health, name))]
    lines = labelled("database", [safe(database.address)])
    lines += labelled("", [", ".join([*whose, f"tables {health.schema_revision}"])])
    lines += labelled("now", [times.said])
    lines.append("")
    if found:
        sentences = [line for trouble in found[:8] for line in wrapped("- " + sentence(trouble, times), room, "  ")]
        if len(found) > 8:
            sentences.append(f"… and {len(found) - 8} more: --json has them all")
        lines += labelled("TROUBLE", [coloured(line, "red") for line in sentences], "red")
    else:
        lines += labelled(
            "all well", [coloured("ticks come, nothing is late or dead, every schedule had its runs", "green")], "green"
        )
    lines.append("")
    lines += labelled("ticks", _tick_lines(health, times, room) or ["none yet"])
    lines += labelled("running", _running_lines(health, settings, types, times, room))
    lines += labelled("waiting", _waiting_lines(health, times))
    dead = health.dead
    lines += labelled(
        "dead", [f"{dead['total']:,} in all, {dead['last_24h']:,} in the last 24 h" if dead["total"] else "none"]
    )
    lines += labelled("paused", first([safe(_pause_text(pause, times), room) for pause in health.pauses], 4), "yellow")
    lines += labelled("next", _next_lines(health, times))
    return lines


def _tick_lines(health: Health, times: Times, room: int) -> list[str]:
    rows = [
        [
            safe(tick["host"]),
            times.ago(tick["started_at"]),
            took(tick["started_at"], tick["finished_at"]),
            safe(tick["version"]),
            safe(tick["fingerprint"])[:8],
            _did(tick, times),
        ]
        for tick in health.ticks[:5]
    ]
    lines = table(rows, ["host", "began", ">took", "version", "file", "did"], room=room, at_most={0: 20, 3: 8})
    if len(health.ticks) > 5:
        lines.append(f"… and {counted(len(health.ticks) - 5, 'host')} more")
    return lines


def _did(tick: Mapping[str, Any], times: Times) -> str:
    done = did(tick["did"]) if isinstance(tick["did"], dict) else ""
    if tick["finished_at"] is None:
        # Its budget is under a minute, and the last act of a tick is to complete its row.
        ended = "at work" if times.now - tick["started_at"] < timedelta(minutes=2) else "did not end: killed?"
    else:
        ended = safe(tick["ended"])
    if ended == "nothing is due" and done:
        ended = ""
    return "; ".join(part for part in (done, ended) if part)


def _running_lines(health: Health, settings: Settings, types: JobTypes, times: Times, room: int) -> list[str]:
    if not health.running_total:
        return ["nothing"]
    rows = []
    for job in health.running[:5]:
        left = job["locked_until"] - times.now
        lease = f"lease {rough(left)} left" if left >= timedelta(0) else f"OVERDUE: lease ended {rough(left)} ago"
        most = most_tries(job["job_type"], job["max_attempts"], settings, types)
        notes = [lease, tries(job["failures"], most), "asked to stop" if job["cancel_requested_at"] else ""]
        rows.append(
            [
                str(job["id"]),
                safe(job["job_type"]),
                host_of(job["locked_by"]),
                rough(times.now - job["started_at"]) if job["started_at"] else "",
                ", ".join(note for note in notes if note),
            ]
        )
    lines = table(rows, [">id", "type", "host", ">for", ""], room=room, at_most={1: 28, 2: 16})
    if health.running_total > len(rows):
        lines.append(f'… and {health.running_total - len(rows):,} more: "cronjobs jobs list --status running"')
    return lines


def _waiting_lines(health: Health, times: Times) -> list[str]:
    due, future, late, failed = (health.total(what) for what in ("due", "future", "late", "failed"))
    if not due + future:
        return ["nothing", *_cap_lines(health)]
    parts = [f"{due:,} due", f"{future:,} in the future"]
    if failed:
        parts.append(f"{failed:,} of these failed before")
    lines = [", ".join(parts)]
    if health.oldest_due_at is not None:
        late_text = coloured(f"{late:,} late", "red") if late else "none late"
        lines.append(f"{late_text}; the oldest was due {times.both(health.oldest_due_at)}")
    paused = [name for name, queue in health.queues.items() if queue.paused and queue.due]
    if paused:
        count = sum(health.queues[name].due for name in paused)
        lines.append(f"{count:,} due in paused queues: {safe(', '.join(paused), 60)}")
    lines += _cap_lines(health)
    lines += first([f"{count:,} due: {safe(limit.reached, 120)}" for limit, count in health.limited.items()], 4)
    return lines


def _cap_lines(health: Health) -> list[str]:
    lines = []
    for name, queue in health.queues.items():
        parts = []
        if queue.max_waiting is not None:
            held = f"{queue.waiting:,} of at most {queue.max_waiting:,}, then {queue.on_full}"
            parts.append(coloured(held, "yellow") if queue.full else held)
        if queue.dropped:
            parts.append(f"{queue.dropped:,} dropped so far")
        if parts:
            lines.append(f"queue {safe(name, 40)}: {'; '.join(parts)}")
    return first(lines, 6)


def _pause_text(pause: Mapping[str, Any], times: Times) -> str:
    until = f"until {times.clock(pause['until'])}" if pause["until"] else "until someone resumes it"
    by = f", by {pause['by']}" if pause["by"] else ""
    return f"{pausing.what(pause['scope'], pause['name'])} {until}{by}" + (f": {pause['why']}" if pause["why"] else "")


def _next_lines(health: Health, times: Times) -> list[str]:
    active = [schedule for schedule in health.schedules if schedule.status == "active"]
    coming = sorted(
        (schedule.next_at, schedule.name) for schedule in active if schedule.next_at and not schedule.paused
    )
    return first([f"{safe(name, 40)} {times.both(at)}" for at, name in coming], 5) or [
        "no schedule" if not active else "nothing: every schedule is paused or at its end"
    ]


# --- history ----------------------------------------------------------------------------------------------------------


def history(
    source: Source,
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="How far back: 90m, 24h, 7d, or an instant like 2026-03-29T02:00.")
    ] = "24h",
    schedule: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this schedule.")] = None,
    job_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only of this job type.")] = None,
    outcome: Annotated[
        HistoryOutcome | None,
        typer.Option(metavar="OUTCOME", help=f"Only this outcome: {', '.join(HistoryOutcome)}."),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="At most this many entries, the newest.")
    ] = 200,
    as_json: JsonOption = False,
) -> None:
    """List what happened, oldest first: "what happened last night?".

    Shows attempts that ended; jobs that died; occurrences of schedules that had no run of their own (missed, skipped,
    coalesced), with the reason; and, without --type and --outcome, the times in which no tick reached the
    database. Errors in full, tracebacks and outputs: "cronjobs jobs show ID".
    """
    with snapshot(source) as (settings, connection, times):
        begin = since_instant(since, times.now, settings.timezone)
        entries = _entries(connection, begin, limit + 1, schedule, job_type, outcome)
        if job_type is None and outcome is None:
            entries += _gaps(connection, begin, settings, times.now)
    entries.sort(key=_when)
    left_out = max(0, len(entries) - limit)
    entries = entries[left_out:]
    write([json_text(entries)] if as_json else _history_lines(entries, times, begin))
    if left_out:
        typer.echo(f"the newest {limit} are shown; there are older ones: --limit, or a later --since", err=True)


def _when(entry: Mapping[str, Any]) -> datetime:
    at: datetime = entry[{"occurrence": "last_for", "death": "finished_at"}.get(entry["kind"], "started_at")]
    return at


def _entries(
    connection: Any, begin: datetime, limit: int, schedule: str | None, job_type: str | None, outcome: str | None
) -> list[dict[str, Any]]:
    """What happened to jobs and occurrences, the newest *limit* of each kind."""
    found: dict[str, Sequence[Any]] = {}
    of_job: dict[str, Any] = {"schedule": schedule, "job_type": job_type}
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
        found["occurrence"] = listing.not_run_since(connection, begin, limit, schedule_ids=ids, outcomes=outcomes)
    return [{"kind": kind} | columns_of(row) for kind, rows in found.items() for row in rows]


def _gaps(connection: Any, begin: datetime, settings: Settings, now: datetime) -> list[dict[str, Any]]:
    limit = quiet_after(settings)
    gaps = [{"kind": "gap"} | columns_of(row) for row in listing.tick_gaps(connection, begin, limit)]
    last = last_sign([columns_of(row) for row in listing.last_ticks(connection)])
    if last is not None and now - last > limit:
        gaps.append({"kind": "gap", "started_at": last, "finished_at": None})
    return gaps


def _history_lines(entries: Sequence[Mapping[str, Any]], times: Times, begin: datetime) -> list[str]:
    if not entries:
        return [f"nothing happened since {times.clock(begin)} {times.timezone}"]
    lines, day, room = [f"times are {times.timezone}"], "", width()
    for entry in entries:
        local = times.local(_when(entry))
        if f"{local:%Y-%m-%d}" != day:
            day = f"{local:%Y-%m-%d}"
            lines += ["", coloured(f"{local:%A} {day}", "bright_black")]
        word, text = _told(entry, times)
        colour = "red" if word == "no tick" else COLOURS.get(word)
        head, *rest = wrapped(text, max(30, room - 23))
        painted = coloured(f"{word.replace('_', ' '):<11}", colour)
        lines.append(f"{local:%H:%M:%S}  {painted}  {head}")
        lines += [" " * 23 + line for line in rest]
    return lines


def _told(entry: Mapping[str, Any], times: Times) -> tuple[str, str]:
    """One word, and the rest as text."""
    match entry["kind"]:
        case "attempt" | "death" as kind:
            of = f" of {safe(entry['schedule'], 60)}" if entry["schedule"] else ""
            text = f"{safe(entry['job_type'], 60)} #{entry['job_id']}{of}, "
            if kind == "attempt":
                text += f"{took(entry['started_at'], entry['finished_at'])} on {host_of(entry['runner'])}"
            else:
                text += "and dismissed" if entry["dismissed"] else "and nobody has dealt with it"
            error = f": {safe(entry['error'], 200)}" if entry["error"] else ""
            return entry["outcome"] if kind == "attempt" else "dead", text + error
        case "occurrence":
            what = safe(entry["schedule"], 60)
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
