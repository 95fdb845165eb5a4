"""``pause --wait``: wait until no job is running in the scope of the pause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import typer

from cronjobs.clock import sleep
from cronjobs.desk.cli.output import table, width
from cronjobs.desk.cli.progress import Progress, interruptible
from cronjobs.desk.insight.formatting import Times, counted, host_of, safe
from cronjobs.desk.store import workload
from cronjobs.engine.command.printing import complain
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity, is_gone
from cronjobs.engine.store import operating
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import DatabaseError
from cronjobs.model import duration_text, rough

POLL_S: Final = 0.5
SHOWN: Final = 20


@dataclass(frozen=True)
class StillRunning:
    """The work that is still running in the scope of a pause.

    ``more``: whether more jobs are running than ``jobs`` lists. ``claims``: the claims that began before the pause and
    have not been committed.
    """

    jobs: Sequence[Any]
    more: bool
    claims: frozenset[str]
    times: Times

    @property
    def quiet(self) -> bool:
        return not self.jobs and not self.claims

    @property
    def text(self) -> str:
        if not self.jobs:
            return "a claim made before the pause is still being committed"
        count = f"more than {SHOWN} jobs" if self.more else counted(len(self.jobs), "job")
        longest = self.jobs[0].started_at
        return f"{count} still running" + (f", the longest {self.times.lasting(longest)}" if longest else "")


def wait_until_quiet(database: Database, timezone: str, queue: str | None, span: timedelta, undo: str) -> None:
    """Wait until no job of *queue* (of any queue, if *queue* is None) is leased.

    If that takes longer than *span*, or if the user presses Ctrl-C, print a message and raise typer.Exit. If the
    database is still failing at the end of *span*, raise DatabaseError. The pause is already committed. *undo* is the
    command that ends the pause.
    """
    began = database.clock.monotonic()
    claims: frozenset[str] | None = None
    with interruptible() as interrupted, Progress() as progress:
        while True:
            still: StillRunning | None = None
            trouble: DatabaseError | None = None
            try:
                still = _look(database, timezone, queue, claims)
                claims = still.claims
            except DatabaseError as error:  # the database may be restarting while jobs go on, so keep waiting
                trouble = error
            waited = timedelta(seconds=database.clock.monotonic() - began)
            if interrupted() or (still and still.quiet) or waited >= span:
                break
            progress.say(f"waiting, {rough(waited)} of {duration_text(span)}: {still.text if still else trouble}")
            sleep(min(POLL_S, (span - waited).total_seconds()))
    if still is not None and still.quiet:
        complain(f"quiet after {rough(waited)}: nothing is running")
        return
    in_effect = f'the pause is still in effect, and "{undo}" ends the pause'
    if interrupted():
        complain(f"stopped waiting; {in_effect}")
        raise typer.Exit(130)
    if trouble is not None:
        raise trouble
    assert still is not None
    complain(f"not quiet after {rough(waited)}: {still.text}; {in_effect}")
    for line in _table(still):
        complain(line)
    raise typer.Exit(1)


def _look(database: Database, timezone: str, queue: str | None, before: frozenset[str] | None) -> StillRunning:
    # Read the claims first. If a claim commits between the two reads, its jobs are among the running jobs.
    with database.read() as connection:
        flying = operating.claims_in_flight(connection)
    with database.read() as connection:
        times = Times(database_now(connection), timezone)
        # Leave out exec's runs, since a pause does not stop the lines that cron runs.
        rows = workload.running_jobs(connection, SHOWN + 1, queue, with_exec=False)
    # Claims that began after the first check have seen the pause, so they do not count.
    return StillRunning(rows[:SHOWN], len(rows) > SHOWN, flying if before is None else flying & before, times)


def _table(still: StillRunning) -> list[str]:
    here = Identity.here()
    rows = [
        [
            str(job.id),
            safe(job.job_type),
            host_of(job.locked_by),
            still.times.since(job.started_at) if job.started_at else "",
            _note(job, here, still.times),
        ]
        for job in still.jobs
    ]
    lines = table(rows, [">id", "type", "host", ">for", "note"], room=width(), at_most={1: 40})
    return [*lines, "… and more: cronjobs jobs list --status running"] if still.more else lines


def _note(job: Any, here: Identity, times: Times) -> str:
    if is_gone(job.locked_by, here):
        return f"the runner is gone: cronjobs jobs release {job.id}"
    if job.locked_until < times.now:
        return f"the lease ended {rough(job.locked_until - times.now)} ago: the next tick should record its outcome"
    return "asked to stop" if job.cancel_requested_at else ""
