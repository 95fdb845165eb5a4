"""The part of a tick that an idle one does not need: the handlers, the loop, and which due jobs did not start.

An idle tick runs 1,440 times a day and imports nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from cronjobs import events
from cronjobs.clock import Clock
from cronjobs.config.settings import Settings
from cronjobs.database.connection import Database
from cronjobs.execution.attempt import WorkerContext
from cronjobs.execution.strays import keep_orphans, left_behind
from cronjobs.execution.worker_threads import Workers
from cronjobs.host.identity import Identity
from cronjobs.jobs import job_types
from cronjobs.jobs.job_types import JobTypes
from cronjobs.store.concurrency import running_by_key
from cronjobs.store.crashing_types import watched
from cronjobs.store.job_types import older_versions_tick, remembered, runnable_types, unknown_to_schedules
from cronjobs.store.not_started import lanes_due
from cronjobs.tick.loop import Loop
from cronjobs.tick.not_started import TickState, counted, record, unknown_type
from cronjobs.tick.result import NOTHING_DUE, NOTHING_ELSE_DUE, Result, TickFilter
from cronjobs.tick.tick_row import TickRow
from cronjobs.tick.watchdog import Watchdog

NOTHING_CAN_START: Final = "nothing more of what is due can start"


@dataclass
class Work:
    """One tick's. ``loop`` is there once jobs are looked for."""

    settings: Settings
    database: Database
    identity: Identity
    clock: Clock
    watchdog: Watchdog
    deadline: float
    emit: Callable[[events.Event], None]
    limits: TickFilter
    result: Result
    row: TickRow
    on_output: Callable[[str], None] | None = None
    loop: Loop | None = None
    loaded: JobTypes | None = None
    unknown_due: set[str] = field(default_factory=set)  # job types of due jobs that no tick knew lately

    def types(self) -> JobTypes:
        """The job types that run here; the first call imports the handlers."""
        if self.loaded is None:
            self.loaded = self._load()
            self.row.known = self.loaded.types.keys()
            self.result.faults += len(self.loaded.faults)
            for fault in self.loaded.faults:
                self.emit(events.fault(fault.where, fault.what))
        return self.loaded

    def _load(self) -> JobTypes:
        self.watchdog.harden(self.settings.run.lease)  # importing handlers runs user code, too
        within = remembered(self.settings.run.every)
        with self.database.read() as connection:
            runnable = runnable_types(connection, within)
            if runnable is None and not older_versions_tick(connection, within):
                runnable = frozenset()  # this host's tick is the first
        loaded = job_types.load(self.settings)
        return replace(loaded, elsewhere=None if runnable is None else runnable - loaded.types.keys())

    def prepare(self, database_now: datetime, now_read_at: float, *, many_queues: bool) -> Loop:
        """The loop, ready to run; *database_now* was read at the monotonic instant *now_read_at*."""
        types, run = self.types(), self.settings.run
        keep_orphans()
        around = WorkerContext(self.settings, self.database, self.on_output)
        with self.database.read() as connection:
            seen = watched(connection)
        self.loop = Loop(
            database=self.database,
            job_types=types,
            workers=Workers(run.workers, around, self.clock),
            watchdog=self.watchdog,
            locked_by=str(self.identity),
            deadline=self.deadline,
            database_now=database_now,
            now_read_at=now_read_at,
            emit=self.emit,
            before_writing=self.row.begin,
            host=self.identity.host,
            limits=self.limits,
            counts=self.result.counts,
            crashing=[each.job_type for each in seen if not each.suspected],
            suspected=[each.job_type for each in seen if each.suspected],
            many_queues=many_queues,
        )
        return self.loop

    def note_waiting(self, *, stopped: bool, say_budget: bool) -> None:
        """Note which due jobs this tick did not start, and why: for its row, and the important ones for the log."""
        loop = self.loop
        if loop is None or loop.outage.error is not None:
            return
        types = self.types()
        with self.database.read() as connection:
            lanes = lanes_due(connection, types.runnable)
            running = running_by_key(connection) if lanes and self.settings.limits else {}
        state = TickState(
            types=types,
            longest_s=self.settings.run.longest_in_tick.total_seconds(),
            remaining_s=self.deadline - self.clock.monotonic(),
            queue=self.limits.queue,
            only=self.limits.only,
            left=loop.planner.left(),
            slots=loop.planner.free(loop.in_flight) > 0,
            stopped=stopped,
            limits=self.settings.limits,
            running=running,
        )
        self.result.not_started = record(lanes, state)
        if lanes and self.result.ended in (NOTHING_DUE, NOTHING_ELSE_DUE):
            self.result.ended = NOTHING_CAN_START
        for job_type, waiting in counted(lanes).items():
            if job_type not in types.types:
                self.emit(events.unresolved(job_type, waiting))
                if types.runnable is not None and job_type not in types.runnable:
                    self.unknown_due.add(job_type)
        if say_budget and not stopped:
            self._say_budget(self.result.not_started)

    def _say_budget(self, not_started: list[dict[str, Any]]) -> None:
        for entry in not_started:
            if entry["why"] == "budget":
                self.emit(events.not_started(entry["job_type"], entry["jobs"], entry["timeout_s"], entry["left_s"]))

    def note_unknown_types(self) -> None:
        """Job types of schedules and due jobs that no tick knew lately: a fault, until some host knows them."""
        runnable = self.types().runnable
        if runnable is None:
            return
        with self.database.read() as connection:
            # Read it again: another host that knows them may have started a tick while this one worked.
            runnable |= runnable_types(connection, remembered(self.settings.run.every)) or frozenset()
            schedules = unknown_to_schedules(connection, runnable)
        self.unknown_due -= runnable
        for job_type in sorted(self.unknown_due | schedules.keys()):
            names = schedules.get(job_type, [])
            if job_type not in self.settings.disabled_job_types:  # else it is reported as a problem of the file
                self.result.faults += 1
                self.emit(events.unknown_type(job_type, names))
            if names:
                self.result.not_started.insert(0, unknown_type(job_type, names))

    def report_left_behind(self) -> None:
        """Processes that handlers started and left running."""
        long_jobs = self.loop.handovers.started if self.loop is not None else []
        found = left_behind({process.pid for process in long_jobs})
        if found:
            self.emit(events.left_behind([f"{each.name} (pid {each.pid})" for each in found]))
