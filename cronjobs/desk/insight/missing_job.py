"""Explain why a job id does not exist."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk.insight.finding import typed
from cronjobs.desk.store.missing_jobs import Gap, gap_at
from cronjobs.engine.config.settings import Retention
from cronjobs.engine.store import effects
from cronjobs.engine.store.given_up import pruned_dead
from cronjobs.engine.store.sql import database_now, is_postgresql
from cronjobs.model import duration_text
from cronjobs.text import one_line

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
    """Explain why there is no job *job_id*, and name an effect of it that nobody has settled."""
    if not 0 < job_id < 2**63:
        return f"there is no job {job_id}: job ids are between 1 and {2**63 - 1:,}"
    unknown = effects.unknown_of(connection, [job_id], steps=False).get(job_id)
    never: str | None = _USED_UP + _SKIPPED * is_postgresql(connection)
    if unknown or effects.done_by(connection, job_id, 1):
        never = None  # the effect shows that there was such a job
    if removed := pruned_dead(connection, [job_id]).get(job_id):
        text = (
            f"there is no job {job_id} any more: it was dead, nobody had dealt with it, and retention removed it at "
            f"{removed:%Y-%m-%d %H:%M:%S} UTC"
        )
    else:
        text = missing_at(gap_at(connection, job_id), job_id, retention, database_now(connection), never)
    return text if unknown is None else f"{text}. {_unknown(unknown)}"


def _unknown(key: str) -> str:
    key = one_line(key, 300)
    settle = typed("cronjobs effects settle", key)
    return f'Nobody knows whether its effect {key} happened: find out, then run "{settle} done" (or not-done)'


def missing_at(gap: Gap, job_id: int, retention: Retention, now: datetime, never: str | None = _USED_UP) -> str:
    """Explain the *gap*. *never*: the reasons why an id may never have become a job. None: there was such a job."""
    if gap.in_ledger:
        return f'job {job_id} was pruned: "cronjobs explain {job_id}" shows what the ledger has kept'
    if gap.highest == 0:
        return f"there is no job {job_id}: none was ever enqueued here"
    if gap.highest is not None and job_id > gap.highest:
        return f"there is no job {job_id}, and never was: the highest id so far is {gap.highest}"
    missing = f"there is no job {job_id}"
    uncommitted = NOT_COMMITTED if gap.open and never is not None else ""
    if gap.highest_here == 0 and gap.highest is None:
        return f"{missing}: {uncommitted}none was ever enqueued here"
    if job_id > gap.highest_here and gap.highest is None:
        return f"{missing}: {uncommitted}the highest id here is {gap.highest_here}"
    kept = min(retention.succeeded, retention.dead)
    # A job with this id would be too young for retention to have pruned it.
    if gap.made_after is not None and now - gap.made_after < kept:
        return f"{missing}: {uncommitted}" + "; or ".join(filter(None, (never, _DELETED)))
    any_more = "" if uncommitted else " any more"
    pruned = f"it ended over {duration_text(kept)} ago and was pruned (retention)"
    return f"{missing}{any_more}: {uncommitted}" + ", or ".join(filter(None, (pruned, _DELETED, never)))
