"""Read the payloads of jobs that may still run, a few at a time.

There may be millions of payloads, and any of them may be unreadable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from cronjobs.engine.database.tables import UNSETTLED_DEAD_SQL
from cronjobs.engine.probe.sql_text import JOBS, either
from cronjobs.engine.rules.payload import BadJson
from cronjobs.engine.store.sizes import if_not_too_large
from cronjobs.engine.store.sql import IS_STRIPPED, is_lost, run

MOST_ROWS: Final = 1000  # the largest number of rows in a chunk
# The largest size of a chunk's payloads in bytes. One payload may take up to a quarter of this size.
MOST_BYTES: Final = 4 * 1024 * 1024
# One statement looks through this many ids, since there may be millions of other jobs between two waiting jobs.
WINDOW: Final = 20_000


class StoredPayload(NamedTuple):
    id: int
    job_type: str
    status: str
    payload: Any


class Chunk(NamedTuple):
    """Some rows, and the id after which the next chunk begins."""

    rows: Sequence[StoredPayload]
    after: int


_PAYLOAD_READ: Final = if_not_too_large("j.payload")
_PAYLOAD_BYTES: Final = either(
    postgresql="octet_length(CAST(p.payload AS text))", sqlite="length(CAST(p.payload AS BLOB))"
)
# Leave out jobs that cannot run again: exec's runs (only records), stripped jobs (only the key is left), and dismissed
# jobs (they stay dead). Running jobs can run again: their attempts may fail, or a deploy may interrupt them.
_MAY_STILL_RUN: Final = f"""j.status IN ('queued', 'running', 'failed', 'dead') AND substr(j.job_type, 1, 5) <> 'exec:'
      AND NOT {IS_STRIPPED} AND (j.status <> 'dead' OR {UNSETTLED_DEAD_SQL})"""

_IDS: Final = f"""
    SELECT j.id FROM {JOBS} j WHERE j.id >= :first AND j.id < :end AND {_MAY_STILL_RUN} ORDER BY j.id LIMIT :most"""
_ROWS: Final = f"""
    SELECT c.id, c.job_type, c.status, c.payload FROM (
      SELECT p.id, p.job_type, p.status, p.payload,
        sum({_PAYLOAD_BYTES}) OVER (ORDER BY p.id) - {_PAYLOAD_BYTES} AS before
      FROM (
        SELECT j.id, j.job_type, j.status, {_PAYLOAD_READ} AS payload FROM {JOBS} j
        WHERE j.id >= :first AND j.id < :end AND {_MAY_STILL_RUN} ORDER BY j.id LIMIT :most) p) c
    WHERE c.before < :most_bytes ORDER BY c.id"""
_ONE: Final = f"SELECT j.id, j.job_type, j.status, {_PAYLOAD_READ} AS payload FROM {JOBS} j WHERE j.id = :id"
_UNREAD_ONE: Final = f"SELECT j.id, j.job_type, j.status FROM {JOBS} j WHERE j.id = :id"


def last_id(connection: Connection) -> int:
    """Return the id of the newest job, or 0 if there is none."""
    return int(run(connection, f"SELECT max(j.id) FROM {JOBS} j").scalar() or 0)


def chunk_after(connection: Connection, after: int, last: int) -> Chunk | None:
    """Return the next payloads with ids above *after*, up to *last*, or None if there are no more."""
    first = run(
        connection, f"SELECT min(j.id) FROM {JOBS} j WHERE j.id > :after AND j.id <= :last", after=after, last=last
    ).scalar()
    if first is None:
        return None
    where = {"first": first, "end": min(first + WINDOW, last + 1), "most": MOST_ROWS}
    try:
        with connection.begin_nested():
            rows = [StoredPayload._make(row) for row in run(connection, _ROWS, **where, most_bytes=MOST_BYTES)]
    except (DBAPIError, MemoryError) as error:
        # A few bytes of jsonb can stand for a number with a billion digits, which cannot be fetched. So fetch the rows
        # one by one.
        if is_lost(error):
            raise
        rows = list(_one_by_one(connection, where))
    return Chunk(rows, rows[-1].id if rows else where["end"] - 1)


def _one_by_one(connection: Connection, where: dict[str, int]) -> Iterator[StoredPayload]:
    for job_id in run(connection, _IDS, **where).scalars().all():
        try:
            with connection.begin_nested():
                yield StoredPayload._make(run(connection, _ONE, id=job_id).one())
        except (DBAPIError, MemoryError) as error:
            if is_lost(error):
                raise
            row = run(connection, _UNREAD_ONE, id=job_id).one()
            yield StoredPayload._make([*row, BadJson("unreadable: the row cannot be fetched")])
