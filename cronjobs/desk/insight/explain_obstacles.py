"""Gather facts that are too slow to read for many jobs: effects to settle, the schedule's earlier job, jobs ahead.

``explain_job`` writes the sentences about these and all other reasons why a job does not start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.desk.insight.explain_facts import AwaitedJob, DoneEffect, JobFacts, OnlyElsewhere
from cronjobs.desk.insight.job_evidence import unless_it_waited_for
from cronjobs.desk.insight.jobs_ahead import Place, claimed_by_ticks, jobs_ahead
from cronjobs.desk.insight.stopped_jobs import unsettled_effect
from cronjobs.desk.insight.waiting import LateGroup, stranded
from cronjobs.desk.insight.watched import ticking
from cronjobs.desk.store import explaining
from cronjobs.desk.store.status_facts import misdated
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.schedules.wrong_clock import FUTURE_WATERMARK
from cronjobs.engine.store.concurrency import running_by_key
from cronjobs.engine.store.effects import done_by, unknown_of
from cronjobs.engine.store.job_types import present_types, remembered
from cronjobs.engine.store.not_started import lanes_due
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import last_ticks
from cronjobs.model import Status

EFFECTS_NAMED: Final = 5


def with_obstacles(
    connection: Connection, job: JobFacts, settings: Settings, types: Callable[[], JobTypes]
) -> JobFacts:
    """Return *job* with the reasons why it does not start, or with what it had done before it died or was cancelled."""
    if job.status in (Status.DEAD, Status.CANCELLED) and job.attempt:
        rows = done_by(connection, job.id, EFFECTS_NAMED)
        job = replace(job, done=tuple(DoneEffect(row.key, row.attempt, row.recorded_at) for row in rows))
    if job.status == Status.DEAD:
        # Name the effect that the job died of, or else another effect of the job with an unknown outcome.
        last = job.attempts[-1] if job.attempts else None
        reported = None if last is None else unsettled_effect(connection, last.error_type, last.error)
        return replace(job, unsettled=reported or unknown_of(connection, [job.id]).get(job.id))
    if job.status != Status.RUNNING and job.attempt:
        job = replace(job, unsettled=unknown_of(connection, [job.id], steps=job.status != Status.SUCCEEDED).get(job.id))
    if job.status not in (Status.QUEUED, Status.FAILED):
        return job
    if job.run_at > database_now(connection):
        found = misdated(connection, FUTURE_WATERMARK, job.id)
        return replace(job, misdated=f"cronjobs {found[0].verb} {job.id}") if found else job
    ticks = [dict(tick._mapping) for tick in last_ticks(connection)]
    at_work = ticking(ticks, database_now(connection), settings.run.every)
    job = _with_hosts(connection, job, at_work, ticks)
    runnable = present_types(connection, remembered(settings.run.every))
    place = explaining.place_in_line(connection, job.id, runnable)
    if place is None:
        return job
    if place.first_id is not None:
        turn_after = AwaitedJob(place.first_id, bool(place.running))
        return replace(job, turn_after=turn_after, passed_over=unless_it_waited_for(turn_after, job.passed_over))
    lanes = claimed_by_ticks(lanes_due(connection, runnable), types().types, runnable)
    running = running_by_key(connection) if settings.limits else {}
    its, workers = Place(place.priority, job.run_at, job.id), settings.run.workers * len(at_work)
    return replace(job, ahead=jobs_ahead(its, lanes, settings.limits, running, workers))


def _with_hosts(
    connection: Connection, job: JobFacts, at_work: Sequence[Mapping[str, Any]], ticks: Sequence[Mapping[str, Any]]
) -> JobFacts:
    """Return *job*. If no ticking host can run it, add the host that could, as the finding ``late`` does."""
    found = stranded(connection, [LateGroup(job.queue, job.job_type, job.run_at, late=1)], at_work, ticks)
    return replace(job, only_elsewhere=OnlyElsewhere(found[0].host, found[0].at)) if found else job
