"""The root of the command line: global options and the table of commands."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import typer

from cronjobs.desk.cli import completion
from cronjobs.desk.cli.commands import CommandRow, LazyGroup
from cronjobs.desk.cli.options import ConfigOption, UrlOption
from cronjobs.engine.command import fault
from cronjobs.engine.command.printing import echo
from cronjobs.version import __version__

DAILY: Final = "Every day"
SCHEDULES: Final = "Schedules"
REPAIR: Final = "Repair"
SET_UP: Final = "Set up"


class Root(LazyGroup):
    table = {  # noqa: RUF012 never changed
        "run-due": CommandRow(
            "run_due:run_due", "Run what is due, then exit: this is what cron calls every minute.", DAILY
        ),
        "status": CommandRow(
            "status:status",
            "Show the state on one screen: findings, schedules, running and waiting jobs, hosts.",
            DAILY,
            "For example: cronjobs status --watch 5",
        ),
        "history": CommandRow(
            "history:history",
            "List what happened, in chronological order: failures, outages, pauses, deploys; successes are counted.",
            DAILY,
            "For example: cronjobs history --since 12h --schedule nightly-report",
        ),
        "metrics": CommandRow(
            "cronjobs.contrib.metrics.cli:metrics",
            "Print metrics of the whole database as OpenMetrics text, for Prometheus.",
            DAILY,
            "For example: cronjobs metrics > /var/lib/node_exporter/cronjobs.prom",
        ),
        "web": CommandRow(
            "cronjobs.contrib.web.cli:web",
            "Serve web pages: findings, what each schedule did in the last 24 hours, jobs, queues, hosts.",
            DAILY,
            "For example: cronjobs web --actions",
        ),
        "report": CommandRow(
            "report:report",
            "Write the state as one HTML file, for an email or a ticket.",
            DAILY,
            "For example: cronjobs report --out night.html",
        ),
        "explain": CommandRow(
            "explain:explain",
            "Explain why something ran or did not: when it was due, under which definition, what ticks did, "
            "how it ended.",
            DAILY,
            'For example: cronjobs explain nightly-report --at "yesterday 02:15"; cronjobs explain 811; '
            "cronjobs explain --key invoice:42",
        ),
        "audit": CommandRow(
            "audit:audit",
            (
                "List who did what, in chronological order: cancels, retries, pauses, and the files that each host "
                "applied."
            ),
            DAILY,
            "For example: cronjobs audit --since 7d --subject nightly-report",
        ),
        "books": CommandRow(
            "cronjobs.contrib.books.cli:books",
            "Check, per schedule and day, that every due occurrence ran or is accounted for.",
            DAILY,
            "For example: cronjobs books --from 2026-03-01 --to 2026-04-01",
        ),
        "enqueue": CommandRow(
            "enqueue:enqueue",
            "Enqueue one job; a tick runs it when it is due.",
            DAILY,
            """For example: cronjobs enqueue billing.send_invoice --payload '{"invoice_id": 42}' --in 5m""",
        ),
        "run": CommandRow(
            "run:run",
            "Run one job here and now, with output and traceback live; breakpoint() works.",
            DAILY,
            "For example: cronjobs run nightly-report, cronjobs run 17",
        ),
        "exec": CommandRow(
            "cronjobs.contrib.exec.cli:exec_command",
            "Run a crontab line as cron would, and record the run: output, duration, exit code.",
            DAILY,
            "For example, in a crontab: 15 2 * * * cronjobs exec backup -c 'cd / && pg_dump app > /backup/app.sql'",
        ),
        "schedules": CommandRow("schedules:app", "List schedules, or show one.", SCHEDULES),
        "next": CommandRow(
            "next:next_occurrences",
            "Show the next due times of an expression or a schedule, or of all schedules in the next 24 hours.",
            SCHEDULES,
            'For example: cronjobs next "30 2 * * *" --timezone Europe/Berlin -n 5',
        ),
        "sync": CommandRow(
            "sync:sync",
            "Apply the file's schedules now, without waiting for a tick.",
            SCHEDULES,
            "For example: cronjobs sync --plan",
        ),
        "pause": CommandRow(
            "pause:pause",
            "Pause all work, one queue or one schedule on every host, until you resume it or until a given time.",
            SCHEDULES,
            'For example: cronjobs pause --all --for 1h --why "the mail provider is down". Around a deploy: '
            "cronjobs pause --all --wait 60s --why deploy, then the deploy, then cronjobs resume --all",
        ),
        "resume": CommandRow(
            "resume:resume",
            "End one pause (of everything, a queue or a schedule); other pauses stay.",
            SCHEDULES,
            "For example: cronjobs resume --all",
        ),
        "trigger": CommandRow(
            "trigger:trigger",
            "Enqueue one job of a schedule now; the next tick runs it.",
            SCHEDULES,
            "For example: cronjobs trigger nightly-report",
        ),
        "backfill": CommandRow(
            "trigger:backfill",
            "Run the occurrences that a schedule missed or skipped in a past period, each once.",
            SCHEDULES,
            "For example: cronjobs backfill nightly-report --from 2026-11-01 --to 2026-11-07 --dry-run",
        ),
        "ack": CommandRow(
            "ack:ack",
            "Acknowledge a finding as it stands now; without FINDING, list the findings.",
            REPAIR,
            'For example: cronjobs ack dead --for 8h --why "the provider answers on Monday"',
        ),
        "jobs": CommandRow("jobs:app", "List, show, retry, cancel or release jobs.", REPAIR),
        "effects": CommandRow("effects:app", "List side effects, and settle those with an unknown outcome.", REPAIR),
        "init": CommandRow(
            "init:init",
            "Write a cronjobs.yaml and a first handler that suit the app in the folder and work without changes.",
            SET_UP,
            "For example: cronjobs init shop",
        ),
        "check": CommandRow(
            "check:check",
            "Find what is wrong with the configuration and its handlers, without a database.",
            SET_UP,
            "For example: cronjobs check --live",
        ),
        "doctor": CommandRow(
            "cronjobs.contrib.doctor.cli:doctor",
            "Check everything around the jobs (file, handlers, database, cron, host), and print how to fix "
            "what is wrong.",
            REPAIR,
            "For example: cronjobs doctor --json",
        ),
        "prune": CommandRow(
            "prune:prune",
            "Delete rows past their retention now, as ticks do in their spare time.",
            REPAIR,
            "For example: cronjobs prune --dry-run",
        ),
        "config": CommandRow(
            "config:app", "Show the configuration in effect, and where each value comes from.", SET_UP
        ),
        "schema": CommandRow(
            "schema:schema",
            "Print the JSON Schema of cronjobs.yaml (draft-07), which editors use to complete and check it.",
            SET_UP,
            "For example: cronjobs schema > cronjobs.schema.json",
        ),
        "alerts": CommandRow(
            "cronjobs.contrib.alerts.cli:app", "Send a test message through the alert channels.", SET_UP
        ),
        "db": CommandRow("db:app", "Create, compare, copy or adopt the tables in the jobs database.", SET_UP),
        "crontab": CommandRow(
            "crontab:app",
            "Manage the crontab line that runs cronjobs, and take over your crontab's other lines.",
            SET_UP,
        ),
        "systemd": CommandRow(
            "systemd:systemd",
            "Print a systemd service and timer that start ticks as the crontab's line would.",
            SET_UP,
            "For example: cronjobs systemd --out units",
        ),
        "demo": CommandRow(
            "cronjobs.contrib.demo.cli:demo",
            "See cronjobs work: jobs, a retry, a death, a schedule and two hosts, in a few seconds.",
            SET_UP,
        ),
        "dev": CommandRow(
            "dev:dev",
            "While you write handlers, run ticks in the foreground as soon as jobs are due, and print each event.",
            SET_UP,
            "For example: cronjobs dev --every 2s",
        ),
        "drill": CommandRow(
            "cronjobs.contrib.drill.cli:drill",
            "Rehearse a release with test mails: kill and freeze runners, and check that each mail arrives once.",
            SET_UP,
            "For example: cronjobs drill, cronjobs drill --form kill --keep",
        ),
    }


app = typer.Typer(
    cls=Root,
    name="cronjobs",
    help="Background jobs with the cron and database you have: one crontab line, one YAML file, no daemon.",
    no_args_is_help=True,
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
    verbose: Annotated[
        bool,
        typer.Option(
            "-v",
            "--verbose",
            help="Print the traceback of an internal error; in run-due, also a line for each finished job.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="In run-due: print only errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def run() -> None:
    try:
        fault.guarded(partial(app, prog_name="cronjobs"))
    finally:
        completion.after_install()
