"""The tick as a command: its settings, its log, what it prints or mails, and its exit code.

Typer is not imported here: an idle tick that cron starts does without it.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

from cronjobs import events, masking
from cronjobs.cli import fault, leaving
from cronjobs.cli.lines_out import Outlet
from cronjobs.cli.loading import read_settings
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
from cronjobs.probe.inputs import Start
from cronjobs.tick import deadline, idle_inputs
from cronjobs.tick.log import Log
from cronjobs.tick.mail_throttle import Alarm, known_log, remember_log, take_word
from cronjobs.tick.result import NOTHING_DUE, Result, TickFilter
from cronjobs.tick.tick import Tick
from cronjobs.tick.wait_for_long_jobs import stay_for

DEATHS_TOLD: Final = 10  # in one mail; the rest is counted


@dataclass(frozen=True)
class TickOptions:
    """What the command line of run-due may say; see ``run_due`` for each."""

    config: Path | None = None
    database_url: str | None = None
    workers: int | None = None
    budget: str | None = None
    queue: str | None = None
    only: str | None = None
    limit: int | None = None
    dry_run: bool = False
    wait: bool = False
    as_json: bool = False
    fail_on: str = "dead"  # or "any", "never"
    verbose: bool = False
    quiet: bool = False

    @property
    def config_path(self) -> Path:
        return Path(self.config or os.environ.get("CRONJOBS_CONFIG") or "cronjobs.yaml").absolute()


def run_tick(given: TickOptions) -> NoReturn:
    """Run one tick and end the process with its exit code."""
    armed = deadline.arm()
    start = Start(sys.argv[1:])  # before handlers may change the environment
    talk = not given.quiet and not given.as_json and (given.verbose or is_terminal())
    mail = CronMail(given.config_path, throttle=not (talk or given.as_json or given.dry_run))
    fault.circumstances.mailed_for = mail.config if mail.throttle else None
    try:
        _require_utf8(given)
        settings = _settings(read_settings(given.config, given.database_url), given.workers, given.budget)
        trust.require(settings, os.environ)
        fires = _fire_schedules()
        until = armed.limit(duration(given.budget) if given.budget else settings.run.budget, settings.run.every)
        if given.dry_run and not _exists(settings):
            echo_json({"new": True}) if given.as_json else echo("there is no database yet: the first tick makes it")
            leaving.leave(3 if settings.problems else 0, stuck=False)
        database = open_database(settings)
        atexit.register(database.close)
        require_tables(database)
        remember(settings, database.address)
        if given.dry_run:
            from cronjobs.cli.dry_run import show

            show(settings, database, queue=given.queue, only=given.only, as_json=given.as_json, fires=fires)
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
            limits=TickFilter(queue=given.queue, only=given.only, jobs=given.limit),
            say_not_started=talk or given.as_json,
            waits_for_long_jobs=given.wait,
            fire_schedules=fires,
        )
        result = tick.run()
    except CronjobsError as error:
        log = Log(fault.circumstances.log or known_log(mail.config))
        for line in error.lines:
            log.write(events.tick_not_started(line))
            mail.trouble(line)
        mail.send()
        if given.as_json:
            echo_json({"exit_code": error.exit_code, "error": str(error)})
        leaving.leave(error.exit_code, stuck=False)
    took = timedelta(seconds=SYSTEM.monotonic() - armed.began)
    code = result.exit_code(given.fail_on)
    if code or result.did() or result.ended != NOTHING_DUE:  # an idle tick has its row; 1,440 lines a day say no more
        reporter.note(events.tick_ended(result.did(), result.ended, took))
    leaving.end_anyway(code)
    if result.fault is not None:
        log.write(events.traceback_of_ours(), fault.text_of(result.fault))
        if given.verbose:
            complain(fault.text_of(result.fault))
    if given.as_json:
        echo_json(_report(settings, str(database.address), result, code, took, reporter))
    elif talk:
        reporter.outlet.say(_summary(result, took))
    for problem in settings.problems:
        mail.trouble(str(problem))
    if not talk:
        mail.tell(reporter)
    mail.send()
    if code == 0 and fires and not mail.said and not talk and not given.as_json and tick.seen is not None:
        idle_inputs.leave(start, settings, database.address, tick.seen)
    if given.wait and tick.long_jobs:
        if talk:
            reporter.outlet.say(
                "waiting for a long job" if len(tick.long_jobs) == 1 else f"waiting for {len(tick.long_jobs)} long jobs"
            )
        reporter.outlet.end()
        leaving.flush()
        armed.watchdog.dismiss()
        with suppress(OSError):  # no memory for it: the processes go on by themselves
            stay_for(tick.long_jobs, mail.config, code, count_dead=given.fail_on != "never")
    reporter.outlet.end()
    leaving.leave(code, stuck=result.stuck)


def _exists(settings: Settings) -> bool:
    """Whether there is a database to look at; opening a SQLite file would make it."""
    address = parse_url(settings.database, settings.schema)
    return not address.is_sqlite or Path(str(address.url.database)).exists()


def _require_utf8(given: TickOptions) -> None:
    """Python reads other bytes of the command line as text that no database and no log takes."""
    for option, value in (("queue", given.queue), ("only", given.only), ("database-url", given.database_url)):
        try:
            (value or "").encode()
        except UnicodeEncodeError:
            raise UsageError(f"--{option} is not UTF-8") from None


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
        self.well: set[str] = set()  # job types of which a job succeeded

    def note(self, event: events.Event) -> None:
        event = replace(event, facts=masking.hide_in(event.facts))
        self.log.write(event)
        if event.name == "job.succeeded":
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
        self.said = False  # whether anything was, or would have been if it were not repeated

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
        lines = [*self._lines, *(f"cronjobs: {word}" for word in take_word(self.config))]
        self.said = bool(lines or self._causes)
        for line in lines:
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
