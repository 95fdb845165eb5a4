"""Whether a tick puts its file in force."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs.config.settings import Settings
from cronjobs.schedules.definition import fingerprint
from cronjobs.store import ticks
from cronjobs.store.ticks import Overview

LEAST_SILENCE: Final = timedelta(minutes=5)


def applies(connection: Connection, seen: Overview, settings: Settings, *, host: str) -> bool:
    """Whether a tick of *host* applies its file.

    It does if nobody has, or if this host's last tick carried another file: a deploy, or a roll-back; else hosts in the
    middle of a deploy would take turns. A host that never ticked before, as a container of a new name, cannot know: its
    file is applied when no tick has carried the one in force for a while. A sync that was cut off is ended by who began
    it, by who carries the same file, and else by anybody, after the same while.
    """
    mark = fingerprint(settings)
    if not seen.fingerprint_known or seen.last_fingerprint not in (None, mark):
        return True
    silence = max(LEAST_SILENCE, 2 * settings.run.every)
    begun = ticks.unfinished_sync(connection) if seen.sync_unfinished else None
    if begun is not None:
        return begun.subject == mark or begun.host == host or seen.now - begun.at > silence
    if seen.last_fingerprint is not None:
        return False
    in_force = ticks.file_in_force(connection)
    return in_force not in (None, mark) and not ticks.carried_since(connection, str(in_force), seen.now - silence)
