"""The middle of the first page: running jobs, queues with waiting jobs and their trends, and the next schedules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from cronjobs.contrib.web.progress import progress_by_id
from cronjobs.contrib.web.view import View
from cronjobs.desk.insight.formatting import pause_text
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.queue_trends import queue_trends, trend_of
from cronjobs.desk.insight.releasing import Holders
from cronjobs.desk.insight.waiting import Queue
from cronjobs.desk.store import tailing

RUNNING: Final = 5
QUEUES: Final = 5
PAUSES: Final = 4


class Waits(NamedTuple):
    """A queue with due jobs. ``trend`` is "paused", a trend such as "growing: +12 in 10m", or "" if unknown."""

    name: str
    queue: Queue
    trend: str


def now_sections(connection: Connection, health: Health, view: View) -> dict[str, Any]:
    """Return the values for "now.html"."""
    running, holders = [SimpleNamespace(**each) for each in health.running[:RUNNING]], Holders()
    reported = tailing.progress_of(connection, [job.id for job in running])
    waiting = _waiting(connection, health)
    return {
        "running": [
            (job, holders.lease(vars(job), view.times), holders.is_lost(vars(job), view.times.now)) for job in running
        ],
        "more_running": health.running_total - len(running),
        "progress": progress_by_id(running, reported, view.times.now),
        "waiting": waiting,
        "more_waiting": health.waiting.total("due") - sum(each.queue.due for each in waiting),
        "coming": health.next,
        "pauses": [pause_text(pause, view.times) for pause in health.pauses[:PAUSES]],
        "more_pauses": len(health.pauses) - PAUSES,
    }


def _waiting(connection: Connection, health: Health) -> list[Waits]:
    due = health.waiting.with_due_jobs()[:QUEUES]
    trends = queue_trends(connection, health, [name for _, name, _ in due])
    span = health.now - trends.since
    found = []
    for _, name, queue in due:
        words = "paused" if queue.paused else trend_of(queue.due, trends.changes.get(name), span)
        found.append(Waits(name, queue, words))
    return found
