"""The tasks of a tick besides its work: prune, fold counts, close hours, and call extras.

A task's modules are imported only when the task is due.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from cronjobs.engine.store.ticks import Overview
from cronjobs.engine.tick import pruning
from cronjobs.engine.tick.context import TickContext
from cronjobs.engine.tick.extras import HookContext, RunSummary, extras_of_tick

if TYPE_CHECKING:
    from cronjobs.engine.jobs.job_types import JobTypes

# Folding counts may use this share of the time that is left in the tick.
FOLD_SHARE: Final = 0.25


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
            # Do this before this tick's row is written. The next tick compares its clock with that row, so it will see
            # no jump.
            tick.try_part(partial(pruning.note_pruned, tick, seen.now))
        self.extras.begin()

    def before_work(self) -> None:
        """Do overdue tasks, for which no recent tick has had time."""
        tick, seen = self.tick, self.seen
        if pruning.is_overdue(seen.pruned_at, seen.now):
            tick.try_part(partial(self._prune, pruning.OVERDUE_SHARE))
            self._fold(pruning.OVERDUE_SHARE)
        self.extras.before_work()

    def after_work(self) -> None:
        tick, seen = self.tick, self.seen
        tick.try_part(self._prune)
        self._fold()
        if pruning.is_due(seen.pruned_at, seen.now):
            from cronjobs.engine.tick.closing_hours import close_hours

            tick.try_part(partial(close_hours, tick), retry_until=0)

    def end(self) -> None:
        """Call the extras for the last time, after the tick's row is written."""
        result = self.tick.result
        if result.stuck:
            return
        news = self._has_news()
        types = self.types() if self.loaded() or self.extras.want_handlers() else None
        self.extras.end(RunSummary(self.tick.deadline, result.exit_code(), result.trouble or "", news, types))

    def _prune(self, share: float = pruning.SHARE) -> None:
        seen = self.seen
        may = pruning.is_due(seen.pruned_at, seen.now) and not pruning.clock_jumped(seen.last_tick_at, seen.now)
        if may and not self.held():
            pruning.prune(self.tick, seen.now, share)

    def _fold(self, share: float = FOLD_SHARE) -> None:
        seen = self.seen
        hourly = pruning.is_due(seen.pruned_at, seen.now) and not pruning.clock_jumped(seen.last_tick_at, seen.now)
        if hourly or self.tick.result.did():
            from cronjobs.engine.tick.counting import fold_counts

            self.tick.try_part(partial(fold_counts, self.tick, share, hourly=hourly), retry_until=0)

    def _has_news(self) -> bool:
        """Return whether findings may have changed, because something was due, was done or went wrong in this tick."""
        seen, result = self.seen, self.tick.result
        due = seen.jobs_due or seen.schedules_due or seen.paused_due or seen.expired
        return bool(due or result.did() or result.faults or result.trouble or not self.tick.fire_schedules)
