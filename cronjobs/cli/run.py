"""``cronjobs run``: one job here and now, in the foreground."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer

from cronjobs.cli import leaving, typed
from cronjobs.cli.options import ConfigOption, UrlOption
from cronjobs.cli.output import coloured
from cronjobs.cli.project_database import operator, our_database
from cronjobs.clock import SYSTEM
from cronjobs.config.reader import nearest
from cronjobs.config.settings import Settings
from cronjobs.errors import UsageError
from cronjobs.execution.foreground_claim import CannotRun, UnknownType, begin_existing, begin_new
from cronjobs.execution.live_output import Streams, live_streams
from cronjobs.host.identity import Identity
from cronjobs.jobs import job_types
from cronjobs.jobs.checking import new_job
from cronjobs.jobs.job_types import JobTypes
from cronjobs.model import Snoozed, Status, Succeeded, duration_text
from cronjobs.schedules.decide import job_for
from cronjobs.store.enqueue import NewJob
from cronjobs.text import one_line, visible
from cronjobs.tick.foreground import Foreground, RunResult, signals_wait
from cronjobs.tick.log import Log


def run(
    ctx: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="TYPE|SCHEDULE|ID", help="A job type, a schedule, or the number of a waiting job.")
    ],
    config: ConfigOption = None,
    database_url: UrlOption = None,
    payload: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='Keyword arguments: JSON, @FILE, or "-" to read stdin.', show_default=False),
    ] = None,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="TARGET is a schedule, even if a job type has that name too.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but the output of the job.")] = False,
) -> None:
    """Run one job here and now; you see its output and traceback, and breakpoint() works.

    It is recorded like any attempt. For a TYPE or SCHEDULE it makes a new job (a schedule's with its payload, due
    now) with one try: a tick never picks it up again, whether it fails, you press Ctrl-C, or this process is killed
    (only after Snooze does one run it). A waiting job, given by its ID, runs whether it is due or not; if it fails
    it retries as usual, and after Ctrl-C it waits as before. Python handlers have no time limit here, commands have
    theirs. Pauses do not stop it; limits in the file (limits:) do.

    Exit codes: 0 it succeeded, 1 it did not, 2 usage, 3 configuration, 4 database, 130 Ctrl-C.
    """
    arguments = None if payload is None else typed.payload(payload)
    with our_database(ctx, config, database_url, adopt=True) as (settings, database), live_streams() as streams:
        say = _nothing if quiet or ctx.find_root().params.get("quiet") else streams.say
        known = job_types.load(settings)
        locked_by, claimed = str(Identity.here()), database.clock.monotonic()
        with signals_wait():
            if _is_id(target) and not schedule:
                _refuse_payload(arguments)
                try:
                    job = begin_existing(database, _number(target), settings, known, locked_by=locked_by)
                except UnknownType:
                    _tell_faults(known, streams)
                    raise
            else:
                new, alone = _new_job(settings, known, target, arguments, schedule, streams)
                job = begin_new(database, new, settings, known, locked_by=locked_by, alone=alone)
            say(f"job {job.id} {job.job_type} started")
            done = Foreground(
                database,
                settings,
                job,
                known.types[job.job_type],
                by_hand=not _is_id(target) or schedule,
                claimed=claimed,
                streams=streams,
                emit=Log(settings.log).write,
            ).run()
        _tell(done, streams, say)
    leaving.leave(_exit_code(done), stuck=False)


def _nothing(text: str) -> None:
    """What is said quietly."""


def _is_id(target: str) -> bool:
    return target.isascii() and target.isdigit()


def _number(digits: str) -> int:
    if len(digits.lstrip("0")) > 18:  # more than any database counts to
        raise CannotRun("there is no job of that number")
    return int(digits)


def _refuse_payload(arguments: dict[str, Any] | None) -> None:
    if arguments is not None:
        raise UsageError("a job that is there has its payload: --payload goes with a TYPE or SCHEDULE")


def _tell_faults(known: JobTypes, streams: Streams) -> None:
    for fault in known.faults:
        streams.say(one_line(f"{fault.where}: {fault.what}", 1000))


def _new_job(
    settings: Settings,
    known: JobTypes,
    target: str,
    arguments: dict[str, Any] | None,
    schedule: bool,
    streams: Streams,
) -> tuple[NewJob, bool]:
    """The job that *target* means, and whether it must be the only one of its schedule."""
    by = f"cli:{operator()}"
    found = settings.schedules.get(target)
    # An inline command bears its schedule's name, and without the schedule it would lack its payload and date.
    inline = found is not None and f"schedules.{target}.command" in settings.positions
    if target in known.types and not schedule and not inline:
        _check_payload(known, target, arguments or {})
        return replace(new_job(target, arguments or {}), enqueued_by=by), False
    if found is None:
        _tell_faults(known, streams)
        raise UsageError(_unknown(settings, known, target, schedule))
    if found.job not in known.types:
        _tell_faults(known, streams)
        raise UsageError(f'schedule {target} names the job type "{one_line(found.job, 100)}", which cannot run here')
    new = job_for(found, SYSTEM.now())  # begin_new puts in the database's now
    if arguments is not None:
        new = replace(new, payload=arguments)
    _check_payload(known, found.job, new.payload)
    return replace(new, run_at=None, enqueued_by=by), found.overlap != "allow"


def _check_payload(known: JobTypes, job_type: str, arguments: dict[str, Any]) -> None:
    registration = known.types[job_type].registration
    fault = registration.bind(arguments) if registration else None
    if fault:
        raise UsageError(one_line(fault, 1000))


def _unknown(settings: Settings, known: JobTypes, target: str, schedule: bool) -> str:
    names = {*settings.schedules} | (set() if schedule else {*known.types})
    what = "schedule" if schedule else "job type or schedule"
    disabled = settings.disabled_schedules | (frozenset() if schedule else settings.disabled_job_types)
    if target in disabled:
        return f'the entry of "{one_line(target, 100)}" in the configuration is bad: see "cronjobs check"'
    meant = nearest(target, names)
    listed = ", ".join(sorted(names)[:20]) or "none"
    guess = f'did you mean "{meant}"?' if meant else f"there are: {listed}"
    return f'no {what} "{one_line(target, 100)}" is known here; {guess}'


def _tell(done: RunResult, streams: Streams, say: Callable[[str], None]) -> None:
    """The traceback as soon as it is over, and one line that says what became of the job."""
    trace = getattr(done.outcome, "traceback", None)
    if trace and done.signal is None:
        streams.say(visible(trace).rstrip())
    if done.decided is None:
        return  # said when it was noticed
    text = f"job {done.job.id} {_became(done)}"
    if not done.succeeded:
        streams.say(_coloured(streams, one_line(text, 2000), "red"))
        return
    say(_coloured(streams, one_line(text, 2000), "green"))


def _coloured(streams: Streams, text: str, colour: str) -> str:
    return coloured(text, colour) if streams.err.isatty() else text


def _became(done: RunResult) -> str:
    decided, outcome = done.decided, done.outcome
    assert decided is not None
    took = f"{decided.finished.duration.total_seconds():.2f} s"
    error = getattr(outcome, "error", "")
    wait = duration_text(decided.transition.delay) if decided.transition.delay is not None else ""
    match decided.transition.status:
        case Status.SUCCEEDED:
            result = decided.finish.result
            note = outcome.note if isinstance(outcome, Succeeded) else None
            return f"succeeded in {took}" + (f"; result {result}" if result else "") + (f"; {note}" if note else "")
        case Status.FAILED:
            return f"failed in {took}: {error}; a tick tries again in {wait}"
        case Status.DEAD:
            why = "for good" if decided.transition.permanent else "it has no more tries"
            return f'failed in {took} and is dead, {why}: {error}. Mended? "cronjobs jobs retry {done.job.id}"'
        case Status.QUEUED if isinstance(outcome, Snoozed):
            return f"asked to be run later: a tick does, in {wait}"
        case Status.QUEUED:
            return f"{error}; it waits as before"
        case status:
            return f"{status} after {took}: {error}"


def _exit_code(done: RunResult) -> int:
    if done.succeeded:
        return 0
    return 1 if done.signal is None else 128 + done.signal
