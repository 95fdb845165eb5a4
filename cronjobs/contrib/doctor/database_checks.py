"""The checks of the jobs database. Each check gathers facts, and a function of ``database_verdicts`` judges them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import Connection

from cronjobs.contrib.doctor import database_verdicts as judge
from cronjobs.contrib.doctor import statements
from cronjobs.contrib.doctor.diagnosis import Diagnosis, problem
from cronjobs.contrib.doctor.mounts import filesystem_of
from cronjobs.contrib.doctor.patient import ExaminedSite
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.tables import SCHEMA_REVISION
from cronjobs.engine.schema import grants, migrations
from cronjobs.engine.schema.drift import VIEWS
from cronjobs.engine.schema.grants import DEFAULT_NAMES, Role
from cronjobs.engine.store.meta import is_ours, read_meta
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import CronjobsError, DatabaseError, SchemaNotUpgraded, TransientTrouble

ASKED = 3  # read the clock this many times, and use the reading that took the least time


def database(patient: ExaminedSite) -> Diagnosis:
    if patient.settings is None or patient.database is None:
        if patient.settings is not None and not patient.settings.database:
            return judge.unknown(patient.unreachable)
        why = (
            patient.unreachable or "there is no configuration and no --database-url, so there is no database to look at"
        )
        return judge.unreachable(why, no_file=patient.no_file, to_restore=patient.to_restore)
    name = str(patient.database.address)
    # Only the configuration file says which project is ours.
    if patient.unusable:
        return judge.database(name, None)
    with patient.database.read() as connection:
        return judge.database(name, _other_owner(connection, patient.settings))


def _other_owner(connection: Connection, settings: Settings) -> str | None:
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


def revision(patient: ExaminedSite) -> Diagnosis:
    with patient.db.read() as connection:
        try:
            found = read_meta(connection)
        except TransientTrouble:  # such as a table locked by another session, which the check "locks" reports
            raise
        except SchemaNotUpgraded as error:
            return problem(str(error), "docs/how-to/operating.md#tables-from-before-020")
        except DatabaseError:
            return judge.revision(None, SCHEMA_REVISION, None)
    return judge.revision(found.schema_revision, SCHEMA_REVISION, found.oldest_code)


def drift(patient: ExaminedSite) -> Diagnosis:
    return judge.drift(migrations.check(patient.db))


def clocks(patient: ExaminedSite) -> Diagnosis:
    """Compare the database's time with this host's time halfway through the query."""
    skew, best = timedelta(0), timedelta.max
    for _ in range(1 if patient.db.is_sqlite else ASKED):
        with patient.db.read() as connection:
            before = patient.db.clock.now()
            began = patient.db.clock.monotonic()
            there = database_now(connection)
            took = timedelta(seconds=patient.db.clock.monotonic() - began)
        if took < best:
            skew, best = before + took / 2 - there, took
    return judge.clocks(skew, best, same_host=patient.db.is_sqlite)


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


def versions(patient: ExaminedSite) -> Diagnosis:
    with patient.db.read() as connection:
        return judge.version(statements.server(connection))


def locks(patient: ExaminedSite) -> Diagnosis:
    """Judge the sessions that block sessions of cronjobs, or would block them."""
    with patient.db.read() as connection:
        found = [judge.Blocker(**row._mapping) for row in statements.blockers(connection)]
        return judge.locks(found, database_now(connection))


def rights(patient: ExaminedSite) -> Diagnosis:
    """Judge the rights of the session's role, of PUBLIC, and of the roles from ``db grants`` that exist."""
    named = {name: role for role, name in DEFAULT_NAMES.items()}
    wanted = {
        Role.RUN: {**grants.RUN, **dict.fromkeys(VIEWS, "SELECT")},
        Role.ENQUEUE: grants.ENQUEUE,
        Role.READ: grants.READ,
    }
    with patient.db.read() as connection:
        server = statements.server(connection)
        there = statements.existing_roles(connection, named)
        mine = [named[name] for name, member in there.items() if member and not server.superuser]
        held = [] if server.superuser else statements.rights_of(connection, server.user)
        ranked = (Role.RUN, Role.ENQUEUE, Role.READ, Role.MIGRATE)
        kind = next((role for role in ranked if role in mine), _kind_by(held))
        found = [judge.RoleRights(server.user, kind, wanted.get(kind, {}), held, server.superuser)]
        for name in sorted(there):
            role = named[name]
            if name != server.user and role in wanted:
                found.append(judge.RoleRights(name, role, wanted[role], statements.rights_of(connection, name)))
        found.append(judge.RoleRights("PUBLIC", "everybody", None, statements.rights_of(connection, "public")))
    return judge.rights(found)


def _kind_by(held: Sequence[statements.HeldRights]) -> Role:
    """Guess from its rights what a role is for, if its name is none of our default names."""
    changes = {each.relation for each in held if (each.rights | each.partly) & {"INSERT", "UPDATE", "DELETE"}}
    if held and not changes:
        return Role.READ
    return Role.RUN if not held or "cronjobs_ticks" in changes else Role.ENQUEUE


def vacuum(patient: ExaminedSite) -> Diagnosis:
    with patient.db.read() as connection:
        on = statements.server(connection).autovacuum
        return judge.bloat(statements.table_statistics(connection), autovacuum=on)


# --- SQLite's file ----------------------------------------------------------------------------------------------------


def sqlite_place(patient: ExaminedSite) -> Diagnosis:
    return judge.sqlite_place(str(patient.sqlite_path), filesystem_of(patient.sqlite_path, patient.root))


def sqlite_modes(patient: ExaminedSite) -> Diagnosis:
    path = patient.sqlite_path
    found, folder = path.stat(), path.parent.stat()
    facts = judge.FileFacts(str(path), found.st_mode & 0o7777, folder.st_mode & 0o7777, found.st_uid == os.geteuid())
    return judge.sqlite_modes(facts)


def sqlite_journal(patient: ExaminedSite) -> Diagnosis:
    with patient.db.read() as connection:
        return judge.sqlite_journal(statements.journal_mode(connection))
