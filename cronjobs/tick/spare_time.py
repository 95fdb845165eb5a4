"""What a tick does beside its work: prune, count, deliver, alert and more. What nobody asked for is not imported."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from cronjobs.exec import spool
from cronjobs.store.ticks import Overview
from cronjobs.tick import pruning
from cronjobs.tick.context import TickContext

if TYPE_CHECKING:
    from cronjobs.jobs.job_types import JobTypes


class SpareTime:
    """Of one *tick*, which has *seen* this.

    *types* loads the handlers if nobody has, *loaded* says whether they are; *held*: whether ends wait to be recorded.
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
        self.metrics = tick.settings.metrics.textfile is not None
        self.alerts = tick.settings.alerts is not None

    def begin(self) -> None:
        """First of all: tell the dead-man's switch, note a clock that jumped, write what exec could not."""
        tick, seen = self.tick, self.seen
        if tick.settings.run.ping or any(each.ping for each in tick.settings.schedules.values()):
            from cronjobs.tick.alerting import pings_of

            tick.pings = pings_of(tick)
        if pruning.clock_jumped(seen.last_tick_at, seen.now):
            # Before the tick's row is written: compared with it, the next tick would see no jump.
            tick.try_part(partial(pruning.note_pruned, tick, seen.now))
        if spool.waiting(tick.spool):
            from cronjobs.exec.delivery import deliver

            tick.try_part(partial(deliver, tick.database, tick.spool))

    def before_work(self) -> None:
        """What no tick has had time for lately."""
        tick, seen = self.tick, self.seen
        if pruning.is_overdue(seen.pruned_at, seen.now):
            tick.try_part(partial(self._prune, pruning.OVERDUE_SHARE))
        if self.metrics:
            from cronjobs.tick import counting

            counting.write_if_stale(tick)
        if self.alerts:
            from cronjobs.tick import alerting

            if alerting.is_overdue(seen.look_at, seen.last_tick_at, seen.now, tick.settings.run.every):
                self._alert(due=True, anyway=False, share=alerting.OVERDUE_SHARE)

    def after_work(self) -> None:
        tick, seen = self.tick, self.seen
        tick.try_part(self._prune)
        if self.metrics or pruning.is_due(seen.pruned_at, seen.now):  # the command counts for itself, too
            from cronjobs.tick import counting

            tick.try_part(partial(counting.count, tick), retry_until=0)
        if pruning.is_due(seen.pruned_at, seen.now):
            from cronjobs.tick.closing import close_hours

            tick.try_part(partial(close_hours, tick), retry_until=0)

    def end(self) -> None:
        """When the tick's row is written: what others are told."""
        tick = self.tick
        if tick.result.stuck:
            return
        if self.metrics:
            from cronjobs.tick import counting

            counting.write(tick)
        if self.alerts and not tick.database_gone:
            self._alert(due=self.seen.look_due, anyway=self._has_news())
        if tick.pings is not None:
            from cronjobs.tick.alerting import end_pings

            end_pings(tick)

    def _prune(self, share: float = pruning.SHARE) -> None:
        seen = self.seen
        may = pruning.is_due(seen.pruned_at, seen.now) and not pruning.clock_jumped(seen.last_tick_at, seen.now)
        if may and not self.held():
            pruning.prune(self.tick, seen.now, share)

    def _alert(self, **how: Any) -> None:
        from cronjobs.tick import alerting

        alerting.alert(self.tick, self.types, loaded=self.loaded(), **how)

    def _has_news(self) -> bool:
        """Whether this tick may have changed what is wrong, or met something that no probe asks for."""
        seen, result = self.seen, self.tick.result
        due = seen.jobs_due or seen.schedules_due or seen.paused_due or seen.expired
        return bool(due or result.did() or result.faults or result.trouble or not self.tick.fire_schedules)
