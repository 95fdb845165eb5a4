"""The page of one schedule: its strip, its definition, and its occurrences in the words of ``cronjobs explain``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Connection
from werkzeug.exceptions import BadRequest, NotFound

from cronjobs.contrib.web.schedule_strip import LEGEND, QUARTERS, Strip, first_quarter, hours_below, iso
from cronjobs.contrib.web.view import View
from cronjobs.desk.insight.evidence import NoSuchSchedule, ScheduleEvidence
from cronjobs.desk.insight.explain_facts import Explanation
from cronjobs.desk.insight.explain_occurrence import counts_of, explain_occurrence, summary
from cronjobs.desk.insight.formatting import safe, status_word
from cronjobs.desk.insight.schedule_facts import really_next
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.occurrences import only_ran_early
from cronjobs.engine.store.quarters import strips
from cronjobs.masking import hidden_json
from cronjobs.model import Status, duration_text

SHOWN: Final = 50
LONGEST: Final = timedelta(days=31)
FOLDED: Final = 3  # more usual occurrences in a row than this share one line


def schedule(connection: Connection, view: View, types: JobTypes) -> str:
    name = view.query.get("name", "")
    try:
        evidence = ScheduleEvidence(connection, name, view.settings, lambda: types)
    except NoSuchSchedule:
        raise NotFound("there is no such schedule in the database") from None
    stored = evidence.stored
    now = view.times.now
    end = _instant(view.query.get("to")) or now
    begin = _instant(view.query.get("from")) or end - timedelta(hours=24)
    if not begin <= end <= begin + LONGEST:
        raise BadRequest("from must be before to, and at most 31 days earlier")
    found, left_out = evidence.between(begin, end, SHOWN)
    explanations = [explain_occurrence(each) for each in found]
    letters = strips(connection, [stored.id], first_quarter(now), QUARTERS)[stored.id]
    return view.page(
        "schedule.html",
        stored=stored,
        strip=Strip(stored.name, letters, first_quarter(now)),
        legend=LEGEND,
        hours=hours_below(first_quarter(now), view.times),
        definition=_definition(stored, really_next(connection, {stored.name: stored.next_at})[stored.name], view),
        begin=begin,
        end=end,
        summary=summary(counts_of(explanations), left_out),
        earlier={"from": iso(begin - (end - begin)), "to": iso(begin)},
        week={"from": iso(now - timedelta(days=7))},
        explanations=_alike(explanations),
        badge=badge,
    )


def badge(explanation: Explanation) -> tuple[str, str]:
    """Return an occurrence's outcome in words, and the name of its colour.

    If the occurrence made a job, the outcome is the job's status, or "pruned" or "dead, and pruned" if the job is gone.
    """
    job, facts = explanation.facts.get("job"), explanation.facts
    if explanation.verdict != "enqueued":
        return explanation.verdict, explanation.verdict
    ledger = facts.get("ledger") or {}
    ended = (
        (job["status"], job.get("attempt"), job.get("started_at")) if isinstance(job, Mapping) else (None, None, None)
    )
    if explanation.at is not None and only_ran_early(ledger.get("reason"), explanation.at, *ended):
        return "ran early", "early"
    if not isinstance(job, Mapping):
        return ("dead, and pruned", "dead") if facts.get("pruned_dead") else ("pruned", "gone")
    if job["status"] == Status.DEAD and job.get("dismissed"):
        return "dead, dismissed", "dismissed"
    word = status_word(job["status"])
    return word, word


def _instant(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        read = datetime.fromisoformat(text)
        if not 1974 <= read.year <= 9998:
            raise ValueError
        return read.replace(tzinfo=read.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadRequest('the parameters "from" and "to" must be instants, such as 2026-11-20T02:15:00Z') from None


def _definition(stored: Any, next_at: datetime | None, view: View) -> dict[str, str]:
    definition = view.settings.shown_definition(stored.definition)
    pairs = {}
    for key, value in definition.items() if isinstance(definition, dict) else ():
        name, words = _in_words(key, value)
        pairs[safe(name.replace("_", " "), 60)] = words
    pairs["next"] = view.times.both(next_at) if next_at else "never"
    pairs["settled until"] = view.times.both(stored.seen_until)
    return pairs


def _in_words(key: str, value: Any) -> tuple[str, str]:
    """Return the name of a definition's key, without _s for seconds, and the value in words."""
    if key.endswith("_s") and isinstance(value, int | float):
        try:
            return key.removesuffix("_s"), duration_text(timedelta(seconds=value))
        except (ValueError, OverflowError):
            pass
    return key, safe(hidden_json(value) if isinstance(value, dict | list) else value, 500)


def _alike(explanations: Sequence[Explanation]) -> list[tuple[bool, list[Explanation]]]:
    """Group the occurrences, newest first. True marks a group to fold, of more than FOLDED usual occurrences."""
    groups = [(usual, [*several]) for usual, several in groupby(reversed(explanations), key=lambda each: each.usual)]
    return [(usual and len(several) > FOLDED, several) for usual, several in groups]
