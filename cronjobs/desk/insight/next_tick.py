"""Predict what a tick would do now, without writing anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.desk.rules import pausing
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.concurrency import Candidate, Limit, choose, reached
from cronjobs.engine.schedules.applying import judge_file
from cronjobs.engine.schedules.changes import SyncPlan, compare
from cronjobs.engine.schedules.decide import Due, Settled, decide_all, plan_for, wants_room
from cronjobs.engine.schedules.definition import fingerprint
from cronjobs.engine.schedules.materialise import known_about
from cronjobs.engine.store import queues, schedules, ticks, upcoming
from cronjobs.engine.store.concurrency import running_by_key
from cronjobs.engine.store.enqueue import NewJob
from cronjobs.engine.store.job_types import remembered
from cronjobs.engine.store.meta import is_ours
from cronjobs.engine.store.ticks import Overview

JOBS_SHOWN: Final = 50


@dataclass(frozen=True)
class Outlook:
    """The work that a tick would find.

    ``due``: the number of due jobs. ``jobs``: the first JOBS_SHOWN of them. Jobs without an id do not exist yet: the
    tick would create them.
    """

    now: datetime
    expired: int
    sync: SyncPlan | None
    schedules: list[dict[str, Any]]
    jobs: list[dict[str, Any]]
    due: int
    unresolved: list[tuple[str, int]]
    pauses: Sequence[Any]
    next_run_at: datetime | None


def look(
    connection: Connection, settings: Settings, known: JobTypes, *, queue: str | None, only: str | None, fires: bool
) -> Outlook:
    """Predict a tick's work, including schedules if *fires*. Raises ForeignDatabase if ticks refuse the database."""
    here = Identity.here()
    seen = ticks.overview(connection, host=here.host, place=here.place, fingerprint=fingerprint(settings))
    is_ours(settings, seen.project, seen.environment)
    pauses = schedules.pauses_in_force(connection)
    sync, made = _preview(connection, seen, settings, host=here.host) if fires else (None, [])
    wanted = [name for name in known.types if only in (None, name)]
    waiting = upcoming.due_jobs(connection, known=wanted, queue=queue, limit=JOBS_SHOWN)
    jobs = [dict(row._mapping) for row in waiting.first]
    names = ("job_type", "queue", "priority", "timeout_s", "schedule", "run_at", "concurrency_key")
    new: list[dict[str, Any]] = [
        {"id": None} | {name: getattr(job, name) for name in names}
        for _, found in made
        for job in found.jobs
        if _begins(job, seen.now, wanted, queue, pauses)
    ]
    jobs = sorted(jobs + new, key=lambda job: (job["priority"], job["run_at"], job["id"] is None, job["id"] or 0))
    running = running_by_key(connection) if settings.limits else {}
    return Outlook(
        now=seen.now,
        expired=upcoming.count_expired_leases(connection),
        sync=sync,
        schedules=[_schedule(due, found) for due, found in made],
        jobs=_with_limits(jobs[:JOBS_SHOWN], settings.limits, running),
        due=waiting.count + len(new),
        unresolved=upcoming.unresolved(connection, known.types.keys()),
        pauses=pauses,
        next_run_at=upcoming.next_run_at(connection),
    )


def _preview(
    connection: Connection, seen: Overview, settings: Settings, *, host: str
) -> tuple[SyncPlan | None, list[tuple[Due, Settled]]]:
    """Return the sync that a tick of *host* would do, if any, and how the tick would settle the due occurrences.

    This follows the tick's own rules, but locks nothing.
    """
    stored = schedules.all_schedules(connection)
    todo = None
    if judge_file(connection, seen, settings, host=host) == "apply":
        todo = compare(settings, stored, queues.caps_in_force(connection))
    chosen = schedules.due_schedules(connection, settings.disabled_schedules)
    # A sync first settles each schedule that it changes, even if the schedule's next_at is later.
    if todo is not None:
        ends = {*todo.change, *todo.remove, *(old for old, _ in todo.rename)}.difference(each.name for each in chosen)
        chosen += [schedule for schedule in stored if schedule.status == "active" and schedule.name in ends]
    planned = [due for schedule in chosen if (due := plan_for(schedule, seen.now)) is not None]
    readable = [due for due in planned if not due.ahead and not due.unreadable]
    known = known_about(connection, readable, remembered(settings.run.every))
    asked = set().union(*(wants_room(due, known[due.stored.id]) for due in readable))
    caps, lifted = ((), ()) if todo is None else (todo.cap, todo.uncap)
    room = queues.room_now(connection, asked, caps, lifted)
    made = {due.stored.id: settled for due, settled in decide_all(readable, known, room.caps, room.waiting)}
    return todo, [(due, made.get(due.stored.id, Settled())) for due in planned if due.to_emit or due.parts]


def _with_limits(
    jobs: Sequence[dict[str, Any]], limits: Sequence[Limit], running: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Add ``waits_for`` to each job: the limit that it would wait for, in words, or None if it may start at once."""
    candidates = [Candidate(place, job["concurrency_key"]) for place, job in enumerate(jobs)]
    chosen = choose(candidates, limits, running, before=0, free=len(jobs))
    found = []
    for place, job in enumerate(jobs):
        full = None if place in chosen.taken else reached(limits, chosen.running, job["concurrency_key"])
        found.append(job | {"waits_for": full.reached if full is not None else None})
    return found


def _schedule(due: Due, settled: Settled) -> dict[str, Any]:
    """Return facts about the occurrences of a schedule that a tick would settle, and how it would settle them."""
    facts: dict[str, Any] = {
        "schedule": due.stored.name,
        "skipped": 0,
        "missed": 0,
        "coalesced": 0,
        "occurrences": [],
        "paused": due.stored.paused,
        "trouble": "; ".join(str(event.facts.get("error")) for event in due.to_emit) or None,
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
    """Return whether the tick could run *job*, which a schedule would create."""
    if job.job_type not in wanted or queue not in (None, job.queue) or (job.run_at is not None and job.run_at > now):
        return False
    return not pausing.of_queue(pauses, job.queue)
