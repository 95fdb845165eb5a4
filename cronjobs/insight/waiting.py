"""What waits, by queue: how much is due and late, and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.config.settings import Settings
from cronjobs.insight.judged_types import JudgedTypes
from cronjobs.insight.reach import BeyondOptions, out_of_reach
from cronjobs.insight.watched import late_after
from cronjobs.rules.concurrency import Limit
from cronjobs.rules.pausing import of_queue
from cronjobs.store import concurrency, listing
from cronjobs.store.queues import pressures

UNKNOWN_IS_LATE: Final = timedelta(minutes=5)  # status reports it from the first minute; see findings


@dataclass
class Queue:
    """What waits in one queue. ``failed`` jobs wait for another try, and count in due or future as well."""

    due: int = 0
    future: int = 0
    failed: int = 0
    late: int = 0
    paused: bool = False
    max_waiting: int | None = None  # None: it has no cap
    on_full: str | None = None
    dropped: int = 0  # since it first had a cap
    oldest_due_at: datetime | None = None

    @property
    def waiting(self) -> int:
        return self.due + self.future

    @property
    def full(self) -> bool:
        # SQLite accepts any type there.
        return isinstance(self.max_waiting, int) and self.waiting >= self.max_waiting


@dataclass
class QueueFacts:
    """``unresolved``: due jobs by a type that no tick knew lately; ``came``: when the first of them was due."""

    queues: dict[str, Queue] = field(default_factory=dict)
    oldest_due_at: datetime | None = None
    late_since: datetime | None = None  # when the first of those that are late became late
    unresolved: dict[str, int] = field(default_factory=dict)
    came: dict[str, datetime] = field(default_factory=dict)
    out_of_reach: list[BeyondOptions] = field(default_factory=list)
    limited: dict[Limit, int] = field(default_factory=dict)  # reached limits: how many due jobs wait for each


def what_waits(
    connection: Connection, settings: Settings, judged: JudgedTypes, pauses: Sequence[Row[Any]], now: datetime
) -> QueueFacts:
    found = QueueFacts()
    for row in listing.waiting_by_queue(connection):
        queue = found.queues.setdefault(row.queue, Queue(paused=bool(of_queue(pauses, row.queue))))
        queue.due += row.due
        queue.future += row.waiting - row.due
        queue.failed += row.failed
        if row.due:
            queue.oldest_due_at = row.run_at
    found.oldest_due_at = min(
        (each.oldest_due_at for each in found.queues.values() if each.oldest_due_at), default=None
    )
    late: list[Row[Any]] = []
    # Only if something is due: it reads the indexes of all that waits once more.
    for row in listing.due_groups(connection, late_after(settings)) if found.oldest_due_at else ():
        unknown = not judged.knows(row.job_type, since=row.run_at)
        if unknown:
            found.unresolved[row.job_type] = found.unresolved.get(row.job_type, 0) + row.due
            found.came[row.job_type] = min(found.came.get(row.job_type, row.run_at), row.run_at)
        its = found.queues.get(row.queue)
        if its and not its.paused and not (unknown and now - row.run_at < UNKNOWN_IS_LATE):
            its.late += row.late
            late += [row] if row.late else []
    found.late_since = min((row.run_at + late_after(settings) for row in late), default=None)
    found.out_of_reach = out_of_reach(connection, late, now)
    for capped in pressures(connection):
        queue = found.queues.setdefault(capped.name, Queue(paused=bool(of_queue(pauses, capped.name))))
        queue.max_waiting, queue.dropped = capped.max_waiting, capped.dropped
        queue.on_full = None if capped.max_waiting is None else capped.on_full
    found.limited = concurrency.waiting_for(connection, settings.limits)
    return found
