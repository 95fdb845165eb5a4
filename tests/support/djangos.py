"""Django with the test's database in its settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import django  # type: ignore[import-untyped]
from django.conf import settings  # type: ignore[import-untyped]
from django.db import connections  # type: ignore[import-untyped]
from sqlalchemy import make_url

from support.targets import app_url, plain_url

if not settings.configured:
    settings.configure(DATABASES={}, USE_TZ=True, SECRET_KEY="of the tests")
    django.setup()


def configured(url: str, alias: str = "app", *, by_runner: bool = False) -> Iterator[str]:
    """Yield the alias of a database in Django's settings, for the app's role, or if *by_runner* for the runner's."""
    parsed = make_url(plain_url(url if by_runner else app_url(url)))
    sqlite = parsed.get_backend_name() == "sqlite"
    before = connections.settings.get(alias)
    connections.settings[alias] = connections.configure_settings(
        {
            "default": {},
            alias: {
                "ENGINE": f"django.db.backends.{'sqlite3' if sqlite else 'postgresql'}",
                "NAME": parsed.database,
                "USER": parsed.username or "",
                "PASSWORD": parsed.password or "",
                "HOST": parsed.host or parsed.query.get("host", ""),
                "PORT": parsed.port or parsed.query.get("port", ""),
            },
        }
    )[alias]
    with suppress(AttributeError):
        del connections[alias]  # an earlier test in this thread may have opened this connection
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
        connections.settings[alias] = before
        if before is None:
            del connections.settings[alias]
