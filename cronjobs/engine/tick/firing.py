"""The parts of a tick that deal with schedules: apply the file, and turn due occurrences into jobs and ledger rows.

Idle ticks run 1,440 times a day, so the modules that do this work are imported only where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.engine.schedules.applying import Verdict, judge_file
from cronjobs.engine.schedules.definition import fingerprint
from cronjobs.engine.store import ticks
from cronjobs.engine.store.ticks import Overview
from cronjobs.engine.tick.context import TickContext
from cronjobs.errors import DatabaseBusy


@dataclass
class Firing:
    """The schedule steps of one tick. ``verdict`` says whether to apply its file, and ``applied`` whether it did so."""

    tick: TickContext
    verdict: Verdict = "leave"
    applied: bool = False

    def look(self, connection: Connection, seen: Overview) -> None:
        tick = self.tick
        if tick.fire_schedules:
            self.verdict = judge_file(connection, seen, tick.settings, host=tick.identity.host)

    def skip_runs_of_cron(self) -> None:
        """Make the schedules in ``run_by_cron`` begin now, and clear that list. Until then, no schedule may fire."""
        from cronjobs.engine.schedules.materialise import skip_runs_of_cron

        wanted = [each for name in self.tick.run_by_cron if (each := self.tick.settings.schedules.get(name))]
        names = {*self.tick.run_by_cron, *(each.renamed_from for each in wanted if each.renamed_from is not None)}
        database, began = self.tick.database, self.tick.clock.monotonic()
        if not skip_runs_of_cron(
            database, self._emit, names, before_writing=self.tick.row.insert, go_on=self._has_time
        ):
            raise DatabaseBusy(str(database.address), self.tick.clock.monotonic() - began)
        self.tick.run_by_cron = ()

    def sync(self, seen: Overview) -> None:
        """Apply the file if ``verdict`` says so."""
        tick, mark = self.tick, fingerprint(self.tick.settings)
        if self.verdict != "apply":
            tick.row.fingerprint = mark if self.verdict == "leave" else None
            return
        if not tick.go_on():
            return
        if not seen.fingerprint_known and not tick.settings.defines_something:
            with tick.database.read() as connection:
                nothing_there = not ticks.any_schedule(connection) and not ticks.any_cap(connection)
                # There is nothing to add or to remove. But once a file is in force, record each later file, too.
                # Otherwise ``status`` would name the wrong file.
                if nothing_there and ticks.file_in_force(connection) is None:
                    tick.row.fingerprint = mark
                    return
        from cronjobs.engine.schedules.sync import sync

        done = sync(
            tick.database,
            tick.settings,
            self._emit,
            host=tick.identity.host,
            actor="tick",
            before_writing=tick.row.insert,
            go_on=self._has_time,
        )
        if done.plan.refused:
            tick.result.faults += 1
            tick.result.refused = done.plan.refused
            tick.emit(events.fault(str(tick.settings.file), done.plan.refused))
        if done.applied:
            # Set the fingerprint only now. If this tick is killed earlier, or if its file is refused, the next tick
            # still sees that the file has changed.
            tick.row.fingerprint, self.applied = mark, True

    def materialise(self) -> None:
        from cronjobs.engine.schedules.materialise import materialise
        from cronjobs.engine.store.job_types import remembered

        materialise(
            self.tick.database,
            self._emit,
            but=self.tick.settings.disabled_schedules,
            within=remembered(self.tick.settings.run.every),
            before_writing=self.tick.row.insert,
            go_on=self._has_time,
        )

    def _has_time(self) -> bool:
        """Return whether occurrences may still be settled: for at most half of the tick. The other half is for jobs."""
        return self.tick.go_on() and self.tick.clock.monotonic() < self.tick.patient_until

    def _emit(self, event: events.Event) -> None:
        kind, _, outcome = event.name.partition(".")
        if kind == "schedule" and "count" in event.facts:
            counts = self.tick.result.occurrences
            counts[outcome] = counts.get(outcome, 0) + event.facts["count"]
        elif event.name == "schedule.broken":
            self.tick.result.faults += 1
        self.tick.emit(event)
