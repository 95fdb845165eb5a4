"""``cronjobs pause``: stop all work, a queue or a schedule until someone resumes it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from sqlalchemy import Connection

from cronjobs.desk.cli import parse_values
from cronjobs.desk.cli.options import JsonOption, Source, WhyOption
from cronjobs.desk.cli.pause_wait import wait_until_quiet
from cronjobs.desk.cli.pauses import (
    PauseAllOption,
    PauseQueueOption,
    ScheduleArgument,
    print_in_force,
    record_change,
    target,
)
from cronjobs.desk.cli.project_database import operator, our_database
from cronjobs.desk.insight.formatting import in_full
from cronjobs.engine.command.printing import complain
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.schedules.materialise import materialise
from cronjobs.engine.store import schedules as store
from cronjobs.engine.store import upcoming
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.tick.log import Log
from cronjobs.errors import UsageError
from cronjobs.text import nearest

SkipOption = Annotated[
    bool,
    typer.Option("--skip", help="Skip the occurrences that fall due during the pause. Only with --all or a schedule."),
]


def pause(
    source: Source,
    schedule: ScheduleArgument = None,
    everything: PauseAllOption = False,
    queue: PauseQueueOption = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="End the pause at this time: 2026-11-20T09:00.", show_default=False),
    ] = None,
    span: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="End the pause after this long: 1h.", show_default=False),
    ] = None,
    why: WhyOption = None,
    skip: SkipOption = False,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help=(
                "Wait up to this long until no job is running, e.g. 60s. With --queue, only that queue's jobs count. "
                "Needs --all or --queue. Default: do not wait."
            ),
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Pause all work, one queue or one schedule on every host, until you resume it or until a given time.

    Running jobs continue. Jobs in a paused queue wait. Occurrences of a paused schedule wait, too: when the pause is
    over, the schedule's catch_up decides what becomes of them, as after an outage. With --skip they are recorded as
    skipped instead. --all pauses both jobs and schedules. Pausing again changes the end and the reason of the pause.
    The command prints every pause in force.

    Deploy scripts use pause --all --wait before the deploy, and resume --all after it. With --wait, exit code 0 means
    that nothing is running. Exit code 1 means that the time is up, and the command lists what is still running. The
    pause remains in effect in either case, and after Ctrl-C.
    """
    scope, name = target(everything, queue, schedule)
    if skip and scope == "queue":
        raise UsageError("--skip is for --all or a schedule: a paused queue's jobs wait and are never skipped")
    patience = None if wait is None else parse_values.span(wait, "--wait")
    if patience is not None and scope == "schedule":
        raise UsageError(
            "--wait is for --all and --queue: a schedule's existing jobs run even while the schedule is paused"
        )
    with our_database(source) as (settings, database):
        with database.read() as connection:
            before = None if scope == "queue" else store.pause_row(connection, scope=scope, name=name)
        if before is not None and before.skip:
            # Settle the occurrences that the present pause has skipped, before the pause's row changes.
            materialise(database, Log(settings.log).write, put_aside=name)
        with database.write() as connection:
            now = database_now(connection)
            ends = _end(settings.timezone, until, span, now)
            _require_known(connection, settings, scope, name)
            by = operator()
            store.pause(connection, scope=scope, name=name, until=ends, by=by, why=why, now=now, skip=skip)
            ended = ends.isoformat() if ends else None
            record_change(connection, "pause", scope, name, why=why, at=now, until=ended, skip=skip)
        print_in_force(database, settings.timezone, as_json)
        if patience is not None:
            undo = "cronjobs resume " + ("--all" if scope == "all" else f"--queue {name}")
            wait_until_quiet(database, settings.timezone, name or None, patience, undo)


def _end(timezone: str, until: str | None, span: str | None, now: datetime) -> datetime | None:
    if until is not None and span is not None:
        raise UsageError("give --until or --for, not both")
    if span is not None:
        return now + parse_values.span(span, "--for", above_zero=True)
    if until is None:
        return None
    ends = parse_values.instant(until, timezone, "--until")
    if ends <= now:
        raise UsageError(f"--until has already passed: {in_full(ends, timezone)}")
    return ends


def _require_known(connection: Connection, settings: Settings, scope: str, name: str) -> None:
    """Raise UsageError for an unknown schedule and warn of an unknown queue. A mistyped name stops nothing."""
    if scope == "all":
        return
    if scope == "schedule":
        known = {*settings.schedules, *settings.disabled_schedules, *(s.name for s in store.all_schedules(connection))}
    else:
        known = {"default", *(s.queue for s in settings.schedules.values()), *upcoming.waiting_queues(connection)}
    if name in known:
        return
    meant = nearest(name, known)
    guess = f', did you mean "{meant}"?' if meant else ""
    if scope == "schedule":
        raise UsageError(f'there is no schedule "{name}"{guess}')
    complain(f'no job is waiting in a queue named "{name}" now{guess}')
