"""The root of the command line: global options, the commands, and errors as exit codes."""

from __future__ import annotations

from typing import Annotated

import typer

from cronjobs.cli import (
    check,
    crontab,
    db,
    demo,
    dev,
    drill,
    effects,
    enqueue,
    fault,
    fill,
    jobs,
    looking,
    operate,
    schedule,
    schedules,
    start,
)
from cronjobs.cli import explain as explaining
from cronjobs.cli import next as coming
from cronjobs.cli import run as foreground
from cronjobs.cli.leaving import leave
from cronjobs.cli.run_due import run_due
from cronjobs.cli.setting import ConfigOption, UrlOption, complain, echo
from cronjobs.errors import CronjobsError
from cronjobs.version import __version__

app = typer.Typer(
    name="cronjobs",
    help="Jobs from cron and the database you have: one crontab line, one YAML file, no daemon.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
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


app.command(epilog="For example: cronjobs init shop")(start.init)
app.command(epilog="For example: cronjobs check --live")(check.check)
app.command("run-due")(run_due)
app.command(epilog="For example: cronjobs run nightly-report, cronjobs run 17")(foreground.run)
app.command(epilog="""For example: cronjobs enqueue billing.send_invoice --payload '{"invoice_id": 42}' --in 5m""")(
    enqueue.enqueue
)
app.command("next", epilog='For example: cronjobs next "30 2 * * *" --timezone Europe/Berlin -n 5')(
    coming.next_occurrences
)
app.command(epilog="For example: cronjobs sync --plan")(schedule.sync)
app.command(
    epilog='For example: cronjobs pause --all --for 1h --why "the mail provider is down". Around a deploy: '
    "cronjobs pause --all --wait 60s --why deploy, then the deploy, then cronjobs resume --all"
)(schedule.pause)
app.command(epilog="For example: cronjobs resume --all")(schedule.resume)
app.command(epilog="For example: cronjobs trigger nightly-report")(fill.trigger)
app.command(epilog="For example: cronjobs backfill nightly-report --from 2026-11-01 --to 2026-11-07 --dry-run")(
    fill.backfill
)
app.command()(demo.demo)
app.command(epilog="For example: cronjobs dev --every 2s")(dev.dev)
app.command(epilog="For example: cronjobs drill, cronjobs drill --form kill --keep")(drill.drill)
app.command("status", epilog="For example: cronjobs status --json")(looking.status)
app.command("history", epilog="For example: cronjobs history --since 12h --schedule nightly-report")(looking.history)
app.command(epilog=explaining.EXAMPLES)(explaining.explain)
jobs.app.command("retry", epilog="For example: cronjobs jobs retry 17 18, jobs retry --status dead --type mail.send")(
    operate.retry
)
jobs.app.command(
    "cancel", epilog='For example: cronjobs jobs cancel 17 --why "sent by hand", jobs cancel --queue mail'
)(operate.cancel)
jobs.app.command("release", epilog="For example: cronjobs jobs release 17, jobs release --all")(operate.release)
jobs.app.command("dismiss", epilog="For example: cronjobs jobs dismiss 17, jobs dismiss --type mail.send --since 24h")(
    operate.dismiss
)
app.add_typer(jobs.app, name="jobs")
app.add_typer(effects.app, name="effects")
app.add_typer(schedules.app, name="schedules")
app.add_typer(db.app, name="db")
app.add_typer(crontab.app, name="crontab")


def run() -> None:
    """Run the command line; a CronjobsError becomes its sentence on stderr and its exit code, a bug 70."""
    try:
        app(prog_name="cronjobs")
    except CronjobsError as error:
        for line in error.lines:
            complain(line)
        leave(error.exit_code, stuck=False)
    except BrokenPipeError:
        leave(0, stuck=False)
    except Exception as error:
        fault.end(error)
