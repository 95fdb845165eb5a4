"""Decide which texts can be the URL of the jobs database. Pure."""

from __future__ import annotations

import re
from typing import Final

from cronjobs.text import is_utf8

# A driver may follow: "postgresql+asyncpg://".
SCHEMES: Final = ("sqlite", "postgres", "postgresql")
_BEGINNING: Final = re.compile(r"([A-Za-z][A-Za-z0-9]*)(\+\w+)?://")


def url_fault(url: str) -> str | None:
    """Return why *url* cannot be used, or None. The text never quotes the URL, which may contain a password."""
    if not is_utf8(url):
        return "the URL is not UTF-8 text: choose a file whose path is valid UTF-8"
    if not url.strip():
        return "the URL is empty: write sqlite:///cronjobs.db, or set the variable it comes from"
    scheme = _BEGINNING.match(url)
    if scheme is None:
        return "this is not a database URL: write sqlite:///cronjobs.db or postgresql://user:password@host/name"
    if scheme[1] not in SCHEMES:
        return f"cronjobs supports sqlite:// and postgresql:// databases, not {scheme[1]}://"
    if scheme[1] != "sqlite":
        return None
    path = url[scheme.end() :].partition("?")[0]
    if path and not path.startswith("/"):
        return "a SQLite URL has three slashes before the file's name: sqlite:///cronjobs.db"
    if path[1:] in ("", ":memory:") or path.startswith("/file:"):
        return (
            "an in-memory SQLite database disappears when the process ends: name a file, such as sqlite:///cronjobs.db"
        )
    return None
