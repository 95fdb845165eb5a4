"""``cronjobs run``: run one job now, in the foreground."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated

import typer

from cronjobs.clock import SYSTEM
from cronjobs.desk.cli import parse_values
from cronjobs.desk.cli.options import Source, schedule_or_type_names
from cronjobs.desk.cli.output import block
from cronjobs.desk.cli.progress import Bar
from cronjobs.desk.cli.project_database import operator, our_database
from cronjobs.desk.cli.run_target import NoRunnableTarget, job_of
from cronjobs.desk.insight.formatting import safe
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import coloured
from cronjobs.engine.config import trust
from cronjobs.engine.config.import_path import enter_folder
from cronjobs.engine.execution.foreground_claim import CannotRun, UnknownType, begin_existing, begin_new
from cronjobs.engine.execution.live_output import Streams, live_streams
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.jobs import job_types
from cronjobs.engine.tick.extras import LAST_S, RunSummary, extras_of_job
from cronjobs.engine.tick.foreground import Foreground, RunResult, signals_wait
from cronjobs.engine.tick.log import Log, start_reporter
from cronjobs.errors import UsageError
from cronjobs.model import Snoozed, Status, Succeeded, rough


def run(
    source: Source,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TYPE|SCHEDULE|ID",
            autocompletion=schedule_or_type_names,
            help="A job type, a schedule, or a waiting job's id.",
        ),
    ],
    payload: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='Keyword arguments: JSON, @FILE, or "-" to read stdin.', show_default=False),
    ] = None,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Run the schedule of this name, not the job type.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only the job's output.")] = False,
) -> None:
    """Run one job here and now, with output and traceback live; breakpoint() works.

    The run is recorded like any attempt. For a TYPE or SCHEDULE the command creates a new job, which is due now and has
    one try. For a SCHEDULE, the job gets the schedule's payload. No tick runs this job again if it fails, if you press
    Ctrl-C, or if this process is killed. A tick runs it again only if the job snoozes. A waiting job, given by its ID,
    runs even before it is due. If it fails, it is retried as usual. After Ctrl-C it waits as before. Python handlers
    have no time limit here, but commands keep theirs. Pauses do not stop the run, but limits in the file (limits:) do.

    Exit codes: 0 the job succeeded, 1 the job did not, 2 usage, 3 configuration, 4 database, 130 Ctrl-C.
    """
    arguments = None if payload is None else parse_values.payload(payload)
    by_id = target.isascii() and target.isdigit() and not schedule
    if by_id and arguments is not None:
        raise UsageError("an existing job already has a payload: use --payload only with a TYPE or SCHEDULE")
    with our_database(source, adopt=True) as (settings, database), live_streams() as streams:
        hushed = quiet or source.given("quiet")
        say: Callable[[str], None] = (lambda _: None) if hushed else streams.say
        trust.require(settings, os.environ, programs=True)
        enter_folder(settings)
        known = job_types.load(settings)
        locked_by, claimed = str(Identity.here()), database.clock.monotonic()
        with signals_wait():
            try:
                if by_id:
                    job = begin_existing(database, _number(target), settings, known, locked_by=locked_by)
                else:
                    new, alone = job_of(settings, known, target, arguments, schedule)
                    job = begin_new(
                        database, new, settings.run, known, locked_by=locked_by, alone=alone, actor=operator()
                    )
            except (UnknownType, NoRunnableTarget):
                for fault in known.faults:
                    streams.say(safe(f"{fault.where}: {fault.what}", 1000))
                raise
            say(f"job {job.id} {job.job_type} started")
            below = Bar(say, streams.err.outside)
            streams.out.before = streams.err.before = below.make_way
            log = Log(settings.log).write
            extras = extras_of_job(settings, database, log)
            done = Foreground(
                database,
                settings,
                job,
                known.types[job.job_type],
                by_hand=not by_id,
                claimed=claimed,
                streams=streams,
                emit=extras.forwarding(log),
                on_progress=None if hushed else below.show,
                on_start=start_reporter(log, extras),
                on_end=extras.ended,
            ).run()
            below.make_way("")
        _print_result(done, streams, say)
        extras.end(RunSummary(SYSTEM.monotonic() + LAST_S))
    failed = 1 if done.signal is None else 128 + done.signal
    leaving.leave(0 if done.succeeded else failed, stuck=False)


def _number(digits: str) -> int:
    if len(digits.lstrip("0")) > 18:  # no database has such a large id
        raise CannotRun("there is no job with that id")
    return int(digits)


def _print_result(done: RunResult, streams: Streams, say: Callable[[str], None]) -> None:
    """Print the traceback, then one line about what became of the job."""
    trace = getattr(done.outcome, "traceback", None)
    if trace and done.signal is None:
        streams.say("\n".join(block(trace, "")))
    if done.decided is None:
        # The lease was lost, and an earlier message has already said so.
        return
    text = safe(f"job {done.job.id} {_became(done)}", 2000)
    if streams.err.isatty():
        text = coloured(text, "green" if done.succeeded else "red")
    (say if done.succeeded else streams.say)(text)


def _became(done: RunResult) -> str:
    decided, outcome = done.decided, done.outcome
    assert decided is not None
    took = rough(decided.finished.duration)
    error = getattr(outcome, "error", "")
    wait = rough(decided.transition.delay) if decided.transition.delay is not None else ""
    match decided.transition.status:
        case Status.SUCCEEDED:
            result = decided.finish.result
            note = outcome.note if isinstance(outcome, Succeeded) else None
            return f"succeeded in {took}" + (f"; result {result}" if result else "") + (f"; {note}" if note else "")
        case Status.FAILED:
            return f"failed in {took}: {error}; a tick will retry it in {wait}"
        case Status.DEAD:
            why = "the error is permanent" if decided.transition.permanent else "no tries are left"
            return f'failed in {took} and is dead ({why}): {error}. Once fixed: "cronjobs jobs retry {done.job.id}"'
        case Status.QUEUED if isinstance(outcome, Snoozed):
            return f"snoozed: a tick will run it in {wait}"
        case Status.QUEUED:
            return f"{error}; the job waits as before"
        case status:
            return f"{status} after {took}: {error}"
