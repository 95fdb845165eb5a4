"""The tasks of a tick besides its work: prune, fold counts, close hours, and call extras.

The modules for a task are imported only when the task is due.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection

from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import Overview
from cronjobs.engine.tick import pruning
from cronjobs.engine.tick.context import TickContext
from cronjobs.engine.tick.extras import HookContext, RunSummary, extras_of_tick
from cronjobs.engine.tick.watchdog import PAST_DEADLINE_S
from cronjobs.errors import DatabaseBusy

if TYPE_CHECKING:
    from cronjobs.engine.jobs.job_types import JobTypes

# Folding counts and closing hours may each use this share of the time that is left in the tick.
SHARE: Final = 0.25


class SpareTime:
    """The spare-time tasks of one *tick*. *seen* is what the tick read at its start.

    *types* returns the job types, and loads the handlers first if necessary. *loaded* returns whether the handlers are
    loaded. *held* returns whether outcomes may still have to be recorded.
    """

    def __init__(
        self,
        tick: TickContext,
        seen: Overview,
        *,
        types: Callable[[], JobTypes],
        loaded: Callable[[], bool],
        held: Callable[[], bool],
    ) -> None:
        self.tick, self.seen = tick, seen
        self.types, self.loaded, self.held = types, loaded, held
        context = HookContext(
            tick.settings,
            tick.database,
            tick.identity,
            tick.emit,
            clock=tick.clock,
            deadline=tick.deadline,
            go_on=tick.go_on,
            seen=seen,
            spool=tick.spool,
        )
        tick.extras = self.extras = extras_of_tick(context)

    def begin(self) -> None:
        """Note whether the clock jumped, and let the extras begin. A tick calls this before anything else."""
        tick, seen = self.tick, self.seen
        if pruning.clock_jumped(seen.last_tick_at, seen.now):
            # Note the jump before this tick's row is written: the next tick compares its clock with that row.
            tick.try_part(partial(pruning.note_pruned, tick, seen.now))
        self.extras.begin()

    def before_work(self) -> None:
        """Do the tasks that are overdue because no recent tick has had time for them."""
        tick, seen = self.tick, self.seen
        if pruning.is_overdue(seen.pruned_at, seen.now):
            tick.try_part(partial(self._prune, pruning.OVERDUE_SHARE))
            self._fold(pruning.OVERDUE_SHARE)
        self.extras.before_work()

    def after_work(self) -> None:
        self.tick.try_part(self._prune)
        self._fold()
        if self._is_due:
            self.tick.try_part(self._close_hours, retry_until=0)

    def end(self) -> None:
        """Call the extras for the last time, after the tick's row is written."""
        result = self.tick.result
        if result.stuck:
            return
        news = self._has_news()
        types = self.types() if self.loaded() or self.extras.want_handlers() else None
        # After a stop, the watchdog ends the process long before the deadline.
        until = min(self.tick.deadline, self.tick.watchdog.instant - PAST_DEADLINE_S)
        self.extras.end(RunSummary(until, result.exit_code(), result.trouble or "", news, types))

    @property
    def _is_due(self) -> bool:
        return pruning.is_due(self.seen.pruned_at, self.seen.now)

    @property
    def _may_remove(self) -> bool:
        """Whether the hourly round is due, and the age of old rows is certain."""
        return self._is_due and not pruning.clock_jumped(self.seen.last_tick_at, self.seen.now)

    def _prune(self, share: float = pruning.SHARE) -> None:
        if self._may_remove and not self.held():
            pruning.prune(self.tick, self.seen.now, share)

    def _fold(self, share: float = SHARE) -> None:
        if self._may_remove or self.tick.result.did():
            self.tick.try_part(partial(self._fold_counts, share), retry_until=0)

    def _fold_counts(self, share: float) -> None:
        """Fold new counts into the sums, for metrics and charts.

        In the hourly round, also fold if there are only a few new counts, and remove the sums of old hours.
        """
        from cronjobs.engine.store.counts import fold, many_new, remove_old_hours

        if self._may_remove:
            self._repeat(share, fold, remove_old_hours)
            return
        with self.tick.database.read() as connection:
            many = many_new(connection)
        if many:
            self._repeat(share, fold)

    def _close_hours(self) -> None:
        """For the web pages, store the outcomes of past hours that can no longer change, oldest first."""
        from cronjobs.engine.store.quarters import close_hour, next_open_hour

        with self.tick.database.read() as connection:
            if next_open_hour(connection, database_now(connection)) is None:
                return
        self._repeat(SHARE, lambda connection: close_hour(connection, database_now(connection)))

    def _repeat(self, share: float, *tasks: Callable[[Connection], bool]) -> None:
        """Repeat each task, in short transactions, until it returns False, for a *share* of the time left in the tick.

        If time runs out, or if any other writer is waiting, which is more urgent, the next tick continues.
        """
        tick, until = self.tick, self.tick.end_of(share)
        try:
            for task in tasks:
                more = True
                while more and tick.go_on() and tick.clock.monotonic() < until:
                    with tick.database.write(patience=1.0) as connection:
                        more = task(connection)
        except DatabaseBusy:
            return

    def _has_news(self) -> bool:
        """Return whether findings may have changed, because something was due, was done or went wrong in this tick."""
        seen, result = self.seen, self.tick.result
        due = seen.jobs_due or seen.schedules_due or seen.paused_due or seen.expired
        return bool(due or result.did() or result.faults or result.trouble or not self.tick.fire_schedules)
