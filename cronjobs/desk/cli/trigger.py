"""``cronjobs trigger`` and ``backfill``: enqueue runs of a schedule by hand."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer
from sqlalchemy import Connection

from cronjobs.desk.cli import parse_values
from cronjobs.desk.cli.known_types import warn_if_unfit
from cronjobs.desk.cli.options import JsonOption, Source, WhyOption, schedule_names
from cronjobs.desk.cli.pauses import say_paused
from cronjobs.desk.cli.project_database import by_hand, our_database
from cronjobs.desk.insight.formatting import counted, in_full
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import complain, echo, echo_json
from cronjobs.engine.config.settings import ScheduleSettings, Settings
from cronjobs.engine.schedules import backfill as fill
from cronjobs.engine.schedules.definition import definition
from cronjobs.engine.store.queues import paused_scope
from cronjobs.engine.store.schedules import pauses_in_force

ScheduleArgument = Annotated[
    str, typer.Argument(metavar="SCHEDULE", autocompletion=schedule_names, help="The schedule's name.")
]
FromOption = Annotated[str, typer.Option("--from", metavar="T", help="The first instant of the range.")]
NoImportOption = Annotated[bool, typer.Option("--no-import", help="Do not import handlers to check the payload.")]
ToOption = Annotated[str, typer.Option("--to", metavar="T", help="The last instant of the range, or now.")]


def trigger(
    source: Source,
    schedule: ScheduleArgument,
    force: Annotated[bool, typer.Option("--force", help="Enqueue even if the schedule has an unfinished job.")] = False,
    why: WhyOption = None,
    no_import: NoImportOption = False,
    as_json: JsonOption = False,
) -> None:
    """Enqueue one job of a schedule now; the next tick runs it.

    The job uses the definition in the database: a change to the file takes effect once the file is applied. The
    schedule's usual times do not change. If a job of the schedule is unfinished, the command creates no other job. With
    --force, or if the schedule has "overlap: allow", it creates the job anyway. Afterwards the command imports the
    handlers on this host. It warns if there is no handler for the schedule's type, or if the handler does not take the
    schedule's payload.

    Exit codes: 0 enqueued, 1 a job is unfinished, or there is no such schedule.
    """
    with (
        our_database(source) as (settings, database),
        _in_file(schedule, settings.schedules),
        database.write() as connection,
    ):
        job_id = fill.trigger(connection, schedule, force=force, why=why, **by_hand())
        defined = fill.definition_in_force(connection, schedule)
        paused = paused_scope(connection, defined.queue)
        by_name = _is_paused(connection, schedule)
    if as_json:
        echo_json({"id": job_id, "schedule": schedule})
    else:
        echo(f"job {job_id} enqueued, due now")
    _say_unapplied(settings, defined)
    say_paused(paused)
    if by_name:
        complain(f"schedule {schedule} is paused, but this job will run anyway")
    _leave(None if no_import else settings, defined, f"Job {job_id} waits", f"cronjobs jobs cancel {job_id}")


def backfill(
    source: Source,
    schedule: ScheduleArgument,
    first: FromOption,
    last: ToOption,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run; change nothing.")] = False,
    no_import: NoImportOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run the occurrences that a schedule missed or skipped in a past period, each once.

    An occurrence that already has a job, or was coalesced into another one, gets no second job, even if that job is
    dead or cancelled: retry that job instead. If an occurrence was due before the schedule existed, the command runs
    it, too, and reports that. The jobs are due now. They run oldest first, and one at a time unless the schedule
    allows overlap. For a handler, ctx.scheduled_for is the instant of the job's occurrence. Instants without an
    offset are in the configuration's timezone. The command leaves out the occurrences that no tick has settled yet,
    since ticks will settle them. So it is safe to give "--to now". At the end, also with --dry-run, the command
    imports the handlers on this host. It warns if there is no handler for the schedule's type, or if the handler does
    not take the schedule's payload.
    """
    with our_database(source) as (settings, database), _in_file(schedule, settings.schedules):
        now = database.clock.now()
        begin = parse_values.instant(first, settings.timezone, "--from", past_until=now)
        end = parse_values.instant(last, settings.timezone, "--to", past_until=now)
        with database.write() as connection:
            filling = fill.backfill(
                connection,
                schedule,
                begin,
                end,
                retention=settings.retention.occurrences,
                dry_run=dry_run,
                **by_hand(),
            )
            defined = fill.definition_in_force(connection, schedule)
            paused = paused_scope(connection, defined.queue) if filling.run and not dry_run else None
            by_name = _is_paused(connection, schedule) and bool(filling.run)
    if as_json:
        runs = [instant.isoformat() for instant in filling.run]
        echo_json({"schedule": schedule, "dry_run": dry_run, "run": runs, "done_before": filling.done})
    else:
        _print_filling(filling, schedule, settings.timezone, dry_run=dry_run)
    if filling.settled_until is not None:
        until = in_full(filling.settled_until, settings.timezone)
        complain(
            f"--to is later than {until}. Ticks have settled {schedule} only up to then, and will run the later "
            "occurrences themselves"
        )
    if filling.run:
        _say_unapplied(settings, defined)
    say_paused(paused)
    if by_name:
        complain(f"schedule {schedule} is paused, but these jobs will run anyway")
    undo = "correct it before the backfill" if dry_run else f"cronjobs jobs cancel --schedule {shlex.quote(schedule)}"
    _leave(None if no_import or not filling.run else settings, defined, "Its jobs wait", undo)


def _is_paused(connection: Connection, schedule: str) -> bool:
    """Return whether the schedule itself is paused. Such a pause stops the schedule's occurrences, but not its jobs."""
    return any((pause.scope, pause.name) == ("schedule", schedule) for pause in pauses_in_force(connection))


@contextmanager
def _in_file(schedule: str, schedules: Collection[str]) -> Iterator[None]:
    """If only the file has the schedule, raise an error that explains how to apply the file."""
    try:
        yield
    except fill.UnknownSchedule:
        if schedule in schedules:
            raise fill.NotYetInForce(schedule) from None
        raise


def _say_unapplied(settings: Settings, defined: ScheduleSettings) -> None:
    """Print a note if the file's definition differs from *defined*, the definition in the database."""
    written = settings.schedules.get(defined.name)
    if written is not None and definition(written) != definition(defined):
        complain(
            f"{settings.file.name} defines {defined.name} differently, but no tick has applied it yet, so this "
            "command used the definition in the database. To apply the file first: cronjobs sync"
        )


def _print_filling(filling: fill.Filling, schedule: str, timezone: str, *, dry_run: bool) -> None:
    jobs = counted(len(filling.run), "job") + " would be" * dry_run
    done = f"{filling.done} of the occurrences in the range already had a job or were run by cron itself"
    echo(f"{jobs} enqueued; {done}")
    if filling.not_in_force:
        are = "is for a time" if filling.not_in_force == 1 else "are for times"
        echo(f"{filling.not_in_force} of these jobs {are} before {schedule} existed, or when it was retired")
    if dry_run:
        for instant in filling.run[:50]:
            echo(f"  {in_full(instant, timezone)}")
        if len(filling.run) > 50:
            complain(f"  … and {len(filling.run) - 50} more (--json lists all)")


def _leave(settings: Settings | None, defined: ScheduleSettings, waits: str, undo: str) -> NoReturn:
    """Warn if no handler here fits the enqueued jobs, then exit even if the user's modules left threads running.

    If *settings* is None, import nothing and do not warn.
    """
    if settings is not None:
        warn_if_unfit(settings, defined.job, defined.payload, waits, undo)
    leaving.leave(0, stuck=False)
