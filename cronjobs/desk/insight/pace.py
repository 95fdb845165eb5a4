"""Find out from the rows of ticks how often ticks begin. This is needed if no valid file sets ``run.every``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk.store.explaining import newest_ticks
from cronjobs.engine.config.settings import RunSettings, Settings

_TICKS: Final = 100  # enough for several minutes, even if a few hosts tick in each
_GAPS: Final = 3  # with fewer gaps between ticks, the pace is unknown


def at_their_pace(connection: Connection, settings: Settings) -> Settings:
    """Return *settings* with the pace of the newest ticks as ``run.every``, if the file is broken and does not set it.

    With the default, every pause between two ticks of a slower crontab line would count as an outage.
    """
    if not settings.broken or settings.run.every != RunSettings().every:
        return settings
    every = pace_of(row.started_at for row in newest_ticks(connection, _TICKS))
    return settings if every is None else replace(settings, run=replace(settings.run, every=every))


def pace_of(starts: Iterable[datetime]) -> timedelta | None:
    """Return the usual time between minutes in which ticks began, or None if there are too few of these minutes.

    Hosts that tick in the same minute count once. The median ignores outages and ticks started by hand.
    """
    minutes = sorted({at.replace(second=0, microsecond=0) for at in starts})
    gaps = sorted(later - earlier for earlier, later in pairwise(minutes))
    return gaps[(len(gaps) - 1) // 2] if len(gaps) >= _GAPS else None
