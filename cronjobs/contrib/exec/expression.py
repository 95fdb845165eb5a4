"""Validate ``--cron``; a separate module, imported after the command has run."""

from __future__ import annotations

from cronjobs.engine.crontime import grammar


def check(cron: str) -> None:
    """Raise CronjobsError or ValueError for an expression that cannot give the next due time."""
    grammar.parse(cron)
