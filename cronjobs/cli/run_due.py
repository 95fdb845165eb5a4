"""``cronjobs run-due``: its options, for people. A plain command line, such as cron's, is read by ``plain``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from cronjobs.cli.options import Source
from cronjobs.cli.plain import TickOptions
from cronjobs.cli.run_tick import run_tick
from cronjobs.tick import deadline


class FailOn(StrEnum):
    DEAD = "dead"
    ANY = "any"
    NEVER = "never"


@dataclass(frozen=True)
class TypedOptions:
    """The options of ``TickOptions`` beside those of Source, as typer reads them."""

    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=64, help="Jobs at once. Default: run.workers.")
    ] = None
    budget: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time for this tick, e.g. 30s. Default: run.budget.")
    ] = None
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None
    only: Annotated[str | None, typer.Option(metavar="TYPE", help="Only jobs of this type.")] = None
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Start at most this many jobs.")] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run; change nothing.")] = False
    wait: Annotated[bool, typer.Option("--wait", help="Stay until the long jobs that this tick began have ended.")] = (
        False
    )
    as_json: Annotated[bool, typer.Option("--json", help="Print what the tick did as one object.")] = False
    fail_on: Annotated[
        FailOn, typer.Option(metavar="WHICH", help="Which failures make the exit code 1: dead, any or never.")
    ] = FailOn.DEAD
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="A line per event, also without a terminal.")] = False
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors, also on a terminal.")] = False


def run_due(source: Source, options: TypedOptions) -> None:
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
    deadline.arm()
    shared: dict[str, Any] = {name: source.given(name) for name in ("config", "database_url")}
    shared |= {name: getattr(options, name) or bool(source.given(name)) for name in ("verbose", "quiet")}
    run_tick(TickOptions(**vars(options) | shared))
