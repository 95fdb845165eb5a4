"""The facts that the database has about a job id that never existed or no longer exists."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from sqlalchemy import Connection

from cronjobs.engine.probe.sql_text import JOBS, OCCURRENCES, either
from cronjobs.engine.store.sql import run


class Gap(NamedTuple):
    """The facts about a job id that does not exist.

    ``highest`` is the highest id ever assigned, or None if this role may not see it. ``highest_here`` is the highest id
    of an existing job. If ``in_ledger``, the ledger names the id, so a job once had it. ``made_after`` is when the job
    with the next lower id was created, or None if no job has a lower id. If ``open``, another transaction that has
    changed jobs is open, and may have enqueued the job.
    """

    highest: int | None
    highest_here: int
    in_ledger: bool
    made_after: datetime | None
    open: bool = False


# Check the privilege first, since reading the sequence without it would be an error.
_HIGHEST: Final = either(
    postgresql=f"""(
      SELECT CASE WHEN has_sequence_privilege(d.objid, 'SELECT, USAGE')
        THEN coalesce(pg_sequence_last_value(d.objid), 0) END
      FROM pg_depend d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S'
      WHERE d.refobjid = CAST('{JOBS}' AS regclass) AND d.deptype = 'i')""",
    sqlite="coalesce((SELECT s.seq FROM sqlite_sequence s WHERE s.name = 'cronjobs_jobs'), 0)",
)
# On SQLite, only a committed enqueue uses up an id.
_OPEN: Final = either(
    postgresql=f"""EXISTS (SELECT 1 FROM pg_locks l WHERE l.granted AND l.relation = CAST('{JOBS}' AS regclass)
      AND l.mode = 'RowExclusiveLock' AND l.pid IS DISTINCT FROM pg_backend_pid()
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))""",
    sqlite="1 = 0",
)
_GAP: Final = f"""
  SELECT {_HIGHEST} AS highest, coalesce((SELECT max(j.id) FROM {JOBS} j), 0) AS highest_here,
    EXISTS (SELECT 1 FROM {OCCURRENCES} o WHERE o.job_id = :id) AS in_ledger,
    (SELECT j.created_at FROM {JOBS} j WHERE j.id < :id ORDER BY j.id DESC LIMIT 1) AS created_at,
    {_OPEN} AS open"""


def gap_at(connection: Connection, job_id: int) -> Gap:
    """Return what the database knows about *job_id*, an id that no job has now."""
    row = run(connection, _GAP, id=job_id).one()
    return Gap(row.highest, row.highest_here, bool(row.in_ledger), row.created_at, bool(row.open))


def is_enqueue_open(connection: Connection) -> bool:
    """Return whether another transaction that has changed jobs is open, and so may have enqueued a job."""
    return bool(run(connection, f"SELECT {_OPEN}").scalar())
