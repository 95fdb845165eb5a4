"""Choose and order the schedules that a screen shows: worst first, then by next run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk import doors
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.schedule_facts import ScheduleFacts, schedule_facts
from cronjobs.desk.insight.watched import Watched, quiet_after, without_a_run
from cronjobs.desk.rules.occurrence_results import OccurrenceResult
from cronjobs.desk.store.schedule_runs import next_due
from cronjobs.installed import if_installed

NOT_RUN, DEAD, MISSED, FAILING, NOT_SUCCEEDED, WELL = range(6)  # the worst grade comes first
# Ask for this many schedules per statement. Each schedule takes the memory of 100 ledger rows.
ASKED_AT_ONCE: Final = 200


def schedules_shown(connection: Connection, health: Health, every: timedelta, limit: int | None) -> list[ScheduleFacts]:
    """Return the facts about the first *limit* active schedules, worst first. If *limit* is None, return all."""
    ids = worst_first(connection, health, every, limit)
    found: dict[int, ScheduleFacts] = {}
    for first in range(0, len(ids), ASKED_AT_ONCE):
        found |= schedule_facts(connection, ids[first : first + ASKED_AT_ONCE])
    return [found[each] for each in ids if each in found]


def run_by_cron(
    connection: Connection, now: datetime, limit: int | None, chosen: Callable[[str], bool] = lambda _name: True
) -> tuple[list[ScheduleFacts], int]:
    """Return the first *limit* crontab lines recorded by an extra, in the form of schedules, and how many exist.

    If *limit* is None, return all. *chosen* says which names to include.
    """
    there = if_installed(doors.RUN_BY_CRON)
    return ([], 0) if there is None else there.rows(connection, now, limit, chosen)


def worst_first(connection: Connection, health: Health, every: timedelta, limit: int | None) -> list[int]:
    """Return the ids of the first *limit* active schedules (all if None), worst first, then by next run."""
    ids = badly_off(health.watch, health.now, quiet_after(every))[:limit]
    if limit is None or len(ids) < limit:
        ids = list(dict.fromkeys([*ids, *next_due(connection, limit)]))[:limit]
    return ids


def badly_off(found: Watched, now: datetime, patience: timedelta) -> list[int]:
    """Return the ids of active schedules with a problem, worst first, then by next run and name."""
    graded = []
    for each in found.schedules:
        if each.status != "active":
            continue
        behind = each.next_at is not None and now - each.next_at > patience and not each.paused
        no_run = each.name in found.without_run or each.name in found.not_run
        grade = NOT_RUN if behind or no_run else _grade(found.lately.get(each.id, ()))
        if grade != WELL:
            graded.append((grade, each.next_at is None, each.next_at or now, each.name, each.id))
    return [each[-1] for each in sorted(graded)]


def _grade(rows: Sequence[OccurrenceResult]) -> int:
    """Grade a schedule by its newest ledger row with a result."""
    for row in rows:
        if row.went_well:
            return WELL
        if without_a_run(row):
            return MISSED
        if row.status == "dead":
            return NOT_SUCCEEDED if row.dismissed else DEAD
        if row.status == "failed":
            return FAILING
        if row.outcome != "enqueued" or row.status == "cancelled":
            return NOT_SUCCEEDED
    return WELL
