"""``cronjobs db …``: create, inspect and hand over the tables of the jobs database."""

from __future__ import annotations

from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cronjobs.desk.cli.commands import CommandRow, Commands, LazyGroup
from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import JsonOption, Source
from cronjobs.desk.cli.output import write
from cronjobs.desk.cli.project_database import operator
from cronjobs.desk.init.app_alembic import unfiltered
from cronjobs.desk.insight.watched import quiet_after
from cronjobs.desk.store.adopting import require_no_ticks
from cronjobs.desk.store.upgrade_warnings import migrated_by_an_app, roles_left_behind
from cronjobs.engine.command.database import open_database
from cronjobs.engine.command.printing import complain, echo, echo_json
from cronjobs.engine.database.address import Address, parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.known_databases import forget, remember
from cronjobs.engine.schema import migrations
from cronjobs.engine.schema.grants import DEFAULT_NAMES, RELATIONS, Role, statements
from cronjobs.engine.store.meta import refuse_unsupported, reopen, require_schema
from cronjobs.errors import UsageError
from cronjobs.text import one_line


class DbGroup(LazyGroup):
    table = {  # noqa: RUF012 never changed
        "upgrade": CommandRow("db:upgrade", "Create or migrate the tables to this version's revision."),
        "current": CommandRow("db:current", 'Print the revision of the database, or "none" if it has no tables.'),
        "check": CommandRow(
            "db:check", "Compare the tables with what this version expects; exit 1 if something is missing or changed."
        ),
        "sql": CommandRow(
            "db:sql",
            "For a DBA to apply: print the SQL that takes an empty database to this version's revision.",
        ),
        "grants": CommandRow(
            "db:grants",
            "For a PostgreSQL database's owner: print SQL that gives each kind of program only the rights it needs.",
        ),
        "copy": CommandRow(
            "cronjobs.contrib.copy.cli:copy",
            "Copy jobs, keys, effects, schedules and history from SQLite to PostgreSQL.",
        ),
        "adopt": CommandRow("db:adopt", "Assign the database to the configuration's project and environment."),
        "drop": CommandRow(
            "db_drop:drop",
            "Drop the tables, including all jobs and their history, and list what is left outside the database.",
        ),
    }


app = Commands("Create, compare, copy or adopt the tables in the jobs database.", cls=DbGroup)


class Dialect(StrEnum):
    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"


def upgrade(
    source: Source,
    new: Annotated[
        bool, typer.Option("--new", help="Create a new, empty SQLite file in place of a missing one.")
    ] = False,
) -> None:
    """Create or migrate the tables to this version's revision.

    The upgrade is atomic and safe to repeat. Concurrent upgrades wait for each other. Ticks can keep running during an
    upgrade: migrations only add to the tables, so the version in use also works with the new tables.
    """
    settings = load_settings(source)
    if new:
        forget(settings.folder, parse_url(settings.database, settings.schema))
    with closing(open_database(settings)) as database:
        before, after = migrations.upgrade(database)
        remember(settings.folder, database.address)
        _warn_of_autogenerate(settings.folder, database)
        _warn_of_rights(database)
    if before == after:
        echo(f"revision {after}: nothing to do")
    else:
        echo(f"revision {before or 'none'} → {after}")


def _warn_of_autogenerate(folder: Path, database: Database) -> None:
    """Warn if the app's alembic does not ignore our tables, since its next autogenerate would drop them."""
    said = unfiltered(folder, schema=database.address.schema)
    if said is None:
        return
    with database.read() as connection:
        if migrated_by_an_app(connection):
            complain(said)


def _warn_of_rights(database: Database) -> None:
    """Warn of roles that lack rights on new tables. The user can grant them by applying ``db grants`` again."""
    if database.is_sqlite:
        return
    with database.read() as connection:
        for role, tables in roles_left_behind(connection, RELATIONS).items():
            lacks = f"the role {one_line(role, 200)} has no rights on {', '.join(tables)}"
            complain(
                f'{lacks}: apply the output of "cronjobs db grants" now, and again after each upgrade that adds tables'
            )


def current(source: Source, as_json: JsonOption = False) -> None:
    """Print the revision of the database, or "none" if it has no tables."""
    with closing(open_database(load_settings(source))) as database:
        revision, newest = migrations.current(database), migrations.head()
    if as_json:
        echo_json({"database": str(database.address), "revision": revision, "newest": newest})
        return
    echo(revision or "none")
    if revision is not None:
        refuse_unsupported(revision)
    if (revision or "") < newest:
        complain(f'this version needs revision {newest}: run "cronjobs db upgrade"')


