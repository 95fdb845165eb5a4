"""From the configuration that the command line names to settings; without typer, which cron's tick does not load."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cronjobs import masking
from cronjobs.cli.fault import circumstances
from cronjobs.config.load import load
from cronjobs.config.settings import Settings

if TYPE_CHECKING:
    import typer


def load_settings(ctx: typer.Context, config: Path | None, url: str | None, need_database: bool = True) -> Settings:
    """Read the configuration; the options may stand before or after the command's name."""
    root = ctx.find_root().params
    return read_settings(config or root.get("config"), url or root.get("database_url"), need_database)


def read_settings(config: Path | None, url: str | None, need_database: bool = True) -> Settings:
    """Read the configuration, and keep its secrets out of whatever is printed from now on."""
    masking.remember(masking.named_secrets({**os.environ, "": url or ""}))
    settings = load(config, environ=os.environ, database_url=url, need_database=need_database)
    masking.remember(settings.secrets)
    circumstances.log = settings.log
    return settings
