"""``cronjobs explain``: describe in sentences what became of an occurrence or a job."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cache
from itertools import groupby
from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo

import typer
from sqlalchemy import Connection

from cronjobs.desk.cli.known_types import known_types
from cronjobs.desk.cli.options import JsonOption, Source, schedule_or_type_names
from cronjobs.desk.cli.output import table, width, wrapped, write
from cronjobs.desk.cli.parse_values import of_day
from cronjobs.desk.cli.project_database import snapshot
from cronjobs.desk.crontab.lines import exec_name
from cronjobs.desk.crontab.program import lines_of_user
from cronjobs.desk.insight.evidence import NoSuchSchedule, ScheduleEvidence
from cronjobs.desk.insight.explain_exec import ExecEvidence, exec_evidence
from cronjobs.desk.insight.explain_facts import Explanation
from cronjobs.desk.insight.explain_named import explain_id, explain_key, explain_type_named
from cronjobs.desk.insight.explain_obstacles import with_obstacles
from cronjobs.desk.insight.explain_occurrence import counts_of, explain_occurrence, summary
from cronjobs.desk.insight.formatting import LocalTimes, safe
from cronjobs.desk.insight.instants import Asked, asked_on_the_clock, since_instant
from cronjobs.desk.insight.missing_job import NOT_COMMITTED, missing_job
from cronjobs.desk.insight.watched import refusing, ticking
from cronjobs.desk.store.explaining import job_of_key
from cronjobs.desk.store.missing_jobs import is_enqueue_open
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import json_text
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.occurrences import ON_TIME_WITHIN
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import last_ticks
from cronjobs.errors import CronjobsError, UsageError
from cronjobs.model import duration_text
from cronjobs.reserved import EXEC_PREFIX

_FOR_SCHEDULES: Final = "--at, --from, --to and --since are for schedules"
_ALIKE: Final = 4  # merge this many or more similar rows of a list into one row


def explain(
    source: Source,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="SCHEDULE|TYPE|JOB_ID",
            autocompletion=schedule_or_type_names,
            show_default=False,
            help="A schedule's name, a job type, or a job's id.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", show_default=False, help="Explain the job with this idempotency key.")
    ] = None,
    job_type: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            show_default=False,
            help="Explain this job type, even if a schedule has the same name.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help='Explain the occurrence at this time: 2026-11-20T02:15, 02:15 (the most recent), "yesterday 02:15".',
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", show_default=False, help="List every occurrence from this time on."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="TIME", show_default=False, help="List occurrences up to this time. Default: now."
        ),
    ] = None,
    back: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="DURATION", show_default=False, help="Like --from, but this long ago: 24h, 7d."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="In a list, show at most the N newest.")
    ] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Explain why something ran or did not: when it was due, under which definition, what ticks did, how it ended.

    Without a time, the command explains the schedule's last occurrence, and reports whether the schedule has been
    retired, paused or changed since. If there was no run, it explains why: no tick, an unfinished job, a pause, another
    definition in force, or a clock change. It reads what ticks recorded in the ledger, which is kept for
    retention.occurrences. Times without an offset are in the schedule's time zone.

    For a job, given by its number or by --key, the command reports who created the job, how each attempt went, what
    state the job is in, and what happens next. For a job type, it reports which ticks could run the type (or for how
    long none could), which modules could not be imported, and which jobs are waiting.

    --json prints one object with subject, at, verdict, sentences and facts. For a list of occurrences, it prints one
    object with subject, from, to, summary, counts and occurrences, which is a list with an object (subject, at, verdict
    …) for each occurrence. Verdicts: enqueued, skipped, missed, coalesced, paused (skipped by a pause), pending (no
    tick has settled it yet, a pause holds it back, or it is not due yet), not_due, not_yet_defined, retired,
    beyond_retention, unknown; for a job: waiting, running, succeeded, dead, cancelled, pruned (only the ledger still
    has it), unknown; for a name used with exec, also absent (no run started when a run was due); for a type: runnable,
    not_runnable, unknown. Exit code 1: no such schedule, job, key or type.
    """
    if [what, key, job_type].count(None) != 2:
        raise UsageError("give one of: a SCHEDULE, a TYPE, a JOB_ID, --key KEY, --type TYPE")
    ranged = since is not None or until is not None or back is not None
    if at is not None and ranged:
        raise UsageError("give either --at, for one occurrence, or --from, --to or --since, for several")
    if since is not None and back is not None:
        raise UsageError("give --from or --since, not both")
    if until is not None and since is None and back is None:
        raise UsageError("--to needs --from or --since")
    explanation: Explanation | None = None
    code = 0
    timed = at is not None or ranged
    if what is None and timed:
        raise UsageError(_FOR_SCHEDULES)
    with snapshot(source, only_database=True) as (settings, connection, _):
        types = cache(lambda: known_types(settings))
        if key is not None:
            explanation = explain_key(connection, key, settings, types)
            if explanation is None:
                uncommitted = NOT_COMMITTED if is_enqueue_open(connection) else "either "
                no_key = _no_key(key, settings.retention.keys, uncommitted)
                explanation, code = _not_there(f"key {key}", no_key, as_json)
        elif job_type is not None:
            explanation = explain_type_named(connection, job_type, settings, types())
            if explanation is None:
                text = f'no tick, job or schedule has used a job type "{safe(job_type, 80)}"'
                explanation, code = _not_there(f"type {job_type}", text, as_json)
        else:
            assert what is not None
            evidence: ScheduleEvidence | ExecEvidence | None = None
            names: Sequence[str] = ()
            try:
                evidence = ScheduleEvidence(connection, what, settings, types)
            except NoSuchSchedule as error:
                names = error.known
                if not timed and what.isdecimal():
                    explanation = explain_id(connection, int(what[:20]), settings, types)
                if explanation is None:
                    evidence = exec_evidence(connection, what, settings, types)
            if evidence is not None and ranged:
                _print_range(evidence, since, until, back, limit, as_json)
            elif isinstance(evidence, ScheduleEvidence):
                explanation = _of_schedule(evidence, at)
            elif evidence is not None:
                explanation = evidence.latest() if at is None else evidence.at(_asked(at, evidence, "--at").at)
            elif timed and _is_job_or_type(connection, what, settings, types):
                raise UsageError(_FOR_SCHEDULES)
            elif explanation is None:
                explanation = None if timed else explain_type_named(connection, what, settings, types())
                if explanation is None:
                    explanation, code = _unknown(connection, what, [*names, *types().types], settings, as_json)
    if explanation is not None:
        as_text = [line for sentence in explanation.sentences for line in wrapped(sentence, width(), "  ")]
        write([json_text(_object(explanation))] if as_json else as_text)
    leaving.leave(code, stuck=False)  # do not wait for threads that the user's modules started


