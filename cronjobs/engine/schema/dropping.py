"""Drop our tables, views and functions, and nothing else. Refuse to drop them while they are in use."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import repeat
from typing import Any, Final, cast

from sqlalchemy import Connection, Row

from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.retrying import passes, patiently
from cronjobs.engine.database.tables import SCHEMA_REVISION
from cronjobs.engine.schema import migrations
from cronjobs.engine.store import dropping as store
from cronjobs.engine.store.dropping import Kind, LastTick, Relation
from cronjobs.engine.store.meta import is_ours, read_meta
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import last_ticks
from cronjobs.errors import CronjobsError, SchemaTooNew
from cronjobs.model import duration_text, rough
from cronjobs.text import one_line

PAUSE_S: Final = 0.5
LOCK_TRIES: Final = 20
SHOWN: Final = 3

_MADE: Final = re.compile(r"^CREATE (?:OR REPLACE )?(TABLE|VIEW|FUNCTION) (cronjobs_\w+)", re.MULTILINE)


class TablesInUse(CronjobsError):
    """Someone is using the tables. Nothing was dropped."""

    exit_code = 1


@dataclass(frozen=True)
class Content:
    """The relations that would be dropped, and how many jobs of each status someone may still need.

    ``hosts`` are all hosts whose ticks still have rows in the database. ``is_shared_file`` is True if another program
    has tables in the same SQLite file. ``in_django`` is True if Django's migration table lists our migrations.
    """

    relations: Sequence[Relation]
    jobs: dict[str, int]
    hosts: Sequence[str]
    is_shared_file: bool
    in_django: bool


def look(database: Database, settings: Settings, *, force: bool, quiet: timedelta) -> Content:
    """Return what ``drop`` would drop. Raises the same errors as ``drop``, and changes nothing."""
    made = _made(database)
    with database.read() as connection:
        return _look(connection, made, settings, force=force, quiet=quiet)


def drop(
    database: Database, settings: Settings, *, force: bool, quiet: timedelta, before: Callable[[Content], object]
) -> Content:
    """Drop all our tables, views and functions in one transaction.

    *before* is called first, and can raise an exception to prevent the drop.

    Unless *force* is given, raises TablesInUse if a job is running, or if a host has ticked within *quiet*. Raises
    SchemaMissing or ForeignDatabase, and SchemaTooNew if the tables are from a later version, because this version may
    not know all of those tables.
    """
    before(look(database, settings, force=force, quiet=quiet))
    # The migrations' SQL takes a while to make, so make it before anyone has to wait for our locks.
    made = _made(database)

    def dropped() -> Content:
        with migrations.transaction(database) as connection:
            # This raises an error if someone else has dropped the tables in the meantime.
            read_meta(connection)
            store.keep_out(connection)
            # Look again, now that our locks prevent the start of any job or tick.
            found = _look(connection, made, settings, force=force, quiet=quiet)
            store.drop(connection, found.relations)
            return found

    return patiently(dropped, worth=passes, pauses=repeat(PAUSE_S, LOCK_TRIES))


def _look(
    connection: Connection, made: set[tuple[Kind, str]], settings: Settings, *, force: bool, quiet: timedelta
) -> Content:
    found = read_meta(connection)
    is_ours(settings, found.project, found.environment)
    if found.schema_revision > SCHEMA_REVISION:
        raise SchemaTooNew(found=found.schema_revision, known=SCHEMA_REVISION, oldest_code=found.schema_revision)
    ticks = last_ticks(connection)
    if not force:
        _require_quiet(connection, ticks, quiet)
    hosts = sorted({row.host for row in ticks})
    relations = store.existing(connection, made)
    return Content(
        relations,
        store.unfinished(connection),
        hosts,
        store.is_shared_file(connection, relations),
        store.django_has_migrated(connection),
    )


def _made(database: Database) -> set[tuple[Kind, str]]:
    """Return the relations that the SQL of the migrations creates."""
    return {(cast("Kind", kind.lower()), name) for kind, name in _MADE.findall(migrations.sql(database.address))}


def _require_quiet(connection: Connection, ticks: Sequence[Row[Any]], quiet: timedelta) -> None:
    force = "use --force to drop the tables anyway. Nothing was dropped"
    if leased := store.live_leases(connection, SHOWN + 1):
        said = ", ".join(
            f"job {row.id} ({one_line(row.job_type, 60)}) by {one_line(row.locked_by, 60)}" for row in leased[:SHOWN]
        )
        more = " and others" if len(leased) > SHOWN else ""
        raise TablesInUse(
            f'jobs are running: {said}{more}. Wait for them ("cronjobs pause --all --wait 5m"), or cancel them; {force}'
        )
    if ticking := store.hosts_that_tick(ticks, database_now(connection), quiet):
        raise TablesInUse(
            f"hosts are still ticking: {_listed(ticking)}. Remove what starts the ticks on each of these hosts "
            f'("cronjobs crontab remove"; a systemd timer; a container), and wait {duration_text(quiet)}; {force}'
        )


def _listed(ticking: Sequence[LastTick]) -> str:
    said = ", ".join(f"{each.host} {rough(each.ago)} ago" for each in ticking[:SHOWN])
    return said + (f" and {len(ticking) - SHOWN} more" if len(ticking) > SHOWN else "")
