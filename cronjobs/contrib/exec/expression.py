"""Validate ``--cron``. A separate module, since exec imports the cron parser only after the command has run."""

from __future__ import annotations

from cronjobs.engine.crontime import grammar


def check(cron: str) -> None:
    """Raise CronjobsError or ValueError if *cron* is not a valid cron expression."""
    grammar.parse(cron)
