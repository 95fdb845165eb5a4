"""``cronjobs drill``: the release drill, on the user's database."""

from __future__ import annotations

import os
import shlex
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, NoReturn

import typer

from cronjobs.contrib.drill import Drilled
from cronjobs.contrib.drill import drill as play
from cronjobs.contrib.drill.checks import Check, Form
from cronjobs.contrib.drill.setup import signals_handled_by
from cronjobs.contrib.drill.stage import Stage
from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import JsonOption, Source
from cronjobs.desk.cli.output import width, wrapped
from cronjobs.desk.insight.formatting import counted
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import coloured, complain, echo, echo_json, is_terminal
from cronjobs.engine.database.address import parse_url


class Forms(StrEnum):
    SIGTERM = "sigterm"
    KILL = "kill"
    BOTH = "both"


TITLES: Final = {
    "sigterm": "The process is restarted mid-run, as in a deploy (SIGTERM)",
    "kill": "The process is killed mid-run (kill -9)",
}
INDENT: Final = " " * 6


def drill(
    source: Source,
    form: Annotated[
        Forms,
        typer.Option("--form", metavar="FORM", help=f"How the process is interrupted mid-run: {', '.join(Forms)}."),
    ] = Forms.BOTH,
    receipts: Annotated[
        int, typer.Option(metavar="N", min=40, max=10_000, help="The number of jobs. One in five fails on purpose.")
    ] = 100,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder and the tables for inspection.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Rehearse a release with test mails: kill and freeze runners, and check that each mail arrives once.

    Real ticks send 100 receipts to the drill's own mail server (pip install 'cronjobs[drill]'), which refuses some,
    hangs up on others, and leaves others unanswered. The drill ends a tick mid-run, by SIGTERM and, in a second run, by
    kill -9. It freezes a runner until its lease has expired, then wakes the runner. It stops a job that hangs, and a
    job that is cancelled. It lists, settles, corrects and retries dead jobs. At the end, it counts the mails that
    arrived at the mail server.

    On PostgreSQL, the drill creates its own schema and drops it again; your tables are not touched. Without a
    configuration and a URL, or if they name a SQLite file, the drill works on its own SQLite file.

    The exit code is 0 if every check passed, 1 if one failed, 2 for usage, 3 for configuration, 4 for database errors.
    """
    url = _postgresql_url(source)
    printer = _Printer(as_json)
    where = _where(url)
    printer.line(f"{receipts} receipts, on {where}")
    drilled = []
    with signals_handled_by(_end):  # _end raises SystemExit, so that the drill still cleans up
        for each in [*Form] if form is Forms.BOTH else [Form(form)]:
            printer.line(coloured(f"\n{TITLES[each]}", "cyan"))
            drilled.append(
                play(
                    each,
                    url=url,
                    receipts=receipts,
                    keep=printer.kept if keep else None,
                    say=printer.progress,
                    tell=printer.check,
                    note=complain,
                )
            )
    held = all(done.held for done in drilled)
    if as_json:
        echo_json(
            {
                "held": held,
                "database": where,
                "receipts": receipts,
                "forms": [_as_json(done) for done in drilled],
                "kept": printer.left,
            }
        )
    else:
        _conclude(drilled, keep)
    leaving.leave(0 if held else 1, stuck=False)


def _postgresql_url(source: Source) -> str | None:
    """Return the user's database URL if it is PostgreSQL, else None, for a SQLite file of the drill's own."""
    url = source.given("database_url") or os.environ.get("CRONJOBS_DATABASE_URL")
    named = source.given("config") or os.environ.get("CRONJOBS_CONFIG")
    if url is None and (named or Path("cronjobs.yaml").exists()):
        url = load_settings(source).database
    return None if url is None or parse_url(url).is_sqlite else url


def _where(url: str | None) -> str:
    return "a SQLite file of its own" if url is None else f"{parse_url(url)}, in a schema of its own"


class _Printer:
    """Prints each check, and on a terminal the progress between checks. With --json, prints nothing."""

    def __init__(self, as_json: bool) -> None:
        self._silent = as_json
        self.left: list[dict[str, str | None]] = []

    def line(self, text: str) -> None:
        if not self._silent:
            echo(text)

    def progress(self, text: str) -> None:
        if is_terminal():
            self.line(coloured(f"      {text}", "bright_black"))

    def check(self, check: Check) -> None:
        mark = coloured("ok", "green") if check.held else coloured("NO", "red")
        first, *more = wrapped(check.said, width() - len(INDENT))
        self.line("\n".join([f"  {mark}  {first}", *(INDENT + line for line in more)]))

    def kept(self, stage: Stage) -> None:
        self.left.append({"folder": str(stage.folder), "schema": stage.schema})
        config = shlex.quote(str(stage.config))
        self.line(f"\n  Kept: {stage.folder}" + (f", and the schema {stage.schema}" if stage.schema else ""))
        if stage.schema is not None:
            self.line("    export DATABASE_URL=…    # the database of the drill; no file contains this URL")
        for look in ("status", "jobs list", "effects list"):
            self.line(f"    cronjobs {look} --config {config}")
        self.line(f"    rm -r {shlex.quote(str(stage.folder))}    # when you are done")
        if stage.schema is not None:
            self.line(f"    psql \"$DATABASE_URL\" -c 'DROP SCHEMA {stage.schema} CASCADE'")


def _conclude(drilled: list[Drilled], keep: bool) -> None:
    checks = [check for done in drilled for check in done.checks]
    missed = sum(not check.held for check in checks)
    took = sum(done.took.total_seconds() for done in drilled)
    if not missed:
        echo(coloured(f"\nAll {counted(len(checks), 'check')} passed ({took:.0f} s)", "green"))
        return
    echo(coloured(f"\n{missed} of {counted(len(checks), 'check')} failed ({took:.0f} s)", "red"))
    if not keep:
        echo("  to run the drill again and keep everything for inspection: cronjobs drill --keep")


def _as_json(done: Drilled) -> dict[str, Any]:
    return {
        "form": str(done.form),
        "held": done.held,
        "duration_ms": round(done.took.total_seconds() * 1000),
        "checks": [vars(check) for check in done.checks],
    }


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
