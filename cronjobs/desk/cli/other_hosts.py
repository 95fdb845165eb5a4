"""Find the other hosts that tick for a project. They run its schedules, whatever is in this host's crontab."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk.cli.project_database import tables_if_any
from cronjobs.desk.insight.watched import quiet_after
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.probe.kernel_facts import host_name
from cronjobs.engine.store.dropping import LastTick, hosts_that_tick
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import last_ticks
from cronjobs.model import rough
from cronjobs.text import one_line

SHOWN: Final = 3  # name at most this many hosts


def other_hosts(settings: Settings, environment: Mapping[str, str]) -> list[LastTick]:
    """Return the other hosts that tick for this project. Raises CronjobsError if the database cannot be read.

    *environment* is cron's, which may give this host another name than the shell does.
    """
    here = {host_name(), host_name(environment)}
    with tables_if_any(settings) as connection:
        return [] if connection is None else ticking_besides(here, connection, settings.run.every)


def ticking_besides(here: Collection[str], connection: Connection, every: timedelta) -> list[LastTick]:
    """Return the hosts that tick, without those called one of *here*."""
    quiet = quiet_after(every)
    ticking = hosts_that_tick(last_ticks(connection), database_now(connection), quiet)
    # If a host's last tick is dated far ahead, the host's clock was wrong then, and the host has not ticked since.
    return [each for each in ticking if each.host not in here and each.ago >= -quiet]


def listed(ticking: Sequence[LastTick]) -> str:
    """Return text such as "web2 (20s ago) and web3 (1m ago)"."""
    shown = [f"{one_line(each.host, 60)} ({rough(each.ago)} ago)" for each in ticking[:SHOWN]]
    if len(ticking) > SHOWN:
        shown.append(f"{len(ticking) - SHOWN} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if shown[1:] else shown)
