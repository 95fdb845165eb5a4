"""``cronjobs history``: list what happened in a period."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from sqlalchemy import Connection, Row

from cronjobs.desk.cli import parse_values
from cronjobs.desk.cli.options import JsonOption, Source, schedule_names, type_names
from cronjobs.desk.cli.output import COLOURS, UNCUT, columns_of, is_cut, name_text, printable, width, wrapped, write
from cronjobs.desk.cli.project_database import snapshot
from cronjobs.desk.cli.schedules import unknown_schedule
from cronjobs.desk.insight.formatting import LocalTimes, Times, counted, host_of, is_over, on_the_clock, ran_for, safe
from cronjobs.desk.insight.kept_from_starting import did_not_start, first_cause_at, kept_before, kept_from_starting
from cronjobs.desk.insight.releasing import Holders
from cronjobs.desk.insight.schedule_history import ends_at, names_of_its_own, pauses_over_time
from cronjobs.desk.insight.shortened_history import (
    ACTS,
    ASKED,
    BROKE,
    QUIET,
    Entry,
    Tally,
    acts_on_jobs,
    each_alone,
    merge_backfills,
    number_of,
    outcome_of,
    story,
    totals,
    when,
)
from cronjobs.desk.insight.watched import FORGOTTEN, STEADY_TICKS, last_sign, quiet_after, silent_hosts
from cronjobs.desk.rules import pausing
from cronjobs.desk.rules.tick_rows import did_of, no_end, outages_in, texts_in, was_importing
from cronjobs.desk.store import explaining, trail
from cronjobs.desk.store import history as store
from cronjobs.desk.store.history import FOREVER
from cronjobs.engine.command.printing import coloured, complain, json_text
from cronjobs.engine.rules.error_groups import class_and_text
from cronjobs.engine.rules.occurrences import BACKFILLED, BEFORE, RAN_EARLY, early_words
from cronjobs.engine.schedules.wrong_clock import FUTURE_WATERMARK
from cronjobs.engine.store import schedules, ticks
from cronjobs.engine.store.given_up import PRUNED, count_of, pruned_jobs
from cronjobs.errors import UsageError
from cronjobs.model import OUTCOME_WORDS, rough

READ_AT_MOST: Final = 20_000  # read at most this many failures of each kind
# Count at most this many attempts or ledger rows. Counting this many takes three seconds on SQLite.
COUNTED_AT_MOST: Final = 1_000_000
TALLIES_AT_MOST: Final = 1_000  # count at most this many schedules and job types for each outcome
INDENT: Final = 26  # the time of day and the outcome fill this many columns before the text
SECOND: Final = timedelta(seconds=1)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_WORDS: Final = {"pruned": "removed", "pause": "paused", "deploy": "deployed", "early": "ran early"} | ACTS
_PLURALS: Final = (
    {
        "pruned": ("dead job removed by retention", "dead jobs removed by retention"),
        "no tick": ("time without ticks", "times without ticks"),
        "no end": ("tick that did not end", "ticks that did not end"),
        "not fired": ("time in which no tick fired schedules", "times in which no tick fired schedules"),
        "clock": ("clock set back", "clocks set back"),
        "no database": ("time without the database", "times without the database"),
        "fault": ("fault of a file or of code", "faults of a file or of code"),
        "early": ("ran early", "ran early"),
        "pause": ("pause", "pauses"),
        "deploy": ("deploy", "deploys"),
    }
    | {word: (f"job {done}", f"jobs {done}") for word, done in (ACTS | {ASKED: "asked to stop"}).items()}
    | {"settle": ("effect settled", "effects settled")}
)
_OF_ATTEMPTS: Final = frozenset(OUTCOME_WORDS.values())


@dataclass(frozen=True)
class _Asked:
    """What the command's options ask for. ``end`` is FOREVER if the range ends now."""

    begin: datetime
    end: datetime
    names: frozenset[str] | None  # the schedule's present and former names, or None for all
    job_type: str | None
    outcome: str | None

    @property
    def read_from(self) -> datetime:
        """The time from which to read ticks.

        It is earlier than the range, because a host's first tick in the range is compared with the host's tick before
        it.
        """
        return max(self.begin, _FIRST + FORGOTTEN) - FORGOTTEN

    @property
    def of_job(self) -> dict[str, Any]:
        return {"names": self.names, "job_type": self.job_type}

    def schedule_ids(self, connection: Connection) -> list[int] | None:
        """Return the ids of the schedules that have the name and job type asked for, or None for all."""
        if self.names is None and self.job_type is None:
            return None
        return [
            stored.id
            for stored in schedules.all_schedules(connection)
            if (self.names is None or stored.name in self.names)
            and self.job_type in (None, stored.definition.get("job") if isinstance(stored.definition, dict) else None)
        ]


