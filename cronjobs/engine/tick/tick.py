"""``run-due``, top to bottom: look, recover, sync, materialise, loop, prune, record."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cached_property, partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection

from cronjobs import events, masking
from cronjobs.engine.database.retrying import first_look
from cronjobs.engine.probe import timer
from cronjobs.engine.probe.idle_conditions import CLOCK_SKEW_S
from cronjobs.engine.probe.repeated_signals import RepeatedSignals
from cronjobs.engine.schedules.definition import fingerprint
from cronjobs.engine.store import meta, ticks
from cronjobs.engine.store.meta import is_ours
from cronjobs.engine.store.ticks import CLOCK_SLACK, Overview
from cronjobs.engine.tick.context import TickContext
from cronjobs.engine.tick.firing import Firing
from cronjobs.engine.tick.result import NOTHING_DUE, NOTHING_ELSE_DUE, Result, is_code_fault, noted_outages
from cronjobs.engine.tick.spare_time import SpareTime
from cronjobs.engine.tick.watchdog import PAST_DEADLINE_S

# An idle tick runs 1,440 times a day, so modules that only a tick with work needs are imported where they are used.
if TYPE_CHECKING:
    import subprocess

    from cronjobs.engine.tick.loop import Loop
    from cronjobs.engine.tick.recovery import Recovery
    from cronjobs.engine.tick.work import Work

ALL_PAUSED: Final = "everything that is due is paused"
DATABASE_FAILED: Final = "the database failed"
SKEW: Final = timedelta(seconds=CLOCK_SKEW_S)


class Tick(TickContext):
    """One run of ``run-due``. ``run`` does its steps in order."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.firing = Firing(self)
        self._work_here: Work | None = None
        self.to_recover = False
        self.seen: Overview | None = None
        self._repeated = RepeatedSignals(self.clock.monotonic)

    # --- the steps ----------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Do the tick and return what it did. Raises ForeignDatabase or a schema error before anything has run."""
        result = self.result
        result.faults += len(self.settings.problems)
        result.options = self.limits.options()
        result.broken = {problem.path: problem.message for problem in self.settings.problems}
        if self.log_unwritable is not None:
            result.broken["log"] = masking.hide(self.log_unwritable)
        self.database.give_up_at = self.deadline
        with self._signals():
            self.seen = seen = first_look(self._look, self.clock)
            spare = self._spare_time(seen)
            spare.begin()
            self.try_part(self._report_deaths)
            if self.to_recover:
                self.try_part(self._recover)
            if seen.misfits:
                self.try_part(self._give_up_misfits)
            if self.fire_schedules and self.run_by_cron:
                self.try_part(self.firing.skip_runs_of_cron)
            if self.fire_schedules and not self.run_by_cron:
                self.try_part(partial(self.firing.sync, seen))
                if seen.schedules_due and self.go_on():
                    # This step is separate from the sync, so a retry does not repeat the sync.
                    self.try_part(self.firing.materialise)
            made = result.recovered or result.occurrences.get("enqueued") or self.tried_again
            if (seen.jobs_due or made) and self.go_on():
                spare.before_work()
                # The loop itself retries after errors.
                self.try_part(self._work, retry_until=0)
                self.try_part(self.work.note_waiting)
                self.work.report_left_behind()
            elif seen.paused_due:
                result.not_started = [{"why": "paused"}]
            if self._has_loaded() or self._has_to_load(seen):
                self.try_part(self.work.note_unknown_types)
            spare.after_work()
            self.try_part(self._record, retry_until=self.deadline)
            self._note_why_ended()
            spare.end()
        self._note_fault()
        return result

    def _note_fault(self) -> None:
        self.result.fault = self.net.error or (self.loop.net.error if self.loop is not None else None)
        if self.result.fault is not None:
            from cronjobs.engine.store.odd_values import odd_value

            # A value that plain SQL wrote caused the error, so it is not a bug in cronjobs.
            if (odd := odd_value(self.database)) is not None:
                self.result.fault, self.result.trouble = None, str(odd)

    @property
    def work(self) -> Work:
        if self._work_here is None:
            from cronjobs.engine.tick.work import Work

            self._work_here = Work(self)
        return self._work_here

    def _has_loaded(self) -> bool:
        """Whether the handlers are loaded."""
        return self._work_here is not None and self._work_here.loaded is not None

    def _has_to_load(self, seen: Overview) -> bool:
        """Whether to load the handlers even if the tick has no work.

        - After a fault in the code: it may be fixed by now.
        - After the file was applied.
        - While a job waits whose payload fits no handler: it dies only after every version of the code that still ticks
          has refused it.
        - Once an hour: a deploy may have changed only Python code.
        """
        at_fault = self.code_at_fault or is_code_fault(seen.not_started)
        return at_fault or seen.misfits or self.firing.applied or seen.handlers_stale

    def _spare_time(self, seen: Overview) -> SpareTime:
        def held() -> bool:
            loop = self.loop
            return loop is not None and (bool(loop.in_flight.held) or loop.outage.error is not None)

        return SpareTime(self, seen, types=lambda: self.work.types(), loaded=self._has_loaded, held=held)

    @property
    def loop(self) -> Loop | None:
        return None if self._work_here is None else self._work_here.loop

    @property
    def long_jobs(self) -> list[subprocess.Popen[bytes]]:
        """The processes to which this tick handed long jobs. They continue after the tick has ended."""
        return self.loop.handovers.started if self.loop is not None else []

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
            self.to_recover = bool(leases) and self.recovery.look(connection, seen)
            self.firing.look(connection, seen)
        if not is_ours(self.settings, seen.project, seen.environment):
            with self.database.write() as connection:
                meta.adopt(connection, self.settings.project, self.settings.environment, actor="first tick")
        self.now_read_at, self.database_now = sent, seen.now
        self.row.fingerprint, self.many_queues = seen.last_fingerprint, seen.many_queues
        self.row.started_at = seen.now - timedelta(seconds=sent - self.began)
        skew = self.clock.now() - seen.now
        if abs(skew) > SKEW:
            self.result.skew_s = round(skew.total_seconds(), 1)
            self.emit(events.clock_skew(skew.total_seconds()))
        return seen

    @cached_property
    def recovery(self) -> Recovery:
        from cronjobs.engine.tick.recovery import Recovery

        return Recovery(self)

    def _report_deaths(self) -> None:
        """Report the deaths that killed ticks may have recorded, each job once.

        A killed tick may already have reported some of them. If it lingered, record its row, so that everyone sees a
        tick without an end. Do this before this tick's own row is written, because the row with the
        highest id counts as the host's last tick.
        """
        unreported = self.unreported
        if unreported is None or not (killed := unreported.killed()):
            return
        from cronjobs.engine.store.unreported_deaths import deaths_of

        with self.database.read() as connection:
            found = {job.id: job for runner in killed for job in deaths_of(connection, runner)}
        for job in found.values():
            self.emit(events.job_died_unreported(job.id, job.job_type, job.error_type, job.last_error))
        for runner in killed:
            if (row := self.row.of_lingering(runner, self.clock.now())) is not None:
                with self.database.write() as connection:
                    ticks.begin_tick(connection, row)
            unreported.reported(runner)

    def _recover(self) -> None:
        try:
            self.recovery.run()
        # Note the number even if recovery fails, because the next try continues where this one stopped.
        finally:
            self.result.recovered = self.recovery.recovered

    def _give_up_misfits(self) -> None:
        from cronjobs.engine.tick.give_up_misfits import give_up

        give_up(self, lambda: self.work.types())

    def _work(self) -> None:
        loop = self.work.prepare()
        # Install our signal handlers again, because one of the user's modules may have replaced them.
        self._listen()
        if self.stop_requested is not None and loop.stopping is None:
            loop.stop(self.stop_requested)
        types = self.work.types()
        if any(job_type.executor is not None for job_type in types.types.values()):
            from cronjobs.engine.tick.executors import begin_supervisors

            begin_supervisors(self, types, loop.handovers.started)
        self.result.ended = loop.run()
        if loop.outage.reported and loop.outage.error is not None:
            # Keep the loop's error even if the last write succeeds, because work was left undone.
            self.result.trouble = str(loop.outage.error)

    def _record(self) -> None:
        self._note_fault()
        self._note_why_ended()
        if self.loop is not None:
            self.result.stuck = self.loop.finish(self._write_row)
            if self.loop.outage.error is not None:
                self.result.trouble = str(self.loop.outage.error)
            self.recorded = self.loop.outage.error is None
            return
        if not self.database_gone:
            # If the reply to the COMMIT is lost, try again: an idle tick's only statement is safe to repeat.
            with self.database.write(next_in_line=True) as connection:
                self._write_row(connection)
            self.recorded = True

    def _note_why_ended(self) -> None:
        result = self.result
        if result.trouble is not None and result.ended in ("", NOTHING_DUE, NOTHING_ELSE_DUE, ALL_PAUSED):
            result.ended = self.stop_requested or DATABASE_FAILED  # the tick may not have seen what is due
        elif not result.ended:
            result.ended = self.stop_requested or self._why_idle()

    def _why_idle(self) -> str:
        """Return why a tick without work ended."""
        if self.clock.monotonic() >= self.deadline:
            return "time is up"
        return ALL_PAUSED if self.result.not_started[-1:] == [{"why": "paused"}] else NOTHING_DUE

    def _write_row(self, connection: Connection) -> None:
        # If this write succeeds, the loop's current outage is over.
        self.result.outages = [*self.unrecorded_before, *self._outages()]
        self.row.end(connection, self._instant(self.clock.monotonic()), self.result)

    def _outages(self) -> list[dict[str, str]]:
        outages = [*self.outages, *(self.loop.outage.until_now() if self.loop is not None else ())]
        return noted_outages((self._instant(each.began), self._instant(each.ended), each.why) for each in outages)

    @property
    def unrecorded(self) -> list[dict[str, str]]:
        """The times in which the tick could not use the database, if its row is incomplete and does not name them."""
        return self._outages() if self.row.written and not self.recorded else []

    def _instant(self, monotonic: float) -> datetime:
        """Return the database's time at this instant of the monotonic clock."""
        return self.database_now + timedelta(seconds=monotonic - self.now_read_at)

    def leave_inputs(self) -> None:
        """Let the next ticks of this command line use the fast path. Call this only after a tick without faults."""
        from cronjobs.engine.tick import idle_inputs

        if self.start is not None and self.seen is not None:
            idle_inputs.leave(self.start, self.settings, self.database.address, self.seen, self.spool)

    def forget_inputs(self) -> None:
        """Let the next tick of this command line be a full tick."""
        from cronjobs.engine.tick import idle_inputs

        if self.start is not None:
            idle_inputs.forget(self.start)

    @property
    def knows_the_code(self) -> bool:
        """Whether this tick compared the handlers with the due jobs, so that it knows which faults are fixed."""
        return self._has_loaded() and self.result.trouble is None and self.result.fault is None

    # --- signals ------------------------------------------------------------------------------------------------------

    def _listen(self) -> dict[signal.Signals, Any]:
        return {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # A lingering tick passes its signals on to this tick, which may have received them directly, too.
        if timer.is_given() and self._repeated.again(number):
            return
        first = self.stop_requested is None
        self.stop_requested = self.stop_requested or signal.Signals(number).name
        self.result.signal = number
        if self.waits_for_long_jobs:
            for process in self.long_jobs:
                process.send_signal(number)
        if self.loop is not None:
            self.loop.stop(self.stop_requested)
        # Perhaps handlers are being imported. The import gets as much time to stop as a handler gets.
        elif first:
            grace_s = self.settings.run.shutdown_grace.total_seconds()
            self.watchdog.stand_at(min(self.clock.monotonic() + grace_s, self.deadline) + PAST_DEADLINE_S)
        # No job is running yet, so there is no transaction that is worth waiting for.
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop in an orderly way on the first SIGTERM or SIGINT, and end at once on the second."""
        before = self._listen()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
