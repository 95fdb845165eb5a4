"""Count the waiting and running runs of schedules, for ``swap`` and ``restore``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Final

from cronjobs.desk.cli.project_database import tables_if_any
from cronjobs.desk.insight.finding import typed
from cronjobs.desk.insight.formatting import counted
from cronjobs.desk.store import listing
from cronjobs.engine.config.settings import Settings
from cronjobs.model import Status
from cronjobs.text import one_line

SHOWN: Final = 5  # name at most this many schedules


@dataclass(frozen=True)
class UnfinishedRuns:
    """How many runs of each schedule wait (for their first try or for a retry), and how many are running."""

    waiting: Mapping[str, int] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)

    @property
    def sentence_waiting(self) -> str:
        """For example: "5 runs wait (backup, tidy)"."""
        return _sentence(self.waiting, "waits", "wait")

    @property
    def sentence_running(self) -> str:
        return _sentence(self.running, "is still at work", "are still at work")

    def cancel(self, file: Path) -> str:
        """Return the commands that cancel the waiting runs. Each command counts the runs, and asks the user first."""
        begin = f"cronjobs jobs cancel --config {quote(one_line(str(file), 300))}"
        return "; ".join(
            typed(f"{begin}{' --status queued' if name in self.running else ''} --schedule", name)
            for name in list(self.waiting)[:SHOWN]
        )


def unfinished_runs(settings: Settings, schedules: Collection[str]) -> UnfinishedRuns:
    """Count the unfinished runs of *schedules*. Raises CronjobsError if the database cannot be read."""
    waiting: dict[str, int] = {}
    running: dict[str, int] = {}
    with tables_if_any(settings) as connection:
        for row in listing.unfinished_of(connection, schedules) if connection else ():
            found = running if row.status == Status.RUNNING else waiting
            found[row.schedule] = found.get(row.schedule, 0) + row.jobs
    return UnfinishedRuns(waiting, running)


def _sentence(runs: Mapping[str, int], one: str, several: str) -> str:
    count = sum(runs.values())
    names = [one_line(name, 60) for name in list(runs)[:SHOWN]]
    more = [f"{len(runs) - SHOWN} more"] if len(runs) > SHOWN else []
    return f"{counted(count, 'run')} {one if count == 1 else several} ({', '.join(names + more)})" if runs else ""
