"""Read audit entries about settled effects. The rules are pure functions."""

from __future__ import annotations

from typing import Any, Final

_EFFECT: Final = "effect "


def settled_effect(entry: Any) -> tuple[str, str] | None:
    """Return the effect's key, and "done" or "not-done". Return None for another action, or for an invalid entry.

    *entry*: a row of the audit trail. Plain SQL may have written anything into the row.
    """
    if entry.action != "settle" or not isinstance(entry.detail, dict) or not entry.subject.startswith(_EFFECT):
        return None
    verdict = entry.detail.get("as")
    return (entry.subject.removeprefix(_EFFECT), verdict) if verdict in ("done", "not-done") else None
