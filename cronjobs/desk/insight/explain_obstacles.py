"""Gather what only one job's explanation can afford to read: effects to settle, its schedule's turn, and jobs ahead.

``explain_job`` words these and all other reasons why a job does not start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from sqlalchemy import Connection

from cronjobs.desk.insight.explain_facts import AwaitedJob, JobFacts, JobsAhead, OnlyElsewhere
from cronjobs.desk.insight.job_evidence import unless_it_waited_for
from cronjobs.desk.insight.stopped_jobs import unsettled_effect
from cronjobs.desk.insight.waiting import LateGroup, stranded
from cronjobs.desk.insight.watched import ticking
from cronjobs.desk.store import explaining
from cronjobs.desk.store.status_facts import misdated
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobType, JobTypes
from cronjobs.engine.rules.concurrency import Candidate, Limit, choose
from cronjobs.engine.schedules.wrong_clock import FUTURE_WATERMARK
from cronjobs.engine.store.concurrency import running_by_key
from cronjobs.engine.store.effects import unknown_of
from cronjobs.engine.store.job_types import present_types, remembered
from cronjobs.engine.store.not_started import COUNTED, lanes_due
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import last_ticks
from cronjobs.model import Status


def with_obstacles(
    connection: Connection, job: JobFacts, settings: Settings, types: Callable[[], JobTypes]
) -> JobFacts:
    """Return *job* with the reasons why it does not start."""
    if job.status == Status.DEAD:
        # Name the effect of which the job died, or else another effect of the job with an unknown outcome.
        last = job.attempts[-1] if job.attempts else None
        reported = None if last is None else unsettled_effect(connection, last.error_type, last.error)
        return replace(job, unsettled=reported or unknown_of(connection, [job.id]).get(job.id))
    if job.status in (Status.QUEUED, Status.FAILED, Status.CANCELLED) and job.attempt:
        job = replace(job, unsettled=unknown_of(connection, [job.id]).get(job.id))
    if job.status not in (Status.QUEUED, Status.FAILED):
        return job
    if job.run_at > database_now(connection):
        found = misdated(connection, FUTURE_WATERMARK, job.id)
        return replace(job, misdated=f"cronjobs {found[0].verb} {job.id}") if found else job
    job = _with_hosts(connection, job, settings.run.every)
    runnable = present_types(connection, remembered(settings.run.every))
    place = explaining.place_in_line(connection, job.id, runnable)
    if place is None:
        return job
    if place.first_id is not None:
        turn_after = AwaitedJob(place.first_id, bool(place.running))
        return replace(job, turn_after=turn_after, passed_over=unless_it_waited_for(turn_after, job.passed_over))
    return replace(job, ahead=_ahead(connection, job, place.priority, settings.limits, types().types, runnable))


def _with_hosts(connection: Connection, job: JobFacts, every: timedelta) -> JobFacts:
    """Return *job*. If none of the hosts that tick now can run it, add the host that could, by the finding's rule."""
    ticks = [dict(tick._mapping) for tick in last_ticks(connection)]
    at_work = ticking(ticks, database_now(connection), every)
    found = stranded(connection, [LateGroup(job.queue, job.job_type, job.run_at, late=1)], at_work, ticks)
    return replace(job, only_elsewhere=OnlyElsewhere(found[0].host, found[0].at)) if found else job


def _ahead(
    connection: Connection,
    job: JobFacts,
    priority: int,
    limits: Sequence[Limit],
    types: Mapping[str, JobType],
    runnable: Collection[str] | None,
) -> JobsAhead | None:
    running: Mapping[str, int] = running_by_key(connection) if limits else {}
    better = earlier = 0
    more = False
    for lane in lanes_due(connection, runnable):
        # Ticks do not claim the jobs of executors.
        apart = lane.job_type in types and types[lane.job_type].executor is not None
        if lane.paused or apart or lane.priority > priority or not (runnable is None or lane.job_type in runnable):
            continue
        first = [row for row in lane.rows if lane.priority < priority or (row.run_at, row.id) < (job.run_at, job.id)]
        candidates = [Candidate(row.id, row.concurrency_key) for row in first if row.its_turn]
        choice = choose(candidates, limits, running, before=0, free=0)
        could, running = len(choice.taken), choice.running
        if lane.priority == priority:
            earlier += could
            more |= lane.count > len(lane.rows) == len(first)
        # The rows are a sample. Without limits, the jobs behind it are like those in it.
        elif could == len(lane.rows) and not limits:
            better += lane.count
            more |= lane.count >= COUNTED
        else:
            better += could
            more |= lane.count > len(lane.rows)
    return JobsAhead(better, earlier, more) if better or earlier else None
