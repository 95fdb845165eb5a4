"""Decide when a tick removes old rows, and for how long.

The module ``pruner`` removes the rows. An idle tick does not import it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from cronjobs import events
from cronjobs.engine.probe.idle_conditions import PRUNE_EVERY_S, WRONG_CLOCK_S
from cronjobs.engine.tick.context import TickContext
from cronjobs.errors import DatabaseBusy

# A round of pruning is due this long after the last round. Only time limits how much a round removes.
EVERY: Final = timedelta(seconds=PRUNE_EVERY_S)
# If pruning has not been completed for this long, even a tick with work spends a little of its time on it.
OVERDUE: Final = timedelta(hours=2)
WRONG_CLOCK: Final = timedelta(seconds=WRONG_CLOCK_S)
# Pruning may use this share of the time that is left in a tick after its work.
SHARE: Final = 0.75
# If no tick has had time to prune for hours, pruning may use this share of a tick before its work.
OVERDUE_SHARE: Final = 0.1


def is_due(pruned_at: datetime | None, now: datetime) -> bool:
    """Return whether to prune now. Pruning is due, too, if a wrong clock set *pruned_at* far into the future."""
    return pruned_at is None or abs(now - pruned_at) >= EVERY


def is_overdue(pruned_at: datetime | None, now: datetime) -> bool:
    return pruned_at is not None and abs(now - pruned_at) > OVERDUE


def clock_jumped(last_tick_at: datetime | None, now: datetime) -> bool:
    """Return whether the clock differs by more than a day from the last tick, which is the tick with the highest id.

    If so, we do not know for certain how old any row is.
    """
    return last_tick_at is not None and abs(now - last_tick_at) > WRONG_CLOCK


def prune(tick: TickContext, now: datetime, share: float = SHARE) -> None:
    """Remove old rows in short batches. If time runs out, the next tick continues."""
    from cronjobs.engine.tick.pruner import Before, Pruner

    until = tick.end_of(share)
    pruner = Pruner(
        tick.database,
        Before.of(tick.settings.retention, now),
        tick.clock,
        go_on=lambda: tick.go_on() and tick.clock.monotonic() < until,
        before_writing=tick.row.begin,
    )
    try:
        done = pruner.run()
    except DatabaseBusy as error:
        # Another transaction has locked a whole table, or the SQLite file. Old rows can wait for the next tick.
        tick.emit(events.pruning_put_off(str(error)))
        done = False
    finally:
        tick.result.pruned += pruner.gone
    if done:
        note_pruned(tick, now)


def note_pruned(tick: TickContext, now: datetime) -> None:
    from cronjobs.engine.store.pruning import set_pruned_at

    with tick.writing() as connection:
        set_pruned_at(connection, now)
