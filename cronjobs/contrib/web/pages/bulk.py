"""The page of a change to many jobs: what it will do, how far it has come, and at its end what is still wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.contrib.web import bounded_search
from cronjobs.contrib.web.bounded_search import Bulk
from cronjobs.contrib.web.bulk import AT_MOST, CHANGES, MEANS, Step
from cronjobs.contrib.web.pages.overview import wrong_sections
from cronjobs.contrib.web.view import View
from cronjobs.desk.insight.causes import find_cause
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.searching import MOST_IDS
from cronjobs.desk.store import listing
from cronjobs.desk.store.listing import Filter
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.causes import CauseName, cause_of
from cronjobs.errors import UsageError

KINDS_SHOWN: Final = 20
ATTEMPTS_READ: Final = 5  # the last failed attempt of a changed job is among this many of its newest attempts


def bulk(connection: Connection, view: View, types: JobTypes) -> str:
    verb, given = view.query.get("verb", ""), dict(view.query)
    if "job" in given:
        given["q"] = " ".join(given["job"].split(",")[: MOST_IDS + 1])
    elif "all" in given:
        given.setdefault("q", "")
    if "upper" not in given:
        newest = {"upper": str(bounded_search.newest_id(connection)), "as_of": view.times.now.isoformat()}
        given = {name: given[name] for name in ("q", "why") if name in given} | newest
    if verb in CHANGES and "q" not in given:
        return view.page("bulk.html", **_nothing(verb, "select at least one job first"))
    step = Step.read(given, verb, view.times.now)
    try:
        wanted = step.bulk(view.times)
    except UsageError as error:
        return view.page("bulk.html", **_nothing(verb, str(error), step.typed))
    began = step.below != step.upper
    kinds = bounded_search.kinds(connection, wanted, step.below) if step.below else bounded_search.Kinds()
    passed = bounded_search.kinds(connection, wanted, step.upper, above=step.below) if began else bounded_search.Kinds()
    done = bounded_search.done_so_far(connection, wanted, step.filter)
    to_do = sum(kinds.jobs.values())
    most = kinds.jobs.most_common(KINDS_SHOWN)
    ended = began and not to_do and not kinds.read
    return view.page(
        "bulk_ended.html" if ended else "bulk.html",
        verb=verb,
        word=CHANGES[verb][1],
        wrong="",
        typed=step.typed,
        cause=_cause(connection, wanted, step.filter),
        means=MEANS[verb],
        step=step,
        began=began,
        count=to_do,
        read=kinds.read,
        next=min(to_do, AT_MOST),
        at_most=AT_MOST,
        kinds=most,
        others=to_do - sum(count for _, count in most),
        done=sum(done.values()),
        by=done.most_common(),
        asked=bounded_search.asked_so_far(connection, wanted, step.filter) if verb == "cancel" else 0,
        left=sum(passed.jobs.values()),
        **(wrong_sections(connection, look(connection, view.settings, types), view) if ended else {}),
    )


def _nothing(verb: str, wrong: str, typed: str = "") -> dict[str, Any]:
    return {"verb": verb, "wrong": wrong, "typed": typed, "cause": None}


def _cause(connection: Connection, bulk: Bulk, of: Mapping[str, str]) -> CauseName | None:
    """Return the name of the cause, if the search is for one cause and nothing else.

    When the change has ended, no dead job has the cause any more. Then take the name from an attempt of a changed job,
    or return None if these attempts have been pruned.
    """
    key = bulk.wanted.cause
    if key is None or bulk.wanted != Filter(cause=key):
        return None
    found, _ = find_cause(connection, key)
    if found is not None:
        return found.name
    for job in listing.jobs_by_id(connection, bounded_search.some_done(connection, bulk, of)):
        _, attempts = listing.attempts_of(connection, job.id, ATTEMPTS_READ)
        errors = [(job.error_type, job.last_error), *((each.error_type, each.error) for each in attempts)]
        for name in (cause_of(job.job_type, *error) for error in errors):
            if name.key == key:
                return name
    return None