class HistoryOutcome(StrEnum):
    """An attempt's outcome, a job's death, or why an occurrence had no run of its own."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    SNOOZED = "snoozed"
    DEAD = "dead"
    MISSED = "missed"
    SKIPPED = "skipped"
    COALESCED = "coalesced"
    EARLY = "early"


def history(
    source: Source,
    since: Annotated[
        str,
        typer.Option(metavar="WHEN", help="How far back: 90m, 24h, 7d, 02:00, or an instant like 2026-03-29T02:00."),
    ] = "24h",
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=schedule_names,
            help="Only this schedule, also under its former names.",
        ),
    ] = None,
    job_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", autocompletion=type_names, help="Only jobs of this type.")
    ] = None,
    outcome: Annotated[
        HistoryOutcome | None,
        typer.Option(metavar="OUTCOME", help=f"Only entries with this outcome: {', '.join(HistoryOutcome)}."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=100_000, help="At most this many lines or JSON entries; failures take precedence."
        ),
    ] = 200,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            show_default=False,
            help="Only before this time: 90m (ago), 05:30, or an instant. Default: now.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Print a line for each entry, including successes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List what happened, in chronological order: failures, outages, pauses, deploys; successes are counted.

    The first line counts everything. Next, each thing that went wrong has a line of its own: jobs that died; attempts
    that failed, timed out, were lost, interrupted or cancelled; and occurrences that were missed, or that ran early
    because of a wrong clock. An occurrence is listed at the time when it was due. An occurrence that was due before the
    period is listed, too, if no tick ran when it was due and the next tick came within the period. Another line reports
    dead jobs that retention removed before anybody had dealt with them, since their deaths are no longer listed.
    Without --outcome, the list also shows what people did: cancels, requests to stop, retries, dismissals, releases,
    reschedules, triggers, backfills and settled effects. With --outcome cancelled, it shows who cancelled jobs. With
    neither --outcome nor --type, it also shows trouble with ticks: times without ticks (of all hosts, or of one host),
    times in which no tick fired schedules, ticks that never recorded their end, clocks that were set back, and times in
    which a running tick could not use the database. It then also shows parts of the file or the code that ticks could
    not use, pauses, and deploys (a file was applied, or a host ran other code). If there are more entries than --limit,
    entries with the same error share a line. The list ends with counts, by schedule and job type, of successes,
    snoozes, and skipped and coalesced occurrences. stderr reports how many entries were left out. "cronjobs jobs show
    ID" prints whole errors, tracebacks and outputs.

    --json prints an object for each entry, with its kind: attempt, death, occurrence, pruned, gap, schedules_off, tick,
    clock, outage, fault, pause, deploy or act. Entries of the first three kinds have most columns of their tables. An
    occurrence's outcome is what happened when it was due. A gap's host is null if no host ticked. A gap's reason says
    why ticks did not start, if a later tick recorded why. If there are more entries than --limit, failures and changes
    come first, then the newest of the other entries.
    """
    with snapshot(source, only_database=True) as (settings, connection, times):
        names = None
        if schedule is not None:
            known = explaining.schedule_names(connection)
            names = names_of_its_own(schedule, schedules.renames(connection), known)
            if names.isdisjoint(known):
                complain(unknown_schedule(schedule, known))
        asked = _Asked(*_span(since, until, times), names, job_type, outcome)
        begins = {"death": asked.begin} | {
            kind: store.newest_begin(connection, kind, COUNTED_AT_MOST, asked.begin, asked.end)
            for kind in ("attempt", "occurrence")
        }
        alone = everything or as_json
        gaps = _gaps(connection, asked, settings.run.every, settings.retention.occurrences, times.now)
        gap_from = min([asked.begin, *_ended(gaps, asked.end)]) if begins["occurrence"] == asked.begin else None
        entries = _entries(connection, asked, begins, gap_from, quiet=limit if alone else 0)
        tallies = _tallies(connection, asked, begins, gap_from)
        if job_type is None and outcome is None:
            entries += gaps
            entries += _schedules_off(connection, asked, settings.run.every)
            entries += _without_end(connection, asked, settings.run.budget, times.now)
            entries += _clocks(connection, asked)
            entries += _faults(connection, asked)
            entries += _acts(connection, asked, times.now)
        if outcome in (None, HistoryOutcome.DEAD):
            entries += _pruned(connection, asked)
        if outcome is None:
            entries += _acts_on_jobs(connection, asked, times, ACTS)
        elif outcome is HistoryOutcome.CANCELLED:
            entries += _acts_on_jobs(connection, asked, times, ["cancel"])
    shown = each_alone(entries, tallies, limit) if alone else story(merge_backfills(entries), tallies, limit)
    if as_json:
        write([json_text([entry for [entry] in shown.lines])])
    else:
        head = _head(totals(entries, tallies), times, asked)
        write([*head, *_lines(shown.lines, times), *_tally_lines(shown.tallies, times)])
    for kind, begin in begins.items():
        if begin > asked.begin:
            complain(f"only the newest {COUNTED_AT_MOST:,} {kind}s are counted, back to {times.clock(begin)}")
    if shown.left_out:
        complain(f"left out: {_counts(shown.left_out)}; raise --limit, or choose a shorter period")


