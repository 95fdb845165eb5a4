"""``cronjobs run-due --dry-run``: what a tick would do now. It reads, and changes nothing at all."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.cli.output import coloured, counted, echo, echo_json, local
from cronjobs.cli.pause import pause_lines
from cronjobs.cli.sync import renamed
from cronjobs.config.settings import Settings
from cronjobs.database.connection import Database
from cronjobs.host.identity import Identity
from cronjobs.jobs import job_types
from cronjobs.jobs.job_types import JobTypes
from cronjobs.rules import pausing
from cronjobs.rules.concurrency import Candidate, Limit, choose, reached
from cronjobs.schedules.applying import applies
from cronjobs.schedules.changes import SyncPlan, compare
from cronjobs.schedules.decide import Due, Settled, plan_for
from cronjobs.schedules.definition import fingerprint
from cronjobs.schedules.materialise import preview
from cronjobs.store import claims, queues, schedules, ticks, upcoming
from cronjobs.store.concurrency import running_by_key
from cronjobs.store.enqueue import NewJob
from cronjobs.store.job_types import remembered
from cronjobs.store.ownership import is_ours
from cronjobs.text import one_line

LINES: Final = 50  # of jobs, and of schedules


@dataclass(frozen=True)
class Outlook:
    """What a tick would find and do. ``jobs`` in order, at most LINES of ``due``; id None: its schedule makes it."""

    now: datetime
    expired: int
    sync: SyncPlan | None
    schedules: list[dict[str, Any]]
    jobs: list[dict[str, Any]]
    due: int
    unresolved: list[tuple[str, int]]
    pauses: Sequence[Any]
    next_run_at: datetime | None


def show(
    settings: Settings, database: Database, *, queue: str | None, only: str | None, as_json: bool, fires: bool
) -> None:
    """Print what a tick would do; *fires*: also about schedules. Raises ForeignDatabase where it would do nothing."""
    with redirect_stdout(sys.stderr):  # what a module prints when it is imported is no data of ours
        known = job_types.load(settings)
    with database.read() as connection:
        found = _look(connection, settings, known, queue, only, fires)
    if as_json:
        echo_json(_object(settings, database, known, found))
    else:
        for line in _lines(settings, known, found):
            echo(line)


def _look(
    connection: Connection, settings: Settings, known: JobTypes, queue: str | None, only: str | None, fires: bool
) -> Outlook:
    here = Identity.here()
    seen = ticks.overview(connection, host=here.host, place=here.place, fingerprint=fingerprint(settings))
    is_ours(settings, seen.project, seen.environment)
    pauses = schedules.pauses_in_force(connection)
    stored = schedules.all_schedules(connection)
    todo = None
    if fires and applies(connection, seen, settings, host=here.host):
        todo = compare(settings, stored, queues.caps_in_force(connection))
    # A sync settles what it changes first, whether it is due by its hint or not.
    chosen = schedules.due_schedules(connection, settings.disabled_schedules) if fires else []
    if todo is not None:
        ends = {*todo.change, *todo.remove, *(old for old, _ in todo.rename)}.difference(each.name for each in chosen)
        chosen += [schedule for schedule in stored if schedule.status == "active" and schedule.name in ends]
    planned = [due for schedule in chosen if (due := plan_for(schedule, seen.now)) is not None]
    within = remembered(settings.run.every)
    caps, lifted = ((), ()) if todo is None else (todo.cap, todo.uncap)
    settled = {
        due.stored.id: made for due, made in preview(connection, planned, within=within, changed=caps, lifted=lifted)
    }
    made = [(due, settled.get(due.stored.id, Settled())) for due in planned if due.told or due.parts]
    wanted = [name for name in known.types if only in (None, name)]
    waiting = upcoming.due_jobs(connection, known=wanted, queue=queue, limit=LINES)
    jobs = [dict(row._mapping) for row in waiting.first]
    new = [_new(job) for _, found in made for job in found.jobs if _begins(job, seen.now, wanted, queue, pauses)]
    jobs = sorted(jobs + new, key=lambda job: (job["priority"], job["run_at"], job["id"] is None, job["id"] or 0))
    running = running_by_key(connection, known.types.keys()) if settings.limits else {}
    return Outlook(
        now=seen.now,
        expired=upcoming.expired_leases(connection),
        sync=todo,
        schedules=[_schedule(due, found) for due, found in made],
        jobs=_with_limits(jobs[:LINES], settings.limits, running),
        due=waiting.count + len(new),
        unresolved=claims.unresolved(connection, known.types.keys()),
        pauses=pauses,
        next_run_at=upcoming.next_run_at(connection),
    )


def _with_limits(
    jobs: Sequence[dict[str, Any]], limits: Sequence[Limit], running: Mapping[str, int]
) -> list[dict[str, Any]]:
    """*jobs*, each with the limit that keeps it waiting, in words; None: it may begin at once."""
    candidates = [Candidate(place, job["concurrency_key"]) for place, job in enumerate(jobs)]
    chosen = choose(candidates, limits, running, before=0, free=len(jobs))
    found = []
    for place, job in enumerate(jobs):
        full = None if place in chosen.taken else reached(limits, chosen.running, job["concurrency_key"])
        found.append(job | {"waits_for": full.reached if full is not None else None})
    return found


# --- schedules --------------------------------------------------------------------------------------------------------


def _schedule(due: Due, settled: Settled) -> dict[str, Any]:
    """What would be written about a schedule's occurrences."""
    facts: dict[str, Any] = {
        "schedule": due.stored.name,
        "skipped": 0,
        "missed": 0,
        "coalesced": 0,
        "occurrences": [],
        "paused": due.stored.paused,
        "trouble": "; ".join(str(event.facts.get("error")) for event in due.told) or None,
    }
    if not due.parts:
        return facts
    schedule = due.parts[-1].schedule
    facts |= {"job_type": schedule.job, "queue": schedule.queue, "priority": schedule.priority}
    facts["timeout_s"] = None if schedule.timeout is None else schedule.timeout.total_seconds()
    turns = {instant for part in due.parts for instant in part.run}
    for row, _ in settled.rows:
        if row.first_for == row.last_for and row.first_for in turns:
            put = {"outcome": row.outcome, "reason": row.reason, "job_id": row.job_id}
            facts["occurrences"].append({"for": row.first_for} | put)
        else:
            facts[row.outcome] += row.count
    return facts


