"""Read deaths for cron's mail: those that a killed process may not have reported, and those that are still open."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.engine.database.tables import UNSETTLED_DEAD_SQL
from cronjobs.engine.probe.sql_text import JOB_RUNS, JOBS, TICKS, before_now
from cronjobs.engine.rules.misfits import MISFIT
from cronjobs.engine.store.shown_columns import columns_shown
from cronjobs.engine.store.sql import AMONG_IDS, run

# At most this many deaths of one process are reported. "status" shows all of them.
MOST: Final = 1000
# Report no death older than this for a long job's process or a supervisor. Such a process may have worked for days, and
# has already reported its earlier deaths.
NOT_OLDER: Final = timedelta(hours=1)
_BEGAN: Final = f"(SELECT t.started_at FROM {TICKS} t WHERE t.tick = :tick)"


def deaths_of(connection: Connection, runner: str) -> Sequence[Row[Any]]:
    """Return the jobs that *runner* (a ``locked_by``) may have recorded as dead, in the order in which they died.

    These are the jobs of its own attempts. If it is a tick, they are also all lost attempts and misfits since it began,
    because any tick may have recorded those. If a lost attempt has no worker, its own runner did not record it: only
    the supervisor of an executor records attempts of its own as lost.
    """
    return run(
        connection,
        f"""
        SELECT j.id, {columns_shown("job_type", "error_type", "last_error")}
        FROM {JOBS} j JOIN {JOB_RUNS} r ON r.job_id = j.id AND r.attempt = j.attempts
        WHERE j.status = 'dead' AND j.finished_at IS NOT NULL
          AND j.finished_at >= coalesce({_BEGAN}, {before_now(":older_s")})
          AND (r.runner = :runner AND (r.outcome <> 'lost' OR r.worker IS NOT NULL)
               OR {_BEGAN} IS NOT NULL AND (r.outcome = 'lost' OR j.error_type = :misfit))
        ORDER BY j.finished_at LIMIT :most""",
        tick=runner.rpartition(":")[2],
        runner=runner,
        older_s=NOT_OLDER.total_seconds(),
        misfit=MISFIT,
        most=MOST,
    ).all()


def still_dead(connection: Connection, ids: Collection[int]) -> set[int]:
    """Return which of these jobs are dead and have been neither retried nor dismissed."""
    query = f"SELECT id FROM {JOBS} WHERE id {AMONG_IDS} AND {UNSETTLED_DEAD_SQL}"
    return set(run(connection, query, ids=[*ids]).scalars())
