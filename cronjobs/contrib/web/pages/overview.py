"""The first page: what is wrong, and the schedules, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from cronjobs.contrib.web.html import Html, h, together
from cronjobs.contrib.web.strip import QUARTERS, first_quarter, strip, with_next
from cronjobs.contrib.web.view import View, badge, button, status, table
from cronjobs.desk.insight.finding import WELL
from cronjobs.desk.insight.findings import Finding, judge
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.saying import counted, safe
from cronjobs.desk.insight.schedule_facts import NO_RESULT, PRUNED, RunFacts, last_runs
from cronjobs.desk.insight.worst_first import worst_first
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store import quarters
from cronjobs.engine.store.schedule_runs import schedule_rows
from cronjobs.model import rough

SCHEDULES: Final = 50
FINDINGS: Final = 50
ACK_FOR: Final = {"8h": "8 hours", "1d": "a day", "7d": "7 days"}


def overview(connection: Connection, view: View, types: JobTypes, number: int = 1) -> str:
    """*number*: which fifty of the schedules."""
    health = look(connection, view.settings, types)
    found = judge(health, view.settings)
    return view.page(
        "Overview",
        h("section", h("h2", "Findings"), findings(found, view), id="findings"),
        totals(health, view),
        schedules_section(connection, health, view, number),
    )


# --- findings ---------------------------------------------------------------------------------------------------------


def findings(found: Sequence[Finding], view: View) -> Html:
    if not found:
        return h("p", f"All well: {WELL}.", class_="well")
    more = len(found) - FINDINGS
    rest = h("p", f"and {counted(more, 'more finding')}: cronjobs status --json") if more > 0 else None
    return h("div", h("ul", [_finding(each, view) for each in found[:FINDINGS]], class_="findings"), rest)


def _finding(finding: Finding, view: View) -> Html:
    kind = "acked" if finding.ack else finding.severity.value
    return h(
        "li",
        h("p", badge("acknowledged" if finding.ack else kind), " ", safe(finding.text, 600)),
        h("p", "since ", view.times.both(finding.since), class_="small") if finding.since else None,
        h("p", h("code", safe(finding.command, 600)), class_="small") if finding.command else None,
        _acknowledged(finding, view),
        class_=f"finding {kind}",
    )


def _acknowledged(finding: Finding, view: View) -> Html | None:
    ack, about = finding.ack, safe(finding.key, 80)
    if ack is not None:
        by = f" by {safe(ack.by, 80)}" if ack.by else ""
        why = f": {safe(ack.why, 200)}" if ack.why else ""
        told = h("p", f"acknowledged{by} until {view.times.clock(ack.until)}{why}", class_="small")
        return together(told, view.form("/findings/unack", button("Take this back", about), finding=finding.key))
    spans = [h("option", words, value=span, selected=span == "7d") for span, words in ACK_FOR.items()]
    form = view.form(
        "/findings/ack",
        "Acknowledge",
        h("label", "why ", h("input", name="why", maxlength=200, aria_label=f"why {about} is acknowledged")),
        h("label", "for ", h("select", spans, name="for", aria_label=f"for how long {about} is acknowledged")),
        finding=finding.key,
    )
    return form and h("details", h("summary", button("Acknowledge", about)), form)


# --- figures ----------------------------------------------------------------------------------------------------------


def totals(health: Health, view: View) -> Html:
    figures: list[tuple[str, int, dict[str, str]]] = [
        ("running", health.running_total, {"status": "running"}),
        ("due", health.total("due"), {"status": "queued"}),
        ("in the future", health.total("future"), {"status": "queued"}),
        ("retrying", health.total("failed"), {"status": "retrying"}),
        ("late", health.total("late"), {"status": "queued"}),
        ("dead in 24 h", health.dead["last_24h"], {"status": "dead"}),
        ("dead in all", health.dead["total"], {"status": "dead"}),
    ]
    cells = [
        h("li", view.link((h("strong", f"{count:,}"), " ", name), "/jobs", **where)) for name, count, where in figures
    ]
    return h("section", h("h2", "Jobs"), h("ul", cells, class_="figures"))


# --- schedules --------------------------------------------------------------------------------------------------------


def schedules_section(connection: Connection, health: Health, view: View, number: int = 1) -> Html:
    total = health.schedules.active
    ids = worst_first(connection, health, view.settings.run.every, number * SCHEDULES)[(number - 1) * SCHEDULES :]
    by_id = {row.id: row for row in schedule_rows(connection, ids)}
    shown = [by_id[each] for each in ids if each in by_id]
    first = first_quarter(view.times.now)
    strips = quarters.strips(connection, ids, first, QUARTERS)
    last = last_runs(connection, ids)
    rows = [
        [
            view.schedule(row.name),
            _last(last.get(row.id), view),
            badge("paused") if row.paused else view.instant(row.next_at),
            strip(view, row.name, with_next(strips[row.id], row.next_at, first, view.times.now), first),
        ]
        for row in shown
    ]
    begin = (number - 1) * SCHEDULES
    which = f"{begin + 1:,}–{begin + len(rows):,} of {counted(total, 'active schedule')}" if rows else ""
    return h(
        "section",
        h("h2", "Schedules"),
        h("p", f"{which}, the worst first, then by their next run; each strip is the last 24 hours", class_="small")
        if rows
        else None,
        table("Schedules", ["schedule", "last", "next", "last 24 h"], rows, nothing="no active schedule"),
        _pages(view, number, total),
        legend() if rows else None,
    )


def _last(run: RunFacts | None, view: View) -> Html | str:
    """What became of the newest run up to now, and when; how long its last attempt took, unless it waits again.

    It is dated as ``cronjobs status`` dates it: a run that came late is not as old as its occurrence.
    """
    if run is None:
        return "none yet"
    shown = badge("done, and pruned", "gone") if run.outcome == PRUNED else status(run.outcome)
    ran = f", took {rough(run.took)}" if run.took is not None and run.outcome not in NO_RESULT else ""
    return h("span", shown, " ", view.instant(run.at), ran)


def _pages(view: View, number: int, total: int) -> Html | None:
    if view.alone or total <= SCHEDULES:
        return None
    back = view.link("the fifty before", "/", page=number - 1 if number > 2 else "") if number > 1 else None
    more = view.link("the next fifty", "/", page=number + 1) if number * SCHEDULES < total else None
    return h("nav", back, " " if back and more else None, more, aria_label="More schedules", class_="pages")


def legend() -> Html:
    words = ("succeeded", "coalesced", "skipped", "waiting", "running", "cancelled", "retrying", "missed", "dead")
    return h("ul", [h("li", h("span", class_=f"key q-{word}"), f" {word}") for word in words], class_="legend")
