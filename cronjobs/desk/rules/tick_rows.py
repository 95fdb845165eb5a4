"""Read the JSON column of a tick's row. The rules are pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def did_of(did: Any) -> Mapping[str, Any]:
    """Return what a tick did. *did*: the column ``did``, into which plain SQL may have written any value."""
    return did if isinstance(did, Mapping) else {}


def texts_in(did: Any, kind: str) -> dict[str, str]:
    """Return the texts that a tick recorded by place, such as why parts of its file are "broken"."""
    found = did_of(did).get(kind)
    return {str(where): str(what) for where, what in found.items()} if isinstance(found, Mapping) else {}
