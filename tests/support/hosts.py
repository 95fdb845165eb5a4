"""A host that ticks in this process, in fake time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from cronjobs import events
from cronjobs.clock import SYSTEM, Clock
from cronjobs.engine.config.settings import RunSettings, Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.tick.result import Result, TickFilter
from cronjobs.engine.tick.tick import Tick
from cronjobs.engine.tick.unreported import Unreported
from cronjobs.engine.tick.watchdog import Unarmed


class Host:
    """A host that ticks with its own configuration file."""

    def __init__(self, database: Database, folder: Path, name: str = "alpha") -> None:
        self.database, self.folder, self.name = database, folder, name
        self.events: list[events.Event] = []
        self.settings = Settings(file=folder / "cronjobs.yaml", folder=folder, run=RunSettings(workers=2))
        self.clock: Clock = database.clock  # the host's clock; tests replace it by a wrong clock

    def carry(self, **fields: Any) -> Settings:
        self.settings = replace(self.settings, **fields)
        return self.settings

    def tick(
        self,
        budget_s: float = 50,
        fire_schedules: bool = True,
        run_by_cron: Sequence[str] = (),
        whole_s: float | None = None,
        unrecorded_before: Sequence[dict[str, str]] = (),
        unreported: Unreported | None = None,
        **limits: Any,
    ) -> Result:
        here = Identity.here()
        began = SYSTEM.monotonic()
        clock = self.clock
        tick = Tick(
            settings=self.settings,
            database=self.database,
            identity=Identity(self.name, here.boot_id, here.pid_namespace, here.pid, here.started, here.tick),
            clock=clock,
            watchdog=Unarmed(),
            began=clock.monotonic(),
            deadline=clock.monotonic() + budget_s + (SYSTEM.monotonic() - began),
            emit=self.events.append,
            limits=TickFilter(**limits),
            fire_schedules=fire_schedules,
            run_by_cron=run_by_cron,
            whole_s=whole_s,
            unrecorded_before=unrecorded_before,
            unreported=unreported,
        )
        try:
            return tick.run()
        finally:
            if tick.loop is not None:
                # A thread that waits for the next attempt would keep the last one, and with it a whole test, in memory.
                tick.loop.workers.dismiss()

    def said(self, name: str) -> list[events.Event]:
        return [event for event in self.events if event.name == name]


def put(database: Database, **values: Any) -> int:
    """Enqueue a due job. Return its id."""
    now = database.clock.now()
    with database.write() as connection:
        row = {"job_type": "t.say", "run_at": now, "created_at": now} | values
        return int(connection.execute(insert(jobs).values(row).returning(jobs.c.id)).scalar_one())
