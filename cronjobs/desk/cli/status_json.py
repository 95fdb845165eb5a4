"""The JSON object of ``cronjobs status --json``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from cronjobs.desk.cli.output import columns_of
from cronjobs.desk.insight.causes import NONE, READ, Causes, cause_object, causes_of
from cronjobs.desk.insight.finding import finding_object
from cronjobs.desk.insight.findings import judge
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.queue_trends import QueueTrends, queue_trends
from cronjobs.desk.insight.schedule_facts import ScheduleFacts
from cronjobs.desk.store.schedule_health import active_schedules
from cronjobs.desk.store.schedule_runs import RunFacts
from cronjobs.engine.config.settings import Settings


def all_of_it(
    connection: Connection,
    health: Health,
    settings: Settings,
    address: str,
    facts: Sequence[ScheduleFacts],
    by_cron: Sequence[ScheduleFacts] = (),
) -> dict[str, Any]:
    """Return ``status_object`` with trends, causes of death and every active schedule."""
    trends = queue_trends(connection, health)
    why = causes_of(connection, health)
    return status_object(health, settings, address, trends, facts, active_schedules(connection), by_cron, why)


def status_object(
    health: Health,
    settings: Settings,
    address: str,
    trends: QueueTrends,
    facts: Sequence[ScheduleFacts] = (),
    active: Sequence[Any] = (),
    by_cron: Sequence[ScheduleFacts] = (),
    why: Causes = NONE,
) -> dict[str, Any]:
    """Return the whole state as one JSON object.

    *active* has the rows of the active schedules. *facts* are merged into these rows by the schedule's name.
    """
    shown = {each.name: facts_object(each) for each in facts}
    over_s = round((health.now - trends.since).total_seconds())
    changed = trends.changes
    queues = [
        {"queue": name}
        | vars(queue)
        | {"change": changed.get(name), "change_over_s": over_s if name in changed else None}
        for name, queue in health.waiting.queues.items()
    ]
    return {
        "database": address,
        **{name: getattr(health, name) for name in ("project", "environment", "schema_revision")},
        "config": str(settings.file),
        "now": health.now,
        "timezone": settings.timezone,
        "findings": [finding_object(found) for found in judge(health, settings)],
        "causes": [cause_object(cause) for cause in why.found],
        "causes_are_of_newest": READ if why.unread else None,
        "ticks": [dict(tick) for tick in health.ticks],
        "running": {
            "total": health.running_total,
            "overdue": health.overdue,
            "jobs": [dict(job) | {"overdue": job["locked_until"] < health.now} for job in health.running],
        },
        "waiting": {
            **{what: health.waiting.total(what) for what in ("due", "future", "late", "failed")},
            "oldest_due_at": health.waiting.oldest_due_at,
            "limited": [vars(limit) | {"waiting": count} for limit, count in health.waiting.limited.items()],
            "queues": queues,
            "more_queues": health.waiting.more_queues,
        },
        "unresolved": [{"job_type": name, "waiting": count} for name, count in health.waiting.unresolved.items()],
        "more_unresolved": {"job_types": health.waiting.more_types, "waiting": health.waiting.more_unresolved},
        "dead": health.dead,
        "pauses": [dict(pause) for pause in health.pauses],
        "schedules": [columns_of(schedule) | shown.get(schedule.name, {}) for schedule in active],
        "run_by_cron": [facts_object(each) for each in by_cron],
    }


def facts_object(facts: ScheduleFacts) -> dict[str, Any]:
    """Return a schedule's facts. ``runs`` are newest first, ``strip`` oldest first. Durations are in seconds."""
    last = facts.last
    return {
        "name": facts.name,
        "next_at": facts.next_at,
        "paused": facts.paused,
        "last": None if last is None else run_object(last),
        "median_s": _seconds(facts.median),
        "p95_s": _seconds(facts.p95),
        "strip": list(facts.strip),
        "runs": [run_object(each) for each in facts.runs],
    }


def run_object(run: RunFacts) -> dict[str, Any]:
    """Return one run's result. ``took_s`` is in seconds, or None if unknown."""
    return {name: value for name, value in vars(run).items() if name != "took"} | {"took_s": _seconds(run.took)}


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()
