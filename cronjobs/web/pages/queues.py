"""Queues with what waits in them, limits, pauses."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from cronjobs.insight.gathering import look
from cronjobs.insight.health import Health
from cronjobs.insight.saying import safe
from cronjobs.insight.waiting import Queue
from cronjobs.jobs.job_types import JobTypes
from cronjobs.rules import pausing
from cronjobs.store.concurrency import running_by_key
from cronjobs.web.html import Child, Html, h, together
from cronjobs.web.view import View, badge, table


def queues(connection: Connection, view: View, types: JobTypes) -> str:
    health = look(connection, view.settings, types)
    return view.page("Queues", queues_sections(connection, health, view))


def queues_sections(connection: Connection, health: Health, view: View) -> Html:
    running = running_by_key(connection)
    return together(
        h("section", h("h2", "Queues"), _queues(health, view)),
        h("section", h("h2", "Limits"), _limits(health, view, running)),
        h("section", h("h2", "Pauses"), _pauses(health, view), _pause_all(health, view)),
    )


def _queues(health: Health, view: View) -> Html:
    header = ["queue", "due", "late", "in the future", "retrying", "cap", "dropped"]
    acting = view.acts
    rows = [
        [*_queue(name, queue, view), *([_brake(name, queue, view)] if acting else [])]
        for name, queue in sorted(health.queues.items(), key=lambda each: (-each[1].late, -each[1].due, each[0]))[:200]
    ]
    return table("Queues", [*header, *(["pause"] if acting else [])], rows, nothing="nothing waits")


def _queue(name: str, queue: Queue, view: View) -> list[Child]:
    cap = "" if queue.max_waiting is None else f"{queue.waiting:,} of {queue.max_waiting:,}, then {queue.on_full}"
    return [
        h("span", view.link(safe(name, 80), "/jobs", queue=name), " ", badge("paused") if queue.paused else None),
        f"{queue.due:,}",
        f"{queue.late:,}",
        f"{queue.future:,}",
        f"{queue.failed:,}",
        h("span", cap, " ", badge("full", "dead") if queue.full else None) if cap else "",
        f"{queue.dropped:,}" if queue.dropped else "",
    ]


def _brake(name: str, queue: Queue, view: View) -> Child:
    if queue.paused:
        return view.form("/resume", "Resume", scope="queue", name=name)
    return view.form("/pause", "Pause", scope="queue", name=name)


def _limits(health: Health, view: View, running: Mapping[str, int]) -> Html:
    rows: list[list[Child]] = []
    for limit in view.settings.limits:
        at_work = sum(count for key, count in running.items() if limit.counts(key))
        waiting = health.limited.get(limit, 0)
        most = [f"{limit.most:,}"] if limit.most is not None else []
        most += [f"{limit.each:,} of each key"] if limit.each is not None else []
        full = badge("reached", "dead") if limit in health.limited else None
        rows.append([safe(limit.prefix, 120), ", ".join(most), h("span", f"{at_work:,} ", full), f"{waiting:,}"])
    header = ["concurrency keys that begin with", "at most", "running", "due jobs that wait for it"]
    return table("Limits", header, rows, nothing="the file sets no limit")


def _pauses(health: Health, view: View) -> Html:
    rows: list[list[Child]] = [
        [
            safe(pausing.what(pause["scope"], pause["name"]), 120),
            view.instant(pause["paused_at"]),
            view.times.both(pause["until"]) if pause["until"] else "until someone resumes it",
            safe(pause["by"], 80),
            safe(pause["why"]) + ("; skips what comes due" if pause["skip"] else ""),
        ]
        for pause in health.pauses
    ]
    return table("Pauses", ["what", "since", "until", "by", "why"], rows, nothing="nothing is paused")


def _pause_all(health: Health, view: View) -> Html | None:
    if any(pause["scope"] == "all" for pause in health.pauses):
        return view.form("/resume", "Resume everything", scope="all", name="")
    why = h("label", "why ", h("input", name="why", maxlength=200))
    return view.form("/pause", "Pause everything", why, scope="all", name="")
