"""Job types with runs too long for the lease, crashes, payloads that do not fit, or lost attempts nobody can settle."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.engine.config.settings import RunSettings
from cronjobs.engine.store.crashing_types import crashing
from cronjobs.engine.store.listing import typical_runs
from cronjobs.engine.store.misfits import waiting_misfits

RUNS_ASKED: Final = 1000
RUNS_TO_TELL: Final = 5  # one or two runs are not what is typical of a type
RUNS_IN_A_LEASE: Final = 5  # of typical length; a long job's process exists for one run, and renews for as long


def troubled_types(connection: Connection, run: RunSettings) -> dict[str, Any]:
    """``slow``, ``crashing`` and ``misfits`` of ``Health``."""
    return {
        "slow": too_long(run, typical_runs(connection, RUNS_ASKED, RUNS_TO_TELL)),
        "crashing": crashing(connection),
        "misfits": waiting_misfits(connection),
    }


def too_long(run: RunSettings, typical: dict[str, timedelta]) -> dict[str, timedelta]:
    return {
        job_type: took
        for job_type, took in typical.items()
        if run.lease < RUNS_IN_A_LEASE * took <= RUNS_IN_A_LEASE * run.budget
    }
