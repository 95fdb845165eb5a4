"""Hosts with their last ticks, the newest ticks, and the audit trail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.contrib.web.progress import progress_by_id
from cronjobs.contrib.web.view import View
from cronjobs.desk.insight.formatting import did_and_ended
from cronjobs.desk.insight.releasing import Holders
from cronjobs.desk.insight.watched import quiet_after
from cronjobs.desk.store import explaining, tailing, trail, workload
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store import ticks

ENTRIES: Final = 30
TICKS: Final = 30
RUNNING: Final = 50


def hosts(connection: Connection, view: View, _types: JobTypes) -> str:
    now, holders = view.times.now, Holders()
    running = workload.running_jobs(connection, RUNNING)
    return view.page(
        "hosts.html",
        hosts=last_ticks(connection, view),
        running=[(job, holders.lease(job._mapping, view.times), holders.is_lost(job._mapping, now)) for job in running],
        progress=progress_by_id(running, tailing.progress_of(connection, [job.id for job in running]), now),
        ticks=_described(explaining.newest_ticks(connection, TICKS), view),
        entries=trail.entries(connection, limit=ENTRIES)[::-1],
    )


def last_ticks(connection: Connection, view: View) -> list[dict[str, Any]]:
    """Return the values for "hosts_section.html"."""
    return _described(ticks.last_ticks(connection), view)


def _described(rows: Sequence[Row[Any]], view: View) -> list[dict[str, Any]]:
    """Return ticks as dicts, with what each tick did, and whether its host has been silent since then."""
    now, settings, holders = view.times.now, view.settings, Holders()
    found = []
    for tick in (dict(row._mapping) for row in rows):
        quiet = now - (tick["finished_at"] or tick["started_at"]) > quiet_after(settings.run.every)
        gone = holders.tick_is_gone(tick)
        found.append({**tick, "quiet": quiet, "words": did_and_ended(tick, now, settings.run.budget, gone=gone)})
    return found
