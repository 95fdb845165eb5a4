"""Queues with what waits in them, limits, pauses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from cronjobs.contrib.web.html import Child, Html, h, together
from cronjobs.contrib.web.view import View, badge, button, table
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.saying import safe
from cronjobs.desk.insight.waiting import Queue
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules import pausing
from cronjobs.engine.store.concurrency import running_by_key


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
        [*_queue(name, queue, view), *([_brake(name, queue, health, view)] if acting else [])]
        for name, queue in sorted(health.queues.items(), key=lambda each: (-each[1].late, -each[1].due, each[0]))[:200]
    ]
    shown = table("Queues", [*header, *(["pause"] if acting else [])], rows, nothing="nothing waits")
    more = len(health.queues) + health.more_queues - len(rows)
    return together(shown, h("p", f"and {more:,} smaller queues") if more else None)


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


def _brake(name: str, queue: Queue, health: Health, view: View) -> Child:
    about = f"queue {safe(name, 80)}"
    if any((pause["scope"], pause["name"]) == ("queue", name) for pause in health.pauses):
        return view.form("/resume", button("Resume", about), scope="queue", name=name)
    if queue.paused:
        return None  # with everything
    return view.form("/pause", button("Pause", about), scope="queue", name=name)


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
    """With a button for each: a queue in which nothing waits is in no other table."""
    acting = view.acts
    header = ["what", "since", "until", "by", "why"]
    rows = [[*_pause(pause, view), *([_resume(pause, view)] if acting else [])] for pause in health.pauses]
    return table("Pauses", [*header, *(["resume"] if acting else [])], rows, nothing="nothing is paused")


def _pause(pause: Mapping[str, Any], view: View) -> list[Child]:
    return [
        safe(pausing.what(pause["scope"], pause["name"]), 120),
        view.instant(pause["paused_at"]),
        view.times.both(pause["until"]) if pause["until"] else "until someone resumes it",
        safe(pause["by"], 80),
        safe(pause["why"]) + ("; skips what comes due" if pause["skip"] else ""),
    ]


def _resume(pause: Mapping[str, Any], view: View) -> Child:
    scope, name = pause["scope"], pause["name"]
    about = safe(pausing.what(scope, name), 120)
    return view.form("/resume", button("Resume", about), scope=scope, name=name)


def _pause_all(health: Health, view: View) -> Html | None:
    if any(pause["scope"] == "all" for pause in health.pauses):
        return None  # its row has a button
    why = h("label", "why ", h("input", name="why", maxlength=200))
    return view.form("/pause", "Pause everything", why, scope="all", name="")
