"""Validate ``--cron``. A module of its own, since exec imports the cron parser after the command's end."""

from __future__ import annotations

from cronjobs.engine.crontime import grammar


def check(cron: str) -> None:
    """Raise CronjobsError or ValueError if *cron* is not a valid cron expression."""
    grammar.parse(cron)
