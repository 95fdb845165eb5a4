"""Read the deaths that a killed tick may have recorded without reporting them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row

from cronjobs.engine.probe.sql_text import JOB_RUNS, JOBS, TICKS
from cronjobs.engine.rules.misfits import MISFIT
from cronjobs.engine.store.shown_columns import columns_shown
from cronjobs.engine.store.sql import run

# At most this many deaths of one tick are reported. "status" shows all of them.
MOST: Final = 1000


def deaths_of(connection: Connection, runner: str) -> Sequence[Row[Any]]:
    """Return the jobs that the tick of *runner* (a ``locked_by``) may have recorded as dead, the first to die first.

    These are its own attempts, and also lost attempts and misfits, which any tick may have recorded since it began.
    """
    return run(
        connection,
        f"""
        SELECT j.id, {columns_shown("job_type", "error_type", "last_error")}
        FROM {JOBS} j JOIN {JOB_RUNS} r ON r.job_id = j.id AND r.attempt = j.attempts
        WHERE j.status = 'dead' AND j.finished_at IS NOT NULL
          AND j.finished_at >= (SELECT t.started_at FROM {TICKS} t WHERE t.tick = :tick)
          AND (r.runner = :runner OR r.outcome = 'lost' OR j.error_type = :misfit)
        ORDER BY j.finished_at LIMIT :most""",
        tick=runner.rpartition(":")[2],
        runner=runner,
        misfit=MISFIT,
        most=MOST,
    ).all()
