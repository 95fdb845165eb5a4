"""The first page: what is wrong, and the schedules, the worst first."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection
from werkzeug.exceptions import NotFound

from cronjobs.contrib.web.pages.cause import causes_section
from cronjobs.contrib.web.strip import LEGEND, QUARTERS, first_quarter, strip
from cronjobs.contrib.web.view import View
from cronjobs.desk.insight.causes import causes_of
from cronjobs.desk.insight.finding import WELL
from cronjobs.desk.insight.findings import judge
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.schedule_facts import NO_RESULT, PRUNED, last_runs
from cronjobs.desk.insight.worst_first import worst_first
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store import quarters
from cronjobs.engine.store.schedule_runs import schedule_rows

SCHEDULES: Final = 50
FINDINGS: Final = 50
MOST_PAGES: Final = 10_000
ACK_FOR: Final = {"8h": "8 hours", "1d": "a day", "7d": "7 days"}


def overview(connection: Connection, view: View, types: JobTypes) -> str:
    number = view.query.get("page", "1")
    if not (number.isascii() and number.isdecimal() and len(number) < 6 and 1 <= int(number) <= MOST_PAGES):
        raise NotFound("there is no such page")
    health = look(connection, view.settings, types)
    return view.page("overview.html", **first_sections(connection, health, view, int(number)))


def first_sections(connection: Connection, health: Health, view: View, number: int = 1) -> dict[str, Any]:
    """What "findings.html", "causes.html", "figures.html" and "schedules.html" show.

    *number*: which fifty of the schedules.
    """
    begin = (number - 1) * SCHEDULES
    ids = worst_first(connection, health, view.settings.run.every, number * SCHEDULES)[begin:]
    by_id = {row.id: row for row in schedule_rows(connection, ids)}
    now, last = view.times.now, last_runs(connection, ids)
    letters = quarters.strips(connection, ids, first_quarter(now), QUARTERS)
    return {
        **causes_section(causes_of(connection, health)),
        "findings": judge(health, view.settings),
        "most_findings": FINDINGS,
        "ack_for": ACK_FOR,
        "well": WELL,
        "health": health,
        "figures": _figures(health),
        "schedules": [
            # The newest run up to now is dated as ``cronjobs status`` dates it: a run that came late is not as old as
            # its occurrence.
            (row, last.get(row.id), strip(row.name, letters[row.id], row.next_at, now))
            for row in (by_id[each] for each in ids if each in by_id)
        ],
        "number": number,
        "begin": begin,
        "fifty": SCHEDULES,
        "pruned": PRUNED,
        "no_result": NO_RESULT,
        "legend": LEGEND,
    }


def _figures(health: Health) -> list[tuple[str, int, str]]:
    """Words, how many, and the status by which the jobs are listed."""
    return [
        ("running", health.running_total, "running"),
        ("due", health.total("due"), "queued"),
        ("in the future", health.total("future"), "queued"),
        ("retrying", health.total("failed"), "retrying"),
        ("late", health.total("late"), "queued"),
        ("dead in 24 h", health.dead["last_24h"], "dead"),
        ("dead in all", health.dead["total"], "dead"),
    ]
