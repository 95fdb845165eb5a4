"""``cronjobs jobs list`` and ``show``: list jobs; show one with its attempts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final

import typer

from cronjobs import masking
from cronjobs.desk.cli.filters import ALL, Filters
from cronjobs.desk.cli.known_types import known_types, most_tries
from cronjobs.desk.cli.options import JsonOption, Source
from cronjobs.desk.cli.output import (
    COLOURS,
    block,
    columns_of,
    labelled,
    name_text,
    table,
    width,
    wrapped,
    write,
    write_list,
)
from cronjobs.desk.cli.output import first as limited
from cronjobs.desk.cli.project_database import snapshot
from cronjobs.desk.insight.explain_job import what_comes_next
from cronjobs.desk.insight.explain_named import job_in_full
from cronjobs.desk.insight.formatting import (
    Times,
    counted,
    died_lost,
    host_of,
    key_text,
    ran_for,
    safe,
    status_word,
    took,
    tries,
    without_attempts,
)
from cronjobs.desk.insight.job_notes import is_dismissed, note
from cronjobs.desk.insight.missing_job import missing_job
from cronjobs.desk.insight.releasing import Holders
from cronjobs.desk.store import listing
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import coloured, json_text
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.rules.error_groups import ROWS_AT_MOST, class_and_text, grouped
from cronjobs.engine.rules.payload import BadJson
from cronjobs.engine.store import shown_columns
from cronjobs.engine.store.pruning import STRIPPED
from cronjobs.errors import CronjobsError, UsageError
from cronjobs.model import Status, seconds_text

ATTEMPTS_SHOWN = 20
TYPES_SHOWN: Final = 4
FAILED: Final = (Status.FAILED, Status.DEAD)


class GroupBy(StrEnum):
    ERROR = "error"


# --- list -------------------------------------------------------------------------------------------------------------


def list_jobs(
    source: Source,
    filters: Filters = ALL,
    group_by: Annotated[
        GroupBy | None,
        typer.Option(
            metavar="error",
            help="Group jobs that have the same error. Without --status: only jobs that failed or are dead.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1_000_000, help="Show at most this many.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first; with --status succeeded, dead or cancelled, most recently ended first.

    --json prints an array with one object per job. The keys are the columns of cronjobs_jobs. With --group-by error the
    array has one object per error: error_type, message (without numbers, ids and quoted values), job_types, jobs (how
    many), first_seen_at, last_seen_at, sample_job_id.
    """
    with snapshot(source, only_database=True) as (settings, connection, times):
        wanted = filters.wanted(times)
        if group_by is GroupBy.ERROR:
            if wanted.cause is not None:
                raise UsageError("--group-by error needs different errors, but all jobs of a cause have the same error")
            failed = replace(wanted, statuses=wanted.statuses or FAILED)
            groups = [asdict(group) for group in grouped(listing.error_groups(connection, failed, ROWS_AT_MOST))]
            write_list(groups, limit, as_json, lambda shown: _group_lines(shown, times), "no job with an error")
            return
        found = listing.list_jobs(connection, wanted, limit + 1)
        rows = [_shown(columns_of(row), settings) for row in found]
    nothing = "no job matches the filter" if filters.given else "no job"
    write_list(rows, limit, as_json, lambda shown: _table(shown, times, settings), nothing)


