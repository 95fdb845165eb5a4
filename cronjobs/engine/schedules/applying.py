"""Decide whether a tick applies its file to the database."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs.engine.config.settings import Settings
from cronjobs.engine.schedules.definition import fingerprint
from cronjobs.engine.store import ticks
from cronjobs.engine.store.ticks import Overview

LEAST_SILENCE: Final = timedelta(minutes=5)


def silence_after(every: timedelta) -> timedelta:
    """Return how long no tick must have run before we conclude that no more will run. It is at least five minutes."""
    return max(LEAST_SILENCE, 2 * every)


def applies(connection: Connection, seen: Overview, settings: Settings, *, host: str) -> bool:
    """Return whether a tick on *host* applies its file.

    The tick applies the file if no host has applied this file yet, or if this host's last tick used a different file (a
    deploy or a rollback). It does not apply the file merely because another file is in force, because then hosts in the
    middle of a deploy would keep replacing each other's file. A host that has never ticked before, such as a container
    with a new name, does not know whether its file is newer. It applies its file if no tick has used the file in force
    for a while (``silence_after``). An interrupted sync is completed by the host that began it or by a host with the
    same file. If the sync began longer ago than ``silence_after`` allows, any host may apply its own file.
    """
    mark = fingerprint(settings)
    if not seen.fingerprint_known or seen.last_fingerprint not in (None, mark):
        return True
    silence = silence_after(settings.run.every)
    begun = ticks.unfinished_sync(connection) if seen.sync_unfinished else None
    if begun is not None:
        return begun.subject == mark or begun.host == host or seen.now - begun.at > silence
    if seen.last_fingerprint is not None:
        return False
    in_force = ticks.file_in_force(connection)
    return in_force not in (None, mark) and not ticks.carried_since(connection, str(in_force), seen.now - silence)
