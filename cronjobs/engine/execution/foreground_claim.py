"""Claim the one job of a foreground run: a new job, or one that is already waiting."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.engine.config.settings import RunSettings, Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs.job_types import JobTypes, policy_of
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.rules.recovery_policy import RUNNER_SLACK, ClaimPolicies, seconds
from cronjobs.engine.store import claims
from cronjobs.engine.store.concurrency import judge_alone
from cronjobs.engine.store.enqueue import NewJob, insert_jobs
from cronjobs.engine.store.overlap import running_beside, unfinished_jobs
from cronjobs.engine.store.shown_columns import one_job
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import record
from cronjobs.errors import CronjobsError
from cronjobs.model import Job, Status
from cronjobs.text import one_line

# Stands for "no limit". It is below 24 days, the longest timeout that poll() and select() accept.
NO_LIMIT: Final = timedelta(days=7)
WORKER: Final = "foreground"
# The time limit that a claim of "cronjobs run" writes to the job's row. The claims of ticks have other limits.
_RUNNER_S: Final = (NO_LIMIT + RUNNER_SLACK).total_seconds()


class CannotRun(CronjobsError):
    """The named job cannot be run now. The message says why and what to do."""


class UnknownType(CannotRun):
    def __init__(self, job_id: int, job_type: str) -> None:
        super().__init__(f'job {job_id} is of type "{one_line(job_type, 100)}", which cannot run here')


def is_by_hand(runner_s: Any) -> bool:
    """Return whether "cronjobs run" made the claim that wrote *runner_s* to the job's row."""
    return seconds(runner_s) == _RUNNER_S


def _policies(known: JobTypes, run: RunSettings, **changes: Any) -> ClaimPolicies:
    """Return the policies for jobs started by hand. A crash of such a job does not count against its type."""
    return ClaimPolicies.of(
        {
            name: replace(policy_of(job_type, run, runner=NO_LIMIT), in_thread=False, **changes)
            for name, job_type in known.types.items()
        }
    )


def begin_new(
    database: Database, new: NewJob, run: RunSettings, known: JobTypes, *, locked_by: str, alone: bool, actor: str
) -> Job:
    """Insert *new* with one try and claim it in the same transaction, so that no tick can claim it first.

    If the job belongs to a schedule, it is recorded as triggered by *actor*. *alone* is True if no two jobs of the
    schedule may run at once. In that case, raises CannotRun while another job of the schedule is unfinished.
    """
    with database.write() as connection:
        if alone and new.schedule is not None:
            judge_alone(connection, wait=True)
            for one in unfinished_jobs(connection, new.schedule, None):
                state = "waiting" if one.waiting else "running"
                todo = f'to run that job: "cronjobs run {one.job_id}"' if one.waiting else "wait for that job to end"
                raise CannotRun(f"job {one.job_id} of schedule {new.schedule} is still {state} (overlap): {todo}")
        scheduled_for = None if new.schedule is None else database_now(connection)
        [job_id] = insert_jobs(connection, [replace(new, scheduled_for=scheduled_for, max_attempts=1)])
        if new.schedule is not None:
            host, detail = Identity.here().host, {"job_id": job_id, "force": False}
            record(
                connection,
                action="trigger",
                subject=new.schedule,
                actor=actor,
                host=host,
                detail=detail,
                at=scheduled_for,
            )
        if alone:
            _require_turn(connection, job_id)
        # If this process is killed, the tick that settles the attempt must not run the job again.
        policies = _policies(known, run, on_lost="dead", made_by_hand=True)
        job = claims.claim_one(connection, job_id, locked_by=locked_by, lease=run.lease, policies=policies)
        # Nothing can prevent this claim: no other runner can see this job yet, and the job has no concurrency_key.
        assert isinstance(job, Job)
    return job


def begin_existing(database: Database, job_id: int, settings: Settings, known: JobTypes, *, locked_by: str) -> Job:
    """Claim a waiting job, even if it is not due yet.

    Raises CannotRun if the job is not waiting, has an unknown type, or must wait because one of the file's limits is
    reached.
    """
    with database.read() as connection:
        _require_runnable(connection, job_id, known)
    with database.write() as connection:
        _require_turn(connection, job_id)
        job = claims.claim_one(
            connection,
            job_id,
            locked_by=locked_by,
            lease=settings.run.lease,
            limits=settings.limits,
            policies=_policies(known, settings.run),
        )
        if isinstance(job, Limit):
            raise CannotRun(f"job {job_id} waits: {job.reached}; try again when one of the running jobs has ended")
        if job is None:
            _require_runnable(connection, job_id, known)
            raise CannotRun(f"job {job_id} is locked by another transaction: try again")
    return job


def _require_turn(connection: Connection, job_id: int) -> None:
    """Raise CannotRun if another job of the schedule is running, and neither overlap nor force allows both."""
    row = one_job(connection, job_id)
    if row is None or row.schedule is None:
        return
    judge_alone(connection, wait=True)
    if (beside := running_beside(connection, job_id)) is not None:
        raise CannotRun(f"job {beside} of schedule {row.schedule} is still running (overlap): wait for that job to end")


def _require_runnable(connection: Connection, job_id: int, known: JobTypes) -> None:
    row = one_job(connection, job_id)
    if row is None:
        raise CannotRun(f"there is no job {job_id}")
    match Status(row.status):
        case Status.RUNNING:
            host = str(row.locked_by).partition(":")[0]
            raise CannotRun(f"job {job_id} is running already: attempt {row.attempts}, on {host}")
        case Status.SUCCEEDED:
            raise CannotRun(f'job {job_id} has succeeded: "cronjobs run {row.job_type}" runs a new job')
        case Status.DEAD | Status.CANCELLED as status:
            raise CannotRun(
                f'job {job_id} is {status}: "cronjobs jobs retry {job_id}" queues it again. Then a '
                "tick or this command can run the job"
            )
    if row.job_type not in known.types:
        raise UnknownType(job_id, row.job_type)
