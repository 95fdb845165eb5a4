"""Check, before "db adopt", that no host still ticks for the project and environment that own the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection, func, select

from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.tables import audit
from cronjobs.engine.store.dropping import LastTick, hosts_that_tick
from cronjobs.engine.store.meta import MOVED, Meta, read_meta
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import last_ticks
from cronjobs.errors import CronjobsError
from cronjobs.model import duration_text, rough
from cronjobs.text import one_line

SHOWN: Final = 3


class OwnerStillActive(CronjobsError):
    """Other hosts still tick for the current owner of the database, and an adoption would shut these hosts out."""

    exit_code = 1

    def __init__(self, owner: Meta, settings: Settings, ticking: Sequence[LastTick], quiet: timedelta) -> None:
        wrong = [key for key in ("project", "environment") if getattr(owner, key) != getattr(settings, key)]
        owners = ", ".join(f'{key} "{one_line(getattr(owner, key), 120)}"' for key in ("project", "environment"))
        ours = " and ".join(f'{key}: "{one_line(getattr(settings, key), 120)}"' for key in wrong)
        said = ", ".join(f"{one_line(each.host, 60)} {rough(each.ago)} ago" for each in ticking[:SHOWN])
        more = f" and {len(ticking) - SHOWN} more" if len(ticking) > SHOWN else ""
        super().__init__(
            f"hosts still tick for {owners}, which own this database: {said}{more}. An adoption would shut these hosts "
            f"out. If {ours} is a mistake in {settings.file}, correct it there. If the database is to change hands, "
            f"first stop whatever starts ticks on each of these hosts, then wait {duration_text(quiet)}. --force "
            "adopts the database anyway, which may be right for a fresh copy. Nothing was changed"
        )


def require_no_ticks(connection: Connection, settings: Settings, quiet: timedelta) -> None:
    """Raise OwnerStillActive if the database has another owner, and a host has ticked for that owner within *quiet*."""
    owner = read_meta(connection)
    nobodys = owner.project == owner.environment == "" or owner.environment.startswith(MOVED)
    if nobodys or (owner.project, owner.environment) == (settings.project, settings.environment):
        return
    # Ticks before the last "db adopt" were for an earlier owner.
    given_at = connection.execute(select(func.max(audit.c.at)).where(audit.c.action == "adopt")).scalar()
    ticks = [
        row for row in last_ticks(connection) if given_at is None or (row.finished_at or row.started_at) > given_at
    ]
    ticking = hosts_that_tick(ticks, database_now(connection), quiet)
    # Ignore hosts whose last tick is dated far ahead. Their clock was wrong then, and they have not ticked since.
    if lately := [each for each in ticking if each.ago >= -quiet]:
        raise OwnerStillActive(owner, settings, lately, quiet)
