"""How often to report a problem that lasts: at once, then every hour, and after the first day once a day."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

HOURLY: Final = timedelta(hours=1)
# After a problem has lasted this long, it is reported daily.
DAILY: Final = timedelta(hours=24)


def silence(lasted: timedelta) -> timedelta:
    """Return how long to wait between two reports of a problem that has *lasted* this long."""
    return HOURLY if lasted < DAILY else DAILY
