"""Validate ``--cron``. This is a module of its own, since exec imports the cron parser only at the end."""

from __future__ import annotations

from cronjobs.engine.crontime import grammar


def check(cron: str) -> None:
    """Raise CronjobsError or ValueError if *cron* is not a valid cron expression."""
    grammar.parse(cron)