def _span(since: str, until: str | None, times: Times) -> tuple[datetime, datetime]:
    begin = parse_values.since(since, times)
    end = FOREVER if until is None else parse_values.since(until, times, "--until")
    if end <= begin:
        raise UsageError("--until is not after --since: the range is empty")
    return begin, end


# --- what is read -----------------------------------------------------------------------------------------------------


def _entries(
    connection: Connection, asked: _Asked, begins: Mapping[str, datetime], gap_from: datetime | None, *, quiet: int
) -> list[dict[str, Any]]:
    """Return the newest READ_AT_MOST failures of each kind, and at most *quiet* of the newest other entries."""
    found: list[tuple[str, Row[Any]]] = []
    for outcomes, limit in ((BROKE, READ_AT_MOST), (QUIET, quiet)):
        wanted = [outcome for outcome in outcomes if asked.outcome in (None, outcome)] if limit else []
        if "dead" in wanted:
            rows = store.deaths_since(connection, begins["death"], limit, until=asked.end, **asked.of_job)
            found += [("death", row) for row in rows]
        if not_run := [outcome for outcome in wanted if outcome in store.DID_NOT_RUN]:
            rows = store.not_run_since(
                connection,
                begins["occurrence"],
                limit,
                schedule_ids=asked.schedule_ids(connection),
                outcomes=not_run,
                until=asked.end,
                gap_from=gap_from,
            )
            found += [("occurrence", row) for row in rows]
        if ended := [outcome for outcome in wanted if outcome in _OF_ATTEMPTS]:
            rows = store.attempts_since(
                connection, begins["attempt"], limit, outcomes=ended, until=asked.end, **asked.of_job
            )
            found += [("attempt", row) for row in rows]
    return [{"kind": kind} | columns_of(row) for kind, row in found]


def _pruned(connection: Connection, asked: _Asked) -> list[dict[str, Any]]:
    """Return from the audit trail the dead jobs that retention removed before anybody had dealt with them."""
    rows = trail.entries(connection, [PRUNED], since=asked.begin, until=asked.end, limit=READ_AT_MOST)
    rows = [row for row in rows if asked.job_type in (None, row.subject)]
    its: set[int] | None = None
    # The pruned jobs no longer name their schedule, but their ledger rows do.
    if asked.names is not None:
        ids = {id_ for row in rows for id_ in pruned_jobs(row.detail)}
        named = explaining.rows_naming(connection, ids, "enqueued") if ids else ()
        its = {row.job_id for row in named if row.schedule in asked.names}
    found: list[dict[str, Any]] = []
    for row in rows:
        ids_of = [id_ for id_ in pruned_jobs(row.detail) if its is None or id_ in its]
        jobs = count_of(row.detail) if its is None else len(ids_of)
        if jobs:
            job_id = ids_of[0] if jobs == len(ids_of) == 1 else None
            of = {"job_type": row.subject, "schedule": None, "job_id": job_id}
            found.append({"kind": "pruned", "started_at": row.at, "jobs": jobs} | of)
    return found


