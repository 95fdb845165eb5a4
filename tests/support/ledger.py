"""Running jobs, as a claim makes them, for tests of effects, and functions that take the jobs away."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from sqlalchemy import insert, select, update

from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import effects as effects_table
from cronjobs.engine.database.tables import jobs as jobs_table
from cronjobs.engine.jobs.context import Context
from cronjobs.engine.jobs.effects import Effect
from cronjobs.model import Job
from cronjobs.testing import FakeClock

KEY = "mail:1"


class Jobs:
    """Makes running jobs as a claim does, and takes them away."""

    def __init__(self, database: Database, clock: FakeClock) -> None:
        self.database = database
        self.clock = clock

    def claimed(self) -> Job:
        now = self.clock.now()
        values = {"job_type": "t", "status": "running", "attempts": 1, "locked_by": "host:1", "created_at": now}
        values |= {"run_at": now, "locked_until": now + timedelta(seconds=60)}
        with self.database.write() as connection:
            made = connection.execute(insert(jobs_table).values(values)).inserted_primary_key
        assert made is not None
        return Job(int(made[0]), "t", {}, attempt=1, locked_by="host:1")

    def change(self, job: Job, **values: Any) -> None:
        with self.database.write() as connection:
            connection.execute(update(jobs_table).where(jobs_table.c.id == job.id).values(values))

    def ended(self, job: Job, status: str = "failed") -> None:
        final = status in ("succeeded", "dead", "cancelled")
        self.change(
            job, status=status, locked_by=None, locked_until=None, finished_at=self.clock.now() if final else None
        )

    def taken_over(self, job: Job) -> Job:
        """Return the next attempt of the job, on another host."""
        self.change(job, attempts=job.attempt + 1, locked_by="host:2")
        return job._replace(attempt=job.attempt + 1, locked_by="host:2")

    def context(self, job: Job, **options: Any) -> Context:
        given: dict[str, Any] = {
            "timeout": timedelta(seconds=20),
            "clock": self.clock,
            "database": self.database,
        } | options
        return Context(job, **given)

    def do(self, job: Job, act: Callable[[Effect], None], **options: Any) -> None:
        """Run *act* in the effect's block."""
        with self.context(job, **options).effect(KEY) as effect:
            act(effect)

    def unknown(self) -> Job:
        """Let a first attempt begin an effect and end. Return the second attempt."""
        job = self.claimed()
        with suppress(ZeroDivisionError), self.context(job).effect(KEY):
            raise ZeroDivisionError
        return self.taken_over(job)

    def effects(self) -> dict[str, tuple[Any, ...]]:
        with self.database.read() as connection:
            rows = connection.execute(select(effects_table)).all()
        return {row.key: (row.state, row.job_id, row.attempt, row.result) for row in rows}
