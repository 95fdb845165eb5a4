"""Finds jobs that the tests did not create.

``drain`` refuses to run such jobs, because their handlers would do real work.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Connection

from cronjobs.clock import SYSTEM
from cronjobs.engine.probe.idle_conditions import WAITING
from cronjobs.engine.probe.kernel_facts import process_age
from cronjobs.engine.probe.sql_text import JOBS, NOW, either
from cronjobs.engine.store.sql import AMONG_KNOWN, is_postgresql, run
from cronjobs.errors import UsageError
from cronjobs.text import one_line

NAMED: Final = 3
MOST: Final = 1000
_LOADED_AT: Final = SYSTEM.monotonic()

# The instant when this process began, in SQL. It is measured by the real clock, because a test may have stopped the
# clock that we use otherwise.
_PROCESS_BEGAN: Final = either(
    postgresql="statement_timestamp() - make_interval(secs => :age_s)",
    sqlite="(CAST(strftime('%s', 'now') AS integer) - :age_s) * 1000000",
)

_OLDER: Final = f"""
  SELECT j.id, j.job_type FROM {JOBS} j WHERE j.{WAITING} AND j.run_at <= {NOW} AND j.created_at < {_PROCESS_BEGAN}
  AND (j.job_type {AMONG_KNOWN}) AND (CAST(:queue AS text) IS NULL OR j.queue = CAST(:queue AS text))"""

# True if the row was committed. For rows of our own transaction and its savepoints, pg_xact_status() returns "in
# progress". It returns NULL if the server no longer remembers the transaction. xmin has only 32 bits, so the xmin of a
# row that was frozen long ago may seem to be in the future.
_COMMITTED: Final = """
  AND (SELECT CASE WHEN x.whole < 3 OR x.whole > x.now + 1000000000 THEN true
              ELSE coalesce(pg_xact_status(CAST(CAST(x.whole AS text) AS xid8)), '') <> 'in progress' END
       FROM (SELECT n.now, n.now + mod(mod(CAST(CAST(j.xmin AS text) AS bigint) - n.now, 4294967296)
                                       + 6442450944, 4294967296) - 2147483648 AS whole
             FROM (SELECT CAST(CAST(pg_current_xact_id() AS text) AS bigint) AS now) n) x)"""


def refuse_jobs_from_outside(connection: Connection, known: Collection[str], queue: str | None) -> None:
    """Raise UsageError if ``drain`` would run jobs that were committed before this process began.

    If only the tests use the database, it has no such jobs. Jobs that the tests or their app commit later belong to the
    tests.
    """
    age_s = max(process_age(), SYSTEM.monotonic() - _LOADED_AT)
    order = " ORDER BY j.id LIMIT :most"
    given: dict[str, Any] = {"known": sorted(known), "queue": queue, "age_s": age_s, "most": MOST}
    if is_postgresql(connection):
        found = run(connection, _OLDER + _COMMITTED + order, **given).all()
        where = run(connection, "SELECT current_database() AS name").scalar_one()
    else:
        where = next((row.file for row in run(connection, "PRAGMA database_list") if row.name == "main"), "")
        if not where:
            return  # an in-memory database has only our own jobs
        found = run(connection, _OLDER + order, **given).all()
        committed = _committed(where, [row.id for row in found])
        found = [row for row in found if row.id in committed]
    if found:
        raise UsageError(_refusal(where, [(row.id, row.job_type) for row in found]))


def _committed(file: str, ids: Iterable[int]) -> set[int]:
    """Return the *ids* that another connection can see, or all *ids* if no other connection can be opened."""
    wanted = set(ids)
    if not wanted:
        return wanted
    try:
        with closing(sqlite3.connect(f"file:{quote(str(Path(file)))}?mode=ro", uri=True, timeout=1)) as other:
            if not other.execute("SELECT 1 FROM sqlite_master WHERE name = 'cronjobs_jobs'").fetchall():
                # No other connection sees the tables, so they and the jobs are in the test's own open transaction.
                return set()
            rows = other.execute(
                "SELECT id FROM cronjobs_jobs WHERE id IN (SELECT value FROM json_each(?))",
                [json.dumps(sorted(wanted))],
            )
            return {int(id_) for (id_,) in rows}
    except sqlite3.Error:
        return wanted


def _refusal(where: str, jobs: list[tuple[int, str]]) -> str:
    named = ", ".join(f"{id_} ({one_line(job_type, 100)})" for id_, job_type in jobs[:NAMED])
    count = f"{len(jobs):,}" + (" or more" if len(jobs) >= MOST else "")
    more = f" and {len(jobs) - NAMED:,} more" if len(jobs) > NAMED else ""
    job = "a due job that was" if len(jobs) == 1 else f"{count} due jobs that were"
    return (
        f"drain() would run {job} in the database {where} before the tests began: {named}{more}. Nothing has run. Let "
        "the tests use their own database, or pass outside=True to drain() if they should run these jobs"
    )
