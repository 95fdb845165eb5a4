"""Load a command's settings, and build the command line that starts another cronjobs command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cronjobs.desk import doors
from cronjobs.desk.cli.options import Source
from cronjobs.engine.command.settings import read_settings
from cronjobs.engine.config import django_project
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.probe.state_files import spool_address, spooled
from cronjobs.installed import if_installed


def load_settings(
    source: Source, need_database: bool = True, *, only_database: bool = False, without_project: bool | None = None
) -> Settings:
    """Load the settings.

    *without_project*: whether to fall back to the settings that exec recorded in the state folder, if nothing names a
    project. If None, commands that only read fall back, and other commands do not.
    """
    config, url = source.given("config"), source.given("database_url")
    falls_back = only_database and need_database if without_project is None else without_project
    if falls_back and not names_project(config, url) and (there := if_installed(doors.WITHOUT_PROJECT)) is not None:
        settings: Settings | None = there.recorded()
        if settings is not None:
            return settings
    return read_settings(config, url, need_database, only_database=only_database)


def runs_in_spool(source: Source, settings: Settings) -> int:
    """Count the exec runs in this host's spool, which are not yet in the database of *settings*."""
    return len(spooled(spool_of(source, settings)))


def spool_of(source: Source, settings: Settings) -> str:
    """Return the name of this host's spool for the database of *settings*."""
    url = source.given("database_url") or os.environ.get("CRONJOBS_DATABASE_URL")
    where = (None, None) if settings.without_project else (str(settings.file), url)
    return spool_address(*where)


def names_project(config: Path | None, url: str | None) -> bool:
    """Return whether an option, a variable, a file in this folder or manage.py names the project."""
    variables = os.environ.get("CRONJOBS_CONFIG"), os.environ.get("CRONJOBS_DATABASE_URL")
    return any((config, url, *variables)) or Path("cronjobs.yaml").exists() or django_project.is_host()


# --- other processes --------------------------------------------------------------------------------------------------

_ours: list[str] = []


def command_line() -> list[str]:
    """Return the words with which every cronjobs command line begins: the interpreter and the program."""
    return _ours or [sys.executable, "-P", "-m", "cronjobs"]


def begun_by(program: str) -> None:
    """Remember that another *program*, such as manage.py, runs our command line."""
    script = ["-m", "django"] if Path(program).name == "__main__.py" else [program]
    _ours[:] = [sys.executable, *script, "cronjobs"]