def _tallies(
    connection: Connection, asked: _Asked, begins: Mapping[str, datetime], gap_from: datetime | None
) -> list[dict[str, Any]]:
    rows = store.tallies(
        connection,
        begins,
        TALLIES_AT_MOST,
        schedule_ids=asked.schedule_ids(connection),
        outcome=asked.outcome,
        until=asked.end,
        gap_from=gap_from,
        **asked.of_job,
    )
    return [columns_of(row) for row in rows]


def _gaps(
    connection: Connection, asked: _Asked, every: timedelta, retention: timedelta, now: datetime
) -> list[dict[str, Any]]:
    """Return the times without ticks: of all hosts together, and of one host while others ticked.

    A gap may be shorter than the usual limit if a later tick of the host recorded why a tick did not start in the gap.
    """
    limit = quiet_after(every)
    gaps = [_gap(connection, row, limit, None) for row in store.tick_gaps(connection, asked.begin, limit)]
    oldest = store.gap_before_oldest(connection, retention, limit)
    if oldest is not None and oldest.started_at is not None and oldest.finished_at >= asked.begin:
        # The tick before the gap is no longer kept, so nobody knows when the gap began.
        gaps.append(_gap(connection, oldest, limit, None) | {"started_at": oldest.finished_at})
    rows = store.host_gaps(connection, asked.begin, asked.read_from, limit, STEADY_TICKS)
    gaps += [_gap(connection, row, limit, row.host) for row in rows]
    for row in store.ticks_after_causes(connection, asked.begin, READ_AT_MOST):
        since, until = first_cause_at(row.did), row.started_at
        if since is None or since >= until:
            continue
        of_host = [gap for gap in gaps if gap["host"] in (None, row.host)]
        if not any(gap["started_at"] < until and since < gap["finished_at"] for gap in of_host):
            why = did_not_start(f"host {safe(row.host, 80)}", kept_from_starting(row.did))
            # If a person started the tick that ended the gap, that tick did not record why.
            first = store.first_ticks(connection, since, until, row.host)
            host = row.host if False in first and first[False] < first[True] else None
            gaps.append({"kind": "gap", "started_at": since, "finished_at": first[True], "reason": why, "host": host})
    # A gap that ends after now comes from a tick whose clock was wrong.
    gaps = [gap for gap in gaps if gap["finished_at"] <= now]
    still: dict[str, Any] = {"kind": "gap", "finished_at": None, "reason": None}
    newest = [columns_of(row) for row in ticks.last_ticks(connection)]
    last = last_sign(newest)
    if last is not None and now - last > limit:
        gaps.append(still | {"started_at": last, "host": None})
    elif last is not None:
        silent = silent_hosts(connection, newest, now, every)
        gaps += [still | {"started_at": at, "host": host} for host, at in silent.items()]
    return [gap for gap in gaps if gap["started_at"] < asked.end]


def _ended(gaps: Iterable[Mapping[str, Any]], by: datetime) -> list[datetime]:
    """Return when each gap of all hosts began. Leave out gaps that had not ended by *by*.

    The tick that ended a gap settled what was due in it.
    """
    return [
        gap["started_at"]
        for gap in gaps
        if gap["host"] is None and gap["finished_at"] is not None and gap["finished_at"] < by
    ]


def _gap(connection: Connection, row: Any, limit: timedelta, host: str | None) -> dict[str, Any]:
    causes = kept_before(connection, row.host, row.finished_at, row.did, limit)
    why = did_not_start(f"host {safe(row.host, 80)}", causes) if causes else None
    return {"kind": "gap", "started_at": row.started_at, "finished_at": row.finished_at, "reason": why, "host": host}


