"""Gather what the database knows about jobs, for ``explain`` to put into words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.config.fields import zone_exists
from cronjobs.config.settings import Settings
from cronjobs.insight.facts import (
    AttemptFacts,
    AuditEntry,
    JobFacts,
    JobLife,
    LedgerFacts,
    MadeFor,
    Now,
    PassedOver,
    TickFacts,
)
from cronjobs.insight.schedule_history import in_force, pause_from
from cronjobs.insight.watched import quiet_after
from cronjobs.jobs.job_types import JobType, JobTypes
from cronjobs.rules.concurrency import reached
from cronjobs.rules.pausing import of_queue
from cronjobs.store import explaining
from cronjobs.store.concurrency import running_by_key
from cronjobs.store.sql import database_now
from cronjobs.tick.not_started import reason_for


def surroundings(connection: Connection, settings: Settings) -> Now:
    return Now(
        now=database_now(connection),
        last_tick=tick_facts(explaining.newest_tick(connection)),
        quiet_after=quiet_after(settings),
        succeeded_kept=settings.retention.succeeded,
        ledger_kept=settings.retention.occurrences,
    )


def tick_facts(row: Any) -> TickFacts | None:
    return None if row is None else TickFacts(row.host, row.started_at, row.finished_at)


def settled_by(
    at_work: Iterable[tuple[int, int]], ticks: Mapping[int, Any], decided: Mapping[int, datetime]
) -> dict[int, tuple[TickFacts, ...]]:
    """By number of the moment: the ticks that may have written its ledger row, as no row shows which one did."""
    found: dict[int, list[TickFacts]] = {}
    for number, id_ in at_work:
        row = ticks[id_]
        # Such a tick counted what it settled, or was killed before it could.
        if row.finished_at is None or (isinstance(row.did, dict) and row.did.get("occurrences")):
            found.setdefault(number, []).append(TickFacts(row.host, row.started_at, row.finished_at))
    return {
        number: tuple(tick for tick in several if tick.finished_at is None or tick.finished_at >= decided[number])
        or tuple(several)
        for number, several in found.items()
        if number in decided
    }


def count_of(row: Any) -> int:
    """The column; ``row.count`` is the method that every tuple has."""
    return int(row._mapping["count"])


def ledger_facts(row: Any) -> LedgerFacts:
    return LedgerFacts(row.outcome, row.reason, row.job_id, row.first_for, row.last_for, count_of(row), row.decided_at)


def job_facts(
    connection: Connection,
    job_ids: Collection[int],
    settings: Settings,
    types: Callable[[], JobTypes],
    around: Now,
    pause_rows: Iterable[Any],
) -> dict[int, JobFacts]:
    """The jobs of these ids that still have a row. The user's modules are imported only if one of them waits."""
    if not job_ids:
        return {}
    rows = explaining.jobs_of(connection, job_ids)
    attempts: dict[int, list[AttemptFacts]] = {}
    for run in explaining.attempts_of(connection, job_ids):
        told = AttemptFacts(
            run.attempt, run.outcome, run.started_at, run.finished_at, _host(run.runner), run.error_type, run.error
        )
        attempts.setdefault(run.job_id, []).append(told)
    brakes = [pause for pause in map(pause_from, pause_rows) if in_force(pause, around.now)]
    running = running_by_key(connection) if settings.limits else {}
    passed = _passed_over(connection, rows, attempts, around.now)
    found = {}
    for row in rows:
        waits = row.status in ("queued", "failed")
        job_type = types().types.get(row.job_type) if waits else None
        stopped_by = reached(settings.limits, running, row.concurrency_key) if waits else None
        paused = of_queue(brakes, row.queue)
        found[row.id] = JobFacts(
            **{name: row._mapping[name] for name in _SAME},
            attempt=row.attempts,
            most=row.max_attempts or (job_type.retry.max_attempts if job_type else None),
            host=_host(row.locked_by) if row.locked_by else None,
            attempts=tuple(attempts.get(row.id, ())),
            paused=paused[0] if waits and paused else None,
            limit=stopped_by.reached if stopped_by else None,
            known=not waits or job_type is not None,
            passed_over=passed.get(row.id),
            long_places=settings.run.long_jobs if waits and _is_long(settings, row.timeout_s, job_type) else None,
        )
    return found


