"""The main pages as one file for a mail or a ticket. The file has no links or scripts, and loads nothing."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection

from cronjobs.contrib.web.application import packaged
from cronjobs.contrib.web.pages.hosts import last_ticks
from cronjobs.contrib.web.pages.jobs import ERRORS_READ, errors, listed
from cronjobs.contrib.web.pages.overview import IN_REPORT, charts_section, first_sections
from cronjobs.contrib.web.pages.queues import queues_sections
from cronjobs.contrib.web.view import View
from cronjobs.desk.insight.formatting import Times
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.store import listing
from cronjobs.desk.store.listing import Filter
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.model import Status

DEAD: Final = 100
LATELY: Final = 200


def report(connection: Connection, settings: Settings, types: JobTypes) -> str:
    """Return the HTML: findings, causes, charts, schedules, dead jobs, the last jobs, errors, queues and hosts."""
    health = look(connection, settings, types)
    sheet = packaged("style.css").decode()
    view = View(settings, Times(health.now, settings.timezone), project=health.project, sheet=sheet)
    return view.page(
        "report.html",
        **first_sections(connection, health, view, most=IN_REPORT),
        **charts_section(connection, view),
        **queues_sections(connection, health, view),
        dead=listed(listing.list_jobs(connection, Filter(statuses=(Status.DEAD,)), DEAD), view),
        lately=listed(listing.list_jobs(connection, Filter(), LATELY), view),
        errors=errors(connection, Filter()),
        errors_read=ERRORS_READ,
        hosts=last_ticks(connection, view),
    )
