"""``cronjobs run-due``: the tick, for cron and for people."""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cronjobs import events, masking
from cronjobs.cli import fault, leaving
from cronjobs.cli.lines_out import Outlet
from cronjobs.cli.options import ConfigOption, UrlOption, load_settings
from cronjobs.cli.output import coloured, complain, did, echo, echo_json, is_terminal
from cronjobs.cli.project_database import open_database, require_tables
from cronjobs.clock import SYSTEM
from cronjobs.config import trust
from cronjobs.config.settings import Settings
from cronjobs.database.address import parse_url
from cronjobs.errors import CronjobsError, UsageError
from cronjobs.execution.output import divert_logging, divert_streams
from cronjobs.host.forks import keep_streams_from_copies
from cronjobs.host.identity import Identity
from cronjobs.host.known_databases import remember
from cronjobs.model import duration
from cronjobs.tick import deadline
from cronjobs.tick.cron_mail import Alarm, known_log, remember_log, take_word
from cronjobs.tick.log import Log
from cronjobs.tick.result import Result
from cronjobs.tick.tick import Tick
from cronjobs.tick.tick_filter import TickFilter
from cronjobs.tick.wait_for_long_jobs import stay_for

DEATHS_TOLD = 10  # in one mail; the rest is counted


class FailOn(StrEnum):
    DEAD = "dead"
    ANY = "any"
    NEVER = "never"


def run_due(
    ctx: typer.Context,
    config: ConfigOption = None,
    database_url: UrlOption = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=64, help="Jobs at once. Default: run.workers.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time for this tick, e.g. 30s. Default: run.budget.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    only: Annotated[str | None, typer.Option(metavar="TYPE", help="Only jobs of this type.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Start at most this many jobs.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run; change nothing.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Stay until the long jobs that this tick began have ended.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the tick did as one object.")] = False,
    fail_on: Annotated[
        FailOn, typer.Option(metavar="WHICH", help="Which failures make the exit code 1: dead, any or never.")
    ] = FailOn.DEAD,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="A line per event, also without a terminal.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors, also on a terminal.")] = False,
) -> None:
    """Run what is due, then exit: this is what cron calls every minute.

    Finds due schedules and jobs, leases them, runs them in a few threads, records what happened, and exits before
    the next minute. Without a terminal it prints nothing unless something died or broke, so cron's mail is an alarm.

    A job whose timeout is above run.budget less 5 s gets its own process, which outlives the tick. Where everything
    ends with the tick's process (a container without an init process), --wait stays until those have ended. It then
    passes SIGTERM on to them, and exit code 1 also means that one of them ended dead. The tick's own report is printed
    first.

    Exit codes: 0 done (also when nothing was due, or a job failed and will retry), 1 a job died, 2 usage,
    3 configuration, 4 database, 70 a fault of cronjobs itself, 128+n ended by a signal (142: the time limit; 137: the
    same, where a handler had disarmed it or the tick was frozen).
    """
    armed = deadline.arm()
    verbose = verbose or bool(ctx.find_root().params.get("verbose"))
    quiet = quiet or bool(ctx.find_root().params.get("quiet"))
    talk = not quiet and not as_json and (verbose or is_terminal())
    mail = CronMail(_config_path(ctx, config), throttle=not (talk or as_json or dry_run))
    fault.circumstances.mailed_for = mail.config if mail.throttle else None
    try:
        settings = _settings(load_settings(ctx, config, database_url), workers, budget)
        trust.require(settings, os.environ)
        fires = _fire_schedules()
        until = armed.limit(duration(budget) if budget else settings.run.budget, settings.run.every)
        if dry_run and not _exists(settings):
            echo_json({"new": True}) if as_json else echo("there is no database yet: the first tick makes it")
            leaving.leave(3 if settings.problems else 0, stuck=False)
        database = open_database(settings)
        atexit.register(database.close)
        require_tables(database)
        remember(settings, database.address)
        if dry_run:
            from cronjobs.cli.dry_run import show

            show(settings, database, queue=queue, only=only, as_json=as_json, fires=fires)
            leaving.leave(3 if settings.problems else 0, stuck=False)
        log = Log(settings.log)
        remember_log(mail.config, settings.log)
        reporter = Reporter(log, talk)
        if not is_terminal():
            keep_streams_from_copies()
        divert_streams()
        divert_logging()
        tick = Tick(
            settings=settings,
            database=database,
            identity=Identity.here(),
            clock=SYSTEM,
            watchdog=armed.watchdog,
            began=armed.began,
            deadline=until,
            emit=reporter.note,
            limits=TickFilter(queue=queue, only=only, jobs=limit),
            say_not_started=talk or as_json,
            waits_for_long_jobs=wait,
            fire_schedules=fires,
        )
        result = tick.run()
    except CronjobsError as error:
        log = Log(fault.circumstances.log or known_log(mail.config))
        for line in error.lines:
            log.write(events.tick_not_started(line))
            mail.trouble(line)
        mail.send()
        if as_json:
            echo_json({"exit_code": error.exit_code, "error": str(error)})
        leaving.leave(error.exit_code, stuck=False)
    took = timedelta(seconds=SYSTEM.monotonic() - armed.began)
    reporter.note(events.tick_ended(result.did(), result.ended, took))
    code = result.exit_code(fail_on.value)
    leaving.end_anyway(code)
    if result.fault is not None:
        log.write(events.traceback_of_ours(), fault.text_of(result.fault))
        if verbose:
            complain(fault.text_of(result.fault))
    if as_json:
        echo_json(_report(settings, str(database.address), result, code, took, reporter))
    elif talk:
        reporter.outlet.say(_summary(result, took))
    for problem in settings.problems:
        mail.trouble(str(problem))
    if not talk:
        mail.tell(reporter)
    mail.send()
    if wait and tick.long_jobs:
        if talk:
            reporter.outlet.say(
                "waiting for a long job" if len(tick.long_jobs) == 1 else f"waiting for {len(tick.long_jobs)} long jobs"
            )
        reporter.outlet.end()
        leaving.flush()
        armed.watchdog.dismiss()
        with suppress(OSError):  # no memory for it: the processes go on by themselves
            stay_for(tick.long_jobs, mail.config, code, count_dead=fail_on is not FailOn.NEVER)
    reporter.outlet.end()
    leaving.leave(code, stuck=result.stuck)


