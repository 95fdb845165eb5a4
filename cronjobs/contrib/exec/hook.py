"""Exec's hook in ticks: write spooled runs to the database."""

from __future__ import annotations

from cronjobs.contrib.exec.delivery import deliver
from cronjobs.engine.tick.extras import Hook


class ExecHook(Hook):
    def begin(self) -> None:
        deliver(self.context.database, self.context.spool)


hook = ExecHook
