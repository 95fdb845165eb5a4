"""The SQL for metrics of the current state. The counts of ended jobs and attempts come from ``store.counts``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.engine.probe.sql_text import JOBS, QUEUES, SCHEDULES, TICKS, after_now
from cronjobs.engine.store.sql import run

TICKS_READ: Final = 1000


@dataclass(frozen=True)
class DueNext:
    id: int
    name: str
    active: bool
    next_at: datetime | None


def upcoming_schedules(connection: Connection) -> list[DueNext]:
    """Return all schedules, including retired ones, oldest first."""
    rows = run(connection, f"SELECT j.id, j.name, j.status, j.next_at FROM {SCHEDULES} j ORDER BY j.id")
    return [DueNext(row.id, row.name, row.status == "active", row.next_at) for row in rows]


def running_by_queue(connection: Connection) -> dict[str, int]:
    rows = run(
        connection,
        f"SELECT j.queue, count(*) AS leased FROM {JOBS} j WHERE j.locked_until IS NOT NULL GROUP BY j.queue",
    )
    return {row.queue: row.leased for row in rows}


def queue_rows(connection: Connection) -> Sequence[Row[Any]]:
    """Return queues that have or had a cap: name, max_waiting, dropped, refused."""
    return run(connection, f"SELECT q.name, q.max_waiting, q.dropped, q.refused FROM {QUEUES} q ORDER BY q.name").all()


def ticks_lately(connection: Connection, within: timedelta) -> list[Row[Any]]:
    """Return the last tick of each host that ticked no more than *within* ago.

    Read only the newest TICKS_READ ticks.
    """
    rows = run(
        connection,
        f"SELECT t.host, t.not_started FROM {TICKS} t WHERE t.started_at >= {after_now(':ago_s')} "
        "ORDER BY t.started_at DESC LIMIT :most",
        ago_s=-within.total_seconds(),
        most=TICKS_READ,
    )
    last: dict[str, Row[Any]] = {}
    for row in rows:
        last.setdefault(row.host, row)
    return list(last.values())
