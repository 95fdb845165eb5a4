"""The settings and the budget of ``run-due``, from its options and its environment."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta

from cronjobs.engine.command.settings import read_settings
from cronjobs.engine.config import trust
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.run_due.options import TickOptions
from cronjobs.errors import UsageError
from cronjobs.model import duration


def tick_settings(given: TickOptions) -> tuple[Settings, timedelta]:
    """The settings of a tick that may run here, and its budget."""
    # Python reads other bytes of the command line as text that no database and no log accepts.
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
    trust.require(settings, os.environ, programs=True)
    return settings, budget


def fires_schedules() -> bool:
    """Whether this process is to fire schedules. An unknown spelling stops it instead of firing them."""
    said = os.environ.get("CRONJOBS_SCHEDULES", "").lower()
    if said not in ("", "on", "off"):
        raise UsageError("CRONJOBS_SCHEDULES is neither on nor off: write off to run jobs without firing schedules")
    return said != "off"
