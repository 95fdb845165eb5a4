"""A tick's work for metrics and charts: fold new counts into the sums."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from cronjobs.engine.store.counts import fold, many_new, remove_old_hours
from cronjobs.engine.tick.context import TickContext
from cronjobs.errors import DatabaseBusy


def fold_counts(tick: TickContext, share: float, *, hourly: bool) -> None:
    """Fold counts in short transactions, for a *share* of the time left in the tick. The next tick folds the rest.

    If *hourly* is True, fold even if there are only a few new counts, and remove the sums of old hours.
    """
    until = tick.clock.monotonic() + share * (tick.deadline - tick.clock.monotonic())

    def do(work: Callable[[Connection], bool]) -> None:
        more = True
        while more and tick.go_on() and tick.clock.monotonic() < until:
            with tick.database.write(patience=1.0) as connection:
                more = work(connection)

    with tick.database.read() as connection:
        many = many_new(connection)
    try:
        if hourly or many:
            do(fold)
        if hourly:
            do(remove_old_hours)
    except DatabaseBusy:
        # Another tick is folding counts, or a more urgent writer is waiting.
        return
