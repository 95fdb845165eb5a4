"""One cause of deaths: its jobs, when they died, a traceback, and the actions for all of them."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.contrib.web.bounded_search import allows
from cronjobs.contrib.web.bulk import CHANGES
from cronjobs.contrib.web.pages.jobs import SHOWN, listed
from cronjobs.contrib.web.view import View
from cronjobs.desk.insight.causes import READ, Causes, find_cause
from cronjobs.desk.store import listing
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.causes import Cause
from cronjobs.model import Status

CAUSES: Final = 10


def cause(connection: Connection, view: View, _types: JobTypes, key: str) -> str:
    """Return the page about a cause, even if no dead job has it any more."""
    found, ids = find_cause(connection, key)
    _, runs = (0, ()) if found is None else listing.attempts_of(connection, found.sample_job_id, 1)
    return view.page(
        "cause.html",
        cause=found,
        verbs=[] if found is None else verbs(found),
        read=READ,
        jobs=listed(listing.jobs_by_id(connection, ids[:SHOWN]), view),
        more=len(ids) > SHOWN,
        run=runs[0] if runs else None,
    )


def verbs(cause: Cause) -> list[str]:
    """Return the actions that can be applied to the jobs of the cause."""
    return [verb for verb in CHANGES if allows(verb, cause.name.job_type, Status.DEAD)]


def causes_section(why: Causes) -> dict[str, Any]:
    """Return the values for "causes.html"."""
    return {
        "causes": [(each, verbs(each)) for each in why.found[:CAUSES]],
        "more_causes": max(0, len(why.found) - CAUSES),
        "deaths_read": READ if why.unread else None,
    }
