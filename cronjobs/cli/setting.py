"""What every command shares: where the configuration and the database are, and how things are printed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from cronjobs import masking
from cronjobs.cli.fault import circumstances
from cronjobs.config import load
from cronjobs.database import Database, parse_url
from cronjobs.errors import SchemaMissing, SchemaTooOld
from cronjobs.patience import first_look
from cronjobs.remembered import remember, require_still_there
from cronjobs.settings import Settings
from cronjobs.text import visible

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        show_default=False,
        help="The configuration; else $CRONJOBS_CONFIG, else ./cronjobs.yaml.",
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        show_default=False,
        help="The jobs database; else $CRONJOBS_DATABASE_URL, else the configuration's.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def load_settings(ctx: typer.Context, config: Path | None, url: str | None, need_database: bool = True) -> Settings:
    """Read the configuration; the options may stand before or after the command's name."""
    root = ctx.find_root().params
    masking.remember(masking.named_secrets({**os.environ, "": url or root.get("database_url") or ""}))
    settings = load(
        config or root.get("config"),
        environ=os.environ,
        database_url=url or root.get("database_url"),
        need_database=need_database,
    )
    masking.remember(settings.secrets)
    circumstances.log = settings.log
    return settings


def open_database(settings: Settings) -> Database:
    """The configured database, not connected yet; raises DatabaseVanished for a SQLite file that was there."""
    address = parse_url(settings.database, settings.schema)
    require_still_there(settings, address)
    return Database(address, connections=settings.run.workers + 1)


@contextmanager
def jobs_database(ctx: typer.Context, config: Path | None, url: str | None) -> Iterator[tuple[Settings, Database]]:
    """The settings and an open database whose tables this code knows."""
    settings = load_settings(ctx, config, url)
    database = open_database(settings)
    try:
        require_tables(database)
        remember(settings, database.address)
        yield settings, database
    finally:
        database.close()


def require_tables(database: Database) -> None:
    """Raise unless this code runs on the tables; SQLite's are made or migrated on first use, PostgreSQL's never."""
    from cronjobs.store.meta import require_schema

    def look() -> None:
        with database.read() as connection:
            require_schema(connection)

    try:
        first_look(look, database.clock)
    except (SchemaMissing, SchemaTooOld):
        if not database.is_sqlite:
            raise
        from cronjobs import migrations

        migrations.upgrade(database)


def actor() -> str:
    """Who is at the keyboard, for the audit trail."""
    from cronjobs.caller import os_user

    return os_user()


def echo(text: str) -> None:
    """Print to stdout; a closed or full stdout never changes what a command does."""
    _print(sys.stdout, text)


def complain(text: str) -> None:
    """Print to stderr, likewise. It goes into mails, so nothing in it acts on who reads it."""
    _print(sys.stderr, visible(text))


def _print(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return
    text = masking.hide(text)
    with suppress(OSError):
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:  # cron's locale is C: what ASCII cannot say is escaped, not lost
            stream.write(text.encode("ascii", "backslashreplace").decode() + "\n")
        except ValueError:  # closed
            return
        stream.flush()


def echo_json(value: Any) -> None:
    # ASCII: control and bidi characters of stored texts would act on a terminal.
    echo(json.dumps(masking.hide_in(value), default=_encode, indent=2))


def _encode(value: Any) -> Any:
    isoformat = getattr(value, "isoformat", None)
    return isoformat() if isoformat else str(value)


def is_terminal() -> bool:
    try:
        return sys.stdout is not None and sys.stdout.isatty()
    except ValueError:
        return False


def coloured(text: str, colour: str) -> str:
    """Colour only on a terminal, and never against NO_COLOR (no-color.org)."""
    if not is_terminal() or os.environ.get("NO_COLOR"):
        return text
    return typer.style(text, fg=colour)
