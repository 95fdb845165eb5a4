"""``cronjobs pause`` and ``resume``: the brake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from cronjobs.cli import typed
from cronjobs.cli.options import ConfigOption, JsonOption, UrlOption, WhyOption
from cronjobs.cli.output import complain, echo, echo_json, local
from cronjobs.cli.pause_wait import wait_until_quiet
from cronjobs.cli.project_database import operator, our_database
from cronjobs.config.reader import nearest
from cronjobs.config.settings import Settings
from cronjobs.database.connection import Database
from cronjobs.errors import DatabaseError, UsageError
from cronjobs.events import Event
from cronjobs.host.identity import Identity
from cronjobs.jobs.checking import name_fault
from cronjobs.rules import pausing
from cronjobs.rules.occurrences import Range
from cronjobs.schedules.materialise import materialise
from cronjobs.schedules.pauses import held_back_now
from cronjobs.store import schedules as store
from cronjobs.store import upcoming
from cronjobs.store.schedules import all_schedules, pauses_in_force
from cronjobs.store.sql import database_now
from cronjobs.store.ticks import record
from cronjobs.text import clean, one_line
from cronjobs.tick.log import Log

ScheduleArgument = Annotated[str | None, typer.Argument(metavar="SCHEDULE", help="One schedule.", show_default=False)]
AllOption = Annotated[bool, typer.Option("--all", help="Everything: no job begins, no schedule makes one.")]
QueueOption = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="One queue: its jobs wait.", show_default=False)
]
SkipOption = Annotated[
    bool, typer.Option("--skip", help="With --all or a schedule: skip, for good, what comes due meanwhile.")
]


def pause(
    ctx: typer.Context,
    schedule: ScheduleArgument = None,
    config: ConfigOption = None,
    database_url: UrlOption = None,
    everything: AllOption = False,
    queue: QueueOption = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Ends by itself: 2026-11-20T09:00.", show_default=False)
    ] = None,
    span: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="Ends by itself: 1h.", show_default=False)
    ] = None,
    why: WhyOption = None,
    skip: SkipOption = False,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="With --all or --queue: wait at most this long until none of its jobs run any more: 60s.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Pause all work, a queue or a schedule, on every host, until you resume or until a given time.

    Running jobs continue. Jobs in a paused queue wait. Occurrences of a paused schedule wait, too: when the pause is
    over, the schedule's catch_up decides about them, as after an outage; with --skip they are recorded as skipped
    instead. --all does both. Pausing again changes the end and the reason. Prints every pause in force.

    Deploy scripts use it with --wait before the deploy, and resume after it. Exit code 0: nothing runs; 1: the time is
    up, and it lists what still runs. The pause stays in either case, and after Ctrl-C.
    """
    scope, name = _scope(everything, queue, schedule)
    if skip and scope == "queue":
        raise UsageError("--skip is for --all and for a schedule: the jobs of a queue wait, and none is skipped")
    reason = _reason(why)
    patience = None if wait is None else typed.span(wait, "--wait")
    if patience is not None and scope == "schedule":
        raise UsageError("--wait is for --all and --queue: jobs that a schedule made already run, paused or not")
    with our_database(ctx, config, database_url) as (settings, database):
        with database.read() as connection:
            before = None if scope == "queue" else store.pause_row(connection, scope=scope, name=name)
        if before is not None and before.skip:
            _record_skipped(database, settings, name)
        with database.write() as connection:
            now = database_now(connection)
            ends = _end(settings, until, span, now)
            _require_known(connection, settings, scope, name)
            by = operator()
            store.pause(connection, scope=scope, name=name, until=ends, by=by, why=reason, now=now, skip=skip)
            _record(connection, "pause", scope, name, why=reason, until=ends, skip=skip, now=now)
        _print_in_force(database, settings, as_json)
        if patience is not None:
            undo = "cronjobs resume " + ("--all" if scope == "all" else f"--queue {name}")
            wait_until_quiet(database, settings.timezone, name or None, patience, undo)


def _record_skipped(database: Database, settings: Settings, name: str) -> None:
    """Record what the pause before has skipped: its row is about to say something else."""
    materialise(database, Log(settings.log).write, put_aside=name)


