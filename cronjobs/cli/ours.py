"""The jobs database for commands that write to it or run from it: ours, or nobody's yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from cronjobs.cli.setting import actor, jobs_database
from cronjobs.database import Database
from cronjobs.ownership import is_ours
from cronjobs.settings import Settings
from cronjobs.text import clean, one_line


@contextmanager
def our_database(
    ctx: typer.Context, config: Path | None, url: str | None, *, adopt: bool = False
) -> Iterator[tuple[Settings, Database]]:
    """The settings and their database, its tables made where that is allowed. Raises ForeignDatabase.

    *adopt*: one that is nobody's yet becomes ours, as at a first tick.
    """
    from cronjobs.store import meta

    with jobs_database(ctx, config, url) as (settings, database):
        with database.read() as connection:
            found = meta.read_meta(connection)
        if not is_ours(settings, found.project, found.environment) and adopt:
            with database.write() as connection:
                meta.adopt(connection, settings.project, settings.environment, operator())
        yield settings, database


def operator() -> str:
    """Who is at the keyboard, as it may be stored: the name comes from variables that hold anything."""
    return one_line(clean(actor()), 200)
