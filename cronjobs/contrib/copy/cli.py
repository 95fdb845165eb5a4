"""``cronjobs db copy``."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from cronjobs import masking
from cronjobs.contrib.copy import copying
from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import JsonOption, Source
from cronjobs.desk.cli.parse_values import span
from cronjobs.desk.cli.progress import Progress
from cronjobs.desk.cli.project_database import missing_file, operator
from cronjobs.desk.insight.formatting import counted
from cronjobs.engine.command.database import open_database
from cronjobs.engine.command.printing import complain, echo, echo_json
from cronjobs.engine.config.variables import Variables
from cronjobs.engine.schema.ensure_tables import require_tables
from cronjobs.errors import CronjobsError, SchemaMissing, UsageError

STAYS_CLOSED: Final = (
    "the copy may have been completed, so the old database stays closed: run the same command again to be sure"
)
ODD_SHOWN: Final = 20  # at most this many messages about values that could not be copied unchanged


def copy(
    source: Source,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="URL",
            help="The new database (PostgreSQL). Default: the configured one. To keep the password out of the list of "
            "processes, pass '${NEW_URL}' or '${file:PATH}' in single quotes. cronjobs then reads the URL from that "
            "variable or file.",
        ),
    ] = None,
    old: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="The old database (SQLite). Default: the configured one."),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait",
            metavar="DURATION",
            help="Wait up to this long for running jobs, e.g. 60s. Default: do not wait.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy jobs, keys, effects, schedules and history from SQLite to PostgreSQL.

    db copy first closes the old database: ticks that use it end with an error that names the new database. Then db copy
    copies everything in one transaction. If that fails, nothing is copied. After the copy, run db copy again to bring
    over jobs that were enqueued in the old database during the copy. Nothing is copied twice. As long as the new
    database has not been used, you can go back with "cronjobs db adopt" on the old database.
    """
    if to is not None and old is not None:
        raise UsageError("give --to or --from, not both: the configuration names the other database")
    if to is None and old is None:
        raise UsageError(
            "give --to postgresql://…, or, if the configuration already names the new database, --from sqlite:///…"
        )
    patience = None if wait is None else span(wait, "--wait")
    settings = load_settings(source)
    if to is not None and masking.url_passwords(to):
        complain("anyone who lists processes can see a password on the command line: use --to '${NEW_URL}' instead")
    typed = to
    old, to = (None if url is None else _filled(url, settings.folder, settings.secrets) for url in (old, to))
    here, there = (replace(settings, database=url) if url else settings for url in (old, to))
    if file := missing_file(here):
        raise UsageError(f"there is no database {file} to copy from")
    with closing(open_database(here)) as from_, closing(open_database(there)) as target, Progress() as line:
        if from_.is_sqlite:
            require_tables(from_)
        try:
            report = copying.copy(
                from_,
                target,
                settings,
                actor=operator(),
                wait=patience,
                progress=lambda table, done, total: line.say(f"{table}: {done:,} of {total:,}"),
            )
        except SchemaMissing:
            # The new side lacks its tables. It cannot be the old side, because require_tables has created the old
            # side's tables.
            raise SchemaMissing(str(target.address), _upgrade(typed)) from None
        except BaseException:
            with suppress(CronjobsError):
                if from_.is_sqlite and copying.is_closed(from_, target):
                    complain(STAYS_CLOSED)
            raise
    for sentence in report.odd[:ODD_SHOWN]:
        complain(sentence)
    if len(report.odd) > ODD_SHOWN:
        complain(f"… and {len(report.odd) - ODD_SHOWN} more")
    if as_json:
        echo_json({"from": str(from_.address), "to": str(target.address)} | asdict(report))
        return
    # Print "${NEW_URL}" as typed, because the configuration should name the variable too.
    for sentence in _copied(report, typed if typed and "${" in typed else str(target.address)):
        echo(sentence)


def _upgrade(typed: str | None) -> str:
    """Return the command that creates the new database's tables. *typed* is the typed URL, or None if configured."""
    if typed is None:
        return "cronjobs db upgrade"
    if "${" not in typed:
        return f"cronjobs db upgrade --database-url {shlex.quote(typed)}"
    filled_by_the_shell = re.sub(r"\$\{file:([^}]*)\}", r"$(cat \1)", typed)
    return f'CRONJOBS_DATABASE_URL="{filled_by_the_shell}" cronjobs db upgrade'


def _filled(url: str, folder: Path, secrets: frozenset[str]) -> str:
    """Replace ``${NAME}`` and ``${file:…}`` in *url*, as in the configuration file."""
    try:
        text, came_in = Variables(os.environ, folder).fill(url)
    except ValueError as error:
        raise UsageError(str(error)) from None
    passwords = masking.url_passwords(text)
    secrets |= masking.long_enough(came_in) | passwords
    # A URL without a password is no secret, so do not mask it.
    masking.remember(secrets if passwords else secrets - {text})
    return text


def _copied(report: copying.CopyReport, where: str) -> Iterator[str]:
    if report.late:
        came = report.copied["cronjobs_jobs"]
        yield f"enqueued in the old database since the last copy, and copied now: {counted(came, 'job')}" + (
            f"; not copied, because the new database already has a job with the same key: {report.known:,}"
            if report.known
            else ""
        )
    else:
        yield ", ".join(f"{rows:,} {table.removeprefix('cronjobs_')}" for table, rows in report.copied.items() if rows)
        yield f"the old database is closed; name {where} in the configuration of every host that ticks or enqueues"
    if report.left:
        yield f"enqueued in the old database during the copy: {counted(report.left, 'job')}; run this command again"
