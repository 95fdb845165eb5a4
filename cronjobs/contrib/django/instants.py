"""Convert instants to and from the project's form: aware in UTC, or, with USE_TZ = False, naive in TIME_ZONE."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from django.conf import settings  # type: ignore[import-untyped]
from django.utils import timezone  # type: ignore[import-untyped]


def as_djangos(instant: datetime) -> datetime:
    if settings.USE_TZ:
        return instant.astimezone(UTC)
    naive: datetime = timezone.make_naive(instant, timezone.get_default_timezone())
    return naive


def from_djangos(instant: datetime) -> datetime:
    """Return the instant as an aware datetime."""
    if instant.tzinfo is not None:
        return instant
    aware: datetime = timezone.make_aware(instant, timezone.get_default_timezone())
    return aware


def zone_name() -> str:
    """Return the time zone for a page: the activated zone if it has a name, else the project's."""
    current = timezone.get_current_timezone()
    return str(current.key if settings.USE_TZ and isinstance(current, ZoneInfo) else settings.TIME_ZONE)
