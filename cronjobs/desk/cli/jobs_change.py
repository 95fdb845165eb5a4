"""``cronjobs jobs retry``, ``cancel``, ``release``, ``dismiss``: change jobs given by id or by filter."""

from __future__ import annotations

import re
import shlex
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Annotated, Final

import typer

from cronjobs.clock import sleep
from cronjobs.desk.cli.filters import ALL, Filters
from cronjobs.desk.cli.known_types import unknown_types
from cronjobs.desk.cli.options import JsonOption, Source, WhyOption
from cronjobs.desk.cli.output import table, width
from cronjobs.desk.cli.progress import Progress, interruptible, is_interactive
from cronjobs.desk.cli.project_database import operator, our_database
from cronjobs.desk.insight.formatting import Times, counted, host_of, safe, status_word
from cronjobs.desk.insight.releasing import Holders
from cronjobs.desk.store import listing
from cronjobs.engine.command.printing import complain, echo, echo_json
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.config.trust import UntrustedFiles
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.rules.lease import heartbeat_s
from cronjobs.engine.store import effects, operating
from cronjobs.engine.store.operating import BATCH, Changed, OperatorAction
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import CronjobsError, UsageError
from cronjobs.model import Status, rough
from cronjobs.text import one_line

IdsArgument = Annotated[
    list[int] | None,
    typer.Argument(metavar="[ID…]", min=1, max=2**63 - 1, help="The jobs' ids; or select jobs with the options below."),
]
AllOption = Annotated[bool, typer.Option("--all", help="Every job that the command can change.")]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Do not ask; required with filters and --all if there is no terminal.")
]

SHOWN: Final = 20  # the text output names at most this many reasons why jobs stay unchanged
LOCKED_PATIENCE_S: Final = 2.0  # how long to wait for rows that another transaction has locked
LOCKED_PAUSE_S: Final = 0.1
KINDS_SHOWN: Final = 12


# --- the four verbs --------------------------------------------------------------------------------------------------


@dataclass
class ChangeResult:
    """The command's result so far.

    ``sentences`` has a sentence for each changed job. ``refused`` says why a job was not changed.
    """

    changed: int = 0
    asked: int = 0  # how many of the changed jobs are running and were asked to stop
    sentences: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    types: set[str] = field(default_factory=set)  # the job types of retried jobs
    unknown: int = 0  # how many of the changed jobs have an unknown effect
    # The jobs to try again, since another transaction has locked their rows.
    again: list[int] = field(default_factory=list)
    stopped_early: bool = False


@dataclass(frozen=True)
class Verb:
    """One of the four ways to change jobs.

    ``change`` handles a batch of ids in transactions of its own. An id that ``change`` neither changes nor refuses is
    tried again.
    """

    name: str
    done: str  # the word for the result, such as "retried"
    takes: tuple[Status, ...]
    change: Callable[[Operation, Sequence[int]], None]


@dataclass
class Operation:
    """One run of a command, with all that its verb needs."""

    verb: Verb
    database: Database
    settings: Settings
    holders: Holders
    act: OperatorAction
    named: bool  # whether the user gave the jobs by id; then each job is reported
    result: ChangeResult = field(default_factory=ChangeResult)

    def report(self, ids: Iterable[int], sentence: str) -> None:
        for job_id in ids if self.named else ():
            self.result.sentences[job_id] = sentence


def _plainly(write: Callable[..., Changed], done: str) -> Callable[[Operation, Sequence[int]], None]:
    """Return a verb's ``change`` function, which runs one statement, *write*.

    *done* is the text to report about each changed job.
    """

    def change(operation: Operation, ids: Sequence[int]) -> None:
        with operation.database.write() as connection:
            changed = write(connection, ids, operation.act)
            if operation.verb is RETRY:
                operation.result.types |= operating.types_of(connection, changed.done)
        operation.result.changed += len(changed.done | changed.asked)
        operation.result.asked += len(changed.asked)
        operation.report(changed.done, done)
        if operation.verb in (RETRY, CANCEL, DISMISS):
            _report_unknown_effects(operation, changed.done, done)
        if changed.asked:
            _report_asked(operation, changed.asked)
        _refuse(operation, [job_id for job_id in ids if job_id not in changed.done | changed.asked])

    return change


