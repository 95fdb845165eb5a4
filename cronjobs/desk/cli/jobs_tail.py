"""``cronjobs jobs tail``: print an attempt's output so far, and follow it until it ends."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from cronjobs import masking
from cronjobs.clock import sleep
from cronjobs.desk.cli.options import Source
from cronjobs.desk.cli.output import progress_text
from cronjobs.desk.cli.progress import Progress, interruptible
from cronjobs.desk.cli.project_database import jobs_database
from cronjobs.desk.insight.formatting import Times, counted, host_of
from cronjobs.desk.insight.missing_job import missing_job
from cronjobs.desk.insight.tailing import Tail, TailPart
from cronjobs.desk.store import tailing
from cronjobs.engine.command.printing import coloured, complain
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.rules.progress import reported_of, time_left
from cronjobs.errors import CronjobsError, DatabaseError
from cronjobs.model import FINAL, Status, rough
from cronjobs.reserved import EXEC_PREFIX
from cronjobs.text import visible

# More frequent reads would show nothing new, since a runner stores output only when it renews its lease.
POLL_S: Final = 1.0
# After these outcomes of an attempt, the job runs again. None means that the job was released.
GOES_ON: Final = (None, "snoozed", "interrupted")


def tail(
    source: Source,
    job_id: Annotated[int, typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="The job's id.")],
    follow: Annotated[
        bool,
        typer.Option(
            "-f",
            "--follow",
            help="Follow the output until the job ends or an attempt fails, and wait for a job that has not begun.",
        ),
    ] = False,
) -> None:
    """Print the output of a job's attempt so far; with -f, follow it until it ends.

    For a running attempt the command prints the last 4 KiB of output. For an ended attempt it prints all stored output.
    The runner writes output and progress when it renews the lease, so you see them a few seconds later (up to a quarter
    of run.lease). With -f the command prints each line once. A renewal stores a limited amount of output. If an
    attempt prints more between two renewals, the command prints how much is missing. On a terminal the command shows
    the progress below the output. -f also waits for a job that has not begun. Ctrl-C stops following and leaves the job
    alone.

    Exit codes: 0 the job succeeded (without -f also: it is running or waiting), 1 it failed or was cancelled, 4
    database, 130 Ctrl-C.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    with (
        jobs_database(source, only_database=True) as (settings, database),
        interruptible() as interrupted,
        Progress() as below,
    ):
        watch = _Follower(database, job_id, settings, below)
        code = watch.look(follow)
        while code is None and not interrupted():
            sleep(POLL_S)
            code = watch.look(follow)
    raise typer.Exit(130 if code is None else code)


