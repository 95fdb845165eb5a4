"""One schedule: its strip, its definition, and what became of its occurrences, in explain's sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.contrib.web.html import Child, Html, h
from cronjobs.contrib.web.pages.overview import legend
from cronjobs.contrib.web.request import Refused
from cronjobs.contrib.web.strip import QUARTERS, first_quarter, strip, with_next
from cronjobs.contrib.web.view import View, badge, facts
from cronjobs.desk.insight.evidence import NoSuchSchedule, ScheduleEvidence
from cronjobs.desk.insight.explain_facts import Explanation
from cronjobs.desk.insight.explain_occurrence import counts_of, explain_occurrence, summary
from cronjobs.desk.insight.saying import safe
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.quarters import strips
from cronjobs.masking import hidden_json
from cronjobs.model import duration_text

SHOWN: Final = 50
LONGEST: Final = timedelta(days=31)


def schedule(connection: Connection, view: View, types: JobTypes, query: Mapping[str, str]) -> str:
    name = query.get("name", "")
    try:
        evidence = ScheduleEvidence(connection, name, view.settings, lambda: types)
    except NoSuchSchedule:
        raise Refused("404 Not Found", "there is no such schedule in the database") from None
    stored = evidence.stored
    now = view.times.now
    end = _instant(query.get("to")) or now
    begin = _instant(query.get("from")) or end - timedelta(hours=24)
    if not begin <= end <= begin + LONGEST:
        raise Refused("400 Bad Request", "from is before to, by at most 31 days")
    found, left_out = evidence.between(begin, end, SHOWN)
    told = [explain_occurrence(each) for each in found]
    first = first_quarter(now)
    letters = with_next(strips(connection, [stored.id], first, QUARTERS)[stored.id], stored.next_at, first, now)
    clock = view.times
    return view.page(
        safe(stored.name, 120),
        h("p", badge("paused"), f" {safe(stored.paused)}") if stored.paused else None,
        h("p", badge("retired")) if stored.status == "retired" else None,
        strip(view, stored.name, letters, first),
        legend(),
        _actions(stored, view),
        _definition(stored, view),
        h(
            "section",
            h("h2", "Occurrences"),
            h("p", f"from {clock.clock(begin)} to {clock.clock(end)}: {summary(counts_of(told), left_out)}"),
            _earlier(view, stored.name, begin, end),
            _told(told, view),
        ),
    )


def _instant(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        read = datetime.fromisoformat(text)
        if not 1974 <= read.year <= 9998:
            raise ValueError
        return read.replace(tzinfo=read.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refused("400 Bad Request", "from and to are instants: 2026-11-20T02:15:00Z") from None


def _earlier(view: View, name: str, begin: datetime, end: datetime) -> Html:
    span = end - begin
    earlier = view.link("earlier", "/schedule", name=name, **{"from": _iso(begin - span), "to": _iso(begin)})
    week = view.link("the last 7 days", "/schedule", name=name, **{"from": _iso(view.times.now - timedelta(days=7))})
    return h("p", earlier, " · ", week, class_="small")


def _iso(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


def _actions(stored: Any, view: View) -> Html | None:
    if not view.acts:
        return None
    pause = view.form(
        "/pause",
        "Pause",
        h("label", "why ", h("input", name="why", maxlength=200)),
        scope="schedule",
        name=stored.name,
    )
    resume = view.form("/resume", "Resume", scope="schedule", name=stored.name)
    trigger = view.form("/trigger", "Trigger", name=stored.name) if stored.status == "active" else None
    return h("div", trigger, resume if stored.paused else pause, class_="actions")


def _definition(stored: Any, view: View) -> Html:
    definition = view.settings.shown_definition(stored.definition)
    pairs: dict[str, Child] = {}
    for key, value in definition.items() if isinstance(definition, dict) else ():
        name, words = _in_words(key, value)
        pairs[safe(name.replace("_", " "), 60)] = words
    pairs["next"] = view.times.both(stored.next_at) if stored.next_at else "never"
    pairs["settled until"] = view.times.both(stored.seen_until)
    return h("section", h("h2", "Definition"), facts(pairs))


def _in_words(key: str, value: Any) -> tuple[str, str]:
    """A key of a definition, and its value; those that end in _s are seconds."""
    if key.endswith("_s") and isinstance(value, int | float):
        try:
            return key.removesuffix("_s"), duration_text(timedelta(seconds=value))
        except (ValueError, OverflowError):
            pass
    return key, safe(hidden_json(value) if isinstance(value, dict | list) else value, 500)


def _told(told: Sequence[Explanation], view: View) -> Child:
    """The newest first; of many that were as usual, one line in all."""
    if not told:
        return h("p", "no occurrence in that time", class_="nothing")
    parts: list[Child] = []
    for usual, alike in groupby(reversed(told), key=lambda each: each.usual):
        several = list(alike)
        if usual and len(several) > 3:
            newest, oldest = (view.times.clock(each.at) for each in (several[0], several[-1]) if each.at)
            words = f"{oldest} … {newest}: {len(several):,} jobs, each in time, and succeeded"
            parts.append(h("li", h("details", h("summary", words), h("ul", [_one(each, view) for each in several]))))
        else:
            parts += [_one(each, view) for each in several]
    return h("ul", parts, class_="told")


def _one(told: Explanation, view: View) -> Html:
    job = told.facts.get("job")
    job_id = job.get("id") if isinstance(job, dict) else None
    when = view.times.clock(told.at) if told.at else ""
    lines = [h("p", line) for line in told.sentences]
    leads = h("p", "job ", view.job(job_id)) if isinstance(job_id, int) else None
    return h("li", h("p", badge(told.verdict), " ", h("strong", when)), lines, leads)
