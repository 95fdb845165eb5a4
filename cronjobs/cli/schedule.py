"""``cronjobs sync``, ``pause`` and ``resume``: which definitions are in force, and the brake."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cronjobs.cli.setting import (
    ConfigOption,
    JsonOption,
    UrlOption,
    coloured,
    complain,
    echo,
    echo_json,
    load_settings,
    open_database,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlalchemy import Connection

    from cronjobs.database import Database
    from cronjobs.events import Event
    from cronjobs.policy import Range
    from cronjobs.pressure import Cap
    from cronjobs.settings import Settings
    from cronjobs.store.schedules import StoredSchedule
    from cronjobs.sync import Plan


# --- sync -------------------------------------------------------------------------------------------------------------


def sync(
    ctx: typer.Context,
    config: ConfigOption = None,
    database_url: UrlOption = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would change; change nothing.")] = False,
    allow_removals: Annotated[
        bool, typer.Option("--allow-removals", help="Also if most schedules would be retired.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Put the file's schedules in force now, without waiting for a tick.

    A tick does the same by itself when a host's file is new. What is due under a definition that ends is settled
    first; jobs that are made already stay. Prints "+" for a new schedule, "~" for a changed one and what changes,
    ">" for one with a new name, "-" for one that no longer fires, and "~" for a queue whose cap changes.

    Exit codes: 0 done or planned, 1 refused, 3 an entry of the file is bad (the others are applied), 4 database.
    """
    from cronjobs import sync as core
    from cronjobs.cli.ours import operator, our_database
    from cronjobs.identity import Identity
    from cronjobs.log import Log

    if plan:
        settings, stored, caps = _look(ctx, config, database_url)
        todo = core.plan(list(stored.values()), settings.schedules, settings.disabled_schedules)
        todo = core.with_caps(todo, caps, settings)
        applied = False
        left: tuple[str, ...] = ()
    else:
        with our_database(ctx, config, database_url, adopt=True) as (settings, database):
            stored = _stored(database)
            done = core.sync(
                database,
                settings,
                Log(settings.log).write,
                host=Identity.here().host,
                actor=operator(),
                allow_removals=allow_removals,
            )
            todo, applied, left = done.plan, done.applied, done.left
    refused = None if allow_removals else todo.refused
    was = {new: old for old, new in todo.rename}
    changes = {name: _changes(settings, stored[was.get(name, name)].definition, name) for name in todo.change}
    if as_json:
        facts = {"add": todo.add, "change": changes, "remove": todo.remove, "rename": renamed(todo), "refused": refused}
        facts |= {"cap": [vars(cap) for cap in todo.cap], "uncap": todo.uncap}
        echo_json({"applied": applied} | facts | {"problems": [str(problem) for problem in settings.problems]})
    else:
        _print_plan(settings, todo, changes)
    for problem in settings.problems:
        complain(str(problem))
    if refused:
        complain(refused)
    elif not plan and not applied:
        some = f"{', '.join(left[:10])}{', …' if len(left) > 10 else ''}" or "all"
        complain(
            "the file is not in force as a whole: a tick is settling what was due there, or an open transaction holds "
            f"a capped queue ({some}); the next tick with this file goes on, or try again"
        )
    if refused or not (plan or applied):
        raise typer.Exit(1)
    if todo.empty and not as_json:
        complain("nothing to change")
    if settings.problems:
        raise typer.Exit(3)


def _look(
    ctx: typer.Context, config: Path | None, url: str | None
) -> tuple[Settings, dict[str, StoredSchedule], dict[str, Cap]]:
    """The settings and what is in force, without making so much as a file."""
    from cronjobs.errors import SchemaMissing
    from cronjobs.ownership import is_ours
    from cronjobs.store import queues
    from cronjobs.store.meta import require_schema

    settings = load_settings(ctx, config, url)
    if settings.database.startswith("sqlite") and not _sqlite_file(settings).exists():
        return settings, {}, {}
    database = open_database(settings)
    try:
        with database.read() as connection:
            try:
                found = require_schema(connection)
            except SchemaMissing:
                if not database.is_sqlite:
                    raise
                return settings, {}, {}
            caps = queues.caps_in_force(connection)
        is_ours(settings, found.project, found.environment)
        return settings, _stored(database), caps
    finally:
        database.close()


def _sqlite_file(settings: Settings) -> Path:
    from cronjobs.database import parse_url

    return Path(str(parse_url(settings.database).url.database))


