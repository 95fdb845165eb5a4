"""Find job types in trouble: their runs are too long for the lease, they crash, or payloads do not fit them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.desk.store.workload import typical_runs
from cronjobs.engine.config.settings import RunSettings
from cronjobs.engine.store.crashing_types import crashing
from cronjobs.engine.store.misfits import waiting_misfits

RUNS_ASKED: Final = 1000  # how many of the last runs to read
RUNS_TO_TELL: Final = 5  # fewer runs do not show a typical duration
RUNS_IN_A_LEASE: Final = 5  # a lease should outlast this many typical runs


def troubled_types(connection: Connection, run: RunSettings) -> dict[str, Any]:
    """Return ``slow``, ``crashing`` and ``misfits`` for ``Health``."""
    return {
        "slow": too_long(run, typical_runs(connection, RUNS_ASKED, RUNS_TO_TELL)),
        "crashing": crashing(connection),
        "misfits": waiting_misfits(connection),
    }


def too_long(run: RunSettings, typical: dict[str, timedelta]) -> dict[str, timedelta]:
    return {
        job_type: took
        for job_type, took in typical.items()
        # Long jobs are left out: each has a process of its own, which renews its lease.
        if run.lease < RUNS_IN_A_LEASE * took <= RUNS_IN_A_LEASE * run.budget
    }
