"""The first pages as one file that stands alone, for a mail or a ticket: no address, no script, nothing to fetch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.contrib.web.html import Html, h
from cronjobs.contrib.web.pages.hosts import hosts_section
from cronjobs.contrib.web.pages.jobs import errors_section, jobs_table
from cronjobs.contrib.web.pages.overview import findings, schedules_section, totals
from cronjobs.contrib.web.pages.queues import queues_sections
from cronjobs.contrib.web.routes import packaged
from cronjobs.contrib.web.view import View
from cronjobs.desk.insight.findings import judge
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.saying import Times, counted
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store import listing
from cronjobs.engine.store.listing import Filter
from cronjobs.model import Status

DEAD: Final = 100
LATELY: Final = 200


def report(connection: Connection, settings: Settings, types: JobTypes) -> str:
    """Findings, schedules, what died, the last jobs, errors, queues and hosts, as HTML."""
    health = look(connection, settings, types)
    sheet = packaged("style.css").decode()
    view = View(settings, Times(health.now, settings.timezone), project=health.project, sheet=sheet)
    dead = listing.list_jobs(connection, Filter(status=Status.DEAD), DEAD)
    lately = listing.list_jobs(connection, Filter(), LATELY)
    return view.page(
        "Report",
        h("section", h("h2", "Findings"), findings(judge(health, settings), view)),
        totals(health, view),
        schedules_section(connection, health, view),
        _jobs(f"The last dead jobs, of {health.dead['total']:,}", dead, view),
        errors_section(connection, view, Filter()),
        _jobs(f"The last {counted(len(lately), 'job')}", lately, view),
        queues_sections(connection, health, view),
        hosts_section(connection, view),
    )


def _jobs(title: str, rows: Sequence[Any], view: View) -> Html:
    return h("section", h("h2", title), jobs_table(rows, view, title))
