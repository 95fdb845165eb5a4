"""``cronjobs run-due`` with help. For cron's plain command line, ``run_due.options`` is used, without typer."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Annotated, Any

import typer

from cronjobs.desk.cli.options import Source
from cronjobs.engine.run_due.command import run_tick
from cronjobs.engine.run_due.options import KINDS, OPTIONS, TickOptions


def run_due(source: Source, **given: Any) -> None:
    """Run what is due, then exit: this is what cron calls every minute.

    The command finds due schedules and jobs, leases the jobs, runs them in a few threads, records what happened, and
    exits before the next minute. Without a terminal it prints nothing unless a job died or something broke, so a mail
    from cron is an alarm.

    A job whose timeout is longer than run.budget minus 5 s gets its own process, which outlives the tick. (For a budget
    below 15 s, the limit is two thirds of the budget.) In a container without an init process, everything ends with the
    tick's process. Use --wait there: it keeps the tick running until the jobs' processes have ended. With --wait, the
    tick passes SIGTERM on to those processes, and exit code 1 also means that one of their jobs died. The tick prints
    its own report first.

    Exit codes: 0 done (also when nothing was due, or a job failed and will retry), 1 a job died, 2 usage, 3
    configuration, 4 database, 70 an internal error in cronjobs, 128+n ended by a signal (142: the time limit; 137: also
    the time limit, if a handler had disarmed SIGALRM or the tick was frozen).
    """
    shared = {name: value for name, option in OPTIONS.items() if option.before and (value := source.given(name))}
    run_tick(TickOptions(**given | shared))


def _of_typer(name: str, default: Any) -> inspect.Parameter:
    own = OPTIONS[name]
    option = typer.Option(*own.words.split(), metavar=own.metavar, min=own.least, max=own.most, help=own.help)
    kind: Any = Annotated[KINDS[name].__origin__, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


run_due.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter("source", inspect.Parameter.KEYWORD_ONLY, annotation=Source),
        *(_of_typer(each.name, each.default) for each in fields(TickOptions) if not hasattr(Source, each.name)),
    ]
)
