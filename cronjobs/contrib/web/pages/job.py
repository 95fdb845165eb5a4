"""One job's life: the sentences of explain, what it is, each attempt with error and output."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection

from cronjobs import masking
from cronjobs.contrib.web.html import Child, Html, h
from cronjobs.contrib.web.pages.jobs import is_dismissed
from cronjobs.contrib.web.request import Refused
from cronjobs.contrib.web.view import View, badge, facts, status, text_block
from cronjobs.desk.insight.explain_named import explain_id
from cronjobs.desk.insight.missing_job import missing_job
from cronjobs.desk.insight.saying import counted, died_lost, host_of, key_told, ordinal, ran_for, safe, took, tries
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.payload import BadJson
from cronjobs.engine.rules.progress import reported_of
from cronjobs.engine.store import listing
from cronjobs.model import Status, seconds_text
from cronjobs.reserved import EXEC_PREFIX

ATTEMPTS: Final = 20
LONGEST_JSON: Final = 20_000  # characters
CAN_RETRY: Final = (Status.DEAD, Status.CANCELLED, Status.FAILED)
CAN_CANCEL: Final = (Status.QUEUED, Status.FAILED, Status.RUNNING)


def job(connection: Connection, view: View, types: JobTypes, job_id: int) -> str:
    told = explain_id(connection, job_id, view.settings, lambda: types)
    row = listing.one_job(connection, job_id)
    if told is None and row is None:
        raise Refused("404 Not Found", missing_job(connection, job_id, view.settings.retention))
    sentences = h("ul", [h("li", line) for line in told.sentences], class_="told") if told else None
    if row is None:
        return view.page(f"Job {job_id}", sentences)
    count, runs = listing.attempts_of(connection, job_id, ATTEMPTS)
    return view.page(
        f"Job {job_id}",
        h("p", status(row.status, dismissed=is_dismissed(row)), " ", h("strong", safe(row.job_type))),
        sentences,
        _actions(row, view),
        _facts(row, view),
        _so_far(row),
        h("section", h("h2", "Attempts"), _attempts(count, runs, view)),
    )


def _actions(row: Any, view: View) -> Html:
    by_exec = row.job_type.startswith(EXEC_PREFIX)  # cron's to run, and to stop
    forms = [
        view.form(f"/jobs/{row.id}/retry", "Retry") if row.status in CAN_RETRY and not by_exec else None,
        view.form(f"/jobs/{row.id}/dismiss", "Dismiss") if _is_open(row) else None,
        view.form(f"/jobs/{row.id}/cancel", "Cancel") if row.status in CAN_CANCEL and not by_exec else None,
        view.form(f"/jobs/{row.id}/release", "Release") if row.status == Status.RUNNING else None,
    ]
    if not any(forms):  # programs look for the session's field here, whatever can be done with it
        forms = [h("form", view.csrf_field, hidden=True)]
    return h("div", forms, class_="actions")


def _is_open(row: Any) -> bool:
    """Whether it is dead, and nobody has dealt with it."""
    return bool(row.status == Status.DEAD and not is_dismissed(row))


def _facts(row: Any, view: View) -> Html:
    times = view.times
    payload = view.settings.shown_payload(row.job_type, row.payload, masking.keys_of_meta(row.meta))
    by = f" by {safe(row.enqueued_by, 120)}" if row.enqueued_by else ""
    ended = ""
    if row.finished_at is not None:
        ran = "" if died_lost(row.status, row.error_type) else took(row.started_at, row.finished_at)
        ended = times.both(row.finished_at) + (f", after {ran}" if ran else "")
    pairs: dict[str, Child] = {
        "tries": tries(row.failures, row.max_attempts),
        "lost": counted(row.losses, "time") if row.losses else "",
        "interrupted": counted(row.interruptions, "time") if row.interruptions else "",
        "due": times.both(row.run_at),
        "created": times.both(row.created_at) + by,
        "ended": ended,
        "schedule": view.schedule(row.schedule),
        "scheduled for": times.both(row.scheduled_for) if row.scheduled_for else "",
        "queue": f"{safe(row.queue)}, priority {row.priority}",
        "timeout": seconds_text(row.timeout_s) if row.timeout_s else "",
        "key": key_told(row._mapping, 500),
        "counts as": safe(row.concurrency_key, 500),
        "runs on": host_of(row.locked_by) if row.locked_by else "",
        "last error": h("pre", row.last_error, tabindex="0") if row.last_error else "",
        "payload": _json(payload),
        "meta": _json(row.meta) if row.meta != {} else "",
        "result": _json(row.result) if row.result is not None else "",
    }
    return h("section", h("h2", "Facts"), facts(pairs))


def _so_far(row: Any) -> Html | None:
    """The last that a running attempt has printed, as of its last renewal."""
    if row.status != Status.RUNNING or not row.live_output or reported_of(row.progress) is None:
        return None
    return h("section", h("h2", "Output so far"), h("pre", row.live_output, tabindex="0"))


def _json(value: Any) -> Child:
    if isinstance(value, BadJson):
        return f"cannot be read: {value.reason}"
    written = masking.hidden_json(value, indent=2)
    if len(written) > LONGEST_JSON:
        written = f"{written[:LONGEST_JSON]}\n… cronjobs jobs show --json has all of it"
    return h("pre", written, tabindex="0")


def _attempts(count: int, runs: Any, view: View) -> Child:
    if not runs:
        return h("p", "no attempt has ended yet", class_="nothing")
    left_out = count - len(runs)
    earlier = h("p", f"{counted(left_out, 'earlier attempt')}: cronjobs jobs show --json") if left_out else None
    return [earlier, h("ol", [_attempt(run, left_out + n, view) for n, run in enumerate(runs, 1)], class_="attempts")]


def _attempt(run: Any, number: int, view: View) -> Html:
    worker = f", worker {safe(run.worker, 40)}" if run.worker else ""
    ran = ran_for(run.outcome, run.started_at, run.finished_at)
    kind = f"{run.error_type}: " if run.error_type else ""
    return h(
        "li",
        h("h3", f"{ordinal(number)} attempt ", badge(run.outcome)),
        h("p", f"{view.times.both(run.started_at)}, {ran}, on {host_of(run.runner)}{worker}", class_="small"),
        h("pre", kind, run.error, tabindex="0") if run.error else None,
        text_block("traceback", run.traceback),
        text_block("output", run.output),
    )
