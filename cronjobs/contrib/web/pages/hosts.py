"""Hosts with their last ticks, the newest ticks, and the audit trail."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.contrib.web.progress import progress_by_id
from cronjobs.contrib.web.view import View
from cronjobs.desk.insight.formatting import did_and_ended
from cronjobs.desk.insight.watched import quiet_after
from cronjobs.desk.store import explaining, tailing, trail, workload
from cronjobs.desk.store.trail import TrailFilter
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store import ticks

ENTRIES: Final = 30
TICKS: Final = 30
RUNNING: Final = 50


def hosts(connection: Connection, view: View, _types: JobTypes) -> str:
    now = view.times.now
    running = workload.running_jobs(connection, RUNNING)
    return view.page(
        "hosts.html",
        hosts=last_ticks(connection, view),
        running=[(job, job.locked_until - now) for job in running],
        progress=progress_by_id(running, tailing.progress_of(connection, [job.id for job in running]), now),
        ticks=[_tick(row, view) for row in explaining.newest_ticks(connection, TICKS)],
        entries=trail.entries(connection, TrailFilter(), ENTRIES),
    )


def last_ticks(connection: Connection, view: View) -> list[dict[str, Any]]:
    """Return the values for "hosts_section.html"."""
    return [_tick(row, view) for row in ticks.last_ticks(connection)]


def _tick(row: Any, view: View) -> dict[str, Any]:
    """Return the tick's row as a dict. Add what the tick did, and whether its host has been quiet since."""
    tick = dict(row._mapping)
    quiet = view.times.now - (tick["finished_at"] or tick["started_at"]) > quiet_after(view.settings.run.every)
    return {**tick, "quiet": quiet, "words": did_and_ended(tick, view.times.now, view.settings.run.budget)}
