"""Convert instants to and from the form that the Django project uses.

With USE_TZ = True, that is an aware datetime in UTC. Otherwise it is a naive datetime in TIME_ZONE.
"""

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
    if instant.tzinfo is not None:
        return instant
    aware: datetime = timezone.make_aware(instant, timezone.get_default_timezone())
    return aware


def zone_name() -> str:
    """Return the name of a page's time zone: the zone that Django has activated, if it has a name, else TIME_ZONE."""
    current = timezone.get_current_timezone()
    return str(current.key if settings.USE_TZ and isinstance(current, ZoneInfo) else settings.TIME_ZONE)
