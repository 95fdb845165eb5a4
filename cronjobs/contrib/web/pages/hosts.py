"""Hosts with their last tick, the ticks lately, and who did what."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.contrib.web.html import Child, Html, h
from cronjobs.contrib.web.view import View, badge, table
from cronjobs.desk.insight.saying import host_of, safe, took
from cronjobs.desk.insight.watched import quiet_after
from cronjobs.engine.store import explaining, listing, trail
from cronjobs.engine.store.trail import TrailFilter
from cronjobs.engine.tick.result import did_in_words
from cronjobs.model import rough

ENTRIES: Final = 30
TICKS: Final = 30
RUNNING: Final = 50
AT_WORK: Final = timedelta(minutes=2)  # a tick's budget is under a minute; its last act is to complete its row


def hosts(connection: Connection, view: View) -> str:
    running = listing.running_jobs(connection, RUNNING)
    ticks = [dict(row._mapping) for row in explaining.newest_ticks(connection, TICKS)]
    entries = trail.entries(connection, TrailFilter(), ENTRIES)
    return view.page(
        "Hosts",
        hosts_section(connection, view),
        h("section", h("h2", "Running now"), _running(running, view)),
        h("section", h("h2", "Last ticks"), _ticks(ticks, view)),
        h("section", h("h2", "Who did what"), _audit(entries, view)),
    )


def hosts_section(connection: Connection, view: View) -> Html:
    last = [dict(row._mapping) for row in listing.last_ticks(connection)]
    return h("section", h("h2", "Hosts"), _hosts(last, view))


def _hosts(last: list[dict[str, Any]], view: View) -> Html:
    silent = quiet_after(view.settings.run.every)
    rows: list[list[Child]] = []
    for tick in last:
        quiet = view.times.now - (tick["finished_at"] or tick["started_at"]) > silent
        state = badge("silent", "dead") if quiet else badge("ticking", "succeeded")
        on = {0: "off", 1: "on"}.get(tick["schedules_on"], "")
        rows.append([safe(tick["host"], 80), state, *_tick(tick, view), on])
    header = ["host", "state", "last tick", "took", "version", "file", "did", "schedules"]
    return table("Hosts", header, rows, nothing="no tick yet")


def _ticks(ticks: list[dict[str, Any]], view: View) -> Html:
    header = ["host", "began", "took", "version", "file", "did"]
    return table("Last ticks", header, [[safe(tick["host"], 80), *_tick(tick, view)] for tick in ticks])


def _tick(tick: Mapping[str, Any], view: View) -> list[Child]:
    done = did_in_words(tick["did"]) if isinstance(tick["did"], dict) else ""
    if tick["finished_at"] is None:
        ended = "at work" if view.times.now - tick["started_at"] < AT_WORK else "did not end: killed?"
    else:
        ended = safe(tick["ended"])
    return [
        view.instant(tick["started_at"]),
        took(tick["started_at"], tick["finished_at"]),
        safe(tick["version"], 40),
        safe(tick["fingerprint"])[:8],
        "; ".join(part for part in (done, ended) if part),
    ]


def _running(jobs: Any, view: View) -> Html:
    rows: list[list[Child]] = []
    for job in jobs:
        left = job.locked_until - view.times.now
        over = left < timedelta(0)
        lease = badge(f"lease ended {rough(left)} ago", "dead") if over else f"lease {rough(left)} left"
        ended = f"{job.recorded.replace('_', ' ')}, " if job.recorded else ""
        asked = ", asked to stop" if job.cancel_requested_at else ""
        since = view.times.lasting(job.started_at) if job.started_at else ""
        rows.append(
            [view.job(job.id), safe(job.job_type, 120), host_of(job.locked_by), since, h("span", ended, lease, asked)]
        )
    return table("Running now", ["id", "type", "host", "since", "lease"], rows, nothing="nothing")


def _audit(entries: Any, view: View) -> Html:
    rows: list[list[Child]] = [
        [
            view.instant(entry.at),
            safe(entry.action, 60),
            safe(entry.subject, 120),
            safe(entry.actor, 80) + (f" on {safe(entry.host, 60)}" if entry.host else ""),
            safe(entry.why, 200),
        ]
        for entry in entries
    ]
    return table("Who did what", ["when", "action", "what", "who", "why"], rows, nothing="nobody did anything")
