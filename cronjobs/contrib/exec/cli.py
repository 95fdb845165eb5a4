"""The typer command of ``cronjobs exec``. typer uses this function only to print the help.

A normal run goes straight to ``exec.start``.
"""

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
            metavar="EXPRESSION",
            help="When the command is due. Default: the times of the crontab line that runs exec with this NAME.",
        ),
    ] = None,
) -> None:
    """Run a crontab line as cron would, and record the run: output, duration, exit code.

    exec starts the command before it records anything. The command has exec's stdin, environment, folder and process
    group. Its output passes through at once, and exec forwards signals to it. exec exits with the command's exit code
    or signal (126 and 127 as in a shell). A failure to record the run changes none of this.

    The run is recorded in the project's database (--config, $CRONJOBS_CONFIG, ./cronjobs.yaml), or in your state folder
    if there is no project. A run that cannot be written within 2 s waits in the state folder for the next exec or tick.
    Ticks never claim or retry the run. "cronjobs crontab wrap" puts exec before the lines of your crontab.
    """
    start.run(sys.argv[1:])
