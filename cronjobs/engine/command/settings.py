"""Read the settings from the command line and the environment.

This module does not open the database, because many callers do not need one.
"""

from __future__ import annotations

import os
from pathlib import Path

from cronjobs import masking
from cronjobs.engine.command.fault import circumstances
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import Settings


def read_settings(
    config: Path | None, url: str | None, need_database: bool = True, *, only_database: bool = False
) -> Settings:
    """Read the configuration. From then on, mask its secrets in everything that this process prints."""
    masking.remember(masking.named_secrets({**os.environ, "": url or ""}))
    settings = load(
        config, environ=os.environ, database_url=url, need_database=need_database, only_database=only_database
    )
    masking.remember(settings.secrets)
    circumstances.log = settings.log
    return settings