def _stored(database: Database) -> dict[str, StoredSchedule]:
    from cronjobs.store.schedules import all_schedules

    with database.read() as connection:
        return {schedule.name: schedule for schedule in all_schedules(connection)}


def _changes(settings: Settings, stored: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What is different in a definition, from and to; of a payload only that it is: it may hold secrets."""
    from cronjobs.definitions import definition

    written = definition(settings.schedules[name])
    return {
        key: "changed" if key == "payload" else {"from": stored.get(key), "to": written[key]}
        for key in written
        if stored.get(key) != written[key]
    }


def _print_plan(settings: Settings, todo: Plan, changes: Mapping[str, dict[str, Any]]) -> None:
    for name in todo.add:
        echo(coloured(f"+ {name}: {_when(settings, name)} → {settings.schedules[name].job}", "green"))
    for old, new in todo.rename:
        echo(coloured(f"> {old} → {new}", "yellow"))
    for name in todo.change:
        said = [_change(key, value) for key, value in changes.get(name, {}).items()]
        echo(coloured(f"~ {name}: {'; '.join(said)}", "yellow"))
    for name in todo.remove:
        echo(coloured(f"- {name}", "red"))
    for cap in todo.cap:
        echo(coloured(f"~ queue {cap}", "yellow"))
    for name in todo.uncap:
        echo(coloured(f"~ queue {name}: no cap", "yellow"))


def _change(key: str, value: Any) -> str:
    from datetime import timedelta

    from cronjobs.model import duration_text

    name = key.removesuffix("_s")
    if value == "changed":
        return f"{name} changed"
    sides = [
        duration_text(timedelta(seconds=side)) if name != key and side is not None else side
        for side in (value["from"], value["to"])
    ]
    return f"{name} {' → '.join('none' if side is None else str(side) for side in sides)}"


def renamed(todo: Plan) -> list[dict[str, str]]:
    return [{"from": old, "to": new} for old, new in todo.rename]


def _when(settings: Settings, name: str) -> str:
    from cronjobs.model import duration_text

    schedule = settings.schedules[name]
    if schedule.every is not None:
        return f"every {duration_text(schedule.every)}"
    return f'"{schedule.cron}" {schedule.timezone}'


# --- pause, resume ----------------------------------------------------------------------------------------------------

ScheduleArgument = Annotated[str | None, typer.Argument(metavar="SCHEDULE", help="One schedule.", show_default=False)]
AllOption = Annotated[bool, typer.Option("--all", help="Everything: no job is begun, no schedule makes one.")]
QueueOption = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="One queue: its jobs wait.", show_default=False)
]

WhyOption = Annotated[str | None, typer.Option(metavar="TEXT", help="For whoever finds it.", show_default=False)]
SkipOption = Annotated[
    bool, typer.Option("--skip", help="With --all or a schedule: what comes due meanwhile is skipped, for good.")
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
        str | None, typer.Option("--for", metavar="SPAN", help="Ends by itself: 1h.", show_default=False)
    ] = None,
    why: WhyOption = None,
    skip: SkipOption = False,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN",
            help="With --all or --queue: wait, at most so long, until nothing of it runs any more: 60s.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """The brake: until you resume, or until the time you say, no job is begun on any host.

    What runs goes on. Jobs in a paused queue wait. Occurrences of a paused schedule wait, too: when the pause is over,
    the schedule's catch_up decides about them, as after an outage; with --skip they are recorded as skipped instead.
    --all does both. Pausing again changes the end and the reason. Prints every pause that is in force.

    With --wait it is for deploy scripts, in a pair with resume. Exit code 0: nothing runs; 1: the time is up, and what
    still runs is listed. The pause stays in either case, and at Ctrl-C.
    """
    from cronjobs.cli import given
    from cronjobs.cli.ours import operator, our_database
    from cronjobs.errors import UsageError
    from cronjobs.store import schedules as store
    from cronjobs.store.sql import database_now

    scope, name = _scope(everything, queue, schedule)
    if skip and scope == "queue":
        raise UsageError("--skip is for --all and for a schedule: the jobs of a queue wait, and none is skipped")
    reason = _reason(why)
    patience = None if wait is None else given.span(wait, "--wait")
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
            from cronjobs.cli.quiet import wait_until_quiet

            undo = "cronjobs resume " + ("--all" if scope == "all" else f"--queue {name}")
            wait_until_quiet(database, settings.timezone, name or None, patience, undo)


def _record_skipped(database: Database, settings: Settings, name: str) -> None:
    """Record what the pause before has skipped: its row is about to say something else."""
    from cronjobs.log import Log
    from cronjobs.materialise import materialise

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
    """Take a pause off again: the one of --all, of a queue, or of a schedule; others stay.

    What waited runs with the next tick. About what it held back of schedules catch_up decides now, and each of them is
    listed with what becomes of it. Prints the pauses that are still in force.
    """
    from cronjobs.cli.ours import our_database
    from cronjobs.pauses import held_back_now
    from cronjobs.store import schedules as store
    from cronjobs.store.sql import database_now

    scope, name = _scope(everything, queue, schedule)
    with our_database(ctx, config, database_url) as (settings, database):
        with database.write() as connection:
            now = database_now(connection)
            held = {} if scope == "queue" else held_back_now(connection)
            was_on = store.resume(connection, scope=scope, name=name, now=now)
            if was_on:
                _record(connection, "resume", scope, name, why=_reason(why), until=None, now=now)
        complain(f"resumed: {_what(scope, name)}" if was_on else f"{_what(scope, name)}: was not paused, nothing to do")
        if was_on and held:
            for line in _settle_held(database, settings, held, None if scope == "all" else name):
                (complain if as_json else echo)(line)
        _print_in_force(database, settings, as_json)


def _settle_held(database: Database, settings: Settings, held: Mapping[str, Range], name: str | None) -> list[str]:
    """Settle what is held back no more; a line for each schedule (*name* None: of all that had something)."""
    from cronjobs.errors import DatabaseError
    from cronjobs.log import Log
    from cronjobs.materialise import materialise
    from cronjobs.pauses import held_back_now

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
    from cronjobs.text import one_line

    span = _local(settings, what.last)
    if what.count > 1:
        span = f"from {_local(settings, what.first)} to {span}"
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
    from cronjobs.text import clean, one_line

    return one_line(clean(why), 500) if why and why.strip() else None


def _scope(everything: bool, queue: str | None, schedule: str | None) -> tuple[str, str]:
    from cronjobs.errors import UsageError
    from cronjobs.jobs import name_fault

    given = [("all", "")] * everything + [("queue", queue)] * (queue is not None)
    given += [("schedule", schedule)] * (schedule is not None)
    if len(given) != 1:
        raise UsageError("say one of: --all, --queue NAME, or a SCHEDULE")
    scope, name = given[0]
    if scope != "all" and (fault := name_fault(name)):
        raise UsageError(f"{scope} {name!r} {fault}")
    return scope, str(name)


def _end(settings: Settings, until: str | None, span: str | None, now: datetime) -> datetime | None:
    from cronjobs.cli import given
    from cronjobs.errors import UsageError

    if until is not None and span is not None:
        raise UsageError("give --until or --for, not both")
    if span is not None:
        return now + given.span(span, "--for", above_zero=True)
    if until is None:
        return None
    ends = given.instant(until, settings.timezone, "--until")
    if ends <= now:
        raise UsageError(f"--until is over already: {_local(settings, ends)}")
    return ends


def _require_known(connection: Connection, settings: Settings, scope: str, name: str) -> None:
    """A brake on a mistyped name would brake nothing."""
    from cronjobs.errors import UsageError
    from cronjobs.reading import nearest
    from cronjobs.store import outlook
    from cronjobs.store.schedules import all_schedules

    if scope == "all":
        return
    if scope == "schedule":
        known = {*settings.schedules, *settings.disabled_schedules, *(s.name for s in all_schedules(connection))}
    else:
        known = {"default", *(s.queue for s in settings.schedules.values()), *outlook.waiting_queues(connection)}
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
    from cronjobs.cli.ours import operator
    from cronjobs.identity import Identity
    from cronjobs.store.ticks import record

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
    from cronjobs.store.schedules import pauses_in_force

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
    from cronjobs.text import one_line

    lines = []
    for pause in pauses:
        until = f"until {_local(settings, pause.until)}" if pause.until is not None else "until someone resumes it"
        by = f", by {pause.by}" if pause.by else ""
        why = f": {pause.why}" if pause.why else ""
        skips = ", and skips what comes due" if pause.skip else ""
        lines.append(one_line(f"{_what(pause.scope, pause.name)} is paused {until}{skips}{by}{why}", 1000))
    return lines


def _what(scope: str, name: str) -> str:
    return "everything" if scope == "all" else f"{scope} {name}"


def _local(settings: Settings, instant: datetime) -> str:
    from zoneinfo import ZoneInfo

    from cronjobs.model import in_zone

    return in_zone(instant, ZoneInfo(settings.timezone)).isoformat(timespec="seconds")