def _exists(settings: Settings) -> bool:
    """Whether there is a database to look at; opening a SQLite file would make it."""
    address = parse_url(settings.database, settings.schema)
    return not address.is_sqlite or Path(str(address.url.database)).exists()


def _settings(settings: Settings, workers: int | None, budget: str | None) -> Settings:
    if budget is not None:
        try:
            if duration(budget) < timedelta(seconds=1):
                raise ValueError("a tick needs a budget of at least 1s")
        except ValueError as error:
            raise UsageError(f"--budget: {error}") from None
    if workers is None:
        return settings
    return replace(settings, run=replace(settings.run, workers=workers))


def _fire_schedules() -> bool:
    """Whether this process is to fire schedules; a spelling that is not known stops it rather than firing them."""
    said = os.environ.get("CRONJOBS_SCHEDULES", "").lower()
    if said not in ("", "on", "off"):
        raise UsageError("CRONJOBS_SCHEDULES is neither on nor off: write off to run jobs without firing schedules")
    return said != "off"


def _config_path(ctx: typer.Context, config: Path | None) -> Path:
    named = config or ctx.find_root().params.get("config") or os.environ.get("CRONJOBS_CONFIG") or "cronjobs.yaml"
    return Path(named).absolute()


def _report(
    settings: Settings, database: str, result: Result, code: int, took: timedelta, reporter: Reporter
) -> dict[str, Any]:
    return {
        "exit_code": code,
        "ended": result.ended,
        "database": database,
        "config": str(settings.file),
        "duration_ms": round(took.total_seconds() * 1000),
        **vars(result.counts),
        "recovered": result.recovered,
        "occurrences": result.occurrences,
        "pruned": result.pruned,
        "trouble": result.trouble,
        "problems": [str(problem) for problem in settings.problems],
        "events": [{"event": event.name} | event.facts for event in reporter.told],
    }


