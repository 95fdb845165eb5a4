"""Capped queues for tests: set a cap, count waiting and dropped jobs, and let some jobs succeed."""

from __future__ import annotations

from sqlalchemy import func, select, text, update

from cronjobs.clock import SYSTEM
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs, queues
from cronjobs.engine.probe.idle_conditions import WAITING
from cronjobs.engine.rules.capacity import Cap, OnFull
from cronjobs.engine.store.queues import put_caps


def cap(database: Database, most: int, on_full: OnFull = "error", queue: str = "mail") -> None:
    with database.write() as connection:
        assert put_caps(connection, [Cap(queue, most, on_full)], [])


def in_queue(database: Database, queue: str = "mail") -> int:
    """Return how many jobs wait in the queue."""
    with database.read() as connection:
        found = select(func.count()).where(jobs.c.queue == queue, text(WAITING))
        return connection.execute(found).scalar_one()


def dropped(database: Database, queue: str = "mail") -> int:
    with database.read() as connection:
        found: int = connection.execute(select(queues.c.dropped).where(queues.c.name == queue)).scalar_one()
        return found


def drain(database: Database, count: int, queue: str = "mail") -> None:
    """Let the oldest jobs succeed."""
    with database.write() as connection:
        oldest = select(jobs.c.id).where(jobs.c.queue == queue, text(WAITING)).order_by(jobs.c.id).limit(count)
        done = {"status": "succeeded", "finished_at": SYSTEM.now()}
        connection.execute(update(jobs).where(jobs.c.id.in_(oldest.scalar_subquery())).values(done))
