"""The help of ``cronjobs exec``. ``exec.start`` runs the command without importing this."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cronjobs.contrib.exec import start
from cronjobs.desk.cli.options import Source


def exec_command(
    source: Source,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the run. Its job type is exec:NAME.")],
    program: Annotated[
        list[str] | None, typer.Argument(metavar="-- PROGRAM ARGUMENT…", help="One plain command, without a shell.")
    ] = None,
    line: Annotated[
        str | None, typer.Option("-c", metavar="LINE", help="A whole line, run by $SHELL -c as cron does.")
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION", help="When the command should run. Default: as your crontab line with this name says."
        ),
    ] = None,
) -> None:
    """Run a crontab's line as cron would, and record the run: output, duration, exit code.

    The command starts first. It has this process's stdin, environment, folder and process group; its output passes
    through at once; signals are forwarded; the exit code, or the signal, is the command's own (126, 127 as a shell's).
    Nothing that goes wrong with the record changes that.

    The run is recorded in the project's database (--config, $CRONJOBS_CONFIG, ./cronjobs.yaml), or without a project in
    your state folder; what cannot be written within 2 s waits there for the next exec or tick. It is never claimed by a
    tick and never retried. "cronjobs crontab wrap" puts exec before the lines of your crontab.
    """
    start.run(sys.argv[1:])
