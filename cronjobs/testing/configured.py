"""The settings for a test's jobs: the user's cronjobs.yaml, or the defaults with handlers that are already imported."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import MetricsSettings, Settings
from cronjobs.engine.jobs import job_types
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.errors import ConfigError, UsageError


def settings_of(config: str | Path | None, imports: Iterable[str] = (), database_url: str | None = None) -> Settings:
    """Return the settings in the file *config*. If *config* is None, return the defaults.

    Raises ConfigError even for a mistake that would only disable one entry.
    """
    if config is None:
        file = Path("cronjobs.yaml").absolute()
        return Settings(
            file=file, folder=file.parent, database=database_url or "", imports=tuple(imports), trusted=True
        )
    if tuple(imports):
        raise UsageError('name the handlers\' modules in the file, under "imports", or pass imports=[…] and no file')
    settings = load(Path(config), environ=os.environ, database_url=database_url, need_database=database_url is not None)
    if problems := [each for each in settings.problems if not _goes_out(each.path)]:
        raise ConfigError(problems)
    # Drop the settings for metrics, alerts and pings, because a test must not write production's files or send alerts.
    schedules = {name: replace(schedule, ping=None) for name, schedule in settings.schedules.items()}
    run = replace(settings.run, ping=None)
    return replace(settings, metrics=MetricsSettings(), alerts=None, run=run, schedules=schedules, trusted=True)


def _goes_out(path: str) -> bool:
    """Whether the key at *path* is only for alerts or pings. A test does not need the variables in such keys."""
    return path.split(".")[0] == "alerts" or path.endswith(".ping")


def handlers_of(settings: Settings) -> JobTypes:
    """Import the handlers.

    Raises UsageError if a module cannot be imported. (A tick would leave the module's jobs waiting.)

    Handlers with an executor run in this process, so that a test needs no cluster.
    """
    found = job_types.load(settings)
    if found.faults:
        raise UsageError("\n".join(f"{fault.where}: {fault.what}" for fault in found.faults))
    here = {name: replace(job_type, executor=None) for name, job_type in found.types.items()}
    return replace(found, types=here)
