"""What crossed a threshold of ``alerts:``, and which channels do not deliver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.config.settings import AlertThreshold, Settings
from cronjobs.store.alerts import died_or_failed, undelivered

COUNTED_BEYOND: Final = 1000  # of what is beyond a threshold


def alert_facts(connection: Connection, settings: Settings) -> dict[str, Any]:
    """``undelivered`` and ``crossed`` of ``Health``."""
    if settings.alerts is None:
        return {}
    return {
        "undelivered": undelivered(connection, settings.alerts.channels),
        "crossed": list(_crossed(connection, settings)),
    }


def _crossed(connection: Connection, settings: Settings) -> Iterator[tuple[AlertThreshold, int]]:
    for threshold in settings.alerts.thresholds.values() if settings.alerts else ():
        most = threshold.more_than + COUNTED_BEYOND
        count = died_or_failed(connection, threshold.of, threshold.within, threshold.job_type, most)
        if count > threshold.more_than:
            yield threshold, count
