"""How often to report a lasting problem: at once, then hourly, and daily after the problem has lasted a day."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

HOURLY: Final = timedelta(hours=1)
# After a problem has lasted this long, it is reported daily.
DAILY: Final = timedelta(hours=24)


def silence(lasted: timedelta) -> timedelta:
    """Return how long to stay silent after a report of something that has *lasted* this long."""
    return HOURLY if lasted < DAILY else DAILY
