"""What every command shares: its options for the configuration and the database, and the settings they lead to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cronjobs import masking
from cronjobs.cli.fault import circumstances
from cronjobs.config.load import load
from cronjobs.config.settings import Settings

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
WhyOption = Annotated[
    str | None,
    typer.Option(
        "--why", "--reason", metavar="TEXT", show_default=False, help="The reason, for status and the audit trail."
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
