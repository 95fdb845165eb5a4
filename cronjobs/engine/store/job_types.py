"""The job types that the hosts can run.

Each tick that loads handlers records its job types, and all decisions use these records.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from hashlib import sha256
from typing import Final

from sqlalchemy import Connection

from cronjobs.engine.database.tables import job_type_lists
from cronjobs.engine.probe.sql_text import JOB_TYPE_LISTS, NOW, SCHEDULES, TICKS, after_now, before_now, shifted_back
from cronjobs.engine.store.overlap import AMONG_RUNNABLE, PRESENT_TYPE, runnable_value
from cronjobs.engine.store.sql import inserted_into, run

# A type becomes unknown when no tick has known it for this long.
REMEMBERED: Final = timedelta(minutes=10)

# Name at most this many schedules.
MOST_NAMED: Final = 100

WITHIN_AGO: Final = before_now(":within_s")
# After a clock was set back, the start of a tick may be in the future.
WITHIN_AHEAD: Final = after_now(":within_s")
_BEFORE_NEWEST: Final = shifted_back("n.at", ":within_s")
# The ticks whose lists count; see ``runnable_types``.
_USED: Final = f"""
        WITH newest AS (
          SELECT max(t.started_at) AS at FROM {TICKS} t WHERE t.job_types IS NOT NULL AND t.started_at <= {NOW}),
        used AS (
          SELECT t.id FROM {TICKS} t WHERE t.job_types IS NOT NULL
            AND t.started_at >= (SELECT {_BEFORE_NEWEST} FROM newest n) AND t.started_at <= {WITHIN_AHEAD}
          UNION
          SELECT (SELECT t.id FROM {TICKS} t WHERE t.host = h.host AND t.job_types IS NOT NULL
                  ORDER BY t.id DESC LIMIT 1)
          FROM (SELECT DISTINCT t.host FROM {TICKS} t
                WHERE t.started_at >= {WITHIN_AGO} AND t.started_at <= {WITHIN_AHEAD}) h)"""


def remembered(every: timedelta) -> timedelta:
    """Return how long recorded job types count. *every* is the time between the starts of two ticks."""
    return max(REMEMBERED, 2 * every)


@dataclass(frozen=True)
class Loaded:
    """The code that a tick has loaded: the names of the job types, and the hash of the source code, or "" if it is
    unknown.
    """

    names: Collection[str]
    source: str = ""

    @cached_property
    def hash(self) -> str:
        """The version of the code. A tick's row refers to the list of job types by this hash."""
        return sha256(
            json.dumps([*sorted(self.names), *([{"": self.source}] if self.source else ())]).encode()
        ).hexdigest()[:32]


def record_types(connection: Connection, loaded: Loaded) -> str:
    """Store the list of job types, once for each version of the code. Return its hash."""
    row = {"hash": loaded.hash, "names": sorted(loaded.names)}
    connection.execute(inserted_into(connection, job_type_lists).values(row).on_conflict_do_nothing())
    return loaded.hash


def unknown_to_schedules(connection: Connection, runnable: Collection[str]) -> dict[str, list[str]]:
    """Return the job types of active schedules that are not *runnable*, each with the names of these schedules."""
    rows = run(
        connection,
        # An unreadable definition has no type (NULL), and is reported when its schedule is due.
        f"""SELECT {PRESENT_TYPE} AS job_type, s.name FROM {SCHEDULES} s WHERE s.status = 'active'
           AND NOT ({PRESENT_TYPE} {AMONG_RUNNABLE}) ORDER BY s.name LIMIT :most""",
        runnable=runnable_value(connection, runnable),
        most=MOST_NAMED,
    ).all()
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row.job_type, []).append(row.name)
    return found


def types_recorded_at(connection: Connection) -> datetime | None:
    """Return when the last tick that recorded its job types began, or None if no tick has recorded any."""
    found: datetime | None = run(
        connection, f"SELECT max(t.started_at) AS started_at FROM {TICKS} t WHERE t.job_types IS NOT NULL"
    ).scalar()
    return found


def runnable_types(connection: Connection, within: timedelta = REMEMBERED) -> frozenset[str] | None:
    """Return the job types that some host may still run, or None if no tick has recorded any.

    Claims use these types. A list counts if a tick recorded it at most *within* ago, because a tick that began before a
    deploy may still be running jobs of types that the deploy removed. Idle ticks load no handlers, so the last list of
    each host that still ticks counts as well. If no tick has loaded handlers for that long, the last recorded lists are
    used.
    """
    rows = run(
        connection,
        f"""{_USED}
        SELECT l.names FROM {JOB_TYPE_LISTS} l WHERE l.hash IN (
          SELECT t.job_types FROM {TICKS} t WHERE t.id IN (SELECT u.id FROM used u))""",
        within_s=within.total_seconds(),
    ).all()
    if not rows:
        return None
    return frozenset(str(name) for row in rows if isinstance(row.names, list) for name in row.names)


@dataclass(frozen=True)
class ListUse:
    """The newest list of job types that ticks of ``host`` with the file ``config`` recorded.

    ``first`` and ``last`` are the ids of the first and last tick of this host and file that recorded a list.
    """

    host: str
    config: str | None
    hash: str
    first: float
    last: float


def present_types(
    connection: Connection, within: timedelta = REMEMBERED, here: tuple[str, str, Loaded] | None = None
) -> frozenset[str] | None:
    """Like ``runnable_types``, but without types that no longer exist because of a deploy or a fault.

    Schedules use these types: if a schedule has a job that no host can run now, later occurrences must still get their
    jobs. The views for people use them, too. *here* is a host, its file, and the code that its tick has just loaded.
    """
    rows = run(
        connection,
        f"""{_USED},
        uses AS (SELECT t.host, t.config, min(t.id) AS first, max(t.id) AS last
                 FROM {TICKS} t WHERE t.id IN (SELECT u.id FROM used u) GROUP BY t.host, t.config)
        SELECT u.*, l.hash, l.names
        FROM uses u JOIN {TICKS} t ON t.id = u.last JOIN {JOB_TYPE_LISTS} l ON l.hash = t.job_types""",
        within_s=within.total_seconds(),
    ).all()
    if not (rows or here):
        return None
    uses = [ListUse(row.host, row.config, row.hash, row.first, row.last) for row in rows]
    names: dict[str, Collection[str]] = {row.hash: row.names for row in rows if isinstance(row.names, list)}
    if here is not None:
        host, config, loaded = here
        names[loaded.hash] = loaded.names
        uses = with_list(uses, host, config, loaded.hash)
    return frozenset(str(name) for hash_ in in_use(uses) for name in names.get(hash_, ()))


def with_list(uses: Iterable[ListUse], host: str, config: str, hash_: str) -> list[ListUse]:
    """Return *uses* and one more: *host* now uses the list *hash_*, with the file *config*."""
    now = float("inf")
    first = min((use.first for use in uses if (use.host, use.config) == (host, config)), default=now)
    others = (use for use in uses if (use.host, use.config) != (host, config))
    return [*others, ListUse(host, config, hash_, first, now)]


def in_use(uses: Collection[ListUse]) -> set[str]:
    """Return the hashes of the lists that no deploy has replaced.

    A file has been replaced if its host began to use another file only after the last use of the first file. If one
    host has two crontab lines with different files, the uses of the files alternate, so the lists of both files are in
    use. For each file only the newest list counts, even if the code was broken, mended and broken again.
    """
    return {use.hash for use in uses if not any(other.host == use.host and other.first > use.last for other in uses)}