def _report_unknown_effects(operation: Operation, changed: Collection[int], done: str) -> None:
    """Report the jobs with an effect that only a person can settle.

    A retried job may repeat the effect, or die again because of the effect. *done* is the text to report about each
    job.
    """
    before = "Find out before the next tick" if operation.verb is RETRY else "Find out"
    with operation.database.read() as connection:
        unknown = effects.unknown_of(connection, changed)
    operation.result.unknown += len(unknown)
    for job_id, key in unknown.items():
        settle = one_line(f"cronjobs effects settle {shlex.quote(key)}", 300)
        operation.report(
            [job_id],
            f"{done}. Nobody knows whether its effect {safe(key)} happened. {before}, then run: "
            f"{settle} done (or not-done)",
        )


def _report_asked(operation: Operation, ids: Collection[int]) -> None:
    with operation.database.read() as connection:
        now = database_now(connection)
        held = operating.held(connection, ids)
        performed = effects.performed_by(connection, ids)
    asked = "is running: its runner will ask it to stop at the next heartbeat"
    for job_id in ids:
        lease_s = held[job_id].lease_s if job_id in held else None
        within = "" if lease_s is None else f", within {rough(timedelta(seconds=heartbeat_s(lease_s)))}"
        doubt = ""
        if job_id in performed:
            doubt = (
                f". If it stops before its effect {safe(performed[job_id])} ends, nobody will know whether the effect "
                "happened"
            )
        operation.report([job_id], asked + within + doubt)
    left = [job_id for job_id, holding in held.items() if not holding.permitted(now)]
    operation.report(
        [job_id for job_id in left if held[job_id].locked_until < now],
        "has an expired lease: the next tick will cancel the job, unless its runner does so first",
    )
    gone = [job_id for job_id in left if operation.named and operation.holders.is_gone(held[job_id].locked_by)]
    operation.report(
        gone, "has lost its runner: the next tick on this host will cancel the job, unless its final try has failed"
    )


def _release(operation: Operation, ids: Sequence[int]) -> None:
    result = operation.result
    with operation.database.read() as connection:
        times = Times(database_now(connection), operation.settings.timezone)
        held = operating.held(connection, ids)
    holders = operation.holders
    gone = [holding for holding in held.values() if holders.may_release(holding, times.now)]
    result.refused |= {
        job_id: holders.why_kept(holding, times)
        for job_id, holding in held.items()
        if not holders.may_release(holding, times.now)
    }
    cancelled: set[int] = set()
    if gone:
        with operation.database.write() as connection:
            written = operating.release(connection, gone, operation.act)
        result.changed += len(written.written)
        result.refused |= dict.fromkeys(written.lost, "was taken over or has ended: nothing to release")
        cancelled = set(written.cancelled)
        done = written.written - cancelled
        operation.report(done, "is queued again, due now: its runner is gone")
        operation.report(cancelled, "is cancelled, as someone requested while it ran: its runner is gone")
        settled = written.written | written.lost
        result.again += [holding.job.id for holding in gone if holding.job.id not in settled]
    _refuse(operation, [job_id for job_id in ids if job_id not in held])


