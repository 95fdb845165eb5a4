"""The root of the command line: global options, the commands, and errors as exit codes."""

from __future__ import annotations

from typing import Annotated

import typer

from cronjobs.cli import crontab, db, demo
from cronjobs.cli.run_due import leave, run_due
from cronjobs.cli.setting import ConfigOption, UrlOption, complain, echo
from cronjobs.errors import CronjobsError
from cronjobs.version import __version__

app = typer.Typer(
    name="cronjobs",
    help="Jobs from cron and the database you have: one crontab line, one YAML file, no daemon.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='Start: "cronjobs demo" shows it working; "cronjobs init" writes a first cronjobs.yaml.',
)


def _version(asked: bool) -> None:
    if asked:
        echo(f"cronjobs {__version__}")
        raise typer.Exit


@app.callback()
def root(
    config: ConfigOption = None,
    database_url: UrlOption = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Say more.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


app.command("run-due")(run_due)
app.command()(demo.demo)
app.add_typer(db.app, name="db")
app.add_typer(crontab.app, name="crontab")


def run() -> None:
    """Run the command line; a CronjobsError becomes its sentence on stderr and its exit code."""
    try:
        app()
    except CronjobsError as error:
        complain(str(error))
        leave(error.exit_code, stuck=False)
    except BrokenPipeError:
        leave(0, stuck=False)
