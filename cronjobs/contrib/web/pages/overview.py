"""The first page: findings, running and waiting jobs, the runs that are due next, and the schedules, worst first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection
from werkzeug.exceptions import NotFound

from cronjobs.contrib.web.charts import axis, bars, charts, first_hour
from cronjobs.contrib.web.pages.cause import causes_section
from cronjobs.contrib.web.pages.now import now_sections
from cronjobs.contrib.web.schedule_strip import LEGEND, QUARTERS, Strip, first_quarter, hours_below
from cronjobs.contrib.web.view import View
from cronjobs.desk.insight.acking import CHOICES, USUAL
from cronjobs.desk.insight.all_well import ALL_WELL, without_finding
from cronjobs.desk.insight.causes import causes_of
from cronjobs.desk.insight.findings import judge
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.schedule_facts import NO_RESULT, ScheduleFacts, last_runs, rows_with_next
from cronjobs.desk.insight.worst_first import run_by_cron, worst_first
from cronjobs.desk.store import exec_runs
from cronjobs.desk.store.schedule_runs import PRUNED, active_names
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store import quarters
from cronjobs.engine.store.counts import by_hour

SCHEDULES: Final = 20  # a page shows this many schedules; a report shows more
IN_REPORT: Final = 50
BY_CRON: Final = 10
ALL_BY_CRON: Final = 200
FINDINGS: Final = 50
OPEN_FINDINGS: Final = 5  # show this many findings in full, and fold the other findings
TRIGGERS: Final = 5  # show a trigger button for at most this many schedules of a finding
MOST_PAGES: Final = 10_000
LONGEST_SEARCH: Final = 200  # characters


def overview(connection: Connection, view: View, types: JobTypes) -> str:
    number = view.query.get("page", "1")
    if not (number.isascii() and number.isdecimal() and len(number) < 6 and 1 <= int(number) <= MOST_PAGES):
        raise NotFound("there is no such page")
    health = look(connection, view.settings, types)
    return view.page(
        "overview.html",
        **first_sections(connection, health, view, int(number)),
        **now_sections(connection, health, view),
        **charts_section(connection, view),
        **_by_cron(connection, health, view),
    )


def first_sections(
    connection: Connection, health: Health, view: View, number: int = 1, most: int = SCHEDULES
) -> dict[str, Any]:
    """Return the values for "findings.html", "causes.html", "figures.html" and "schedules.html".

    A page has *most* schedules, and *number* is the page's number.
    """
    begin = (number - 1) * most
    sought = view.query.get("find", "")[:LONGEST_SEARCH]
    ids, total = _chosen(connection, health, view, sought, number * most)
    ids = ids[begin:]
    by_id = {row.id: row for row in rows_with_next(connection, ids)}
    last, first = last_runs(connection, ids), first_quarter(view.times.now)
    letters = quarters.strips(connection, ids, first, QUARTERS)
    return {
        **wrong_sections(connection, health, view),
        "health": health,
        "figures": _figures(health),
        "schedules": [
            # As in ``cronjobs status``, the newest run's time is when it began. It may have been late.
            (row, last.get(row.id), Strip(row.name, letters[row.id], first))
            for row in (by_id[each] for each in ids if each in by_id)
        ],
        "sought": sought,
        "total": total,
        "number": number,
        "begin": begin,
        "at_once": most,
        "pruned": PRUNED,
        "no_result": NO_RESULT,
        "legend": LEGEND,
        "hours": hours_below(first, view.times),
    }


def wrong_sections(connection: Connection, health: Health, view: View) -> dict[str, Any]:
    """Return the values for "findings.html" and "causes.html"."""
    return {
        **causes_section(causes_of(connection, health)),
        "findings": judge(health, view.settings),
        "most_findings": FINDINGS,
        "open_findings": OPEN_FINDINGS,
        "ack_for": CHOICES,
        "usual": USUAL,
        "triggers": TRIGGERS,
        "verdict": without_finding(health, view.settings),
        "all_well": ALL_WELL,
    }


def named(sought: str) -> Callable[[str], bool]:
    """Return a function that tests whether a name contains all words of *sought*, in any order and in any case."""
    words = sought.casefold().split()
    return lambda name: all(word in name.casefold() for word in words)


def _chosen(connection: Connection, health: Health, view: View, sought: str, limit: int) -> tuple[list[int], int]:
    """Return the ids of the *limit* worst active schedules whose names match *sought*, and how many match in all."""
    every = view.settings.run.every
    if not sought.strip():
        return worst_first(connection, health, every, limit), health.schedules.active
    fits = named(sought)
    found = {schedule_id for schedule_id, name in active_names(connection).items() if fits(name)}
    ids = [each for each in worst_first(connection, health, every, None) if each in found]
    return ids[:limit], len(ids)


def charts_section(connection: Connection, view: View) -> dict[str, Any]:
    """Return the values for "charts.html"."""
    span = "30d" if view.query.get("charts") == "30d" else "24h"
    found = bars(by_hour(connection, first_hour(view.times.now, span)), view.times, span)
    return {"span": span, "bars": found, "charts": charts(found, span), "axis": axis(found, span)}


def _by_cron(connection: Connection, health: Health, view: View) -> dict[str, Any]:
    """Return the values for "by_cron.html": the crontab lines that run under exec, and how their last 24 hours went."""
    most = ALL_BY_CRON if view.query.get("by_cron") == "all" else BY_CRON
    facts, count = run_by_cron(connection, health.now, most, named(view.query.get("find", "")[:LONGEST_SEARCH]))
    return {
        "by_cron": [(each, each.running or each.last, _strip_of(connection, each, view)) for each in facts],
        "more_by_cron": count - len(facts),
        "all_by_cron": most == ALL_BY_CRON,
    }


def _strip_of(connection: Connection, facts: ScheduleFacts, view: View) -> Strip:
    first = first_quarter(view.times.now)
    letters = exec_runs.quarters_lately(connection, facts.name, first, QUARTERS)
    return Strip(facts.name, letters, first)


def _figures(health: Health) -> list[tuple[str, int, str]]:
    """Return each figure's label, its number of jobs, and the status that lists them."""
    return [
        ("running", health.running_total, "running"),
        ("due", health.waiting.total("due"), "queued"),
        ("in the future", health.waiting.total("future"), "queued"),
        ("retrying", health.waiting.total("failed"), "retrying"),
        ("late", health.waiting.total("late"), "queued"),
        ("dead in 24 h", health.dead["last_24h"], "dead"),
        (f"dead in all{health.dismissed_words}", health.dead["total"], "dead"),
    ]
