"""``cronjobs status``: the state on one screen, once or redrawn."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Final

import typer
from sqlalchemy import Connection

from cronjobs.desk.cli.known_types import known_types
from cronjobs.desk.cli.loading import load_settings, runs_in_spool
from cronjobs.desk.cli.options import JsonOption, Source
from cronjobs.desk.cli.output import write
from cronjobs.desk.cli.status_json import all_of_it
from cronjobs.desk.cli.status_lines import TICKS_SHOWN, cause_lines, head_lines, schedule_lines, work_lines
from cronjobs.desk.insight.causes import causes_of
from cronjobs.desk.insight.formatting import Times, at_work_within
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.pace import at_their_pace
from cronjobs.desk.insight.queue_trends import queue_trends
from cronjobs.desk.insight.worst_first import run_by_cron, schedules_shown
from cronjobs.desk.store.reading import read_one_snapshot
from cronjobs.desk.store.status_facts import unended_ticks
from cronjobs.engine.command import leaving
from cronjobs.engine.command.database import ready_database
from cronjobs.engine.command.printing import complain, is_terminal, json_text
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.errors import UsageError

IN_A_PIPE: Final = 20  # how many schedules to show if stdout is not a terminal
AT_LEAST: Final = 5  # show at least this many schedules, even on a terminal that has no lines left


def status(
    source: Source,
    every: Annotated[
        float | None,
        typer.Argument(metavar="SECONDS", show_default=False, help="Seconds between refreshes of --watch. Default: 2."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh the display in place until q or Ctrl-C.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every schedule and every finding.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the state on one screen: findings, schedules, running and waiting jobs, hosts.

    Problems come first. For each problem, the screen shows when it began and which command to run. These are problems
    with ticks and hosts: no tick runs; no tick fires schedules, or none fires the due occurrences of a schedule; hosts
    refuse a file, or have had different files for 15 minutes. These are problems with work: jobs are late; dead jobs
    were neither retried nor dismissed; the last three runs of a schedule failed; a schedule missed runs in an outage
    (until a run succeeds, or you trigger a run); a pause holds something back or is a day old. Next come the causes of
    jobs' deaths, commonest first, with keys for "jobs list", "jobs retry" and "jobs dismiss". Then come the schedules,
    worst first. For each schedule, the screen shows the result and the duration of its last run, the usual duration
    (the median, if at least 20 runs succeeded) and the last 20 runs. The command works even while the file is broken or
    handlers cannot be imported. It waits for the import of the handlers, but at most as long as a tick may take
    (run.budget). On a terminal, it says after 5 s which module it waits for. The command only reads, and its exit code
    is 0 whatever it finds. Times are those of the database's clock.
    """
    if every is not None and not (watch and 0.1 <= every <= 86_400):
        raise UsageError(
            "SECONDS sets how often --watch refreshes: give a number from 0.1 to 86400, together with --watch"
        )
    settings = load_settings(source, only_database=True)
    types = known_types(settings)
    if watch:
        from cronjobs.desk.cli.watch import Screen

        if as_json or not (is_terminal() and is_terminal("stdin")):
            raise UsageError('--watch needs a terminal. Without one, or for --json, run "cronjobs status" repeatedly')
        Screen(lambda: _screen(settings, types, everything=everything), every or 2, settings.timezone).run()
    else:
        try:
            with _opened(settings) as (connection, address):
                if as_json:
                    lines = [_status_json(connection, settings, types, address, everything=everything)]
                else:
                    lines = status_lines(connection, settings, types, address, everything=everything)
            write(lines)
        finally:
            # Runs wait in the spool above all while the database is away.
            if not as_json and (waiting := runs_in_spool(source, settings)):
                complain(f"runs of cronjobs exec on this host that are not in the database yet: {waiting:,}")
    leaving.leave(0, stuck=False)  # do not wait for threads that the user's modules started


@contextmanager
def _opened(settings: Settings) -> Iterator[tuple[Connection, str]]:
    """Yield a connection, and the database's address. All statements see the same moment, so that parts agree."""
    with closing(ready_database(settings, only_reads=True)) as database, database.read() as connection:
        read_one_snapshot(connection)
        yield connection, str(database.address)


def _screen(settings: Settings, types: JobTypes, *, everything: bool) -> list[str]:
    with _opened(settings) as (connection, address):
        return status_lines(connection, settings, types, address, everything=everything)


def status_lines(
    connection: Connection, settings: Settings, types: JobTypes, address: str, *, everything: bool
) -> list[str]:
    """Return the screen's lines. Unless *everything*, show only as many schedules as fit the terminal."""
    settings = at_their_pace(connection, settings)
    health = look(connection, settings, types)
    times = Times(health.now, settings.timezone)
    head = head_lines(health, settings, address, times, everything=everything)
    head += cause_lines(causes_of(connection, health), times, everything=everything)
    unended = unended_ticks(connection, at_work_within(settings.run.budget), TICKS_SHOWN)
    work = work_lines(health, settings, types, times, queue_trends(connection, health), unended)
    room = IN_A_PIPE
    if is_terminal():
        # Five more lines stand around the schedules: the table's header, the legend, the count of schedules left out,
        # an empty line and the prompt.
        around = len(head) + len(work) + 5
        room = max(AT_LEAST, shutil.get_terminal_size().lines - around)
    most = None if everything else room
    facts = schedules_shown(connection, health, settings.run.every, most)
    by_cron, names = run_by_cron(connection, health.now, None if most is None else max(AT_LEAST, most - len(facts)))
    return [*head, *schedule_lines([*facts, *by_cron], health.schedules.active + names, times), *work]


def _status_json(connection: Connection, settings: Settings, types: JobTypes, address: str, *, everything: bool) -> str:
    settings = at_their_pace(connection, settings)
    health = look(connection, settings, types)
    most = None if everything else IN_A_PIPE
    shown = schedules_shown(connection, health, settings.run.every, most)
    by_cron, _ = run_by_cron(connection, health.now, most)
    return json_text(all_of_it(connection, health, settings, address, shown, by_cron))
