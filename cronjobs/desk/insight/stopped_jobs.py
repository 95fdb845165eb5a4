"""Find dead jobs that an unknown effect has stopped. Until somebody settles the effect, a retry would stop again."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk.store import explaining
from cronjobs.errors import EffectUnknown
from cronjobs.text import one_line

_BEFORE, _AFTER = str(EffectUnknown("KEY")).split("KEY")
SETTLE_FIRST: Final = "an effect stopped the job, and nobody has recorded whether that effect happened"


def stopped_jobs(connection: Connection, ids: Collection[int]) -> dict[int, str]:
    """Return the dead jobs among *ids* that an unknown effect has stopped, each with the key of that effect."""
    found = {}
    for row in explaining.stopped_by_effects(connection, ids):
        if (key := unsettled_effect(connection, row.error_type, row.last_error)) is not None:
            found[row.id] = key
    return found


def unsettled_effect(connection: Connection, error_type: str | None, error: str | None) -> str | None:
    """Return the key of the effect that an error reports as unknown, unless someone has settled the effect."""
    said = error or ""
    quoted, done, _ = said.removeprefix(_BEFORE).rpartition(_AFTER)
    if error_type != EffectUnknown.__name__ or not (said.startswith(_BEFORE) and done):
        return None
    try:
        [key] = shlex.split(quoted)
    except ValueError:
        return None
    return key if explaining.is_unsettled(connection, key) else None


def settling(key: str) -> str:
    """Return the command that settles an effect as done. The caller appends the alternative, "(or not-done)"."""
    return one_line(f"cronjobs effects settle {shlex.quote(key)} done", 600)
