"""``run-due``, top to bottom: recover, sync, materialise, loop, stop, prune, record."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.clock import Clock
from cronjobs.config.settings import Settings
from cronjobs.database.connection import Database
from cronjobs.database.retrying import fails_every_statement, first_look, patiently
from cronjobs.errors import CronjobsError, DatabaseBusy, DatabaseError
from cronjobs.host.identity import Identity
from cronjobs.schedules.applying import applies
from cronjobs.schedules.definition import fingerprint
from cronjobs.store import meta, ticks
from cronjobs.store.meta import is_ours
from cronjobs.store.ticks import CLOCK_SLACK, Overview
from cronjobs.tick import prune_when
from cronjobs.tick.deadline import PAST_DEADLINE_S
from cronjobs.tick.result import NOTHING_DUE, Result
from cronjobs.tick.safety_net import SafetyNet
from cronjobs.tick.tick_filter import TickFilter
from cronjobs.tick.tick_row import TickRow
from cronjobs.tick.watchdog import Watchdog

# An idle tick runs 1,440 times a day: what only a tick with work needs is imported where it is used.
if TYPE_CHECKING:
    from cronjobs.tick.loop import Loop
    from cronjobs.tick.recovery import Recovery
    from cronjobs.tick.work import Work

PATIENT_SHARE: Final = 0.5  # of the tick: how long the parts before the work may retry
PRUNING_SHARE: Final = 0.75  # of what is left of the tick after its work
OVERDUE_SHARE: Final = 0.1  # of a tick with work, if no tick had time to prune for hours
ALL_PAUSED: Final = "all that is due is paused"
SKEW: Final = timedelta(seconds=60)


@dataclass
class Tick:
    """One run of ``run-due``. ``began`` (of the process) and ``deadline`` are seconds of the monotonic clock."""

    settings: Settings
    database: Database
    identity: Identity
    clock: Clock
    watchdog: Watchdog
    began: float
    deadline: float
    emit: Callable[[events.Event], None]
    limits: TickFilter = field(default_factory=TickFilter)
    say_not_started: bool = False
    on_output: Callable[[str], None] | None = None
    waits_for_long_jobs: bool = False  # if True, signals are passed on to them
    fire_schedules: bool = True  # if False, definitions stay as they are and no occurrence is settled

    def __post_init__(self) -> None:
        self.net = SafetyNet(self.emit)
        self.emit = self.net.emit
        self.result = Result()
        self._work_here: Work | None = None
        self.row = TickRow(self.identity, self.fire_schedules)
        self.applied = False  # whether this tick has put its file in force
        self.stop_requested: str | None = None
        self.applies = False  # whether this tick has to put its file in force
        self.database_gone = self.many_queues = False
        self.tried_again = False  # then we do not know for certain what the parts before the work created
        self.to_recover = False
        self.recovery: Recovery | None = None

    # --- the story ----------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Do the tick and return what it did. Raises ForeignDatabase or a schema error before anything has run."""
        result = self.result
        result.faults += len(self.settings.problems)
        self.database.give_up_at = self.deadline
        self.patient_until = self.clock.monotonic() + PATIENT_SHARE * (self.deadline - self.clock.monotonic())
        with self._signals():
            seen = first_look(self._look, self.clock)
            if prune_when.clock_jumped(seen.last_tick_at, seen.now):
                # Before the tick's row is written: compared with it, the next tick would see no jump.
                self._part(partial(self._set_pruned_at, seen.now))
            if self.to_recover:
                self._part(self._recover)
            if self.fire_schedules:
                self._part(partial(self._sync, seen))
                if seen.schedules_due and self._go_on():
                    self._part(self._materialise)  # a part of its own, so that a retry does not apply the file again
            made = result.recovered or result.occurrences.get("enqueued") or self.tried_again
            if (seen.jobs_due or made) and self._go_on():
                if prune_when.is_overdue(seen.pruned_at, seen.now):
                    self._part(partial(self._prune, seen, OVERDUE_SHARE))
                self._part(self._work, retry_until=0)  # the loop does its own retries
                self._part(self._note_waiting)
                self.work.report_left_behind()
            elif seen.paused_due:
                result.not_started = [{"why": "paused"}]
            # If this host's last tick found an unknown type, even a tick without work loads its handlers: they may be
            # fixed by now.
            loaded = self._work_here is not None and self._work_here.loaded is not None
            if loaded or self.applied or self._knew_no_type(seen.not_started):
                self._part(self.work.note_unknown_types)
            self._part(partial(self._prune, seen))
            self._part(self._record, retry_until=self.deadline)
        result.fault = self.net.error or (self.loop.net.error if self.loop is not None else None)
        return result

    @property
    def work(self) -> Work:
        if self._work_here is None:
            from cronjobs.tick.work import Work

            self._work_here = Work(
                self.settings,
                self.database,
                self.identity,
                self.clock,
                self.watchdog,
                self.deadline,
                self.emit,
                self.limits,
                self.result,
                self.row,
                self.on_output,
            )
        return self._work_here

    @property
    def loop(self) -> Loop | None:
        return None if self._work_here is None else self._work_here.loop

    @property
    def long_jobs(self) -> list[subprocess.Popen[bytes]]:
        """The processes that this tick handed long jobs to; they outlive it."""
        return self.loop.handovers.started if self.loop is not None else []

    def _part(self, do: Callable[[], None], *, retry_until: float | None = None) -> None:
        """Run one part of a tick, which is safe to repeat; a database error in it does not stop the other parts.

        Transient errors are retried for a share of the tick, so that the rest is left for the work.
        """
        until = self.patient_until if retry_until is None else retry_until
        try:
            patiently(do, clock=self.clock, until=until, go_on=self._go_on, note=self._note_trouble)
        except DatabaseError as error:
            self.database_gone = self.database_gone or fails_every_statement(error, is_sqlite=self.database.is_sqlite)
            self.result.trouble = str(error)
            self.emit(events.database_trouble(str(error)))
        except CronjobsError:
            raise
        except Exception as error:  # unexpected; the other parts still run
            self.net.catch(error)

    def _note_trouble(self, error: DatabaseError, failures: int, pause_s: float) -> None:
        self.tried_again = True
        self.emit(events.database_tried_again(str(error), failures, pause_s))

    def _look(self) -> Overview:
        mark = fingerprint(self.settings)
        with self.database.read() as connection:
            meta.require_schema(connection)
            sent = self.clock.monotonic()
            seen = ticks.overview(
                connection,
                host=self.identity.host,
                place=self.identity.place,
                fingerprint=mark,
                lease=self.settings.run.lease + CLOCK_SLACK,
            )
            leases = seen.expired or seen.held_here or seen.far_lease
            self.to_recover = bool(leases) and self._recovery().look(connection, seen)
            self.applies = self.fire_schedules and applies(connection, seen, self.settings, host=self.identity.host)
        self._require_ours(seen)
        self.now_read_at, self.database_now = sent, seen.now
        self.row.fingerprint, self.many_queues = seen.last_fingerprint, seen.many_queues
        self.row.started_at = seen.now - timedelta(seconds=sent - self.began)
        skew = self.clock.now() - seen.now
        if abs(skew) > SKEW:
            self.emit(events.clock_skew(skew.total_seconds()))
        return seen

    def _require_ours(self, seen: Overview) -> None:
        if not is_ours(self.settings, seen.project, seen.environment):
            with self.database.write() as connection:
                meta.adopt(connection, self.settings.project, self.settings.environment, actor="first tick")

    def _recovery(self) -> Recovery:
        from cronjobs.tick.recovery import Recovery

        if self.recovery is None:
            self.recovery = Recovery(
                self.database,
                self.settings,
                self.identity,
                lambda: self.work.types(),  # not before it is asked: a long job that runs is no work for this tick
                self.emit,
                self.result.counts,
                self.row.begin,
                self._go_on,
            )
        return self.recovery

    def _recover(self) -> None:
        recovery = self._recovery()
        try:
            recovery.run()
        finally:  # also if this try fails: the next one continues
            self.result.recovered = recovery.recovered
        self.result.faults += recovery.left_alone

    def _sync(self, seen: Overview) -> None:
        """Apply the file if ``applies`` says so."""
        mark = fingerprint(self.settings)
        if not self.applies:
            self.row.fingerprint = mark
            return
        if not self._go_on():
            return
        if not seen.fingerprint_known and not self.settings.defines_something:
            with self.database.read() as connection:
                if not ticks.any_schedule(connection) and not ticks.any_cap(connection):
                    self.row.fingerprint = mark
                    return  # nothing to apply, nothing to retire
        from cronjobs.schedules.sync import sync

        done = sync(
            self.database,
            self.settings,
            self._emit_occurrence,
            host=self.identity.host,
            actor="tick",
            before_writing=self.row.begin,
            go_on=self._time_to_settle,
        )
        if done.plan.refused:
            self.result.faults += 1
            self.result.refused = done.plan.refused
            self.emit(events.fault(str(self.settings.file), done.plan.refused))
        if done.applied:
            # Only now: if the tick is killed, or the file refused, the next tick must see the change.
            self.row.fingerprint, self.applied = mark, True

    def _materialise(self) -> None:
        from cronjobs.schedules.materialise import materialise
        from cronjobs.store.job_types import remembered

        materialise(
            self.database,
            self._emit_occurrence,
            but=self.settings.disabled_schedules,
            within=remembered(self.settings.run.every),
            before_writing=self.row.begin,
            go_on=self._time_to_settle,
        )

    def _time_to_settle(self) -> bool:
        """Occurrences get at most half of the tick; the rest is for their jobs."""
        return self._go_on() and self.clock.monotonic() < self.patient_until

    def _emit_occurrence(self, event: events.Event) -> None:
        kind, _, outcome = event.name.partition(".")
        if kind == "schedule" and "count" in event.facts:
            counts = self.result.occurrences
            counts[outcome] = counts.get(outcome, 0) + event.facts["count"]
        elif event.name == "schedule.broken":
            self.result.faults += 1
        self.emit(event)

    def _work(self) -> None:
        loop = self.work.prepare(self.database_now, self.now_read_at, many_queues=self.many_queues)
        if self.stop_requested is not None and loop.stopping is None:
            loop.stop(self.stop_requested)
        self.result.ended = loop.run()
        if loop.outage.told and loop.outage.error is not None:
            self.result.trouble = str(loop.outage.error)  # even if the last write succeeds: work was left undone

    def _note_waiting(self) -> None:
        self.work.note_waiting(stopped=self.stop_requested is not None, say_budget=self.say_not_started)

    def _knew_no_type(self, not_started: Any) -> bool:
        """Whether this host's last tick found a job type that no tick knew."""
        if not not_started:
            return False
        from cronjobs.tick.not_started import unknown_types_in

        return unknown_types_in(not_started)

    def _prune(self, seen: Overview, share: float = PRUNING_SHARE) -> None:
        """Remove old rows in short batches; the next tick continues where this one's time ends."""
        held = self.loop is not None and (self.loop.in_flight.held or self.loop.outage.error is not None)
        if (
            not prune_when.is_due(seen.pruned_at, seen.now)
            or prune_when.clock_jumped(seen.last_tick_at, seen.now)
            or held
        ):
            return
        from cronjobs.tick.pruner import Before, Pruner

        until = self.clock.monotonic() + share * (self.deadline - self.clock.monotonic())
        pruner = Pruner(
            self.database,
            Before.of(self.settings.retention, seen.now),
            self.clock,
            go_on=lambda: self._go_on() and self.clock.monotonic() < until,
            before_writing=self.row.begin,
        )
        try:
            done = pruner.run()
        except DatabaseBusy as error:
            # Another session has locked a whole table, or SQLite. Old rows can wait for the next tick.
            self.emit(events.pruning_put_off(str(error)))
            done = False
        finally:
            self.result.pruned += pruner.gone
        if done:
            self._set_pruned_at(seen.now)

    def _set_pruned_at(self, now: datetime) -> None:
        from cronjobs.store.pruning import set_pruned_at

        with self.database.write() as connection:
            self.row.begin(connection)
            set_pruned_at(connection, now)

    def _record(self) -> None:
        if not self.result.ended:
            self.result.ended = self.stop_requested or self._why_idle()
        if self.loop is not None:
            self.result.stuck = self.loop.finish(self._write_row)
            if self.loop.outage.error is not None:
                self.result.trouble = str(self.loop.outage.error)
            return
        if not self.database_gone:
            # As the loop does, without resolving a lost COMMIT reply: an idle tick is one statement, and repeatable.
            with self.database.write(next_in_line=True) as connection:
                self._write_row(connection)

    def _why_idle(self) -> str:
        """Why a tick without work ended."""
        if self.clock.monotonic() >= self.deadline:
            return "time is up"
        return ALL_PAUSED if self.result.not_started[-1:] == [{"why": "paused"}] else NOTHING_DUE

    def _write_row(self, connection: Connection) -> None:
        finished_at = self.database_now + timedelta(seconds=self.clock.monotonic() - self.now_read_at)
        self.row.end(connection, finished_at, self.result)

    # --- small things -------------------------------------------------------------------------------------------------

    def _go_on(self) -> bool:
        return self.stop_requested is None and not self.database_gone and self.clock.monotonic() < self.deadline

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Shut down on SIGTERM or SIGINT; end at once on a second one."""

        def on_signal(number: int, _frame: FrameType | None) -> None:
            first = self.stop_requested is None
            self.stop_requested = self.stop_requested or signal.Signals(number).name
            self.result.signal = number
            if self.waits_for_long_jobs:
                for process in self.long_jobs:
                    process.send_signal(number)
            if self.loop is not None:
                self.loop.stop(self.stop_requested)
            elif first:  # a module that is being imported gets as much time as a handler, not more
                grace_s = self.settings.run.shutdown_grace.total_seconds()
                self.watchdog.stand_at(min(self.clock.monotonic() + grace_s, self.deadline) + PAST_DEADLINE_S)
            else:  # nothing runs yet, and no transaction is worth waiting for
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
