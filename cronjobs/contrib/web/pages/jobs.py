"""The page of jobs that match a search: the jobs, the actions for them, and the errors of failed jobs in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection
from werkzeug.exceptions import BadRequest

from cronjobs import masking
from cronjobs.contrib.web import bounded_search
from cronjobs.contrib.web.bounded_search import Looked, Place
from cronjobs.contrib.web.bulk import verbs_for
from cronjobs.contrib.web.progress import Progress, progress_of
from cronjobs.contrib.web.templating import beside
from cronjobs.contrib.web.view import View
from cronjobs.desk.cli.known_types import most_tries
from cronjobs.desk.insight.formatting import safe
from cronjobs.desk.insight.job_notes import is_dismissed, note
from cronjobs.desk.insight.releasing import Holders
from cronjobs.desk.insight.searching import STATUS_WORDS, Search, search
from cronjobs.desk.store import listing
from cronjobs.desk.store.listing import Filter
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.error_groups import ErrorGroup, grouped
from cronjobs.engine.rules.payload import BadJson
from cronjobs.errors import UsageError
from cronjobs.model import Status

SHOWN: Final = 50
MOST_SHOWN: Final = 500
GROUPS_SHOWN: Final = 10
ERRORS_READ: Final = 2_000  # read the errors of this many of the newest dead jobs, and of as many failed jobs
LONGEST_NOTE: Final = 2_000  # in characters; the line shows as many as fit
FIELDS: Final = ("type", "status", "error", "queue", "schedule", "key")  # an address may have these instead of "q"
SORTS: Final = {
    "-id": "newest first",
    "id": "oldest first",
    "-ended": "last ended first",
    "ended": "first ended first",
    "due": "first due first",
    "-due": "last due first",
}


class Errors(NamedTuple):
    """Errors in groups. ``unread`` is true if there are earlier errors that were not read."""

    groups: Sequence[ErrorGroup]
    unread: bool


def jobs(connection: Connection, view: View, _types: JobTypes) -> str:
    query = view.query
    text = query.get("limit", "")
    limit = max(1, min(MOST_SHOWN, int(text[:4]))) if text.isascii() and text.isdecimal() else SHOWN
    typed, wrong = typed_in(query), ""
    asked, wanted = Search(), Filter()
    try:
        asked = search(typed)
        wanted = asked.wanted(view.times)
    except UsageError as error:
        wrong = str(error)
    sorts = bounded_search.sorts_of(wanted)
    sort = query.get("sort", "") if query.get("sort") in sorts else sorts[0]
    after = _place(query.get("after", ""), sort)
    looked = Looked() if wrong else bounded_search.look(connection, wanted, sort, after, limit)
    return view.page(
        "jobs.html",
        typed=typed,
        wrong=wrong,
        statuses=_other_statuses(asked, wrong),
        asked_status=asked.status or "",
        sorts={} if wrong else {each: SORTS[each] for each in sorts},
        sort=sort,
        usual=sorts[0],
        limit=limit if limit != SHOWN else None,
        jobs=listed(looked.jobs, view),
        looked=looked,
        onward=None if looked.place is None else _written(looked.place),
        began=after is None,
        verbs=[] if wrong else verbs_for(wanted),
        errors=None if wrong or not _is_plain(wanted) else errors(connection, wanted),
        errors_read=ERRORS_READ,
    )


def typed_in(query: Mapping[str, str]) -> str:
    """Return the text of the search field: the address's "q", or else a search made of its FIELDS."""
    if "q" in query:
        return query["q"]
    given: dict[str, Any] = {name: query[name] for name in FIELDS if query.get(name, "").strip()}
    return str(Search(**given))


def _other_statuses(asked: Search, wrong: str) -> dict[str, str]:
    """Return the search *asked* as text: once with each status, and once without a status."""
    if wrong or asked.cause is not None:
        return {}
    with_each = {word: vars(asked) | {"status": word} for word in STATUS_WORDS}
    return {word: str(Search(**given)) for word, given in ({"": vars(asked) | {"status": None}} | with_each).items()}


def _is_plain(wanted: Filter) -> bool:
    return not (wanted.type_part or wanted.error_part or wanted.cause or wanted.key or wanted.ids)


def _written(place: Place) -> str:
    return f"{place.job_id}" if place.at is None else f"{place.job_id},{place.at.isoformat()}"


def _place(text: str, sort: str) -> Place | None:
    """Parse the position from which the list continues. Raises BadRequest."""
    if not text:
        return None
    number, _, at = text.partition(",")
    by_id = sort.lstrip("-") == "id"
    try:
        if bool(at) is by_id or not (number.isascii() and number.isdecimal() and len(number) < 20):
            raise ValueError
        place = Place(datetime.fromisoformat(at) if at else None, int(number))
        if place.job_id >= 2**63 or (place.at is not None and place.at.tzinfo is None):
            raise ValueError
    except ValueError:
        raise BadRequest("the address has an invalid position to continue from") from None
    return place


def listed(rows: Sequence[Any], view: View) -> list[tuple[Any, bool, str, Progress | None]]:
    """Return rows for "jobs_table.html": the job, whether it is dismissed, a note, and its progress."""
    found, holders = [], Holders()
    for row in rows:
        job, error = row._mapping, safe(beside(row.last_error), LONGEST_NOTE)
        most = most_tries(row.job_type, row.max_attempts, view.settings, None)
        said = note(job, view.times, holders, most=most, error=error, otherwise=_payload(row, view))
        found.append((row, is_dismissed(job), said, how_far(row, view)))
    return found


def how_far(row: Any, view: View) -> Progress | None:
    return progress_of(row.progress, row.started_at, view.times.now) if row.status == Status.RUNNING else None


def _payload(row: Any, view: View) -> str:
    """Return a job's payload as text. In a row without an error, the payload shows how jobs of the same type differ.

    A standalone report may be sent to other people, so it has no payloads.
    """
    if view.alone or row.payload in ({}, None) or isinstance(row.payload, BadJson):
        return ""
    payload = view.settings.shown_payload(row.job_type, row.payload, masking.keys_of_meta(row.meta))
    return safe(masking.hidden_json(payload)[:LONGEST_NOTE], LONGEST_NOTE)


def errors(connection: Connection, wanted: Filter) -> Errors | None:
    """Group the newest failed and dead jobs that match *wanted* by error. Return None if only other statuses match."""
    statuses = tuple(status for status in (Status.DEAD, Status.FAILED) if status in wanted.possible_statuses)
    if not statuses:
        return None
    rows = listing.error_groups(connection, replace(wanted, statuses=statuses), 2 * ERRORS_READ, newest=ERRORS_READ)
    groups = grouped(rows, GROUPS_SHOWN)
    return Errors(groups, any(listing.more_than(connection, each, wanted.since, ERRORS_READ) for each in statuses))