def _refuse(operation: Operation, ids: Sequence[int]) -> None:
    """Record why each of *ids* was not changed. A job without a reason has a locked row, and is tried again."""
    if not ids:
        return
    verb = operation.verb
    refused = operation.result.refused
    with operation.database.read() as connection:
        found = operating.states(connection, ids)
    for job_id in ids:
        job = found.get(job_id)
        if job is None:
            refused[job_id] = "does not exist"
        elif job.is_exec and (verb is RETRY or (verb is CANCEL and job.status is Status.RUNNING)):
            how = _signal_to(job.locked_by) if verb is CANCEL else ""
            refused[job_id] = f"is a run of cronjobs exec: only {EXEC_WORDS[verb.name]}{how}"
        elif verb is RETRY and job.unfit_to_retry is not None:
            refused[job_id] = f"is {status_word(job.status)}, and {job.unfit_to_retry}"
        elif verb is RETRY and job.key_owner is not None:
            refused[job_id] = f"released its key when it was cancelled, and job {job.key_owner} has the key now"
        elif verb is DISMISS and job.dismissed:
            refused[job_id] = "is already dismissed, nothing to do"
        elif verb is CANCEL and job.status is Status.DEAD:
            refused[job_id] = f'is dead: to acknowledge its death, type "cronjobs jobs dismiss {job_id}"'
        elif job.status in verb.takes:
            operation.result.again.append(job_id)
        elif verb is RETRY and job.status is Status.QUEUED:
            refused[job_id] = f'is already waiting: to run it here and now, type "cronjobs run {job_id}"'
        else:
            refused[job_id] = f"is {status_word(job.status)}: nothing to {verb.name}"


def _signal_to(locked_by: str | None) -> str:
    """Return text such as ": kill 4711 on web1", or "" if *locked_by* does not name a process."""
    holder = Identity.parse(locked_by or "")
    return f": kill {holder.pid} on {host_of(locked_by)}" if holder is not None and holder.pid > 1 else ""


EXEC_WORDS: Final = {
    "retry": (
        "cron can repeat it, when the crontab line is due. To run that line now, copy the line's whole command, "
        'including "cronjobs exec", from the crontab (crontab -l)'
    ),
    "cancel": "a signal to exec can stop it",
}


_retry = _plainly(operating.retry, "is queued again, due now")
_cancel = _plainly(operating.cancel, "is cancelled")
_dismiss = _plainly(operating.dismiss, "is dismissed: it stays dead")

RETRY: Final = Verb("retry", "retried", operating.TAKES["retry"], _retry)
CANCEL: Final = Verb("cancel", "cancelled", operating.TAKES["cancel"], _cancel)
RELEASE: Final = Verb("release", "released", operating.TAKES["release"], _release)
DISMISS: Final = Verb("dismiss", "dismissed", operating.TAKES["dismiss"], _dismiss)


# --- one run ----------------------------------------------------------------------------------------------------------


def _require_choice(verb: Verb, named: bool, filters: Filters, everything: bool) -> None:
    if (named, bool(filters.given), everything).count(True) != 1:
        raise UsageError(
            f"select jobs in one of three ways: by id (cronjobs jobs {verb.name} 17 18), by the filters of jobs list "
            f"(cronjobs jobs {verb.name} --type mail.send --since 24h), or with --all"
        )
    if others := [status_word(status) for status in filters.statuses if status not in verb.takes]:
        *first, last = [status_word(status) for status in verb.takes]
        takes = f"{', '.join(first)} and {last}" if first else last
        raise UsageError(f"jobs {verb.name} is for {takes} jobs, not for {others[0]} ones")
    if filters.cause is not None and Status.DEAD not in verb.takes:
        raise UsageError(
            f"--cause selects dead jobs, which can be retried or dismissed: there is nothing to {verb.name}"
        )


def _choose(operation: Operation, filters: Filters, yes: bool) -> array[int]:
    """Count the jobs that match the filters, ask the user, and return the ids.

    The command changes exactly these jobs.
    """
    verb = operation.verb
    chosen: array[int] = array("q")
    kinds: Counter[tuple[str, str]] = Counter()
    left = 0
    with operation.database.read() as connection:
        wanted = filters.wanted(Times(database_now(connection), operation.settings.timezone))
        for row in listing.choose(connection, replace(wanted, statuses=wanted.statuses or verb.takes)):
            if verb is RELEASE and not operation.holders.is_gone(row.locked_by or ""):
                left += 1
                continue
            if verb is DISMISS and row.dismissed_at is not None and row.dismissed_at >= row.finished_at:
                continue
            chosen.append(row.id)
            kinds[row.job_type, row.status] += 1
    if left:
        complain(f"left alone: {counted(left, 'running job')} whose runner is alive, or cannot be checked from here")
    if chosen and not yes:
        _ask(verb, kinds, len(chosen))
    return array("q", sorted(chosen))


