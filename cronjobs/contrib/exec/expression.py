"""Whether the expression of ``--cron`` can be read: apart, for exec asks after the command, while its caller waits."""

from __future__ import annotations

from cronjobs.engine.crontime import grammar


def check(cron: str) -> None:
    """Raise CronjobsError or ValueError for an expression that does not say when the next run is due."""
    grammar.parse(cron)
