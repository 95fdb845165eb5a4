"""Attempts that vanish, and the ticks that find them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import select, update

from cronjobs.engine.database.tables import jobs as jobs_table
from cronjobs.engine.execution.attempt import InFlight
from cronjobs.engine.jobs import job_types, registry
from cronjobs.engine.store import claims
from cronjobs.engine.tick.claim_planner import ClaimPlanner
from cronjobs.engine.tick.result import TickFilter
from cronjobs.model import Job, RetryPolicy
from support.hosts import Host

MINUTE = timedelta(minutes=1)
GONE = "web9:another-boot:4026530000:77:1234:abcdef"  # a runner of which this host cannot tell whether it lives
TRIES = RetryPolicy(max_attempts=3, base="90s", factor=1, jitter=0)


@contextmanager
def paying() -> Iterator[list[str]]:
    """Handlers for a test, and a record of what they did."""
    seen: list[str] = []
    before = dict(registry._registered)

    @registry.job("pay.once", on_lost="dead")
    def once() -> None:
        seen.append("pay.once")

    @registry.job("pay.tries", retry=TRIES)
    def tries() -> None:
        seen.append("pay.tries")

    @registry.job("pay.single", retry=RetryPolicy(max_attempts=1))
    def single() -> None:
        seen.append("pay.single")

    try:
        yield seen
    finally:
        registry._registered.clear()
        registry._registered.update(before)


def forget(*names: str) -> None:
    """Unregister the handlers, as if their module failed to import or the host had none of them."""
    for name in names or list(registry._registered):
        del registry._registered[name]


def claim_as_a_tick(host: Host) -> list[Job]:
    """Claim as a tick that then vanishes."""
    types = job_types.load(host.settings)
    admission = ClaimPlanner(host.settings, types, TickFilter(), 4, runner=MINUTE).admission(MINUTE, InFlight())
    with host.database.write() as connection:
        return claims.claim(connection, limit=10, locked_by=GONE, lease=MINUTE, admission=admission).jobs


def claim_without_a_policy(host: Host, job_id: int) -> None:
    """Claim *job_id* by hand-written SQL, without a policy."""
    now = host.database.clock.now()
    with host.database.write() as connection:
        connection.execute(
            update(jobs_table)
            .where(jobs_table.c.id == job_id)
            .values(
                status="running",
                attempts=jobs_table.c.attempts + 1,
                locked_by=GONE,
                locked_until=now + MINUTE,
                started_at=now,
            )
        )


def row(host: Host, job_id: int) -> Any:
    with host.database.read() as connection:
        return connection.execute(select(jobs_table).where(jobs_table.c.id == job_id)).one()
