"""Decide whether a tick applies its configuration file to the database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, Literal

from sqlalchemy import Connection, Row

from cronjobs.engine.config.settings import Settings
from cronjobs.engine.schedules.definition import fingerprint
from cronjobs.engine.store import ticks
from cronjobs.engine.store.ticks import Overview

LEAST_SILENCE: Final = timedelta(minutes=5)
# "leave" keeps the definitions in force. "wait" also keeps them, but the next tick decides again.
Verdict = Literal["apply", "leave", "wait"]


def silence_after(every: timedelta) -> timedelta:
    """Return how long a file must go unused before we conclude that no tick uses it any more: at least five minutes."""
    return max(LEAST_SILENCE, 2 * every)


def judge_file(connection: Connection, seen: Overview, settings: Settings, *, host: str) -> Verdict:
    """Decide whether a tick on *host* applies its file.

    The tick applies the file if no host has applied this file yet, or if this host's last tick used a different file (a
    deploy or a rollback). Without the condition about the last tick, hosts in the middle of a deploy would keep
    replacing each other's file. The same would happen on one host whose ticks use two files, such as those of two
    release folders: each tick finds that the last tick used a different file, although nobody has changed a file.
    ``_alternates`` detects this case.

    A host that has never ticked before, such as a container with a new name, cannot know whether its file is newer than
    the file in force. A host whose ticks alternate between two files cannot know it either. In both cases, the tick
    applies its file once no tick has used the file in force for a while (``silence_after``). An interrupted sync is
    completed by the host that began it or by a host with the same file. If the sync began longer ago than
    ``silence_after`` allows, any host may apply its own file.
    """
    mark = fingerprint(settings)
    if not seen.fingerprint_known:
        return "apply"
    silence = silence_after(settings.run.every)
    last = ticks.last_of_host(connection, host) if seen.last_fingerprint != mark else None
    later: Verdict = "leave" if last is None else "wait"
    changed = seen.last_fingerprint not in (None, mark)
    alternates = changed and _alternates(connection, last, settings, mark)
    if changed and not alternates:
        return "apply"
    begun = ticks.unfinished_sync(connection) if seen.sync_unfinished else None
    if begun is not None:
        ours = begun.subject == mark or (begun.host == host and not alternates)
        return "apply" if ours or seen.now - begun.at > silence else later
    if seen.last_fingerprint == mark:
        return "leave"
    in_force = ticks.file_in_force(connection)
    if in_force in (None, mark):
        return "leave"
    # An outage of the whole host proves nothing about the other file, so leave out the time of an outage.
    latest = seen.now if last is None else last.started_at
    if not ticks.carried_since(connection, str(in_force), latest - silence):
        return "apply"
    return later


def _alternates(connection: Connection, last: Row[Any] | None, settings: Settings, mark: str) -> bool:
    """Return whether this host's ticks alternate between two files.

    *last* is this host's last tick, which used another file. The ticks alternate if a tick with the file of *settings*
    ran shortly before *last*. It does not count if its fingerprint differs, because then the file was changed in place,
    or if it is older, because then the host came back to this file after a while.
    """
    if last is None:
        return False
    since = last.started_at - silence_after(settings.run.every)
    own = ticks.last_with_config(connection, last.host, str(settings.file), since)
    return own is not None and own.fingerprint in (None, mark)
