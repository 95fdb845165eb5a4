"""Django's own checks of the project know the setting CRONJOBS."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings  # type: ignore[import-untyped]
from django.core.checks import Error, register  # type: ignore[import-untyped]
from django.db import connections  # type: ignore[import-untyped]

from cronjobs.config.django_project import alias
from cronjobs.django.connections import VENDORS

KEYS: Final = ("config", "database")


@register
def settings_fit(app_configs: Any, **_: Any) -> list[Error]:
    """What is wrong with ``CRONJOBS``: a key that there is not, a database that is none of ours."""
    given = getattr(settings, "CRONJOBS", {})
    if not isinstance(given, dict):
        hint = 'CRONJOBS = {"config": BASE_DIR / "cronjobs.yaml"}'
        return [Error("CRONJOBS is no dict", hint=hint, id="cronjobs.E001")]
    found = [
        Error(f"CRONJOBS has the unknown key {key!r}", hint=f"Allowed: {', '.join(KEYS)}", id="cronjobs.E002")
        for key in given
        if key not in KEYS
    ]
    name = alias(settings)
    if name not in connections.settings:
        return [*found, Error(f"CRONJOBS names the database {name!r}, which DATABASES has not", id="cronjobs.E003")]
    vendor = connections[name].vendor
    if vendor not in VENDORS:
        hint = 'Name one that is: CRONJOBS = {"database": …}'
        found.append(
            Error(f"cronjobs runs on PostgreSQL and SQLite, and {name!r} is {vendor}", hint=hint, id="cronjobs.E004")
        )
    return found