def _passed_over(
    connection: Connection, rows: Sequence[Any], attempts: Mapping[int, Sequence[AttemptFacts]], now: datetime
) -> dict[int, PassedOver]:
    """By job: the last tick that recorded why it did not start it. A single job counts even if it started later."""
    due = {row.id: now for row in rows if row.status in ("queued", "failed") and row.run_at <= now}
    if not due and len(rows) == 1 and (begun := attempts.get(rows[0].id)):
        due = {rows[0].id: begun[0].started_at}
    asked = [row for row in rows if row.id in due]
    if not asked:
        return {}
    begin = min(row.run_at for row in asked) - explaining.LONGEST_TICK
    records = explaining.records_between(connection, begin, max(due.values()))
    found: dict[int, PassedOver] = {}
    for row in asked:
        for tick in records:
            if not row.run_at <= tick.finished_at <= due[row.id]:
                continue
            why = reason_for(
                tick.not_started,
                job_type=row.job_type,
                queue=row.queue,
                schedule=row.schedule,
                key=row.concurrency_key,
                timeout_s=row.timeout_s,
            )
            if why is not None:
                found[row.id] = PassedOver(TickFacts(tick.host, tick.started_at, tick.finished_at), why)
                break
    return found


def _is_long(settings: Settings, timeout_s: float | None, job_type: JobType | None) -> bool:
    if timeout_s is None:
        return job_type is not None and job_type.is_long(settings.run.longest_in_tick)
    return timeout_s > settings.run.longest_in_tick.total_seconds()


_SAME: Final = (
    *("id", "job_type", "status", "queue", "run_at", "created_at", "failures", "losses", "enqueued_by"),
    *("idempotency_key", "schedule", "scheduled_for", "started_at", "finished_at", "last_error", "locked_until"),
    *("cancel_requested_at", "timeout_s"),
)


def _host(holder: str | None) -> str:
    return (holder or "").partition(":")[0]


def job_life(connection: Connection, job_id: int, settings: Settings, types: Callable[[], JobTypes]) -> JobLife | None:
    """The facts about one job; None if neither its row nor the ledger has it."""
    around = surroundings(connection, settings)
    job = job_facts(connection, [job_id], settings, types, around, explaining.pause_rows(connection)).get(job_id)
    rows = explaining.rows_naming(connection, [job_id])
    if job is None and not rows:
        return None
    if job is not None:
        acts = [
            (row.action, AuditEntry(row.at, row.actor, row.host, row.why))
            for row in explaining.acts_on_job(connection, job_id)
        ]
        job = replace(job, acts=tuple(acts))
    made_for = tuple(MadeFor(row.schedule, _zone_of(row.definition, settings), ledger_facts(row)) for row in rows)
    settlers: tuple[TickFacts, ...] = ()
    maker = next((row for row in rows if row.outcome == "enqueued"), None)
    if maker is not None:
        moments = [{"number": 0, "due_at": maker.last_for, "decided_at": maker.decided_at}]
        at_work = explaining.ticks_at_work(connection, moments)
        rows_of = explaining.ticks_of(connection, {id_ for _, id_ in at_work})
        settlers = settled_by(at_work, rows_of, {0: maker.decided_at}).get(0, ())
    zone = made_for[0].timezone if made_for else settings.timezone
    return JobLife(job_id, zone, around, job, made_for, settlers)


def _zone_of(definition: Any, settings: Settings) -> str:
    zone = definition.get("timezone") if isinstance(definition, dict) else None
    return str(zone) if zone and zone_exists(str(zone)) else settings.timezone
