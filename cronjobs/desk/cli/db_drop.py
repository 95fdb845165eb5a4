"""``cronjobs db drop``: drop the tables, and list what the project leaves outside the database."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from datetime import timedelta
from typing import Annotated, Final

import typer

from cronjobs.desk import doors
from cronjobs.desk.cli.loading import load_settings, spool_of
from cronjobs.desk.cli.options import Source
from cronjobs.desk.cli.progress import is_interactive
from cronjobs.desk.cli.project_database import missing_file
from cronjobs.desk.insight.formatting import counted
from cronjobs.desk.insight.leftovers import Leftover, what_is_outside
from cronjobs.engine.command.database import open_database
from cronjobs.engine.command.printing import complain, echo
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.host.known_databases import forget
from cronjobs.engine.schema import dropping
from cronjobs.engine.schema.dropping import Content, TablesInUse
from cronjobs.errors import DatabaseError, UsageError
from cronjobs.installed import if_installed

LATE: Final = timedelta(seconds=30)  # a tick may start and end up to this long after its minute
WORDS: Final = {"queued": "waiting", "failed": "retrying", "running": "running", "dead": "dead"}


def drop(
    source: Source,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be dropped and what would stay; drop nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the project's name.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Drop even while jobs or ticks are still running.")] = False,
) -> None:
    """Drop the tables, including all jobs and their history, and list what is left outside the database.

    Tables, views, functions and the version table are dropped in one transaction. Your own tables are not changed. The
    command asks for the project's name. It refuses while jobs or ticks are still running, and if the database belongs
    to another project. It lists what stays, with the commands that remove it: the crontab's line, systemd units, files,
    the PostgreSQL schema and roles. First remove whatever starts ticks: on SQLite the next tick would create the tables
    again.
    """
    settings = load_settings(source)
    if file := missing_file(settings):
        raise DatabaseError(f"there is no database {file}: nothing to drop")
    quiet = settings.run.every + LATE
    with closing(open_database(settings)) as database:
        if dry_run:
            content = dropping.look(database, settings, force=True, quiet=quiet)
            _print_content(content, "would drop")
        else:
            if not force:
                _settle_exec(source, settings, database, quiet)
            content = dropping.drop(
                database, settings, force=force, quiet=quiet, before=lambda found: _ask(found, settings.project, yes)
            )
            forget(settings.folder, database.address)
            _print_content(content, "dropped")
    others = [host for host in content.hosts if host != Identity.here().host]
    # Closing the database has removed its -wal file, which would otherwise be listed.
    _print_leftovers(
        what_is_outside(
            settings, database.address, others, is_shared_file=content.is_shared_file, in_django=content.in_django
        )
    )


def _settle_exec(source: Source, settings: Settings, database: Database, quiet: timedelta) -> None:
    """If jobs still seem to run, record the end of each run of ``cronjobs exec`` that is over.

    A tick would record these ends, but perhaps no tick starts any more.
    """
    try:
        dropping.look(database, settings, force=False, quiet=quiet)
    except TablesInUse:
        if (there := if_installed(doors.WITHOUT_PROJECT)) is not None:
            there.settle(database, spool_of(source, settings))


def _ask(content: Content, project: str, yes: bool) -> None:
    if yes:
        return
    word = project or "drop"
    if not is_interactive():
        raise UsageError("there is no terminal to confirm this on: add --yes. Nothing was dropped")
    _print_jobs(content)
    what = "the project's name" if project else '"drop"'
    asked = f"To drop the tables for good, type {what} ({word})"
    if typer.prompt(asked, err=True, default="", show_default=False) != word:
        complain("nothing was dropped")
        raise typer.Exit(1)


def _print_jobs(content: Content) -> None:
    jobs = ", ".join(f"{number:,} {WORDS[status]}" for status, number in sorted(content.jobs.items()) if number)
    complain(f"these tables still have unfinished or dead jobs: {jobs}" if jobs else "no job is waiting or dead")


def _print_content(content: Content, verb: str) -> None:
    for each in content.relations:
        echo(f"{verb} {each.kind} {each.name}")
    kinds = Counter(each.kind for each in content.relations)
    complain(f"{verb} {', '.join(counted(number, kind) for kind, number in kinds.items())}")
    if verb != "dropped":
        _print_jobs(content)


def _print_leftovers(outside: list[Leftover]) -> None:
    complain("what stays, because it is outside the database:")
    for each in outside:
        complain(f"    {each.what}: {each.where}")
        complain(f"        {each.remove}")
