"""From the configuration that the command line names to settings; without typer, which cron's tick does not load."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from cronjobs import masking
from cronjobs.cli.fault import circumstances
from cronjobs.cli.plain import TickOptions
from cronjobs.config import trust
from cronjobs.config.load import load
from cronjobs.config.settings import Settings
from cronjobs.errors import UsageError
from cronjobs.exec import spool
from cronjobs.exec.users_own import has_runs, no_project
from cronjobs.model import duration
from cronjobs.probe.state_files import spool_address

if TYPE_CHECKING:
    from cronjobs.cli.options import Source


def load_settings(
    source: Source, need_database: bool = True, *, only_database: bool = False, without_project: bool | None = None
) -> Settings:
    """*without_project*: fall back to what exec recorded in the state folder; None: who only reads a database does."""
    config, url = source.given("config"), source.given("database_url")
    falls_back = only_database and need_database if without_project is None else without_project
    if falls_back and not names_project(config, url) and has_runs():
        from cronjobs.exec.settling import catch_up  # and the database, which other settings are read without

        settings = no_project()
        catch_up(settings)
        return settings
    return read_settings(config, url, need_database, only_database=only_database)


def runs_in_spool(source: Source, settings: Settings) -> int:
    """How many runs of exec wait on this host for the database of *settings*."""
    url = source.given("database_url") or os.environ.get("CRONJOBS_DATABASE_URL")
    where = (None, None) if settings.without_project else (str(settings.file), url)
    return len(spool.waiting(spool_address(*where)))


def names_project(config: Path | None, url: str | None) -> bool:
    """Whether anything says which project is meant: an option, a variable, or a file in this folder."""
    variables = os.environ.get("CRONJOBS_CONFIG"), os.environ.get("CRONJOBS_DATABASE_URL")
    return any((config, url, *variables)) or Path("cronjobs.yaml").exists()


def read_settings(
    config: Path | None, url: str | None, need_database: bool = True, *, only_database: bool = False
) -> Settings:
    """Read the configuration, and keep its secrets out of whatever is printed from now on."""
    masking.remember(masking.named_secrets({**os.environ, "": url or ""}))
    settings = load(
        config, environ=os.environ, database_url=url, need_database=need_database, only_database=only_database
    )
    masking.remember(settings.secrets)
    circumstances.log = settings.log
    return settings


def tick_settings(given: TickOptions) -> tuple[Settings, timedelta]:
    """The settings of a tick that may run here, and its budget."""
    # Python reads other bytes of the command line as text that no database and no log takes.
    for option, value in (("queue", given.queue), ("only", given.only), ("database-url", given.database_url)):
        try:
            (value or "").encode()
        except UnicodeEncodeError:
            raise UsageError(f"--{option} is not UTF-8") from None
    settings = read_settings(given.config, given.database_url)
    budget = settings.run.budget
    if given.budget is not None:
        try:
            budget = duration(given.budget)
            if budget < timedelta(seconds=1):
                raise ValueError("a tick needs a budget of at least 1s")
        except ValueError as error:
            raise UsageError(f"--budget: {error}") from None
    if given.workers is not None:
        settings = replace(settings, run=replace(settings.run, workers=given.workers))
    trust.require(settings, os.environ)
    return settings, budget


def fires_schedules() -> bool:
    """Whether this process is to fire schedules; a spelling that is not known stops it rather than firing them."""
    said = os.environ.get("CRONJOBS_SCHEDULES", "").lower()
    if said not in ("", "on", "off"):
        raise UsageError("CRONJOBS_SCHEDULES is neither on nor off: write off to run jobs without firing schedules")
    return said != "off"


# --- other processes --------------------------------------------------------------------------------------------------

_ours: list[str] = []


def command_line() -> list[str]:
    """How this process would start another command of cronjobs; its words follow."""
    return _ours or [sys.executable, "-P", "-m", "cronjobs"]


def begun_by(program: str) -> None:
    """Note that our command line is a part of somebody's *program*, such as manage.py."""
    script = ["-m", "django"] if Path(program).name == "__main__.py" else [program]
    _ours[:] = [sys.executable, *script, "cronjobs"]
