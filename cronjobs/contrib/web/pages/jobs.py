"""Jobs by filter, and what went wrong with those that failed, grouped by error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.contrib.web.html import Child, Html, h
from cronjobs.contrib.web.request import Refused
from cronjobs.contrib.web.view import View, status, table
from cronjobs.desk.insight.saying import counted, host_of, safe, status_word, took, tries
from cronjobs.engine.rules.error_groups import grouped
from cronjobs.engine.store import explaining, listing
from cronjobs.engine.store.listing import Filter
from cronjobs.model import Status, rough

SHOWN: Final = 50
MOST_SHOWN: Final = 500
GROUPS_SHOWN: Final = 10
GROUPED_ROWS: Final = 2_000  # kinds and texts of errors that are read, the most frequent ones; the rest is counted
STATUS_WORDS: Final = {status_word(each): each for each in Status}
FIELDS: Final = {"type": "type", "queue": "queue", "schedule": "schedule", "key": "idempotency key"}


def jobs(connection: Connection, view: View, query: Mapping[str, str]) -> str:
    chosen = STATUS_WORDS.get("retrying" if query.get("status") == "failed" else query.get("status", ""))
    if query.get("status") and chosen is None:
        raise Refused("400 Bad Request", f"a status is one of {', '.join(STATUS_WORDS)}")
    limit = min(MOST_SHOWN, int(query["limit"])) if query.get("limit", "").isdecimal() else SHOWN
    wanted = Filter(
        status=chosen,
        job_type=query.get("type") or None,
        queue=query.get("queue") or None,
        schedule=query.get("schedule") or None,
        error_type=query.get("error") or None,
    )
    rows = _with_key(connection, query["key"], wanted) if query.get("key") else None
    if rows is None:
        rows = listing.list_jobs(connection, wanted, limit + 1)
    given = {name: value for name, value in query.items() if name in ("status", "error", *FIELDS)}
    more = view.link("more", "/jobs", **given, limit=min(MOST_SHOWN, limit * 4)) if len(rows) > limit else None
    return view.page(
        "Jobs",
        _filters(view, query),
        jobs_table(rows[:limit], view),
        h("p", f"the first {limit:,} are shown; ", more if limit < MOST_SHOWN else "choose fewer by the filters")
        if more
        else None,
        errors_section(connection, view, wanted) if not query.get("key") else None,
    )


def _with_key(connection: Connection, key: str, wanted: Filter) -> Sequence[Any]:
    """The one job with this idempotency key, if the other filters choose it, too."""
    job_id = explaining.job_of_key(connection, key)
    row = None if job_id is None else listing.one_job(connection, job_id)
    asked = {name: value for name, value in vars(wanted).items() if value is not None}
    return [row] if row is not None and all(row._mapping[name] == value for name, value in asked.items()) else []


def _filters(view: View, query: Mapping[str, str]) -> Html:
    options = [h("option", "any", value="")]
    asked = "retrying" if query.get("status") == "failed" else query.get("status")
    options += [h("option", word, value=word, selected=word == asked) for word in STATUS_WORDS]
    fields: list[Child] = [h("label", "status ", h("select", options, name="status"))]
    for name, words in FIELDS.items():
        fields.append(h("label", f"{words} ", h("input", name=name, value=query.get(name, ""), maxlength=2000)))
    hidden = h("input", type="hidden", name="error", value=query["error"]) if query.get("error") else None
    return h("form", fields, hidden, h("button", "Show"), action=view.url("/jobs"), role="search", class_="filters")


def jobs_table(rows: Sequence[Any], view: View, caption: str = "Jobs") -> Html:
    header = ["id", "status", "type", "when", "schedule", "note"]
    cells = [
        [
            view.job(row.id),
            status(row.status, dismissed=is_dismissed(row)),
            safe(row.job_type, 120),
            _when(row, view),
            view.schedule(row.schedule),
            _note(row, view),
        ]
        for row in rows
    ]
    return table(caption, header, cells, nothing="no such job")


def is_dismissed(row: Any) -> bool:
    return row.dismissed_at is not None and row.status == Status.DEAD and row.dismissed_at >= row.finished_at


def _when(row: Any, view: View) -> Child:
    match row.status:
        case Status.QUEUED | Status.FAILED:
            return h("span", "" if row.run_at > view.times.now else "due ", view.instant(row.run_at))
        case Status.RUNNING:
            return view.times.lasting(row.started_at) if row.started_at else ""
    return view.instant(row.finished_at)


def _note(row: Any, view: View) -> str:
    failed = tries(row.failures, row.max_attempts)
    lost = f"lost {counted(row.losses, 'time')}" if row.losses else ""
    queue = "" if row.queue == "default" else f"queue {safe(row.queue, 80)}"
    error = ""
    match row.status:
        case Status.SUCCEEDED:
            parts = [took(row.started_at, row.finished_at), failed, queue]
        case Status.RUNNING:
            late = row.locked_until < view.times.now
            lease = f"lease ended {rough(row.locked_until - view.times.now)} ago" if late else ""
            parts = [f"on {host_of(row.locked_by)}", lease, failed, queue]
        case _:
            parts = [failed, lost, queue]
            error = safe(row.last_error)
    told = ", ".join(part for part in parts if part)
    return ": ".join(part for part in (told, error) if part)


# --- errors -----------------------------------------------------------------------------------------------------------


def errors_section(connection: Connection, view: View, wanted: Filter) -> Html | None:
    """The jobs that failed or died, by their error; of what the filters choose."""
    statuses = (Status.FAILED, Status.DEAD) if wanted.status is None else (wanted.status,)
    if not set(statuses) & {Status.FAILED, Status.DEAD}:
        return None
    groups = grouped(listing.error_groups(connection, wanted, statuses, GROUPED_ROWS), GROUPS_SHOWN)
    cells: list[list[Child]] = [
        [
            f"{group.jobs:,}",
            h("span", f"{safe(group.error_type, 120)}: " if group.error_type else "", safe(group.message, 400)),
            ", ".join(safe(name, 60) for name in sorted(group.job_types)[:4]),
            view.instant(group.last_seen_at),
            view.job(group.sample_job_id),
        ]
        for group in groups
    ]
    header = ["jobs", "error", "types", "last seen", "such as job"]
    return h("section", h("h2", "Errors"), table("Errors", header, cells, nothing="no job has failed"))
