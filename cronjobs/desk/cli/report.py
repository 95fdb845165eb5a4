"""``cronjobs report``: write the state as one HTML file, for an email or a ticket."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from cronjobs.desk import doors
from cronjobs.desk.cli.known_types import known_types
from cronjobs.desk.cli.options import Source
from cronjobs.desk.cli.project_database import jobs_database
from cronjobs.desk.store.reading import only_reading
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import complain
from cronjobs.engine.host.files import require_replaceable
from cronjobs.errors import CronjobsError
from cronjobs.installed import needed


def report(
    source: Source,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help='Output file, replaced if it exists, or "-" for stdout.')
    ],
) -> None:
    """Write the state as one HTML file, for an email or a ticket.

    This needs pip install 'cronjobs[web]'. The file contains the first pages of cronjobs web: findings, what each
    schedule did in the last 24 hours, dead and latest jobs, errors, queues, hosts. It loads no other file and has no
    links. Like the pages, it leaves out secrets and the keys listed under "hide" in job_types. Only its owner can read
    the file.
    """
    pages = needed(doors.REPORT, "a report")
    with jobs_database(source, only_database=True) as (settings, database):
        types = known_types(settings)
        with database.read() as connection, only_reading(connection):
            written = pages.report(connection, settings, types).encode(errors="replace")
    if str(out) == "-":
        typer.echo(written, nl=False)
    else:
        _put(out, written)
        complain(f"written: {out} ({len(written):,} bytes)")
    leaving.leave(0, stuck=False)


def _put(file: Path, written: bytes) -> None:
    """Replace the file atomically, since someone may be reading the previous file."""
    beside = file.parent / f".{file.name}.{os.getpid()}"
    try:
        require_replaceable(file)
        with open(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as opened:
            opened.write(written)
        beside.replace(file)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise CronjobsError(f"{file} cannot be written: {error.strerror or error}") from None
