"""Run a tick as a command: read its settings, write its log, print or mail its results, and return its exit code.

Typer is not imported here, because a tick that cron starts does not need it.
"""

from __future__ import annotations

import atexit
import math
import os
from collections.abc import Collection
from datetime import timedelta
from functools import partial
from typing import Final, NoReturn

from cronjobs.clock import SYSTEM
from cronjobs.engine.command import leaving
from cronjobs.engine.command.database import ready_database
from cronjobs.engine.command.printing import echo_json, is_terminal
from cronjobs.engine.config.import_path import enter_folder
from cronjobs.engine.config.load import DISABLED
from cronjobs.engine.database.connection import Database
from cronjobs.engine.execution.output import divert_logging, divert_streams
from cronjobs.engine.host.forks import keep_streams_from_copies
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.run_due.cron_mail import CronMail, as_object, summary
from cronjobs.engine.run_due.options import SHOWS_PROGRESS, TickOptions
from cronjobs.engine.run_due.settings import fires_schedules, readable_settings, run_by_cron, tick_settings
from cronjobs.engine.tick import deadline, extras
from cronjobs.engine.tick.tick import Tick
from cronjobs.engine.tick.unreported import Unreported
from cronjobs.errors import ConfigError, CronjobsError, DatabaseError
from cronjobs.installed import needed

PROGRESS_EVERY_S: Final = 5.0
# ``--dry-run`` is not part of a tick, so this module is imported only when it is used.
DRY_RUN: Final = "cronjobs.desk.cli.dry_run"


def _progress_every_s() -> float:
    try:
        return max(0.1, float(os.environ.get(SHOWS_PROGRESS, PROGRESS_EVERY_S)))
    except ValueError:
        return PROGRESS_EVERY_S


def _still_dead(database: Database, ids: Collection[int]) -> Collection[int] | None:
    from cronjobs.engine.store.unreported_deaths import still_dead  # most ticks have no deaths

    try:
        with database.read() as connection:
            return still_dead(connection, ids)
    except DatabaseError:
        return None


def run_tick(given: TickOptions) -> NoReturn:
    """Run one tick and end the process with its exit code."""
    armed = deadline.arm()
    talk = not given.quiet and not given.as_json and (given.verbose or is_terminal())
    mail = CronMail(given.config_path, throttle=not (talk or given.as_json or given.dry_run))
    settings, until = None, armed.watchdog.instant
    try:
        settings, budget = tick_settings(given)
        mail.know(settings)
        fires = fires_schedules()
        until = armed.limit(budget, settings.run.every)
        if given.dry_run:
            show = needed(DRY_RUN, "--dry-run").show
            show(settings, queue=given.queue, only=given.only, as_json=given.as_json, fires=fires)
            leaving.leave(3 if settings.problems else 0, stuck=False)
        database = ready_database(settings)
        atexit.register(database.close)
        reporter = mail.reporter(settings.log, talk)
        if not is_terminal():
            keep_streams_from_copies()
        divert_streams()
        divert_logging()
        # The spool address depends on paths relative to the current folder, which is about to change.
        spool = given.spool
        enter_folder(settings)
        identity = Identity.here()
        unreported = Unreported(settings.file, str(identity))
        tick = Tick(
            settings=settings,
            database=database,
            identity=identity,
            clock=SYSTEM,
            watchdog=armed.watchdog,
            began=armed.began,
            deadline=until,
            whole_s=armed.whole_s,
            emit=reporter.note,
            limits=given.limits,
            say_not_started=talk or given.as_json,
            tells_each=talk or given.as_json or settings.log is not None,
            say_progress_s=_progress_every_s() if talk else math.inf,
            waits_for_long_jobs=given.wait,
            code_at_fault=mail.code_at_fault(),
            kept_from_starting=mail.kept_from_starting(),
            unrecorded_before=mail.unrecorded(),
            fire_schedules=fires,
            run_by_cron=run_by_cron(),
            unreported=unreported,
            start=armed.start,
            spool=spool,
            log_unwritable=reporter.log.unwritable,
        )
        result = tick.run()
    except CronjobsError as error:
        mail.not_started(error)
        if settings is None and isinstance(error, ConfigError):
            settings = readable_settings(given)
        if settings is not None and not given.dry_run:
            extras.not_started(settings, error, until)
        if given.as_json:
            echo_json({"exit_code": error.exit_code, "error": str(error)})
        leaving.leave(error.exit_code, stuck=False)
    took = timedelta(seconds=SYSTEM.monotonic() - armed.began)
    reporter.ended(result, took, given.verbose)
    code = result.exit_code(given.fail_on)
    leaving.end_anyway(code)
    if given.as_json:
        echo_json(as_object(settings, str(database.address), result, code, took, reporter))
    elif talk:
        reporter.outlet.say(summary(result, took))
    for problem in settings.problems:
        # Mail the faulty key once. Do not also mail each entry that it disables.
        if not problem.message.startswith(DISABLED):
            mail.trouble(str(problem))
    if reporter.log.fault is not None:
        mail.trouble(reporter.log.fault)
    if not talk:
        mail.print_causes(reporter)
    mail.send(
        knows_code=tick.knows_the_code,
        left_row=tick.row.written,
        unrecorded=tick.unrecorded,
        still_dead=partial(_still_dead, database),
    )
    unreported.end()
    if reporter.log.fault is not None:
        # Make the next tick check the log again, so that its row says whether the fault has ended.
        tick.forget_inputs()
    elif code == 0 and fires and not mail.said and not talk and not given.as_json:
        tick.leave_inputs()
    if given.wait and tick.long_jobs:
        if talk:
            reporter.outlet.say(
                "waiting for a long job" if len(tick.long_jobs) == 1 else f"waiting for {len(tick.long_jobs)} long jobs"
            )
        reporter.outlet.end()
        leaving.stay_for(tick.long_jobs, mail.config, code, count_dead=given.fail_on != "never")
    reporter.outlet.end()
    leaving.leave(code, stuck=result.stuck)