def _ask(verb: Verb, kinds: Counter[tuple[str, str]], count: int) -> None:
    what = f"{verb.name} {counted(count, 'job')}"
    if not is_interactive():
        raise UsageError(
            f"this would {what}, but there is no terminal to confirm this on: add --yes. Nothing was changed"
        )
    complain(f"This would {what}:")
    rows = [
        [f"{number:,}", safe(job_type), status_word(status)]
        for (job_type, status), number in kinds.most_common(KINDS_SHOWN)
    ]
    more = sum(kinds.values()) - sum(number for _, number in kinds.most_common(KINDS_SHOWN))
    if more:
        rows.append([f"{more:,}", "of other types", ""])
    for line in table(rows, [">jobs", "type", "status"], room=width(), at_most={1: 60}):
        complain(f"  {line}", is_safe=True)
    if not typer.confirm("Go on?", err=True):
        complain("nothing was changed")
        raise typer.Exit(1)


def _in_batches(operation: Operation, chosen: Sequence[int]) -> None:
    result, clock = operation.result, operation.database.clock
    with interruptible() as interrupted, Progress() as progress:
        for start in range(0, len(chosen), BATCH):
            if interrupted():
                result.stopped_early = True
                return
            operation.verb.change(operation, chosen[start : start + BATCH])
            progress.say(f"{min(start + BATCH, len(chosen)):,} of {len(chosen):,}")
        give_up_at = clock.monotonic() + LOCKED_PATIENCE_S
        while result.again and not interrupted() and clock.monotonic() < give_up_at:
            again, result.again = result.again, []
            sleep(LOCKED_PAUSE_S)
            for start in range(0, len(again), BATCH):
                operation.verb.change(operation, again[start : start + BATCH])
    for job_id in result.again:
        result.refused[job_id] = "is locked by another transaction: try again"


def _print(operation: Operation, chosen: Sequence[int], as_json: bool) -> None:
    verb, result = operation.verb, operation.result
    if as_json:
        answer = {"action": verb.name, "chosen": len(chosen), "changed": result.changed, "asked_to_stop": result.asked}
        left = [{"id": job_id, "why": why} for job_id, why in sorted(result.refused.items())]
        echo_json(answer | {"unchanged": left, "stopped_early": result.stopped_early})
    elif operation.named:
        for job_id in chosen:
            if job_id in result.sentences:
                echo(f"job {job_id} {result.sentences[job_id]}")
            elif job_id in result.refused:
                complain(f"job {job_id} {result.refused[job_id]}")
    elif chosen:
        echo(_done_so_far(operation, len(chosen)))
        if result.unknown:
            unknown = f"for {result.unknown:,} of them, nobody knows whether an effect happened"
            complain(f'{unknown}: find out, and settle the effects that "cronjobs effects list --state unknown" shows')
        for line in _alike(result.refused)[:SHOWN]:
            complain(line)
    else:
        complain(f"no such job to {verb.name}")
    if result.stopped_early:
        complain(f"stopped: {_done_so_far(operation, len(chosen))}; those changes stay")


def _warn_of_unknown_types(operation: Operation) -> None:
    """Warn if no host can run the retried jobs. Call this last, since it may import the handlers."""
    with suppress(UntrustedFiles):
        unknown, _ = unknown_types(operation.settings, operation.database, operation.result.types)
        for job_type in unknown[:KINDS_SHOWN]:
            complain(
                f'no handler has the job type "{safe(job_type, 200)}", here or on a host that ticked lately: its jobs '
                "wait until some host knows the type"
            )