def _schedules_off(connection: Connection, asked: _Asked, every: timedelta) -> list[dict[str, Any]]:
    if not ticks.any_schedule(connection):
        return []
    rows = store.schedules_off(connection, asked.begin, quiet_after(every))
    return [
        {"kind": "schedules_off", "started_at": row.started_at, "finished_at": row.finished_at}
        for row in rows
        if row.started_at < asked.end
    ]


def _without_end(connection: Connection, asked: _Asked, budget: timedelta, now: datetime) -> list[dict[str, Any]]:
    """Return the ticks that never recorded their end, although they are over."""
    holders = Holders()
    return [
        {"kind": "tick", "started_at": row.started_at, "finished_at": None, "host": row.host}
        | {"importing": was_importing(row.did)}
        for row in store.ticks_without_end(connection, asked.begin, asked.end, READ_AT_MOST)
        if is_over(row._mapping, now, budget, gone=holders.tick_is_gone(row._mapping))
    ]


def _clocks(connection: Connection, asked: _Asked) -> list[dict[str, Any]]:
    """Return when the ticks' clock was set back: it showed the time from ``started_at`` to ``finished_at`` twice."""
    return [
        {"kind": "clock", "started_at": row.started_at, "finished_at": row.finished_at}
        for row in store.clocks_set_back(connection, asked.begin, FUTURE_WATERMARK)
        if row.started_at < asked.end
    ]


def _faults(connection: Connection, asked: _Asked) -> list[dict[str, Any]]:
    """Return what a host could not use, from when to when: parts of its file or code, processes, the database.

    ``finished_at`` is None if the fault still existed at the end of the range.
    """
    found: list[dict[str, Any]] = []
    outages: dict[tuple[str, datetime, datetime], dict[str, Any]] = {}
    present: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for tick in store.ticks_with_faults(connection, asked.begin, asked.end, READ_AT_MOST):
        # Ticks hand on an outage that could not be recorded, so several rows may have it.
        outages |= {
            (tick.host, began, ended): {"kind": "outage", "started_at": began, "finished_at": ended}
            | {"host": tick.host, "reason": reason}
            for began, ended, reason in outages_in(tick.did)
        }
        faults = {
            (tick.host, kind, where, why)
            for kind in ("broken", "not_loaded", "without_process")
            for where, why in texts_in(tick.did, kind).items()
        }
        if why := did_of(tick.did).get("refused"):
            faults.add((tick.host, "refused", "the file", str(why)))
        for fault in present.keys() - faults:
            host, kind, *_ = fault
            # Only a tick that loaded the code can find that a fault of the code is gone.
            if host == tick.host and (kind != "not_loaded" or tick.loaded):
                present.pop(fault)["finished_at"] = tick.started_at
        for fault in sorted(faults - present.keys()):
            host, kind, where, why = fault
            span = {"kind": "fault", "started_at": tick.started_at, "finished_at": None}
            what = f"a process for {where}" if kind == "without_process" else where
            present[fault] = span | {"host": host, "name": what, "reason": why}
            found.append(present[fault])
    return [*outages.values(), *found]


def _acts(connection: Connection, asked: _Asked, now: datetime) -> list[dict[str, Any]]:
    """Return pauses that overlap the range, and deploys: applied files and changed code."""
    found: list[dict[str, Any]] = []
    file = None
    for row in trail.entries(connection, ["sync"], since=asked.begin, until=asked.end, limit=READ_AT_MOST):
        detail = row.detail if isinstance(row.detail, dict) else None
        if row.subject != file or detail is None or any(detail.values()):  # reapplying a file is not a deploy
            found.append(
                {"kind": "deploy", "started_at": row.at, "host": row.host, "by": row.actor, "file": row.subject}
                | {"changes": detail}
            )
        file = row.subject
    for row in store.code_changes(connection, asked.begin, asked.read_from, asked.end, READ_AT_MOST):
        names, old = (set(map(str, each)) if isinstance(each, list) else set() for each in (row.names, row.old_names))
        version = [] if row.version == row.old_version else [f"{row.old_version} → {row.version}"]
        changes = {"version": version, "new job types": sorted(names - old), "gone job types": sorted(old - names)}
        found.append(
            {"kind": "deploy", "started_at": row.started_at, "host": row.host, "by": None, "file": None}
            | {"changes": {verb: each for verb, each in changes.items() if each}}
        )
    # Read all pauses, since a pause that overlaps the range may have begun before it and ended after it.
    acts = trail.entries(connection, ["pause", "resume"], limit=READ_AT_MOST)
    for pause in pauses_over_time(acts, renames=schedules.renames(connection)):
        ended = ends_at(pause)
        is_about = asked.names is None or pause.scope != "schedule" or pause.name in asked.names
        if is_about and (ended is None or ended >= asked.begin) and pause.since < asked.end:
            found.append(
                {"kind": "pause", "scope": pause.scope, "name": pause.name, "by": pause.by, "why": pause.why}
                | {"changed_by": pause.changed_by, "started_at": pause.since, "until": pause.until, "skip": pause.skip}
                | {"finished_at": None if ended is None or ended > now else ended}
            )
    return found