def _of_schedule(evidence: ScheduleEvidence, at: str | None) -> Explanation:
    connection, settings, types = evidence.connection, evidence.settings, evidence.types
    facts = evidence.now_and_last() if at is None else evidence.at(_asked(at, evidence, "--at"))
    if facts.job is not None:
        facts = replace(facts, job=with_obstacles(connection, facts.job, settings, types))
    explanation = explain_occurrence(facts)
    if exec_evidence(connection, evidence.name, settings, types) is None:
        return explanation
    its_runs = safe(f"cronjobs explain {shlex.quote(EXEC_PREFIX + evidence.name)}", 300)
    # The crontab line of these runs may be gone.
    said = f'"cronjobs exec" has recorded runs with the name {safe(evidence.name, 80)}, too; see "{its_runs}".'
    return replace(explanation, sentences=(*explanation.sentences, said))


def _is_job_or_type(connection: Connection, name: str, settings: Settings, types: Callable[[], JobTypes]) -> bool:
    if name.isdecimal() and explain_id(connection, int(name[:20]), settings, types) is not None:
        return True
    return explain_type_named(connection, name, settings, types()) is not None


def _unknown(
    connection: Connection, name: str, known: Sequence[str], settings: Settings, as_json: bool
) -> tuple[Explanation, int]:
    """Explain why the database has no such schedule. Also return the exit code. Raises CronjobsError."""
    if name in settings.schedules:
        text = f"schedule {safe(name, 80)} is in the file, but no tick has applied it yet: "
        now = database_now(connection)
        ticks = [dict(row._mapping) for row in last_ticks(connection)]
        if refused := refusing(connection, ticking(ticks, now, settings.run.every)):
            host, (why, since) = min(refused.items())
            when = "" if since is None else f" since {since:%Y-%m-%d %H:%M:%S} UTC"
            text += (
                f"host {safe(host, 80)} has refused the file{when}: {why} "
                '("cronjobs sync --plan" shows everything that the file would change).'
            )
        else:
            text += "the next tick will apply the schedule; a new schedule never fires for times before that tick."
        return Explanation(name, None, "not_yet_defined", (text,)), 0
    if name in settings.disabled_schedules:
        problems = "; ".join(map(str, settings.problems_of(name)))
        text = f"schedule {safe(name, 80)} was never applied, because its entry is broken: {problems}"
    elif name in settings.elsewhere:
        here = f'"{safe(settings.environment, 80)}"' if settings.environment else "none"
        text = f"schedule {safe(name, 80)} is in the file, but only for environments other than this one ({here})."
        return Explanation(name, None, "not_yet_defined", (text,)), 0
    elif (job_id := job_of_key(connection, name)) is not None:
        text = (
            f"{safe(name, 80)} is the idempotency key of job {job_id}: "
            f'"cronjobs explain --key {shlex.quote(safe(name, 80))}"'
        )
    elif lines := [line for line in lines_of_user() or () if exec_name(line) == name.removeprefix(EXEC_PREFIX)]:
        text = (
            f"line {lines[0].number} of your crontab ({safe(lines[0].when, 80)}) runs {safe(name, 80)} through "
            "cronjobs exec, but this database has no run of that line: no run was recorded yet, or the last run "
            "was pruned."
        )
        return Explanation(name, None, "pending", (text,)), 0
    elif name.isdecimal():
        text = missing_job(connection, int(name[:20]), settings.retention)
    else:
        text = _no_schedule(name, [*known, *settings.schedules])
    return _not_there(name, text, as_json)