def _alike(refused: Mapping[int, str]) -> list[str]:
    """Return a line for each kind of reason, with its first job. Reasons of one kind differ only in their numbers."""
    kinds: dict[str, list[int]] = {}
    for job_id, why in sorted(refused.items()):
        kinds.setdefault(re.sub(r"\d+", "0", why), []).append(job_id)
    return [
        f"job {first} {refused[first]}" + (f"; {len(more):,} more like it (--json lists them)" if more else "")
        for first, *more in kinds.values()
    ]


def _done_so_far(operation: Operation, chosen: int) -> str:
    result = operation.result
    of = f" of {chosen:,}" if result.changed != chosen else ""
    jobs = counted(result.changed, "job") if not of else f"{result.changed:,}{of} jobs"
    asked = f", {result.asked:,} of them running and asked to stop" if result.asked else ""
    return f"{operation.verb.done} {jobs}{asked}"


# --- the four commands ------------------------------------------------------------------------------------------------


def _command(verb: Verb, text: str) -> Callable[..., None]:

    def command(
        source: Source,
        ids: IdsArgument = None,
        filters: Filters = ALL,
        everything: AllOption = False,
        yes: YesOption = False,
        why: WhyOption = None,
        as_json: JsonOption = False,
    ) -> None:
        _require_choice(verb, bool(ids), filters, everything)
        here = Identity.here()
        with our_database(source, without_project=True) as (settings, database):
            how = None if ids else filters.given or {"all": "true"}
            act = OperatorAction(verb.name, operator(), here.host, why, how)
            operation = Operation(verb, database, settings, Holders(here), act, named=bool(ids))
            chosen = array("q", dict.fromkeys(ids)) if ids else _choose(operation, filters, yes)
            try:
                _in_batches(operation, chosen)
            except CronjobsError:
                if operation.result.changed:
                    complain(f"{_done_so_far(operation, len(chosen))}; these changes stay. Then:")
                raise
            _print(operation, chosen, as_json)
            _warn_of_unknown_types(operation)
        if operation.result.stopped_early:
            raise typer.Exit(130)
        if operation.result.refused:
            raise typer.Exit(1)

    command.__doc__ = text
    return command


retry: Final = _command(
    RETRY,
    """Requeue dead, cancelled or retrying jobs: due now, with all their tries restored.

    Give ids, or select jobs with the filters of "jobs list". With filters, the command counts the selected jobs and
    asks for confirmation. The jobs keep their history. Exit code 1: one of the jobs is running, has succeeded, or does
    not exist.
    """,
)

cancel: Final = _command(
    CANCEL,
    """Cancel jobs: waiting jobs at once, running jobs at their runner's next heartbeat.

    Give ids, or select jobs with the filters of "jobs list". With filters, the command counts the selected jobs and
    asks for confirmation. The runner stops a job's command and all processes that the command started. A Python handler
    learns of the request through ctx.check() or ctx.cancelled. Exit code 1: one of the jobs has already ended, or does
    not exist.
    """,
)

release: Final = _command(
    RELEASE,
    """Requeue running jobs whose runner is certainly gone, without waiting for their lease to expire.

    Run the command on the runner's host. It checks that the runner's process and everything that it started are gone.
    It cannot check a process that ran before the host's last boot. A release uses up no try, but counts as a loss
    towards run.max_losses. Exit code 1: the runner is alive, or cannot be checked from here; the job is not running, or
    does not exist.
    """,
)

dismiss: Final = _command(
    DISMISS,
    """Acknowledge dead jobs: they stay dead, but no longer turn "status" and "check --live" red.

    Give ids, or select jobs with the filters of "jobs list". With filters, the command counts the selected jobs and
    asks for confirmation. "jobs retry" can still requeue dismissed jobs. A job that dies again turns "status" red
    again. Exit code 1: one of the jobs is not dead, was dismissed before, or does not exist.
    """,
)