def _acts_on_jobs(
    connection: Connection, asked: _Asked, times: Times, actions: Collection[str]
) -> list[dict[str, Any]]:
    rows = trail.entries(connection, actions, since=asked.begin, until=asked.end, limit=READ_AT_MOST + 1)
    if len(rows) > READ_AT_MOST:
        rows = rows[1:]
        complain(f"only the newest {READ_AT_MOST:,} actions on jobs are counted, back to {times.clock(rows[0].at)}")
    several = [(row, ids) for row in rows if (ids := _job_ids(row))]
    chosen = asked.names is not None or asked.job_type is not None
    ids = sorted({id_ for _, ids in several for id_ in ids})
    jobs = store.named_jobs(connection, ids if chosen else ids[-READ_AT_MOST:])
    if chosen:
        wanted = {
            id_
            for id_, (job_type, schedule) in jobs.items()
            if asked.job_type in (None, job_type) and (asked.names is None or schedule in asked.names)
        }
        several = [(row, among) for row, ids in several if (among := sorted(wanted.intersection(ids)))]
    cancelled = sorted({id_ for row, ids in several if row.action == "cancel" for id_ in ids})
    return acts_on_jobs(several, jobs, store.spans_at_work(connection, cancelled[-READ_AT_MOST:], asked.begin))


def _job_ids(row: Any) -> list[int]:
    """Return the job ids of an audit entry. Skip other values: someone may have edited the entry with SQL."""
    detail = row.detail if isinstance(row.detail, dict) else {}
    ids = detail.get("ids", [detail.get("job_id")] if row.action in ("trigger", "settle") else None)
    if isinstance(ids, list):
        return [id_ for id_ in ids if isinstance(id_, int) and 0 < id_ < 2**63]
    number = row.subject.removeprefix("job ")
    return [int(number)] if number.isascii() and number.isdecimal() and int(number[:20]) < 2**63 else []


# --- lines ------------------------------------------------------------------------------------------------------------


def _counts(count: Counter[str]) -> str:
    """Return text such as "29 dead, 1 time without ticks, 3 missed, 11,854 succeeded". The worst comes first."""
    return ", ".join(
        counted(number, *_PLURALS[word]) if word in _PLURALS else f"{number:,} {word.replace('_', ' ')}"
        for word in (*BROKE, *QUIET)
        if (number := count[word])
    )


def _head(count: Counter[str], times: Times, asked: _Asked) -> list[str]:
    begin = times.clock(asked.begin)
    end = None if asked.end == FOREVER else LocalTimes(asked.begin, times.timezone).clock(asked.end)
    if not count.total():
        between = f"between {begin} and {end}" if end else f"since {begin}"
        return [f"nothing happened {between} {times.timezone}"]
    return wrapped(f"since {begin}{f' until {end}' if end else ''} {times.timezone}: {_counts(count)}", _room())


def _room() -> int:
    return width() if is_cut() else UNCUT


def _lines(lines_of: Sequence[Sequence[Entry]], times: Times) -> list[str]:
    lines, day = [], ""
    for entries in lines_of:
        local = times.local(when(entries[0]))
        if f"{local:%Y-%m-%d}" != day:
            day = f"{local:%Y-%m-%d}"
            lines += ["", coloured(f"{local:%A} {day}", "bright_black")]
        # A heading shows the date, so the texts below it show only the time of day.
        beside = LocalTimes(when(entries[0]), times.timezone)
        text = _entry_text(entries[0], beside)
        if len(entries) > 1:
            text = (
                f"{sum(map(number_of, entries)):,} similar until {beside.clock(when(entries[-1]))}, the first: {text}"
            )
        lines += _in_columns(beside.clock(when(entries[0])), outcome_of(entries[0]), text)
    return lines


