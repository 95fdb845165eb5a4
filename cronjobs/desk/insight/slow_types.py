"""Find job types whose runs are too long for the lease."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk.store.workload import typical_runs
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobTypes

RUNS_ASKED: Final = 1000  # how many of the last runs to read
RUNS_TO_TELL: Final = 5  # state a typical duration only after this many runs
RUNS_IN_A_LEASE: Final = 5  # a lease should outlast this many typical runs


def slow_types(connection: Connection, settings: Settings, types: JobTypes) -> dict[str, timedelta]:
    """Find job types whose runs are typically too long for the lease. Map each to its typical duration."""
    lease, budget = settings.run.lease, settings.run.budget
    return {
        name: took
        for name, took in typical_runs(connection, RUNS_ASKED, RUNS_TO_TELL).items()
        # Runs longer than the budget must be long jobs, even if their type is not known here. So leave them out.
        if lease < RUNS_IN_A_LEASE * took <= RUNS_IN_A_LEASE * budget and not _is_long(name, settings, types)
    }


def _is_long(name: str, settings: Settings, types: JobTypes) -> bool:
    """Return whether jobs of this type are long jobs: each has a process of its own that renews its lease."""
    longest, written = settings.run.longest_in_tick, settings.job_types.get(name)
    if (known := types.types.get(name)) is not None:
        return known.is_long(longest)
    return written is not None and written.timeout is not None and written.timeout > longest
