"""Explain a job by its id or its idempotency key, or a job type by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlalchemy import Connection

from cronjobs.desk.insight.explain_facts import Explanation, JobLife
from cronjobs.desk.insight.explain_job import explain_job
from cronjobs.desk.insight.explain_obstacles import with_obstacles
from cronjobs.desk.insight.explain_type import explain_type, type_life
from cronjobs.desk.insight.job_evidence import job_life
from cronjobs.desk.store.explaining import job_of_key
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobTypes


def explain_id(
    connection: Connection, job_id: int, settings: Settings, types: Callable[[], JobTypes]
) -> Explanation | None:
    """Explain the job with this id, or return None if neither the jobs nor the ledger have the id."""
    life = job_in_full(connection, job_id, settings, types)
    return None if life is None else explain_job(life)


def job_in_full(
    connection: Connection, job_id: int, settings: Settings, types: Callable[[], JobTypes]
) -> JobLife | None:
    """Return all facts about the job with this id, or None if neither the jobs nor the ledger have the id."""
    life = job_life(connection, job_id, settings, types) if 0 < job_id < 2**63 else None
    if life is None or life.job is None:
        return life
    return replace(life, job=with_obstacles(connection, life.job, settings, types))


def explain_key(
    connection: Connection, key: str, settings: Settings, types: Callable[[], JobTypes]
) -> Explanation | None:
    """Explain the job with this idempotency key, or return None if no job has the key."""
    found = job_of_key(connection, key)
    return None if found is None else explain_id(connection, found, settings, types)


def explain_type_named(connection: Connection, name: str, settings: Settings, types: JobTypes) -> Explanation | None:
    """Explain this job type, or return None if nothing names it."""
    life = type_life(connection, name, settings, types)
    return None if life is None else explain_type(life, settings.timezone)