@dataclass
class _Follower:
    """Follows one job, attempt by attempt.

    ``attempt``: the number of the attempt whose output is being printed, or None if no attempt has begun.
    """

    database: Database
    job_id: int
    settings: Settings
    below: Progress
    attempt: int | None = None
    last_line: str = ""  # the last line printed on stderr
    in_line: bool = False  # whether the last printed line is incomplete

    def look(self, follow: bool) -> int | None:
        """Print new output. Return the exit code, or None if the caller should look again."""
        try:
            return self._look(follow)
        except DatabaseError as error:
            if self.attempt is None and not self.last_line:
                raise
            self._say(f"the database cannot be reached, retrying: {error}")  # the job may still run, so keep trying
            return None

    def _look(self, follow: bool) -> int | None:
        with self.database.read() as connection:
            job = tailing.job_row(connection, self.job_id)
            if job is None:
                raise CronjobsError(missing_job(connection, self.job_id, self.settings.retention))
            runs = job.status == Status.RUNNING
            if self.attempt is None and runs:
                self._begin(job.attempts)
            if runs and job.attempts == self.attempt:
                self._show_live(job)
                return None if follow else 0
            waits = self.attempt is None and follow and job.status not in FINAL
            ended = None if waits else tailing.ended_attempt(connection, self.job_id, self.attempt)
        if waits:
            self._say(_waiting(self.job_id, job, Times(job.now, self.settings.timezone)))
            return None
        return self._show_end(job, ended, follow)

    def _begin(self, attempt: int) -> None:
        self.attempt, self.tail = attempt, Tail()

    def _show_live(self, job: Any) -> None:
        reported = reported_of(job.progress)
        if job.locked_until < job.now:
            late = rough(job.now - job.locked_until)
            host = host_of(job.locked_by)
            self._say(f"the job's lease on {host} ended {late} ago: the next tick should record its outcome")
        if reported is None:
            if job.job_type.startswith(EXEC_PREFIX):
                self._say(f"job {self.job_id} is a run of cronjobs exec, which records output when the command ends")
            return
        self._print([self.tail.live(str(job.live_output or ""), reported.output_end)])
        if not self.in_line and (said := progress_text(reported.progress)):
            left = time_left(reported, job.started_at, job.now) if job.started_at else None
            self.below.say(said + (f", {rough(left)} left" if left is not None else ""))

    def _show_end(self, job: Any, ended: Any, follow: bool) -> int | None:
        """Print the rest of an ended attempt's output, and what happens to the job next."""
        outcome = None if ended is None else ended.outcome
        if ended is not None:
            if self.attempt is None:
                self._begin(ended.attempt)
            self._print(self.tail.stored(str(ended.output or "")))
        if self.in_line:
            self._write("\n")
        times = Times(job.now, self.settings.timezone)
        self._say(_became(self.job_id, job, ended, times))
        match job.status:
            case Status.SUCCEEDED:
                return 0
            case Status.QUEUED | Status.RUNNING if job.status == Status.QUEUED or outcome in GOES_ON:
                self.attempt = None
                return None if follow else 0
        return 1

    # --- printing -----------------------------------------------------------------------------------------------------

    def _print(self, parts: list[TailPart]) -> None:
        for left_out, text in parts:
            if left_out:
                gap = coloured(f"… {_size(left_out)} left out", "bright_black")
                self._write(("\n" if self.in_line else "") + gap + "\n")
            if text:
                self._write(visible(masking.hide(text.replace("\r\n", "\n"))))

    def _write(self, text: str) -> None:
        self.below.say("")
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise CronjobsError(f"stdout cannot be written: {error.strerror}") from None
        self.in_line = not text.endswith("\n")

    def _say(self, text: str) -> None:
        if text != self.last_line:
            self.last_line = text
            self.below.say("")
            complain(text)


def _size(count: int) -> str:
    return f"{count / 1024:.0f} KiB" if count >= 1024 else counted(count, "byte")


def _became(job_id: int, job: Any, ended: Any, times: Times) -> str:
    """Return text such as "attempt 2 failed; job 17 will be tried again in 4m (14:03:07)"."""
    attempt = (
        "no attempt has ended" if ended is None else f"attempt {ended.attempt} {_WORDS.get(ended.outcome, 'ended')}"
    )
    match job.status:
        case Status.QUEUED:
            return f"{attempt}; {_waiting(job_id, job, times)}"
        case Status.FAILED:
            return f"{attempt}; job {job_id} will be tried again {times.both(job.run_at)}"
        case Status.RUNNING:
            return f"{attempt}; job {job_id} runs again"
    return f"{attempt}; job {job_id} {'' if job.status == Status.SUCCEEDED else 'is '}{job.status}"


def _waiting(job_id: int, job: Any, times: Times) -> str:
    due = f"due {times.both(job.run_at)}" if job.run_at > times.now else f"and {times.was_due(job.run_at)}"
    return f"job {job_id} waits, {due}"


_WORDS: Final = {
    "timed_out": "timed out",
    "snoozed": "was postponed",
    **{word: f"was {word}" for word in ("lost", "interrupted", "cancelled")},
    **{word: word for word in ("succeeded", "failed")},
}