def _begins(job: NewJob, now: datetime, wanted: Sequence[str], queue: str | None, pauses: Sequence[Any]) -> bool:
    """Whether this tick could run a job that a schedule makes."""
    if job.job_type not in wanted or queue not in (None, job.queue) or (job.run_at is not None and job.run_at > now):
        return False
    return not pausing.of_queue(pauses, job.queue)


def _new(job: NewJob) -> dict[str, Any]:
    names = ("job_type", "queue", "priority", "timeout_s", "schedule", "run_at", "concurrency_key")
    return {"id": None} | {name: getattr(job, name) for name in names}


# --- telling ----------------------------------------------------------------------------------------------------------


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
    lines = [coloured(line, "yellow") for line in pause_lines(found.pauses, settings)]
    if found.expired:
        lines.append(f"{counted(found.expired, 'lease')} ran out: first what became of these attempts would be settled")
    lines += _sync_lines(found.sync)
    for schedule in found.schedules[:LINES]:
        lines += _schedule_lines(settings, schedule)
    if len(found.schedules) > LINES:
        lines.append(f"… and {len(found.schedules) - LINES} more schedules")
    if found.jobs:
        lines.append(f"would run {counted(found.due, 'job')}, in this order:")
        lines += [f"  {_job_line(settings, known, job)}" for job in found.jobs]
        if found.due > len(found.jobs):
            lines.append(f"  … and {found.due - len(found.jobs):,} more")
    else:
        lines.append("no job would run")
    if found.next_run_at is not None:
        lines.append(f"the next one is due {local(settings, found.next_run_at)}")
    for job_type, waiting in found.unresolved:
        text = f'{counted(waiting, "job")} of type "{job_type}" cannot run here and would wait: no handler or command'
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
    return [f"the file would be put in force: {', '.join(named[:LINES])}{more}"]


def _schedule_lines(settings: Settings, schedule: dict[str, Any]) -> list[str]:
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
        due = f"schedule {name}: due {local(settings, occurrence['for'])}"
        if occurrence["outcome"] == "enqueued":
            lines.append(f"{due}: would become a job ({schedule['job_type']})")
        else:
            lines.append(one_line(f"{due}: would be recorded as {occurrence['outcome']}: {occurrence['reason']}", 500))
    return lines


def _job_line(settings: Settings, known: JobTypes, job: dict[str, Any]) -> str:
    name = f"job {job['id']}" if job["id"] is not None else "a new job"
    facts = [f"priority {job['priority']}", f"due {local(settings, job['run_at'])}"]
    if job["queue"] != "default":
        facts.append(f"queue {job['queue']}")
    if job["schedule"]:
        facts.append(f"schedule {job['schedule']}")
    if job["waits_for"]:
        facts.append(f"waits: {job['waits_for']}")
    timeout_s, longest_s = job["timeout_s"], settings.run.longest_in_tick.total_seconds()
    if timeout_s is not None and timeout_s > longest_s:
        facts.append(f"in a process of its own: its timeout {timeout_s:g} s is above the {longest_s:g} s of a tick")
    return one_line(f"{name} {job['job_type']}: {', '.join(facts)}", 300)