def _tally_lines(tallies: Sequence[Tally], times: Times) -> list[str]:
    """Return a line for each tally: one outcome of one schedule, or of one job type if there is no schedule."""
    if not tallies:
        return []
    lines = ["", coloured("counted by schedule and job type", "bright_black")]
    for tally in tallies:
        name = name_text(tally["schedule"] if tally["schedule"] is not None else tally["job_type"])
        several = tally["number"] > 1
        times_of = f" {printable('×', 'x')}{tally['number']:,}" if several else ""
        parts = [f"{name}{times_of}" + (f" (job {tally['job_id']})" if tally["job_id"] is not None else "")]
        if tally["seconds"] is not None:
            usual, longest = (timedelta(seconds=float(tally[key])) for key in ("seconds", "longest"))
            parts.append(f"{rough(usual)} on average" if several else rough(usual))
            parts += [f"the longest {rough(longest)}"] if longest > 3 * usual and longest > SECOND else []
        if tally["reason"] is not None:
            parts.append(_reason(tally["reason"], times))
        span = times.span(tally["first_at"], tally["last_at"])
        lines += _in_columns("", tally["outcome"], f"{', '.join(parts)}: {span}")
    return lines


def _in_columns(clock: str, word: str, text: str) -> list[str]:
    head, *rest = wrapped(text, max(30, _room() - INDENT))
    shown = _WORDS.get(word, word)
    colour = "red" if word in ("no tick", "not fired", "no database") else COLOURS.get(shown)
    painted = coloured(f"{shown.replace('_', ' '):<11}", colour)
    return [f"{clock:<11}  {painted}  {head}", *(" " * INDENT + line for line in rest)]


def _error(entry: Entry) -> str:
    """Return text such as ": OSError: no space left on device", or "" if no error is recorded.

    Leave out the error's class if the outcome already shows what happened, as for timed_out and lost.
    """
    by_itself = entry.get("outcome", "failed") == "failed" and entry["error_type"] not in ("TimedOut", "Lost")
    kind, error = safe(entry["error_type"], 120) if by_itself else None, safe(entry["error"], 200)
    said = class_and_text(kind, error)
    return f": {said}" if said else ""


def _jobs_text(entry: Entry) -> str:
    """Return text such as "mail.send #17 of nightly" or "275 jobs of mail.send"."""
    of = f" of {name_text(entry['schedule'])}" if entry["schedule"] else ""
    if entry["job_id"] is not None:
        return f"{name_text(entry['job_type'] or 'job')} #{entry['job_id']}{of}"
    of_type = f" of {name_text(entry['job_type'])}" if entry["job_type"] else ""
    return counted(entry["jobs"], "job") + (of or of_type)


def _reason(text: str, times: LocalTimes) -> str:
    """Return why an occurrence had no run of its own or ran early, and who later ran it with a backfill."""
    if text.startswith(RAN_EARLY):
        return safe(on_the_clock(early_words(text).removeprefix("ran early "), times), 200)
    by, _, before = text.partition(BEFORE) if text.startswith(BACKFILLED) else ("", "", text)
    if by:
        before = before.partition(" (")[2].removesuffix(")")
    return safe(
        on_the_clock("; ".join(each for each in (before, by and f"later enqueued by a {by}") if each), times), 200
    )


