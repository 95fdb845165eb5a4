"""The rhythm of reports about something that stays wrong: at once, then hourly, then daily once it has lasted a day."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

HOURLY: Final = timedelta(hours=1)
DAILY: Final = timedelta(hours=24)  # also how long a problem must have lasted for daily reports


def silence(lasted: timedelta) -> timedelta:
    """Return how long to stay silent after a report of something that has *lasted* this long."""
    return HOURLY if lasted < DAILY else DAILY
