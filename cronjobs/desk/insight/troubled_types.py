"""Find job types whose runs are too long for the lease, whose handlers crash, or whose waiting payloads do not fit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.desk.store.workload import typical_runs
from cronjobs.engine.config.settings import RunSettings
from cronjobs.engine.store.crashing_types import crashing
from cronjobs.engine.store.misfits import waiting_misfits

RUNS_ASKED: Final = 1000  # how many of the last runs to read
RUNS_TO_TELL: Final = 5  # state a typical duration only after this many runs
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
        # Leave out long jobs, since each has a process of its own that renews its lease.
        if run.lease < RUNS_IN_A_LEASE * took <= RUNS_IN_A_LEASE * run.budget
    }