def _summary(result: Result, took: timedelta) -> str:
    text = f"{did(vars(result.counts)) or 'no job ran'} in {took.total_seconds():.2f} s; {result.ended}"
    return coloured(text, "red" if result.counts.dead or result.trouble else "green")


class Reporter:
    """Takes a tick's events to the log, the terminal, and what is told at the end."""

    def __init__(self, log: Log, talk: bool) -> None:
        self.log = log
        self.talk = talk
        self.outlet = Outlet()
        self.told: list[events.Event] = []
        self.deaths = 0
        self.well: set[str] = set()  # job types of which a job succeeded

    def note(self, event: events.Event) -> None:
        event = replace(event, facts=masking.hide_in(event.facts))
        self.log.write(event)
        if event.name == "job.dead":
            self.deaths += 1
        elif event.name == "job.succeeded":
            self.well.add(event.facts["job_type"])
        if event.told and (event.level != events.INFO or len(self.told) < 1000):
            self.told.append(event)
        if self.talk and event.told:
            colour = {events.WARNING: "yellow", events.ERROR: "red"}.get(event.level)
            name, _, facts = events.line(event).partition(" ")
            self.outlet.say(f"{coloured(name, colour)} {facts}")


@dataclass
class CronMail:
    """What goes to stderr when nobody watches: cron mails it."""

    config: Path
    throttle: bool

    def __post_init__(self) -> None:
        self._causes: list[str] = []
        self._lines: list[str] = []
        self._well: set[str] = set()

    def trouble(self, cause: str) -> None:
        """Something that will be the same next minute until someone mends it."""
        self._causes.append(cause)

    def tell(self, reporter: Reporter) -> None:
        self._well = reporter.well
        self._tell_deaths([event for event in reporter.told if event.name == "job.dead"])
        for event in reporter.told:
            if event.level == events.ERROR and event.name != "job.dead":
                self.trouble(events.line(event))
        if reporter.log.fault:
            self.trouble(reporter.log.fault)

    def _tell_deaths(self, dead: list[events.Event]) -> None:
        """Those whose cause is new, or was told long enough ago; the others are in the log, and in "status"."""
        causes: dict[str, list[events.Event]] = {}
        for event in dead:
            causes.setdefault(events.death_cause(event), []).append(event)
        told, lines = 0, []
        alarm, now = Alarm(self.config), SYSTEM.now()
        for cause, died in causes.items():
            job_type = died[0].facts["job_type"]
            if self.throttle and not alarm.worth_telling(cause, now, job_type=job_type, times=len(died)):
                continue
            told += len(died)
            lines += [f"  {events.death_line(event)}" for event in died]
            if self.throttle and (untold := alarm.untold(cause)):
                lines.append(f"  and {untold} more of this cause since it was last told")
        if told:
            jobs = "1 job is dead" if told == 1 else f"{told} jobs are dead"
            self._lines.append(f"cronjobs: {jobs} ({self.config})")
            self._lines += lines[:DEATHS_TOLD]
            if len(lines) > DEATHS_TOLD:
                self._lines.append(f"  … and {len(lines) - DEATHS_TOLD} more")
            self._lines.append('  look: "cronjobs jobs list --status dead", "cronjobs jobs show ID"')

    def send(self) -> None:
        now = SYSTEM.now()
        for line in [*self._lines, *(f"cronjobs: {word}" for word in take_word(self.config))]:
            complain(line)
        if not self.throttle:
            for cause in dict.fromkeys(self._causes):
                complain(cause)
            return
        alarm = Alarm(self.config)
        for cause in dict.fromkeys(self._causes):
            if alarm.worth_telling(cause, now):
                complain(cause)
        for sentence in alarm.over(set(self._causes), now, self._well):
            complain(f"cronjobs: {sentence}")
