"""``cronjobs db …``: make, look at and hand over the tables in the jobs database."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from cronjobs.cli.setting import (
    ConfigOption,
    JsonOption,
    UrlOption,
    actor,
    complain,
    echo,
    echo_json,
    load_settings,
    open_database,
)
from cronjobs.database import Address, parse_url

app = typer.Typer(no_args_is_help=True, help="The tables in the jobs database: make, compare, hand over.")


class Dialect(StrEnum):
    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"


@app.command()
def upgrade(ctx: typer.Context, config: ConfigOption = None, database_url: UrlOption = None) -> None:
    """Make or migrate the tables to this version's revision.

    All or nothing, and harmless to repeat; two at once wait for each other. Ticks may go on meanwhile: migrations only
    expand, so the version that runs now also runs on the new tables.
    """
    from cronjobs import migrations

    database = open_database(load_settings(ctx, config, database_url))
    try:
        before, after = migrations.upgrade(database)
    finally:
        database.close()
    if before == after:
        echo(f"revision {after}: nothing to do")
    else:
        echo(f"revision {before or 'none'} → {after}")


@app.command()
def current(
    ctx: typer.Context, config: ConfigOption = None, database_url: UrlOption = None, as_json: JsonOption = False
) -> None:
    """Print the revision that the database is at, "none" without tables."""
    from cronjobs import migrations

    database = open_database(load_settings(ctx, config, database_url))
    try:
        revision, newest = migrations.current(database), migrations.head()
    finally:
        database.close()
    if as_json:
        echo_json({"database": str(database.address), "revision": revision, "newest": newest})
        return
    echo(revision or "none")
    if (revision or "") < newest:
        complain(f'this version brings revision {newest}: run "cronjobs db upgrade"')


@app.command()
def check(
    ctx: typer.Context, config: ConfigOption = None, database_url: UrlOption = None, as_json: JsonOption = False
) -> None:
    """Compare the tables with what this version expects; exit 1 if something is missing or changed.

    What you added yourself, an index or a column, is no finding. On PostgreSQL it makes temporary tables to compare
    with, and rolls them back.
    """
    from cronjobs import migrations

    database = open_database(load_settings(ctx, config, database_url))
    try:
        findings = migrations.check(database)
    finally:
        database.close()
    if as_json:
        echo_json(findings)
    else:
        for finding in findings:
            echo(finding)
        if not findings:
            complain("the tables are as they should be")
    if findings:
        raise typer.Exit(1)


@app.command()
def sql(
    ctx: typer.Context,
    config: ConfigOption = None,
    database_url: UrlOption = None,
    dialect: Annotated[
        Dialect | None, typer.Option("--dialect", help="Of this kind; no configuration is read then.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="NAME", help="PostgreSQL: the schema for the tables.")
    ] = None,
) -> None:
    """Print the migrations as SQL, from an empty database to this version's revision, for somebody else to apply.

    No database is asked. The kind and the schema are those of the configured database, or of the options.
    """
    from cronjobs import migrations

    echo(migrations.sql(_address(ctx, config, database_url, dialect, schema)).rstrip("\n"))


@app.command()
def adopt(ctx: typer.Context, config: ConfigOption = None, database_url: UrlOption = None) -> None:
    """Give the database to the configuration's project and environment.

    For a copy that was restored elsewhere, or a project that changed its name: until then nothing of it is claimed.
    Think before you adopt a copy of production: its waiting jobs will run here. It is written to the audit trail.
    """
    from cronjobs.store import meta

    settings = load_settings(ctx, config, database_url)
    database = open_database(settings)
    try:
        with database.write() as connection:
            meta.require_schema(connection)
            before = meta.adopt(connection, settings.project, settings.environment, actor())
    finally:
        database.close()
    there, here = _name(before.project, before.environment), _name(settings.project, settings.environment)
    echo(f"belongs to {here} already: nothing to do" if there == here else f"{there} → {here}")


def _address(
    ctx: typer.Context, config: ConfigOption, database_url: UrlOption, dialect: Dialect | None, schema: str | None
) -> Address:
    match dialect:
        case Dialect.POSTGRESQL:
            return parse_url("postgresql://", schema)
        case Dialect.SQLITE:
            return parse_url("sqlite:///cronjobs.db")
        case None:
            settings = load_settings(ctx, config, database_url)
            return parse_url(settings.database, schema or settings.schema)


def _name(project: str, environment: str) -> str:
    return f'project "{project}", environment "{environment}"' if project or environment else "nobody"
