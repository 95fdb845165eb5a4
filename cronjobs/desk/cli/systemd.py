"""``cronjobs systemd``: units that let systemd start ticks in place of cron."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from cronjobs.desk.cli.options import ConfigOption, Source
from cronjobs.desk.cli.output import write
from cronjobs.desk.crontab import block, host, program
from cronjobs.desk.crontab.systemd_units import Units, unit_name, units
from cronjobs.engine.command.printing import complain, echo
from cronjobs.engine.config import load as configuration
from cronjobs.errors import CronjobsError, UsageError


def systemd(
    context: typer.Context,
    config: ConfigOption = None,
    user: Annotated[
        bool, typer.Option("--user", help="Make the units for systemctl --user, which needs no root.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            show_default=False,
            help="Name of the units. Default: cronjobs-PROJECT, or cronjobs.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", show_default=False, help="Write the two files to this folder. Default: stdout."
        ),
    ] = None,
) -> None:
    """Print a systemd service and timer that start ticks as the crontab's line would.

    Use them instead of the crontab's line, not in addition to it. The service runs as the user who runs this command,
    has cron's environment, and leaves long jobs alone when their tick ends. A failing tick's output goes to the journal
    and is not mailed. The command installs nothing. It prints on stderr how to install the units.
    """
    if name is not None and not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise UsageError(f'--name "{name}": a unit\'s name has letters, digits, "_", "." and "-"')
    file = program.absolute(Source(context, config).file)
    settings = configuration.load(file, environ=os.environ, need_database=False)
    owner = host.user().pw_name
    made = units(
        file,
        program.interpreter(),
        name=name or unit_name(settings.project),
        user=None if user else owner,
        every=settings.run.every,
        shutdown_grace=settings.run.shutdown_grace,
    )
    if out is None:
        write(_shown(made, user))
    else:
        _put(made, out)
    _print_next_steps(made, user, out)
    if owner == "root" and not user:
        complain("User=root: jobs will run as root. For another user's units, run this command as that user")
    if "CRONJOBS_DATABASE_URL" in os.environ:
        complain("CRONJOBS_DATABASE_URL is set here, but not in the service's environment")
    if _has_line(file):
        complain(
            "your crontab also starts these ticks, so each tick would start twice. To stop cron from starting them: "
            "cronjobs crontab remove --config "
            f"{shlex.quote(str(file))}"
        )


def _shown(made: Units, user: bool) -> list[str]:
    """Return both files, each below its path, as "systemctl cat" prints them."""
    folder = "~/.config/systemd/user" if user else "/etc/systemd/system"
    return "\n".join(f"# {folder}/{file}\n{text}" for file, text in made.files().items()).splitlines()


def _put(made: Units, folder: Path) -> None:
    for name, text in made.files().items():
        file = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        except OSError as error:
            raise CronjobsError(f"{file} cannot be written: {error.strerror or error}") from None
        echo(str(file))


def _print_next_steps(made: Units, user: bool, out: Path | None) -> None:
    control = "systemctl --user" if user else "sudo systemctl"
    if out is None:
        folder = '"$HOME/.config/systemd/user"' if user else "units"
        complain(f"to install: cronjobs systemd {'--user ' if user else ''}--out {folder}, and follow its instructions")
        return
    complain("then:")
    if not user:
        written = " ".join(shlex.quote(str(out / file)) for file in made.files())
        complain(f"    sudo cp {written} /etc/systemd/system/")
    complain(f"    {control} daemon-reload && {control} enable --now {made.name}.timer")
    if user:
        complain("    loginctl enable-linger    # otherwise, ticks stop when you log out")
    complain(f"    {control.removeprefix('sudo ')} list-timers {made.name}.timer")


def _has_line(file: Path) -> bool:
    try:
        return block.find(program.read(), file) is not None
    except CronjobsError:
        return False
