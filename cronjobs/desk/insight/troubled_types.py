"""Find job types whose runs are too long for the lease, whose handlers crash, or whose waiting payloads do not fit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.desk.store.workload import typical_runs
from cronjobs.engine.config.settings import RunSettings, Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.crashing_types import crashing
from cronjobs.engine.store.misfits import waiting_misfits

RUNS_ASKED: Final = 1000  # how many of the last runs to read
RUNS_TO_TELL: Final = 5  # state a typical duration only after this many runs
RUNS_IN_A_LEASE: Final = 5  # a lease should outlast this many typical runs


def troubled_types(connection: Connection, settings: Settings, types: JobTypes) -> dict[str, Any]:
    """Return ``slow``, ``crashing`` and ``misfits`` for ``Health``."""
    typical = typical_runs(connection, RUNS_ASKED, RUNS_TO_TELL)
    in_ticks = {name: took for name, took in typical.items() if not _is_long(name, settings, types)}
    return {
        "slow": too_long(settings.run, in_ticks),
        "crashing": crashing(connection),
        "misfits": waiting_misfits(connection),
    }


def _is_long(name: str, settings: Settings, types: JobTypes) -> bool:
    """Return whether jobs of this type are long jobs: each has a process of its own that renews its lease."""
    longest, written = settings.run.longest_in_tick, settings.job_types.get(name)
    if (known := types.types.get(name)) is not None:
        return known.is_long(longest)
    return written is not None and written.timeout is not None and written.timeout > longest


def too_long(run: RunSettings, typical: dict[str, timedelta]) -> dict[str, timedelta]:
    return {
        job_type: took
        for job_type, took in typical.items()
        # Leave out longer runs: they can only be long jobs, even if their type is not known here.
        if run.lease < RUNS_IN_A_LEASE * took <= RUNS_IN_A_LEASE * run.budget
    }