def check(source: Source, as_json: JsonOption = False) -> None:
    """Compare the tables with what this version expects; exit 1 if something is missing or changed.

    The command does not report indexes and columns that you added yourself. On PostgreSQL the command creates temporary
    tables to compare with, and rolls them back.
    """
    with closing(open_database(load_settings(source))) as database:
        findings = migrations.check(database)
    if as_json:
        echo_json(findings)
    else:
        for finding in findings:
            echo(finding)
        if not findings:
            complain("the tables match this version")
    if findings:
        raise typer.Exit(1)


def sql(
    source: Source,
    dialect: Annotated[
        Dialect | None,
        typer.Option(
            "--dialect",
            metavar="KIND",
            help="Print the SQL for postgresql or for sqlite. With this option, the command reads no configuration.",
        ),
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="NAME", help="PostgreSQL: the schema for the tables.")
    ] = None,
) -> None:
    """For a DBA to apply: print the SQL that takes an empty database to this version's revision.

    The command makes no database connection. If options do not name the dialect and the schema, it uses those of the
    configured database.
    """
    write([migrations.sql(_address(source, dialect, schema)).rstrip("\n")])


def grants(
    source: Source,
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            metavar="KIND=NAME",
            help="Print only this role's rights, e.g. run=app; repeatable. KIND is migrate, run, enqueue, read or "
            "token. Default: one role for each kind, named cronjobs_KIND.",
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="NAME",
            help="The schema that contains the tables. With this option, the command does not connect to a database.",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help='Let enqueuers use on_conflict="replace", which changes jobs that have not begun.'
        ),
    ] = False,
    find: Annotated[
        bool, typer.Option("--find", help="Let enqueuers use find() and wait(), which read jobs, payloads and results.")
    ] = False,
) -> None:
    """For a PostgreSQL database's owner: print SQL that gives each kind of program only the rights it needs.

    Apply the SQL with cronjobs db grants | psql …. Applying the SQL again is safe, and is necessary after an upgrade.
    The SQL creates missing roles without a login. Grant these roles to your users: GRANT cronjobs_run TO app.
    """
    names = _names(role or [])
    write([statements(schema or _home(source), names, replace=replace, find=find)])


def adopt(
    source: Source,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Adopt the database even while hosts still tick for its present owner; this locks those hosts out.",
        ),
    ] = False,
) -> None:
    """Assign the database to the configuration's project and environment.

    Use this for a copy restored elsewhere, for the database of a renamed project, or for a database that "db copy"
    closed. Until you adopt the database, ticks claim none of its jobs. The command refuses if hosts are still ticking
    for the database's present project and environment. If it refuses, you most likely use the wrong configuration
    file. Think before you adopt a copy of production: its waiting jobs will run here. The audit trail records the
    adoption.
    """
    settings = load_settings(source)
    with closing(open_database(settings)) as database, database.write() as connection:
        require_schema(connection)
        if not force:
            require_no_ticks(connection, settings, quiet_after(settings.run.every))
        before = reopen(connection, settings.project, settings.environment, operator())
    there, here = _name(before.project, before.environment), _name(settings.project, settings.environment)
    echo(f"the database already belongs to {here}: nothing to do" if there == here else f"{there} → {here}")


def _address(source: Source, dialect: Dialect | None, schema: str | None) -> Address:
    match dialect:
        case Dialect.POSTGRESQL:
            return parse_url("postgresql://", schema)
        case Dialect.SQLITE:
            return parse_url("sqlite:///cronjobs.db")
        case None:
            settings = load_settings(source)
            return parse_url(settings.database, schema or settings.schema)


def _names(given: list[str]) -> dict[Role, str]:
    """Map each kind of role to the name of the role that gets its rights.

    An empty *given* selects the default names.
    """
    names: dict[Role, str] = {}
    for pair in given:
        kind, _, name = pair.partition("=")
        if kind not in list(Role) or not name:
            raise UsageError(f'--role "{pair}" is not KIND=NAME: kinds are {", ".join(Role)}, e.g. --role run=app_jobs')
        names[Role(kind)] = name
    return names or dict(DEFAULT_NAMES)


def _home(source: Source) -> str:
    """Return the schema where the tables are, or where ``db upgrade`` would create them."""
    settings = load_settings(source)
    address = parse_url(settings.database, settings.schema)
    if address.is_sqlite:
        raise UsageError("SQLite has no roles: anyone who can read and write its file can do everything")
    if address.schema is not None:
        return address.schema
    with closing(open_database(settings)) as database:
        return migrations.home(database)


def _name(project: str, environment: str) -> str:
    return f'project "{project}", environment "{environment}"' if project or environment else "nobody"
