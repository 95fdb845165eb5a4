"""Read a limited number of the newest dead jobs, by index, to explain why jobs died."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.desk.store.status_facts import UNDEALT
from cronjobs.engine.probe.sql_text import AUDIT, JOBS
from cronjobs.engine.rules.error_groups import ERROR_READ
from cronjobs.engine.store.shown_columns import columns_shown
from cronjobs.engine.store.sql import run

_DEATH: Final = f"""SELECT j.id, {columns_shown("job_type", "error_type")},
      CAST(substr(j.last_error, 1, {ERROR_READ + 1}) AS text) AS error, j.finished_at FROM {JOBS} j"""


def newest_deaths(connection: Connection, most: int) -> Sequence[Row[Any]]:
    """Return up to *most* open dead jobs (not retried or dismissed), most recent death first."""
    # Do not also order by id, which is not in the index: without statistics PostgreSQL would sort every dead job.
    return run(connection, f"{_DEATH} WHERE {UNDEALT} ORDER BY j.finished_at DESC LIMIT :most", most=most).all()


def deaths_until(connection: Connection, until: datetime, most: int) -> Sequence[Row[Any]]:
    """Return up to *most* jobs that had died by *until*, most recent death first. Dismissed jobs are included."""
    return run(
        connection,
        f"{_DEATH} WHERE j.status = 'dead' AND j.finished_at IS NOT NULL AND j.finished_at <= :until "
        "ORDER BY j.finished_at DESC LIMIT :most",
        until=until,
        most=most,
    ).all()


def file_changed_at(connection: Connection) -> datetime | None:
    """Return when the current configuration file took effect, or None if the audit trail has no earlier file."""
    # "+ 0" makes the planner use the index on action, instead of reading back through every later row.
    last = f"(SELECT l.subject FROM {AUDIT} l WHERE l.action = 'sync' ORDER BY l.id + 0 DESC LIMIT 1)"
    other = f"(SELECT max(o.id + 0) FROM {AUDIT} o WHERE o.action = 'sync' AND o.subject <> {last})"
    at: datetime | None = run(
        connection, f"SELECT min(a.at) AS at FROM {AUDIT} a WHERE a.action = 'sync' AND a.id > {other}"
    ).scalar()
    return at
