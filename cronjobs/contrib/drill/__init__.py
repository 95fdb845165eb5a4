"""The release drill: run real ticks against a real mail server, kill and freeze them, and judge by the mails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from cronjobs.clock import SYSTEM
from cronjobs.contrib.drill.checks import Check, Form
from cronjobs.contrib.drill.plan import plan
from cronjobs.contrib.drill.scenes import DrillRun
from cronjobs.contrib.drill.server import MailServer
from cronjobs.contrib.drill.setup import stage
from cronjobs.contrib.drill.stage import Stage


@dataclass(frozen=True)
class Drilled:
    """The result of one run of the drill."""

    form: Form
    checks: list[Check]
    took: timedelta

    @property
    def held(self) -> bool:
        return all(check.held for check in self.checks)


def drill(
    form: Form,
    *,
    url: str | None,
    receipts: int,
    keep: Callable[[Stage], None] | None,
    say: Callable[[str], None],
    tell: Callable[[Check], None],
    note: Callable[[str], None],
) -> Drilled:
    """Run one form of the drill in its own schema of the PostgreSQL database at *url*, or if None in a SQLite file.

    The drill calls *say* with its progress, *tell* with each check, and *note* with what it could not clean up. If
    *keep* is given, the drill leaves its stage in place and calls *keep* with it. Raises MailServerMissing,
    SchemaRefusedError or another DatabaseError.
    """
    began, planned = SYSTEM.monotonic(), plan(receipts)
    with (
        MailServer(planned) as server,
        stage(url, server.port, note) as made,
    ):
        found = DrillRun(made, server, planned, receipts, form, say, tell).play()
        if keep is not None:
            made.keep = True
            keep(made)
    return Drilled(form, found, timedelta(seconds=SYSTEM.monotonic() - began))
