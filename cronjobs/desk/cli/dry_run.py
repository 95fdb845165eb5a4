"""``cronjobs run-due --dry-run``: print what a tick would do now."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

from cronjobs.desk.cli.known_types import known_types
from cronjobs.desk.cli.pauses import pause_lines
from cronjobs.desk.cli.project_database import missing_file
from cronjobs.desk.cli.sync import renamed
from cronjobs.desk.insight.formatting import counted, in_full
from cronjobs.desk.insight.next_tick import Outlook, look
from cronjobs.engine.command.database import ready_database
from cronjobs.engine.command.printing import coloured, echo, echo_json
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.schedules.changes import SyncPlan
from cronjobs.model import duration_text, seconds_text
from cronjobs.text import one_line

LINES: Final = 50  # show at most this many schedules


def show(settings: Settings, *, queue: str | None, only: str | None, as_json: bool, fires: bool) -> None:
    """Print what a tick would do, including schedules if *fires*.

    Raises ForeignDatabase if ticks refuse the database.
    """
    if missing_file(settings) is not None:
        echo_json({"new": True}) if as_json else echo("there is no database yet: the first tick creates it")
        return
    with closing(ready_database(settings)) as database:
        known = known_types(settings)
        with database.read() as connection:
            found = look(connection, settings, known, queue=queue, only=only, fires=fires)
    if as_json:
        echo_json(_object(settings, database, known, found))
    else:
        for line in _lines(settings, known, found):
            echo(line)


def _object(settings: Settings, database: Database, known: JobTypes, found: Outlook) -> dict[str, Any]:
    sync: dict[str, Any] | None = None
    if found.sync is not None:
        todo = found.sync
        sync = {"add": todo.add, "change": todo.change, "remove": todo.remove, "refused": todo.refused}
        sync["rename"] = renamed(todo)
    return {
        "dry_run": True,
        "now": found.now,
        "database": str(database.address),
        "config": str(settings.file),
        "expired": found.expired,
        "sync": sync,
        "schedules": found.schedules,
        "due": found.due,
        "jobs": found.jobs,
        "next_run_at": found.next_run_at,
        "unresolved": [{"job_type": job_type, "waiting": waiting} for job_type, waiting in found.unresolved],
        "paused": [dict(pause._mapping) for pause in found.pauses],
        "faults": [{"where": fault.where, "what": fault.what} for fault in known.faults],
        "problems": [str(problem) for problem in settings.problems],
    }


def _lines(settings: Settings, known: JobTypes, found: Outlook) -> list[str]:
    lines = [coloured(line, "yellow") for line in pause_lines(found.pauses, settings.timezone)]
    if found.expired:
        leases = counted(found.expired, "lease")
        lines.append(f"{leases} expired: the tick would first record how those attempts ended")
    lines += _sync_lines(found.sync)
    for schedule in found.schedules[:LINES]:
        lines += _schedule_lines(settings.timezone, schedule)
    if len(found.schedules) > LINES:
        lines.append(f"… and {counted(len(found.schedules) - LINES, 'more schedule')}")
    if found.jobs:
        lines.append(f"would run {counted(found.due, 'job')}, in this order:")
        lines += [f"  {_job_line(settings, known, job)}" for job in found.jobs]
        if found.due > len(found.jobs):
            lines.append(f"  … and {found.due - len(found.jobs):,} more")
    else:
        lines.append("no job would run")
    if found.next_run_at is not None:
        lines.append(f"the next job is due {in_full(found.next_run_at, settings.timezone)}")
    for job_type, waiting in found.unresolved:
        text = (
            f'{counted(waiting, "job")} of type "{job_type}" would wait: no handler or command for this type is '
            "registered here"
        )
        lines.append(coloured(one_line(text, 500), "red"))
    lines += [coloured(one_line(f"{fault.where}: {fault.what}", 1000), "red") for fault in known.faults]
    return [*lines, "nothing was changed"]


def _sync_lines(todo: SyncPlan | None) -> list[str]:
    if todo is None or todo.empty:
        return []
    if todo.refused:
        return [coloured(f"the file would not be applied: {todo.refused}", "red")]
    signs = (("+", todo.add), ("~", todo.change), ("-", todo.remove))
    named = [f"{sign} {name}" for sign, names in signs for name in names]
    named += [f"> {old} → {new}" for old, new in todo.rename]
    more = f", and {len(named) - LINES} more" if len(named) > LINES else ""
    return [f"the file would be applied: {', '.join(named[:LINES])}{more}"]


def _schedule_lines(timezone: str, schedule: dict[str, Any]) -> list[str]:
    name = schedule["schedule"]
    lines = []
    if schedule["trouble"]:
        lines.append(coloured(one_line(f"schedule {name}: {schedule['trouble']}", 500), "red"))
    lines += [
        f"schedule {name}: {counted(schedule[what], 'occurrence')} would be recorded as {what}"
        for what in ("skipped", "missed", "coalesced")
        if schedule[what]
    ]
    for occurrence in schedule["occurrences"]:
        due = f"schedule {name}: due {in_full(occurrence['for'], timezone)}"
        if occurrence["outcome"] == "enqueued":
            lines.append(f"{due}: would become a job ({schedule['job_type']})")
        else:
            lines.append(one_line(f"{due}: would be recorded as {occurrence['outcome']}: {occurrence['reason']}", 500))
    return lines


def _job_line(settings: Settings, known: JobTypes, job: dict[str, Any]) -> str:
    name = f"job {job['id']}" if job["id"] is not None else "a new job"
    facts = [f"priority {job['priority']}", f"due {in_full(job['run_at'], settings.timezone)}"]
    if job["queue"] != "default":
        facts.append(f"queue {job['queue']}")
    if job["schedule"]:
        facts.append(f"schedule {job['schedule']}")
    if job["waits_for"]:
        facts.append(f"waits: {job['waits_for']}")
    timeout_s, longest = job["timeout_s"], settings.run.longest_in_tick
    job_type = known.types.get(job["job_type"])
    if job_type is not None and job_type.executor is not None:
        facts.append(f"on executor {job_type.executor}, by its supervisor")
    elif timeout_s is not None and timeout_s > longest.total_seconds():
        above = (
            f"its timeout of {seconds_text(timeout_s)} is longer than the {duration_text(longest)} that a tick allows"
        )
        facts.append(f"in a process of its own: {above}")
    return one_line(f"{name} {job['job_type']}: {', '.join(facts)}", 300)
