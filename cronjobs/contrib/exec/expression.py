"""Validate ``--cron``. This module is separate, so that exec can import the cron parser after the command has ended."""

from __future__ import annotations

from cronjobs.engine.crontime import grammar


def check(cron: str) -> None:
    """Raise CronjobsError or ValueError if *cron* is not a valid cron expression."""
    grammar.parse(cron)
