"""Jobs by filter, and what went wrong with those that failed, grouped by error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection
from werkzeug.exceptions import BadRequest

from cronjobs.contrib.web.lines import beside
from cronjobs.contrib.web.progress import Progress, progress_of
from cronjobs.contrib.web.view import View
from cronjobs.desk.insight.saying import counted, host_of, safe, status_word, took, tries
from cronjobs.engine.jobs.job_types import JobTypes
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
LONGEST_NOTE: Final = 2_000  # characters, of which a line shows as many as there is room for


def jobs(connection: Connection, view: View, _types: JobTypes) -> str:
    query = view.query
    asked = "retrying" if query.get("status") == "failed" else query.get("status", "")
    if asked and asked not in STATUS_WORDS:
        raise BadRequest(f"a status is one of {', '.join(STATUS_WORDS)}")
    text = query.get("limit", "")
    limit = max(1, min(MOST_SHOWN, int(text[:4]))) if text.isascii() and text.isdecimal() else SHOWN
    wanted = Filter(
        status=STATUS_WORDS.get(asked),
        job_type=query.get("type") or None,
        queue=query.get("queue") or None,
        schedule=query.get("schedule") or None,
        error_type=query.get("error") or None,
    )
    key = query.get("key")
    rows = _with_key(connection, key, wanted) if key else listing.list_jobs(connection, wanted, limit + 1)
    return view.page(
        "jobs.html",
        statuses=STATUS_WORDS,
        asked=asked,
        fields=FIELDS,
        given={name: value for name, value in query.items() if name in ("status", "error", *FIELDS)},
        jobs=listed(rows[:limit], view),
        more=len(rows) > limit,
        limit=limit,
        most=MOST_SHOWN,
        errors=None if key else errors(connection, wanted),
    )


def _with_key(connection: Connection, key: str, wanted: Filter) -> Sequence[Any]:
    """The one job with this idempotency key, if the other filters choose it, too."""
    job_id = explaining.job_of_key(connection, key)
    row = None if job_id is None else listing.one_job(connection, job_id)
    asked = {name: value for name, value in vars(wanted).items() if value is not None}
    return [row] if row is not None and all(row._mapping[name] == value for name, value in asked.items()) else []


def listed(rows: Sequence[Any], view: View) -> list[tuple[Any, bool, str, Progress | None]]:
    """Rows of "jobs_table.html": the job, whether it is dismissed, a note, how far it has come."""
    return [(row, is_dismissed(row), _note(row, view), how_far(row, view)) for row in rows]


def how_far(row: Any, view: View) -> Progress | None:
    return progress_of(row.progress, row.started_at, view.times.now) if row.status == Status.RUNNING else None


def is_dismissed(row: Any) -> bool:
    return row.dismissed_at is not None and row.status == Status.DEAD and row.dismissed_at >= row.finished_at


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
            error = safe(beside(row.last_error), LONGEST_NOTE)
    told = ", ".join(part for part in parts if part)
    return ": ".join(part for part in (told, error) if part)


def errors(connection: Connection, wanted: Filter) -> list[Any] | None:
    """The jobs that failed or died, by their error, of what the filters choose; None: they choose no such jobs."""
    statuses = (Status.FAILED, Status.DEAD) if wanted.status is None else (wanted.status,)
    if not set(statuses) & {Status.FAILED, Status.DEAD}:
        return None
    return [*grouped(listing.error_groups(connection, wanted, statuses, GROUPED_ROWS), GROUPS_SHOWN)]
