"""Find out whether queues with due jobs are growing or shrinking."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk.insight.health import Health
from cronjobs.desk.store import trends
from cronjobs.model import rough

QUEUES: Final = 50


@dataclass(frozen=True)
class QueueTrends:
    """The change in each queue's number of due jobs since ``since``."""

    since: datetime
    changes: Mapping[str, int] = field(default_factory=dict)


def queue_trends(connection: Connection, health: Health, among: Collection[str] | None = None) -> QueueTrends:
    """Return the trends of up to QUEUES queues that have due jobs and are not paused.

    If *among* is given, only its queues are considered.
    """
    queues = health.waiting.queues
    names = queues.keys() if among is None else among
    due = sorted(name for name in names if queues[name].due and not queues[name].paused)[:QUEUES]
    if not due:
        return QueueTrends(health.now)
    since = trends.compared_with(connection)
    return QueueTrends(since, trends.changes(connection, due, since))


def trend_of(due: int, change: int | None, span: timedelta) -> str:
    """Describe a change. A change of less than *due* / 20 counts as steady.

    Return "" if the change is unknown (None), or if hardly any jobs were due when *span* began. In the second case, a
    batch has arrived during *span*, and the queue may have been shrinking ever since.
    """
    if change is None or (due - change) * 20 < due:
        return ""
    if abs(change) * 20 < due or not change:
        return "steady"
    return f"{'growing' if change > 0 else 'shrinking'}: {change:+,} in {rough(span)}"
