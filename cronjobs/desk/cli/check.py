"""``cronjobs check``: find mistakes in the configuration before a tick does."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated, Any

import typer

from cronjobs.clock import SYSTEM
from cronjobs.desk.cli.check_against import as_json_object, lines, review_of
from cronjobs.desk.cli.known_types import known_types, users_code
from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import JsonOption, Source
from cronjobs.desk.insight import check_config
from cronjobs.desk.insight.check_config import Checked
from cronjobs.desk.insight.formatting import counted, safe
from cronjobs.desk.insight.payload_review import PayloadReview
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import coloured, complain, echo, echo_json
from cronjobs.engine.config.trust import UntrustedFiles
from cronjobs.errors import ConfigError, DatabaseError, UsageError


def check(
    source: Source,
    no_import: Annotated[bool, typer.Option("--no-import", help="Do not import the handlers.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Also read the database, and list what is going wrong.")] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="URL", help="Also check that the payloads in the database at this URL fit this code."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find what is wrong with the configuration and its handlers, without a database.

    The command reads the file, imports the handlers, and checks job names, payloads, time limits, commands on cron's
    PATH, and folders that must be writable. Notes list what may surprise you, such as schedules affected by a
    clock change. With --live or --against, the command leaves out notes that need only the file. --live also reads the
    database, and lists what is wrong there, as "cronjobs status" does. Run "cronjobs check" in CI and after each edit.
    Before a deploy, use --against: it reads every waiting, running, failed and dead job in the production database, and
    lists those whose payload the new handlers would not accept. The command writes nothing.

    Exit codes: 0 all is well, 1 findings, 3 the file cannot be used at all, 4 --live or --against cannot use the
    database.
    """
    if against is not None and no_import:
        raise UsageError("--against compares payloads with the handlers, so it cannot go with --no-import")
    try:
        settings = load_settings(source, need_database=False)
    except ConfigError as error:
        _print_fatal(_for_a_tick(source, error), _live_anyway(source) if live else None, as_json)
        raise typer.Exit(3) from None
    try:
        known = None if no_import else known_types(settings)
    except UntrustedFiles:
        # check_config.check() below reports untrusted files.
        known = None
    with users_code():
        found = check_config.check(settings, known, file=str(source.file), environ=os.environ, now=SYSTEM.now())
    if not as_json and (live or against is not None):
        # Notes on the file are the same in every run, and would distract from what the database shows.
        found = replace(found, notes=())
    wrong: list[str] = []
    if live:
        from cronjobs.desk.cli.check_live import ask_clusters, ask_database

        seen = ask_database(settings, known)
        wrong = [*seen.wrong, *ask_clusters(settings.executors)]
        found = replace(found, notes=(*found.notes, *seen.notes))
    with users_code():
        reviewed = None if against is None or known is None else review_of(against, settings, known)
    if as_json:
        echo_json(_object(found, wrong, live, reviewed))
    else:
        _print(found, wrong, no_import, reviewed)
    misfits = reviewed is not None and reviewed.misfits > 0
    leaving.leave(1 if found.findings or wrong or misfits else 0, stuck=False)


def _for_a_tick(source: Source, error: ConfigError) -> ConfigError:
    """Return the error that a tick would report for this file.

    A tick also needs the database's address, so its error may list more problems than *error* does.
    """
    try:
        load_settings(source)
    except ConfigError as of_a_tick:
        return of_a_tick
    return error


def _live_anyway(source: Source) -> list[str]:
    """List the database's findings even though the file is unusable. Return [] if the database is unusable as well."""
    from cronjobs.desk.cli.check_live import ask_database

    try:
        return list(ask_database(load_settings(source, only_database=True, without_project=False), None).wrong)
    except (ConfigError, DatabaseError):
        return []


def _print_fatal(error: ConfigError, wrong: list[str] | None, as_json: bool) -> None:
    if as_json:
        answer = {"ok": False, "fatal": True, "findings": [vars(problem) for problem in error.problems], "notes": []}
        echo_json(answer if wrong is None else answer | {"live": wrong})
        return
    for problem in error.problems:
        echo(str(problem))
    for trouble in wrong or ():
        echo(coloured(trouble, "red"))
    complain("nothing runs with this file")


def _object(found: Checked, wrong: list[str], live: bool, reviewed: PayloadReview | None) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "ok": not found.findings and not wrong and not (reviewed and reviewed.misfits),
        "fatal": False,
        "findings": [vars(finding.problem) | {"detail": list(finding.detail)} for finding in found.findings],
        "notes": [vars(note) for note in found.notes],
        "job_types": found.job_types,
        "schedules": found.schedules,
    }
    if live:
        answer["live"] = wrong
    if reviewed is not None:
        answer["against"] = as_json_object(reviewed)
    return answer


def _print(found: Checked, wrong: list[str], no_import: bool, reviewed: PayloadReview | None) -> None:
    for finding in found.findings:
        echo(coloured(safe(finding.problem, 2000), "red"))
        for line in finding.detail:
            echo(f"    {line.strip()}" if line.startswith("  File") else f"      {line.strip()}")
    for trouble in wrong:
        echo(coloured(trouble, "red"))
    for line in lines(reviewed) if reviewed is not None else ():
        echo(line)
    for note in found.notes:
        echo(f"note: {note}")
    count = len(found.findings) + len(wrong) + (len(reviewed.groups) if reviewed is not None else 0)
    if count:
        complain(counted(count, "finding"))
        return
    what = f"{counted(found.job_types, 'job type')}, {counted(found.schedules, 'schedule')}"
    if reviewed is not None:
        what += f"; all {counted(reviewed.checked, 'payload')} in that database fit"
    echo(coloured(f"ok: {what}" + ("; handlers were not imported" if no_import else ""), "green"))
