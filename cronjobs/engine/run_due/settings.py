"""The settings and the budget of a ``run-due`` command, from its options and the environment."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta

from cronjobs.engine.command.settings import read_settings
from cronjobs.engine.config import trust
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.run_due.options import RUN_BY_CRON, TickOptions
from cronjobs.errors import CronjobsError, UsageError
from cronjobs.model import duration


def tick_settings(given: TickOptions) -> tuple[Settings, timedelta]:
    """Return the tick's settings and its budget. Raises an error if the tick may not run here."""
    # If an argument is not UTF-8, Python's text contains surrogates, which neither a database nor a log accepts.
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


def readable_settings(given: TickOptions) -> Settings | None:
    """Return the readable part of a file that no tick can use. The file's ping and alerts can then report the problem.

    Return None if nothing can be read, or if root does not trust the files that it names.
    """
    try:
        settings = read_settings(given.config, given.database_url, need_database=False, only_database=True)
        trust.require(settings, os.environ, programs=True)
    except CronjobsError:
        return None
    return settings


def run_by_cron() -> list[str]:
    """Return the names of the schedules whose lines cron has run: none, except in the trial tick of ``crontab``."""
    return os.environ.pop(RUN_BY_CRON, "").split()


def fires_schedules() -> bool:
    """Return whether this process should fire schedules.

    An unknown value of CRONJOBS_SCHEDULES raises UsageError, so that no schedule fires by mistake.
    """
    said = os.environ.get("CRONJOBS_SCHEDULES", "").lower()
    if said not in ("", "on", "off"):
        raise UsageError('CRONJOBS_SCHEDULES is neither on nor off: write "off" to run jobs without firing schedules')
    return said != "off"
