"""When a tick removes old rows, and for how long. ``pruner`` removes them; an idle tick does not import that module."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from cronjobs import events
from cronjobs.engine.probe.idle_conditions import PRUNE_EVERY_S, WRONG_CLOCK_S
from cronjobs.engine.tick.context import TickContext
from cronjobs.errors import DatabaseBusy

EVERY: Final = timedelta(seconds=PRUNE_EVERY_S)  # between two rounds of pruning; a round is limited only by time
OVERDUE: Final = timedelta(hours=2)  # after this even a tick with work spends a little of its time on pruning
WRONG_CLOCK: Final = timedelta(seconds=WRONG_CLOCK_S)
SHARE: Final = 0.75  # of the time left in the tick after its work is used for pruning
OVERDUE_SHARE: Final = 0.1  # of a tick with work is used for pruning if no tick has had time to prune for hours


def is_due(pruned_at: datetime | None, now: datetime) -> bool:
    """Whether to prune now. Pruning is also due if *pruned_at* is far in the future because a clock was wrong."""
    return pruned_at is None or abs(now - pruned_at) >= EVERY


def is_overdue(pruned_at: datetime | None, now: datetime) -> bool:
    return pruned_at is not None and abs(now - pruned_at) > OVERDUE


def clock_jumped(last_tick_at: datetime | None, now: datetime) -> bool:
    """Whether the clock moved by over a day since the last tick (with the highest id).

    If so, no row's age is certain.
    """
    return last_tick_at is not None and abs(now - last_tick_at) > WRONG_CLOCK


def prune(tick: TickContext, now: datetime, share: float = SHARE) -> None:
    """Remove old rows in short batches. If time runs out, the next tick continues."""
    from cronjobs.engine.tick.pruner import Before, Pruner

    until = tick.clock.monotonic() + share * (tick.deadline - tick.clock.monotonic())
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
        # Another session has locked a whole table, or SQLite. Old rows can wait for the next tick.
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