def _entry_text(entry: Entry, times: LocalTimes) -> str:
    match entry["kind"]:
        case "attempt" | "death" as kind:
            of = f" of {name_text(entry['schedule'])}" if entry["schedule"] else ""
            text = f"{name_text(entry['job_type'])} #{entry['job_id']}{of}, "
            if kind == "attempt":
                ran = ran_for(entry["outcome"], entry["started_at"], entry["finished_at"])
                text += f"{ran} on {host_of(entry['runner'])}"
            else:
                text += "and dismissed" if entry["dismissed"] else "and nobody has dealt with it"
            return text + _error(entry)
        case "pruned":
            job_was, them = ("the job was", "it") if entry["jobs"] == 1 else ("the jobs were", "them")
            return f"{_jobs_text(entry)} by retention, although {job_was} dead and nobody had dealt with {them}"
        case "occurrence":
            what = name_text(entry["schedule"])
            if entry["count"] > 1:
                what += f", {entry['count']:,} occurrences from {times.span(entry['first_for'], entry['last_for'])}"
            into = f" (job {entry['job_id']})" if entry["job_id"] is not None else ""
            return what + into + (f": {_reason(entry['reason'], times)}" if entry["reason"] else "")
        case "pause":
            ended, until = entry["finished_at"], entry["until"]
            end = (
                f"until {times.clock(ended)}"
                if ended
                else f"until {times.clock(until)}"
                if until
                else "and is still paused"
            )
            by = f" by {safe(entry['by'], 80)}" if entry["by"] else ""
            by += f", changed by {safe(entry['changed_by'], 80)}," if entry["changed_by"] else ""
            skips = ", and what came due was skipped" if entry["skip"] else ""
            why = f": {safe(entry['why'], 200)}" if entry["why"] else ""
            return f"{safe(pausing.what(entry['scope'], entry['name']), 100)}{by} {end}{skips}{why}"
        case "act":
            by, why = safe(entry["by"], 80) or "somebody", f": {safe(entry['why'], 200)}" if entry["why"] else ""
            lasted = entry["finished_at"] - entry["started_at"] >= SECOND
            until = f", the last at {times.clock(entry['finished_at'])}" if lasted else ""
            dead, jobs = entry["were_dead"], entry["jobs"]
            were = f", {'' if dead == jobs else f'{dead:,} of them '}dead until then," if dead else ""
            stop = " to stop," if entry["asked_to_stop"] else ""
            if "effect" in entry:
                verdict = entry["verdict"].replace("-", " ")
                return f"effect {safe(entry['effect'], 200)} of {_jobs_text(entry)} as {verdict}, by {by}{why}"
            return f"{_jobs_text(entry)}{were}{stop} by {by}{until}{why}"
        case "tick":
            why = no_end(1, int(entry["importing"]))
            return f"a tick of host {safe(entry['host'], 40)} never recorded its end: {why}"
        case "clock":
            ahead, back = entry["finished_at"], entry["started_at"]
            span = f"{times.clock(back)} and {LocalTimes(back, times.timezone).clock(ahead)}"
            by = rough(ahead - back)
            return (
                f"was at least {by} ahead, and was set back; events between {span} may have happened up to {by} earlier"
            )
        case "deploy":
            changes = ", ".join(
                f"{verb}: {', '.join(map(str, names))}"
                for verb, names in (entry["changes"] or {}).items()
                if isinstance(names, list) and names
            )
            what = "other code on" if entry["file"] is None else f"file {safe(str(entry['file'])[:12])} applied by"
            host = safe(entry["host"], 40) or "an unknown host"
            return f"{what} {host}" + (f" ({safe(changes, 200)})" if changes else "")
        case "outage":
            host, until = safe(entry["host"], 40) or "a host", times.clock(entry["finished_at"])
            return f"{host} could not use the database until {until}: {safe(entry['reason'], 200)}"
        case "fault":
            until = f"until {times.clock(entry['finished_at'])}" if entry["finished_at"] else "and still cannot"
            where, why = safe(entry["name"], 100), safe(entry["reason"], 200)
            return f"{safe(entry['host'], 40) or 'a host'} could not use {where} {until}: {why}"
        case "schedules_off":
            until = times.clock(entry["finished_at"])
            return f"no tick fired schedules until {until}: CRONJOBS_SCHEDULES was off on every host that ticked"
        case _:
            began, host = times.clock(entry["started_at"]), entry["host"]
            of = f"of host {safe(host, 40)} " if host is not None else ""
            but = ", while other hosts ticked" if host is not None else ""
            if entry["finished_at"] is None:
                return f"{of}reached the database since {began}{but}"
            why = f": {safe(entry['reason'], 400)}" if entry["reason"] else ""
            if entry["finished_at"] == entry["started_at"]:
                return f"{of}reached the database until {began}{why}"
            return f"{of}reached the database between {began} and {times.clock(entry['finished_at'])}{but}{why}"
