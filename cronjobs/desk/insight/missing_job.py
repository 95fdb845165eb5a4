"""Explain why a job id does not exist."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk.store.missing_jobs import Gap, gap_at
from cronjobs.engine.config.settings import Retention
from cronjobs.engine.store.given_up import pruned_dead
from cronjobs.engine.store.sql import database_now, is_postgresql
from cronjobs.model import duration_text

_DELETED: Final = "someone deleted its row"
_USED_UP: Final = (
    "an enqueue used up the id without making a job, because its key was taken or its transaction was rolled back"
)
# PostgreSQL logs 32 values of a sequence in advance. After a crash it continues after these values.
_SKIPPED: Final = "; or the database server skipped the id after a crash"
NOT_COMMITTED: Final = (
    "another transaction may have enqueued it and is still open (if so, the job appears when it commits); or "
)


def missing_job(connection: Connection, job_id: int, retention: Retention) -> str:
    """Explain in one sentence why there is no job *job_id*."""
    if not 0 < job_id < 2**63:
        return f"there is no job {job_id}: job ids are between 1 and {2**63 - 1:,}"
    if removed := pruned_dead(connection, [job_id]).get(job_id):
        return (
            f"there is no job {job_id} any more: it was dead, nobody had dealt with it, and retention removed it at "
            f"{removed:%Y-%m-%d %H:%M:%S} UTC"
        )
    never = _USED_UP + _SKIPPED * is_postgresql(connection)
    return missing_at(gap_at(connection, job_id), job_id, retention, database_now(connection), never)


def missing_at(gap: Gap, job_id: int, retention: Retention, now: datetime, never: str = _USED_UP) -> str:
    """Explain the *gap*. *never*: the reasons why an id may never have become a job."""
    if gap.in_ledger:
        return f'job {job_id} was pruned: "cronjobs explain {job_id}" shows what the ledger has kept'
    if gap.highest == 0:
        return f"there is no job {job_id}: none was ever enqueued here"
    if gap.highest is not None and job_id > gap.highest:
        return f"there is no job {job_id}, and never was: the highest id so far is {gap.highest}"
    missing = f"there is no job {job_id}"
    uncommitted = NOT_COMMITTED if gap.open else ""
    if gap.highest_here == 0 and gap.highest is None:
        return f"{missing}: {uncommitted}none was ever enqueued here"
    if job_id > gap.highest_here and gap.highest is None:
        return f"{missing}: {uncommitted}the highest id here is {gap.highest_here}"
    kept = min(retention.succeeded, retention.dead)
    # A job with this id would be too young for retention to have pruned it.
    if gap.made_after is not None and now - gap.made_after < kept:
        return f"{missing}: {uncommitted}{never}; or {_DELETED}"
    any_more = "" if gap.open else " any more"
    return (
        f"{missing}{any_more}: {uncommitted}it ended over {duration_text(kept)} ago and was pruned (retention), or "
        f"{_DELETED}, or {never}"
    )
