"""``cronjobs check``: what is wrong with the configuration, before a tick finds out."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Annotated, Any

import typer

from cronjobs.cli import leaving
from cronjobs.cli.known_types import known_types
from cronjobs.cli.loading import load_settings
from cronjobs.cli.options import JsonOption, Source
from cronjobs.cli.output import Times, coloured, complain, counted, echo, echo_json, sentence
from cronjobs.cli.project_database import missing_file, open_database
from cronjobs.clock import SYSTEM
from cronjobs.config.settings import Settings
from cronjobs.errors import ConfigError, Problem
from cronjobs.insight import check_config
from cronjobs.insight.check_config import Checked
from cronjobs.insight.findings import judge
from cronjobs.insight.gathering import look
from cronjobs.jobs.job_types import JobTypes
from cronjobs.store.meta import require_schema
from cronjobs.text import visible


def check(
    source: Source,
    no_import: Annotated[bool, typer.Option("--no-import", help="Do not import the handlers.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Also check in the database whether it all runs.")] = False,
    release: Annotated[
        bool, typer.Option("--release", help="The checklist before a release, with what only a person knows.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find what is wrong with the configuration and its handlers, without a database.

    Reads the file, imports the handlers, and compares the two: job names, payload keys, time limits, commands on
    cron's PATH, folders that must be writable. Notes list what may surprise you, such as schedules affected by a clock
    change. --live also reads the database and, as status does, lists what is wrong, since when, and what to type. Run
    it in CI, and after each edit. --release goes through what a release needs, on the host that will tick: each item
    is ok, to do, or for a person to answer.

    Exit codes: 0 all is well, 1 findings, or something to do, 3 the file cannot be used at all, 4 --live, and no
    database.
    """
    try:
        settings = load_settings(source, need_database=False)
    except ConfigError as error:
        _print_fatal(error, as_json)
        raise typer.Exit(3) from None
    known = None if no_import else known_types(settings)
    file = str(source.given("config") or os.environ.get("CRONJOBS_CONFIG") or "cronjobs.yaml")
    found = check_config.check(settings, known, file=file, environ=os.environ, now=SYSTEM.now())
    if release:
        from cronjobs.cli.check_release import release as checklist  # and the doctor

        checklist(source, found, as_json)
    wrong = _ask_database(settings, known) if live else []
    if as_json:
        echo_json(_object(found, wrong, live))
    else:
        _print(found, wrong, no_import)
    leaving.leave(1 if found.findings or wrong else 0, stuck=False)


def _print_fatal(error: Any, as_json: bool) -> None:
    if as_json:
        findings = [vars(problem) for problem in error.problems]
        echo_json({"ok": False, "fatal": True, "findings": findings, "notes": []})
        return
    for problem in error.problems:
        echo(str(problem))
    complain("with this file nothing runs")


def _ask_database(settings: Settings, known: JobTypes | None) -> list[str]:
    """What is wrong with the system as it runs, in sentences; raises DatabaseError."""
    if not settings.database:
        raise ConfigError([Problem(str(settings.file), 0, 0, "database", "--live needs a database, and none is set")])
    if file := missing_file(settings):
        return [f'there is no database {file} yet: the first "cronjobs run-due" makes it']
    with closing(open_database(settings)) as database, database.read() as connection:
        require_schema(connection)
        health = look(connection, settings, known or JobTypes())
    kinds = {"config"} if known else {"config", "unresolved", "late"}  # config: told already
    times = Times(health.now, settings.timezone)
    return [
        sentence(trouble, times) for trouble in judge(health, settings) if trouble.alarm and trouble.kind not in kinds
    ]


def _object(found: Checked, wrong: list[str], live: bool) -> dict[str, Any]:
    return {
        "ok": not found.findings and not wrong,
        "fatal": False,
        "findings": [vars(finding.problem) | {"detail": list(finding.detail)} for finding in found.findings],
        "notes": [vars(note) for note in found.notes],
        "job_types": found.job_types,
        "schedules": found.schedules,
    } | ({"live": wrong} if live else {})


def _print(found: Checked, wrong: list[str], no_import: bool) -> None:
    for finding in found.findings:
        echo(coloured(visible(str(finding.problem)), "red"))
        for line in finding.detail:
            echo(f"    {line.strip()}" if line.startswith("  File") else f"      {line.strip()}")
    for trouble in wrong:
        echo(coloured(trouble, "red"))
    for note in found.notes:
        echo(f"note: {note}")
    count = len(found.findings) + len(wrong)
    if count:
        complain(counted(count, "finding"))
        return
    what = f"{counted(found.job_types, 'job type')}, {counted(found.schedules, 'schedule')}"
    echo(coloured(f"ok: {what}" + ("; handlers were not imported" if no_import else ""), "green"))