def _shown(job: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return *job* with the secrets of its payload masked."""
    secret_keys = masking.keys_of_meta(job["meta"])
    return job | {"payload": settings.shown_payload(job["job_type"], job["payload"], secret_keys)}


def _group_lines(groups: Sequence[Mapping[str, Any]], times: Times) -> list[str]:
    """Return two or more lines per group, so that long error messages are shown in full."""
    number = max((len(f"{group['jobs']:,}") for group in groups), default=0)
    room, indent = width() - number - 2, " " * (number + 2)
    lines = []
    for group in groups:
        message = class_and_text(safe(group["error_type"], 120), safe(group["message"]) or "(no message)")
        error, *rest = wrapped(message, room)
        lines += [f"{group['jobs']:>{number},}  {coloured(error, 'yellow')}", *(indent + line for line in rest)]
        # The rows of these jobs were not read, so only their number is known.
        if group["sample_job_id"] is None:
            continue
        first, last = (times.ago(at) if at else "" for at in (group["first_seen_at"], group["last_seen_at"]))
        seen = f"seen {last}" if first == last else f"first seen {first}, last {last}"
        types = ", ".join(name_text(name) for name in limited(sorted(group["job_types"]), TYPES_SHOWN))
        lines += [indent + line for line in wrapped(f"{types}; {seen}; e.g. job {group['sample_job_id']}", room)]
    return lines


def _table(jobs: Sequence[Mapping[str, Any]], times: Times, settings: Settings) -> list[str]:
    room = width()
    # If the terminal is wide enough, show the schedule as well, since several schedules may use the same job type.
    with_schedule = room >= 100 and any(job["schedule"] for job in jobs)
    rows, holders = [], Holders()
    for job in jobs:
        row = [
            str(job["id"]),
            status_word(job["status"]),
            safe(job["job_type"]),
            _when(job, times),
            _note(job, times, settings, holders),
        ]
        rows.append([*row[:4], safe(job["schedule"]), row[4]] if with_schedule else row)
    header = [">id", "status", "type", "when", *(["schedule"] if with_schedule else []), "note"]
    type_at_most = max(room // 4, min(24, room * 3 // 10))
    return table(rows, header, room=room, at_most={2: type_at_most, 4: 20 if with_schedule else room})


def _when(job: Mapping[str, Any], times: Times) -> str:
    match job["status"]:
        case Status.QUEUED | Status.FAILED:
            return times.ago(job["run_at"]) if job["run_at"] > times.now else f"due {times.ago(job['run_at'])}"
        case Status.RUNNING:
            return times.lasting(job["started_at"]) if job["started_at"] else ""
        case _:
            return times.ago(job["finished_at"])


def _note(job: Mapping[str, Any], times: Times, settings: Settings, holders: Holders) -> str:
    most = most_tries(job["job_type"], job["max_attempts"], settings, None)
    said = note(job, times, holders, most=most, error=safe(job["last_error"]))
    return ", ".join(part for part in ("dismissed" if is_dismissed(job) else "", said) if part)


# --- show -------------------------------------------------------------------------------------------------------------


def show(
    source: Source,
    job_id: Annotated[int, typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="The job's id.")],
    as_json: JsonOption = False,
) -> None:
    """Show one job: its facts, every attempt with error and output, and what happens next.

    --json prints one object, with the columns of cronjobs_jobs as keys, the job's attempts under "runs", its ledger
    rows under "occurrences", and what happens next under "next".
    """
    with snapshot(source, only_database=True) as (settings, connection, times):
        types = cache(lambda: known_types(settings))
        row = shown_columns.one_job(connection, job_id)
        life = None if row is None else job_in_full(connection, job_id, settings, types)
        if row is None or life is None or life.job is None:
            raise CronjobsError(missing_job(connection, job_id, settings.retention))
        job = _shown(columns_of(row), settings)
        count, found = listing.attempts_of(connection, job_id, None if as_json else ATTEMPTS_SHOWN)
        runs = [columns_of(run) for run in found]
        occurrences = [columns_of(occurrence) for occurrence in listing.occurrences_of(connection, job_id)]
    most = most_tries(job["job_type"], job["max_attempts"], settings, types())
    sentences = what_comes_next(life.job, times, life.around)
    if as_json:
        more = {"tries": {"failed": job["failures"], "of": most}, "next": " ".join(sentences)}
        write([json_text(job | more | {"occurrences": occurrences, "runs": runs})])
    else:
        lines = _job_lines(job, times, most, sentences)
        lines += labelled("schedule", _occurrence_lines(job, occurrences, times))
        write([*lines, *_run_lines(job, runs, count, times)])
    leaving.leave(0, stuck=False)  # do not wait for threads that the user's modules started


def _job_lines(job: Mapping[str, Any], times: Times, most: int | None, sentences: Sequence[str]) -> list[str]:
    room = width() - 11
    status = status_word(job["status"])
    title = f"job {job['id']}  {safe(job['job_type'])}  {coloured(status, COLOURS.get(status, 'white'))}"
    lines = [title, *labelled("next", [line for sentence in sentences for line in wrapped(sentence, room)])]
    stripped = job["meta"] == json.loads(STRIPPED)
    counts = [tries(job["failures"], most)]
    for column, word in (("losses", "lost"), ("interruptions", "interrupted")):
        counts.append(f"{word} {counted(job[column], 'time')}" if job[column] else "")
    facts: list[tuple[str, str]] = [
        ("tries", ", ".join(part for part in counts if part)),
        ("due", times.both(job["run_at"])),
        ("created", times.both(job["created_at"]) + (f" by {safe(by, 80)}" if (by := job["enqueued_by"]) else "")),
        ("ended", _span(job, times)),
        ("queue", f"{safe(job['queue'])}, priority {job['priority']}"),
        ("timeout", seconds_text(job["timeout_s"]) if job["timeout_s"] else ""),
        ("key", key_text(job)),
        ("counts as", safe(job["concurrency_key"])),
        ("payload", "pruned" if stripped else _json_text(job["payload"], room)),
        ("meta", _json_text(job["meta"], room) if job["meta"] != {} and not stripped else ""),
        ("result", _json_text(job["result"], room) if job["result"] is not None else ""),
    ]
    for label, fact in facts:
        if fact:
            lines += labelled(label, [fact])
    return [*lines, *labelled("", [f"times are {times.timezone}"])]


def _span(job: Mapping[str, Any], times: Times) -> str:
    if job["finished_at"] is None:
        return ""
    ran = "" if died_lost(job["status"], job["error_type"]) else took(job["started_at"], job["finished_at"])
    return times.both(job["finished_at"]) + (f", after {ran}" if ran else "")


def _json_text(value: Any, room: int) -> str:
    if isinstance(value, BadJson):
        return f"cannot be read: {value.reason}"
    text = safe(masking.hidden_json(value), max(300, room * 4))
    return text if not text.endswith("…") else f"{text} (--json shows all of it)"


def _occurrence_lines(job: Mapping[str, Any], occurrences: Sequence[Mapping[str, Any]], times: Times) -> list[str]:
    if job["schedule"] is None:
        return []
    lines = [safe(job["schedule"]) + (f", for {times.both(job['scheduled_for'])}" if job["scheduled_for"] else "")]
    said = {
        "coalesced": ("the job also stands for {}", "more occurrence"),
        "skipped": ("{} skipped because of the job", "occurrence"),
    }
    for outcome, (sentence, counts) in said.items():
        rows = [row for row in occurrences if row["outcome"] == outcome]
        if rows:
            count = counted(sum(row["count"] for row in rows), counts)
            span = f"from {times.clock(rows[0]['first_for'])} to {times.clock(rows[-1]['last_for'])}"
            lines.append(f"{sentence.format(count)}, {span}")
    return lines


def _run_lines(job: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], count: int, times: Times) -> list[str]:
    if not runs:
        return ["", without_attempts(job["attempts"], job["finished_at"])]
    lines = []
    if count > len(runs):
        lines += ["", f"… {counted(count - len(runs), 'earlier attempt')} (--json shows all)"]
    for run in runs:
        outcome = run["outcome"]
        painted = coloured(outcome.replace("_", " "), COLOURS.get(outcome, "white"))
        where = f"on {host_of(run['runner'])}" + (f", worker {safe(run['worker'], 40)}" if run["worker"] else "")
        ran = ran_for(outcome, run["started_at"], run["finished_at"])
        lines += ["", f"attempt {run['attempt']}  {painted}  {times.both(run['started_at'])}, {ran}, {where}"]
        if run["error"]:
            lines += block(class_and_text(safe(run["error_type"], 120), str(run["error"])), "  ")
        for label in ("traceback", "output"):
            if run[label]:
                lines += [coloured(f"  {label}", "bright_black"), *block(run[label], "    ")]
    return lines
