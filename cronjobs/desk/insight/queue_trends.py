"""Whether the queues in which something is due grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk.insight.health import Health
from cronjobs.engine.store import trends

QUEUES: Final = 50


@dataclass(frozen=True)
class QueueTrends:
    """By how many due jobs each queue has changed *since* then."""

    since: datetime
    changes: Mapping[str, int] = field(default_factory=dict)


def queue_trends(connection: Connection, health: Health) -> QueueTrends:
    """Of QUEUES queues that are not paused and in which something is due."""
    due = sorted(name for name, queue in health.queues.items() if queue.due and not queue.paused)[:QUEUES]
    if not due:
        return QueueTrends(health.now)
    since = trends.compared_with(connection)
    return QueueTrends(since, trends.changes(connection, due, since))
