"""The page of one job: the sentences of ``cronjobs explain``, the columns, and each attempt's error and output."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection
from werkzeug.exceptions import NotFound

from cronjobs import masking
from cronjobs.contrib.web.bounded_search import allows
from cronjobs.contrib.web.bulk import CHANGES
from cronjobs.contrib.web.pages.jobs import how_far
from cronjobs.contrib.web.view import View
from cronjobs.desk.insight.explain_named import explain_id
from cronjobs.desk.insight.job_notes import is_dismissed
from cronjobs.desk.insight.missing_job import missing_job
from cronjobs.desk.insight.stopped_jobs import settling, stopped_jobs
from cronjobs.desk.store import listing
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.causes import cause_of
from cronjobs.engine.rules.payload import BadJson
from cronjobs.engine.rules.progress import reported_of
from cronjobs.engine.store import shown_columns
from cronjobs.model import Status

ATTEMPTS: Final = 20
LAST_LINES: Final = 20  # show this many lines of a running job's output, and fold the earlier lines
LONGEST_JSON: Final = 20_000  # characters


def job(connection: Connection, view: View, types: JobTypes, job_id: int) -> str:
    explanation = explain_id(connection, job_id, view.settings, lambda: types)
    row = shown_columns.one_job(connection, job_id)
    if explanation is None and row is None:
        raise NotFound(missing_job(connection, job_id, view.settings.retention))
    about: dict[str, Any] = {"job_id": job_id, "sentences": explanation.sentences if explanation else (), "job": row}
    if row is None:
        return view.page("job.html", **about)
    count, runs = listing.attempts_of(connection, job_id, ATTEMPTS)
    payload = view.settings.shown_payload(row.job_type, row.payload, masking.keys_of_meta(row.meta))
    earlier, so_far = _so_far(row)
    unsettled = stopped_jobs(connection, [job_id]).get(job_id)
    return view.page(
        "job.html",
        **about,
        dismissed=is_dismissed(row._mapping),
        cause=_cause(row),
        verbs=[verb for verb in _verbs(row) if verb != "retry" or unsettled is None],
        settle=None if unsettled is None else settling(unsettled),
        json={
            "payload": _json(payload),
            "meta": _json(row.meta) if row.meta != {} else "",
            "result": _json(row.result) if row.result is not None else "",
        },
        earlier=earlier,
        so_far=so_far,
        progress=how_far(row, view),
        # Each attempt shows its own error. So show the job's error only if no attempt has the same error, as after a
        # deadline.
        last_error=row.last_error if row.last_error not in [run.error for run in runs] else None,
        runs=runs,
        left_out=count - len(runs),
    )


def _cause(row: Any) -> str | None:
    """Return the key of the job's cause of death, or None if the job is not dead or was dismissed."""
    if row.status != Status.DEAD or is_dismissed(row._mapping):
        return None
    return cause_of(row.job_type, row.error_type, row.last_error).key


def _so_far(row: Any) -> tuple[str, str]:
    """Return the output of a running attempt in two parts: the earlier output, and the last lines."""
    if row.status != Status.RUNNING or not row.live_output or reported_of(row.progress) is None:
        return "", ""
    lines = str(row.live_output).splitlines(keepends=True)
    return "".join(lines[:-LAST_LINES]), "".join(lines[-LAST_LINES:])


def _verbs(row: Any) -> list[str]:
    found = [verb for verb in CHANGES if allows(verb, row.job_type, row.status)]
    if is_dismissed(row._mapping):
        found.remove("dismiss")
    return [*found, "release"] if row.status == Status.RUNNING else found


def _json(value: Any) -> str:
    if isinstance(value, BadJson):
        return f"cannot be read: {value.reason}"
    written = masking.hidden_json(value, indent=2)
    if len(written) > LONGEST_JSON:
        written = f"{written[:LONGEST_JSON]}\n… cronjobs jobs show --json has all of it"
    return written
