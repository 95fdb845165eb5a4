"""Gather the facts about the jobs database: its project, clock, file and roles, and this host's ticks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from sqlalchemy import Connection

from cronjobs.contrib.doctor import database_verdicts as judge
from cronjobs.contrib.doctor import statements
from cronjobs.contrib.doctor.diagnosis import Diagnosis, problem
from cronjobs.contrib.doctor.host_verdicts import TickTimes
from cronjobs.contrib.doctor.mounts import filesystem_of
from cronjobs.desk.cli.other_hosts import listed, ticking_besides
from cronjobs.desk.insight.watched import quiet_after
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import SCHEMA_REVISION
from cronjobs.engine.probe.kernel_facts import host_name
from cronjobs.engine.schema import grants
from cronjobs.engine.schema.drift import VIEWS
from cronjobs.engine.schema.grants import DEFAULT_NAMES, Role
from cronjobs.engine.store import ticks
from cronjobs.engine.store.meta import is_ours, read_meta
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import CronjobsError, DatabaseError, SchemaNotUpgraded, TransientTrouble

ASKED = 3  # read the clock this many times, and use the reading that took the least time


def other_owner(connection: Connection, settings: Settings) -> str | None:
    """Return the project that owns the database, or None if it belongs to our project or to no project."""
    try:
        found = read_meta(connection)
    except DatabaseError:
        return None  # the tables are missing, which another check reports
    try:
        is_ours(settings, found.project, found.environment)
    except CronjobsError:
        environment = f'environment "{found.environment}"' if found.environment else "no environment"
        return f'project "{found.project}", {environment}'
    return None


def revision(connection: Connection) -> Diagnosis:
    try:
        found = read_meta(connection)
    except TransientTrouble:  # for example, another session has locked the table: the check "locks" reports that
        raise
    except SchemaNotUpgraded as error:
        return problem(str(error), "docs/how-to/operating.md#tables-from-before-020")
    except DatabaseError:
        return judge.revision(None, SCHEMA_REVISION, None)
    return judge.revision(found.schema_revision, SCHEMA_REVISION, found.oldest_code)


def clocks(database: Database) -> Diagnosis:
    """Compare the database's time with this host's time.

    A query takes a while, so compare with this host's time halfway through the query.
    """
    skew, best = timedelta(0), timedelta.max
    for _ in range(1 if database.is_sqlite else ASKED):
        with database.read() as connection:
            before = database.clock.now()
            began = database.clock.monotonic()
            there = database_now(connection)
            took = timedelta(seconds=database.clock.monotonic() - began)
        if took < best:
            skew, best = before + took / 2 - there, took
    return judge.clocks(skew, best, same_host=database.is_sqlite)


def sqlite_file(path: Path, root: Path) -> judge.FileFacts:
    found, folder = path.stat(), path.parent.stat()
    return judge.FileFacts(
        str(path),
        filesystem_of(path, root),
        found.st_mode & 0o7777,
        folder.st_mode & 0o7777,
        found.st_uid == os.geteuid(),
    )


def blockers(connection: Connection) -> list[judge.Blocker]:
    """Return the sessions that sessions of cronjobs wait for, or would have to, except those that wait themselves."""
    return [judge.Blocker(**row._mapping) for row in statements.blockers(connection)]


def roles(connection: Connection) -> list[judge.RoleRights]:
    """Return the rights of the session's role, of PUBLIC, and of those roles from ``db grants`` that exist."""
    server = statements.server(connection)
    named = {name: role for role, name in DEFAULT_NAMES.items()}
    there = statements.existing_roles(connection, named)
    mine = [named[name] for name, member in there.items() if member and not server.superuser]
    held = [] if server.superuser else statements.rights_of(connection, server.user)
    ranked = (Role.RUN, Role.ENQUEUE, Role.READ, Role.MIGRATE)
    kind = next((role for role in ranked if role in mine), _kind_by(held))
    wanted = {
        Role.RUN: {**grants.RUN, **dict.fromkeys(VIEWS, "SELECT")},
        Role.ENQUEUE: grants.ENQUEUE,
        Role.READ: grants.READ,
    }
    found = [judge.RoleRights(server.user, kind, wanted.get(kind, {}), held, server.superuser)]
    for name in sorted(there):
        role = named[name]
        if name != server.user and role in wanted:
            found.append(judge.RoleRights(name, role, wanted[role], statements.rights_of(connection, name)))
    found.append(judge.RoleRights("PUBLIC", "everybody", None, statements.rights_of(connection, "public")))
    return found


def _kind_by(held: Sequence[statements.HeldRights]) -> Role:
    """Guess from a role's rights what the role is for.

    The role's name does not show its purpose, because the name is none of our default names.
    """
    changes = {each.relation for each in held if (each.rights | each.partly) & {"INSERT", "UPDATE", "DELETE"}}
    if held and not changes:
        return Role.READ
    return Role.RUN if not held or "cronjobs_ticks" in changes else Role.ENQUEUE


def fired(connection: Connection, every: timedelta, host: str) -> TickTimes:
    last = {row.host: row.finished_at or row.started_at for row in ticks.last_ticks(connection)}
    others = ticking_besides({host, host_name()}, connection, every)
    return TickTimes(host, database_now(connection), every, quiet_after(every), last.get(host), listed(others))