def _no_schedule(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, list(dict.fromkeys(known)), 3)
    meant = " or ".join(safe(each, 80) for each in near)
    hint = f"did you mean {meant}?" if near else '"cronjobs schedules list" lists all schedules'
    return f'there is no schedule or job type "{safe(name, 80)}": {hint}'


def _no_key(key: str, kept: timedelta, uncommitted: str) -> str:
    return (
        f'no job has the idempotency key "{safe(key, 80)}": {uncommitted}no job was enqueued with the key, or the job '
        f"ended more than {duration_text(kept)} ago (retention.keys)"
    )


def _not_there(subject: str, text: str, as_json: bool) -> tuple[Explanation, int]:
    """Return an explanation with *text* for --json. Otherwise raise CronjobsError with *text*."""
    if not as_json:
        raise CronjobsError(text)
    return Explanation(subject, None, "unknown", (text,)), CronjobsError.exit_code


# --- times ------------------------------------------------------------------------------------------------------------


def _asked(text: str, evidence: ScheduleEvidence | ExecEvidence, option: str) -> Asked:
    """Parse an ISO time or a time of day.

    A time of day means the latest instant at which the clock showed that time.
    """
    zone, now = evidence.timezone, evidence.now
    try:
        wall = of_day(text, now.astimezone(ZoneInfo(zone)))
        read = wall or datetime.fromisoformat(text.strip())
        if not 1974 <= read.year <= 9998:
            raise OverflowError
        return asked_on_the_clock(read, zone) if read.tzinfo is None else Asked(read.astimezone(UTC))
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option} {safe(text, 60)!r} is not a time: write 2026-11-20T02:15, 2026-11-20T02:15-05:00, 02:15 or "
            '"yesterday 02:15"'
        ) from None


# --- output -----------------------------------------------------------------------------------------------------------


def _object(explanation: Explanation) -> dict[str, Any]:
    return {name: getattr(explanation, name) for name in ("subject", "at", "verdict", "sentences", "facts")}


def _print_range(
    evidence: ScheduleEvidence | ExecEvidence,
    since: str | None,
    until: str | None,
    back: str | None,
    limit: int,
    as_json: bool,
) -> None:
    now = evidence.now
    begin = since_instant(back, now, evidence.timezone) if back else _asked(since or "", evidence, "--from").at
    end = _asked(until, evidence, "--to").at if until else now
    if end < begin:
        zone = ZoneInfo(evidence.timezone)
        raise UsageError(
            f"--to ({end.astimezone(zone):%Y-%m-%d %H:%M}) is before --from ({begin.astimezone(zone):%Y-%m-%d %H:%M}): "
            "02:15 without a date means the most recent 02:15"
        )
    if isinstance(evidence, ExecEvidence):
        explanations, left_out = evidence.between(begin, end, limit)
    else:
        facts, left_out = evidence.between(begin, end, limit)
        explanations = [explain_occurrence(each) for each in facts]
    counts = counts_of(explanations)
    said = summary(counts, left_out)
    if as_json:
        entries = [_object(each) for each in explanations]
        frame = {"subject": evidence.name, "from": begin, "to": end}
        write([json_text(frame | {"summary": said, "counts": counts, "occurrences": entries})])
        return
    times = LocalTimes(begin, evidence.timezone)
    name = safe(evidence.name, 80)
    head = f"{name} from {times.dated(begin)} to {times.dated(end)} {evidence.timezone}"
    rows = _rows(explanations, times)
    write([head, f"{said}.", *table(rows, ["occurrence", "verdict", "what happened"], room=width(), at_most={0: 45})])


def _rows(explanations: Sequence[Explanation], times: LocalTimes) -> list[list[str]]:
    """Return a row for each explanation, but one row for _ALIKE or more consecutive ``usual`` explanations."""
    rows: list[list[str]] = []
    for usual, alike in groupby(explanations, key=lambda each: each.usual):
        several = list(alike)
        if usual and len(several) >= _ALIKE:
            when = times.between(several[0].facts["first_for"], _at(several[-1]))
            in_time = f"each within {duration_text(ON_TIME_WITHIN)} of its time"
            rows.append([when, several[0].verdict, f"{len(several):,} jobs, {in_time}, all succeeded"])
        else:
            rows += [_row(each, times) for each in several]
    return rows


def _row(explanation: Explanation, times: LocalTimes) -> list[str]:
    count = int(explanation.facts.get("count", 0))
    when = times.dated(_at(explanation))
    if count != 1:
        when = times.between(explanation.facts["first_for"], _at(explanation)) + (f" ({count:,})" if count else "")
    return [when, explanation.verdict.replace("_", " "), safe(explanation.brief, 300)]


def _at(explanation: Explanation) -> datetime:
    assert explanation.at is not None
    return explanation.at
