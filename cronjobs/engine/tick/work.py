"""The part of a tick that an idle tick does not need: handlers, the loop, and why due jobs were not started.

An idle tick runs 1,440 times a day, and does not import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.engine.execution.attempt import WorkerContext
from cronjobs.engine.execution.strays import keep_orphans, left_behind
from cronjobs.engine.execution.worker_threads import Workers
from cronjobs.engine.jobs import job_types
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.jobs.source import source_hash
from cronjobs.engine.store.concurrency import running_by_key
from cronjobs.engine.store.crashing_types import watched
from cronjobs.engine.store.job_types import (
    Loaded,
    present_types,
    remembered,
    runnable_types,
    unknown_to_schedules,
)
from cronjobs.engine.store.leases import long_running
from cronjobs.engine.store.not_started import lanes_due
from cronjobs.engine.store.ticks import overran_lately, signs_of_death
from cronjobs.engine.tick.context import TickContext
from cronjobs.engine.tick.log import start_reporter
from cronjobs.engine.tick.loop import Loop
from cronjobs.engine.tick.not_started import OUT_OF_TIME, TickState, counted, record, unknown_type
from cronjobs.engine.tick.result import NOTHING_DUE, NOTHING_ELSE_DUE
from cronjobs.engine.tick.turn import WRITE_PATIENCE_S
from cronjobs.errors import DatabaseError

Read = TypeVar("Read")

NOTHING_CAN_START: Final = "no other due job can start here"


@dataclass
class Work:
    """Does the work of one *tick*. ``loop`` is None until the tick looks for jobs."""

    tick: TickContext
    loop: Loop | None = None
    loaded: JobTypes | None = None
    # Types of due jobs that no recent tick knows.
    unknown_due: set[str] = field(default_factory=set)

    def types(self) -> JobTypes:
        """Return the job types that run here. The first call imports the handlers."""
        if self.loaded is None:
            self.loaded = self._load()
            self.tick.row.loaded = Loaded(self.loaded.types.keys(), source_hash(self.tick.settings))
            self.tick.result.faults += len(self.loaded.faults)
            self.tick.result.not_loaded = {fault.where: fault.what for fault in self.loaded.faults}
            for fault in self.loaded.faults:
                self.tick.emit(events.fault(fault.where, fault.what))
        return self.loaded

    def _load(self) -> JobTypes:
        # Set the hard limit first, because importing handlers runs user code.
        self.tick.watchdog.harden(self.tick.settings.run.lease)
        within = remembered(self.tick.settings.run.every)
        self.tick.row.importing = True
        runnable = self._begin_row(lambda connection: runnable_types(connection, within))
        loaded = job_types.load(self.tick.settings)
        self.tick.row.importing = False
        return replace(loaded, elsewhere=(runnable or frozenset()) - loaded.types.keys())

    def prepare(self) -> Loop:
        """Return the loop, ready to run."""
        tick, types = self.tick, self.types()
        keep_orphans()
        around = WorkerContext(tick.settings, tick.database)
        emit, extras = tick.emit, tick.extras
        if extras is not None and extras.follow_attempts:
            around = replace(around, on_start=start_reporter(tick.emit, extras), on_end=extras.ended)
            emit = extras.forwarding(tick.emit)
        elif tick.tells_each:
            around = replace(around, on_start=start_reporter(tick.emit))
        tells_each = tick.tells_each or emit is not tick.emit
        seen, signs = self._begin_row(
            lambda connection: (watched(connection), signs_of_death(connection, tick.settings.run.budget))
        )
        self.loop = Loop(
            database=tick.database,
            job_types=types,
            workers=Workers(tick.settings.run.workers, around, tick.clock),
            watchdog=tick.watchdog,
            locked_by=str(tick.identity),
            deadline=tick.deadline,
            database_now=tick.database_now,
            now_read_at=tick.now_read_at,
            emit=emit,
            before_writing=tick.row.begin,
            host=tick.identity.host,
            limits=tick.limits,
            counts=tick.result.counts,
            crashing=[each.job_type for each in seen if not each.suspected],
            suspected=[each.job_type for each in seen if each.suspected],
            many_queues=tick.many_queues,
            tells_each=tells_each,
            overran=self._overran,
            say_progress_s=tick.say_progress_s,
            overran_now=tick.result.overran,
            outages=tick.outages,
            signs=signs,
        )
        return self.loop

    def _begin_row(self, read: Callable[[Connection], Read]) -> Read:
        """Write this tick's row, so that a later tick can see whether and where this tick died. Return what *read*
        returns.

        Importing handlers and reading a job's row can both kill a tick, so this is done before either.
        """
        try:
            with self.tick.database.write(patience=WRITE_PATIENCE_S, next_in_line=True) as connection:
                self.tick.row.begin(connection)
                return read(connection)
        # If nothing can be written, only read. The loop will handle the error.
        except DatabaseError:
            with self.tick.database.read() as connection:
                return read(connection)

    def _overran(self) -> Collection[str] | None:
        """Return the types of jobs that recently took longer than expected, or None if the database cannot be read."""
        try:
            with self.tick.database.read() as connection:
                return overran_lately(connection)
        except DatabaseError:
            return None

    def note_waiting(self) -> None:
        """Record in the tick's row which due jobs the tick did not start, and why. Log the important entries."""
        tick, loop = self.tick, self.loop
        if loop is None or loop.outage.error is not None:
            return
        types, run = self.types(), tick.settings.run
        tick.result.without_process = loop.ends.without_process
        with tick.database.read() as connection:
            lanes = lanes_due(connection, types.runnable)
            present = self._present_types(connection) if lanes else types.runnable
            running = running_by_key(connection) if lanes and tick.settings.limits else {}
            long_place = bool(lanes) and long_running(connection, loop.host) < run.long_jobs
        state = TickState(
            types=replace(types, elsewhere=present),
            longest_s=run.long_above.total_seconds(),
            long_jobs_off=not run.long_jobs,
            long_place=long_place,
            remaining_s=tick.deadline - tick.clock.monotonic(),
            whole_s=tick.deadline - tick.began if tick.whole_s is None else tick.whole_s,
            queue=tick.limits.queue,
            only=tick.limits.only,
            left=loop.planner.left(),
            slots=loop.planner.free(loop.in_flight) > 0,
            stopped=tick.stop_requested is not None,
            limits=tick.settings.limits,
            running=running,
            is_distrusted=loop.planner.experience.is_distrusted,
            without_process=next(iter(loop.ends.without_process.values()), None),
        )
        tick.result.not_started = record(lanes, state)
        if lanes and tick.result.ended in (NOTHING_DUE, NOTHING_ELSE_DUE):
            tick.result.ended = NOTHING_CAN_START
        for job_type, waiting in counted(lanes).items():
            if job_type not in types.types:
                tick.emit(events.unresolved(job_type, waiting))
                if present is not None and job_type not in present:
                    self.unknown_due.add(job_type)
        for left in tick.result.not_started if tick.say_not_started and not state.stopped else ():
            if left["why"] == OUT_OF_TIME:
                tick.emit(events.not_started(left["job_type"], left["jobs"], left["timeout_s"], left["left_s"]))

    def note_unknown_types(self) -> None:
        """Report job types that schedules or due jobs use, but that no recent tick knew. Each counts as a fault."""
        self.types()  # importing the handlers writes the tick's row, so do it outside the transaction below
        with self.tick.database.read() as connection:
            # Read the known types again, because another host may have started a tick while this one worked.
            present = self._present_types(connection)
            if present is None:
                return
            schedules = unknown_to_schedules(connection, present)
        self.unknown_due -= present
        for job_type in sorted(self.unknown_due | schedules.keys()):
            names = schedules.get(job_type, [])
            # A disabled type was already reported as a problem of the file.
            if job_type not in self.tick.settings.disabled_job_types:
                self.tick.result.faults += 1
                self.tick.emit(events.unknown_type(job_type, names, not_loaded=bool(self.tick.result.not_loaded)))
            if names:
                self.tick.result.not_started.insert(0, unknown_type(job_type, names))

    def _present_types(self, connection: Connection) -> frozenset[str] | None:
        """Return the types that this tick or another host knows, or None if that is unknown."""
        if self.types().runnable is None:
            return None
        loaded = self.tick.row.loaded
        here = None if loaded is None else (self.tick.identity.host, self.tick.row.config, loaded)
        return present_types(connection, remembered(self.tick.settings.run.every), here)

    def report_left_behind(self) -> None:
        """Report the processes that handlers started and did not end."""
        long_jobs = self.loop.handovers.started if self.loop is not None else []
        found = left_behind({process.pid for process in long_jobs})
        if found:
            self.tick.emit(events.left_behind(found))
