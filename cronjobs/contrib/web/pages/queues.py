"""The page of queues, limits and pauses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.contrib.web.view import View
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.health import Health
from cronjobs.desk.rules import pausing
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.concurrency import running_by_key

QUEUES: Final = 200


def queues(connection: Connection, view: View, types: JobTypes) -> str:
    return view.page("queues.html", **queues_sections(connection, look(connection, view.settings, types), view))


def queues_sections(connection: Connection, health: Health, view: View) -> dict[str, Any]:
    """Return the values for "queues_sections.html"."""
    shown = sorted(health.waiting.queues.items(), key=lambda each: (-each[1].late, -each[1].due, each[0]))[:QUEUES]
    return {
        "queues": shown,
        "more_queues": len(health.waiting.queues) + health.waiting.more_queues - len(shown),
        "limits": _limits(health, view, running_by_key(connection)),
        "pauses": [(pause, pausing.what(pause["scope"], pause["name"])) for pause in health.pauses],
        "paused": {(pause["scope"], pause["name"]) for pause in health.pauses},
        "all_paused": any(pause["scope"] == "all" for pause in health.pauses),
    }


def _limits(health: Health, view: View, running: Mapping[str, int]) -> list[tuple[str, str, int, bool, int]]:
    """Return for each limit: prefix, numbers, how many jobs run, whether it is reached, how many jobs wait for it."""
    rows = []
    for limit in view.settings.limits:
        most = [f"{limit.most:,}"] if limit.most is not None else []
        most += [f"{limit.each:,} of each key"] if limit.each is not None else []
        at_work = sum(count for key, count in running.items() if limit.counts(key))
        waiting = health.waiting.limited.get(limit)
        rows.append((limit.prefix, ", ".join(most), at_work, waiting is not None, waiting or 0))
    return rows