def resume(
    ctx: typer.Context,
    schedule: ScheduleArgument = None,
    config: ConfigOption = None,
    database_url: UrlOption = None,
    everything: AllOption = False,
    queue: QueueOption = None,
    why: WhyOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a pause: that of --all, of a queue, or of a schedule; others stay.

    Jobs that waited run with the next tick. catch_up now decides about the occurrences that were held back; each is
    listed with what becomes of it. Prints the pauses still in force.
    """
    scope, name = _scope(everything, queue, schedule)
    with our_database(ctx, config, database_url) as (settings, database):
        with database.write() as connection:
            now = database_now(connection)
            held = {} if scope == "queue" else held_back_now(connection)
            was_on = store.resume(connection, scope=scope, name=name, now=now)
            if was_on:
                _record(connection, "resume", scope, name, why=_reason(why), until=None, now=now)
        complain(
            f"resumed: {pausing.what(scope, name)}"
            if was_on
            else f"{pausing.what(scope, name)}: was not paused, nothing to do"
        )
        if was_on and held:
            for line in _settle_held(database, settings, held, None if scope == "all" else name):
                (complain if as_json else echo)(line)
        _print_in_force(database, settings, as_json)


def _settle_held(database: Database, settings: Settings, held: Mapping[str, Range], name: str | None) -> list[str]:
    """Settle what is held back no more; a line for each schedule (*name* None: of all that had something)."""
    log, events = Log(settings.log), []

    def emit(event: Event) -> None:
        events.append(event)
        log.write(event)

    try:
        materialise(database, emit, but=settings.disabled_schedules)
        with database.read() as connection:
            still = held_back_now(connection)
    except DatabaseError:
        complain("it is resumed, and the next tick settles what it held back")
        raise
    lines = []
    for schedule, what in sorted(held.items()):
        if name not in (None, schedule):
            continue
        became = [event.facts | {"outcome": event.name.partition(".")[2]} for event in events if "count" in event.facts]
        became = [facts for facts in became if facts["schedule"] == schedule]
        lines.append(_held_line(settings, schedule, what, became, still=schedule in still))
    return lines


def _held_line(
    settings: Settings, schedule: str, what: Range, became: Sequence[Mapping[str, Any]], *, still: bool
) -> str:
    """ "nightly: 3 occurrences were held back, from … to …: 2 coalesced, 1 enqueued (job 17)"."""
    span = local(settings, what.last)
    if what.count > 1:
        span = f"from {local(settings, what.first)} to {span}"
    counts: dict[str, int] = {}
    for facts in became:
        counts[facts["outcome"]] = counts.get(facts["outcome"], 0) + facts["count"]
    told = [f"{count:,} {outcome}" for outcome, count in counts.items()]
    if jobs := [str(facts["job_id"]) for facts in became if facts["outcome"] == "enqueued"]:
        told[-1] += f" (job {', '.join(jobs[:5])}{', …' if len(jobs) > 5 else ''})"
    then = ", ".join(told) or ("still held back by another pause" if still else "a tick is settling them")
    count = "1 occurrence was" if what.count == 1 else f"{what.count:,} occurrences were"
    return one_line(f"{schedule}: {count} held back, {span}: {then}", 1000)


def _reason(why: str | None) -> str | None:
    return one_line(clean(why), 500) if why and why.strip() else None


def _scope(everything: bool, queue: str | None, schedule: str | None) -> tuple[str, str]:
    given = [("all", "")] * everything + [("queue", queue)] * (queue is not None)
    given += [("schedule", schedule)] * (schedule is not None)
    if len(given) != 1:
        raise UsageError("say one of: --all, --queue NAME, or a SCHEDULE")
    scope, name = given[0]
    if scope != "all" and (fault := name_fault(name)):
        raise UsageError(f"{scope} {name!r} {fault}")
    return scope, str(name)


def _end(settings: Settings, until: str | None, span: str | None, now: datetime) -> datetime | None:
    if until is not None and span is not None:
        raise UsageError("give --until or --for, not both")
    if span is not None:
        return now + typed.span(span, "--for", above_zero=True)
    if until is None:
        return None
    ends = typed.instant(until, settings.timezone, "--until")
    if ends <= now:
        raise UsageError(f"--until is over already: {local(settings, ends)}")
    return ends


def _require_known(connection: Connection, settings: Settings, scope: str, name: str) -> None:
    """A brake on a mistyped name would brake nothing."""
    if scope == "all":
        return
    if scope == "schedule":
        known = {*settings.schedules, *settings.disabled_schedules, *(s.name for s in all_schedules(connection))}
    else:
        known = {"default", *(s.queue for s in settings.schedules.values()), *upcoming.waiting_queues(connection)}
    if name in known:
        return
    meant = nearest(name, known)
    guess = f', did you mean "{meant}"?' if meant else ""
    if scope == "schedule":
        raise UsageError(f'there is no schedule "{name}"{guess}')
    complain(f'nothing waits in a queue "{name}" now{guess}')


def _record(
    connection: Connection,
    action: str,
    scope: str,
    name: str,
    *,
    why: str | None,
    until: datetime | None,
    now: datetime,
    skip: bool = False,
) -> None:
    record(
        connection,
        action=action,
        subject=f"{scope} {name}".strip(),
        actor=operator(),
        host=Identity.here().host,
        why=why,
        detail=({} if until is None else {"until": until.isoformat()}) | ({"skip": True} if skip else {}) or None,
        at=now,
    )


def _print_in_force(database: Database, settings: Settings, as_json: bool) -> None:
    with database.read() as connection:
        pauses = pauses_in_force(connection)
    if as_json:
        echo_json([dict(pause._mapping) for pause in pauses])
        return
    if not pauses:
        complain("nothing is paused")
    for line in pause_lines(pauses, settings):
        echo(line)


def pause_lines(pauses: Sequence[Any], settings: Settings) -> list[str]:
    """Each pause in a line of words."""
    lines = []
    for pause in pauses:
        until = f"until {local(settings, pause.until)}" if pause.until is not None else "until someone resumes it"
        by = f", by {pause.by}" if pause.by else ""
        why = f": {pause.why}" if pause.why else ""
        skips = ", and skips what comes due" if pause.skip else ""
        lines.append(one_line(f"{pausing.what(pause.scope, pause.name)} is paused {until}{skips}{by}{why}", 1000))
    return lines
