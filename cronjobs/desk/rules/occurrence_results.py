"""Judge whether a schedule had its runs, row by row, from its ledger rows and their jobs. The rules are pure functions.

``status`` reports that all is well only if every active schedule had its runs. The rules judge only occurrences that
are older than the grace and newer than the last successful run. An occurrence that a pause holds back has no ledger row
and is not judged. Each of the other occurrences must meet one of three conditions. First: its job is running within the
timeout, or is waiting for a retry after an attempt that failed after the occurrence was due. Second: the occurrence
gave way to such a job, or was coalesced into such a job. Third: a person has dealt with it. A run does not count if a
wrong clock made it before its occurrence was due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from cronjobs.engine.rules.occurrences import CRON_RAN, ran_early

# The grace of a schedule without ``grace:``. It only decides which occurrences are ``UnrunOccurrences``.
DEFAULT_GRACE: Final = timedelta(hours=1)
# A runner that still renews the lease may take this long after the timeout to stop the attempt.
OVERRUN: Final = timedelta(minutes=5)

# Other findings report these reasons, and those findings end by rules of their own.
SAID_ELSEWHERE: Final = ("missed", "dead")

Why = Literal["missed", "full", "dead", "put off", "waits", "overdue", "lease ran out", "overruns"]


@dataclass(frozen=True)
class JobNow:
    """A job as its row now shows it.

    ``limit`` is how long its attempt may take, or None if that is unknown. In that case only the job's lease counts.
    """

    id: int
    status: str
    job_type: str
    queue: str
    run_at: datetime
    scheduled_for: datetime | None = None
    failures: int = 0  # how many attempts failed, including those before someone retried the job
    losses: int = 0  # how many attempts were lost, counted in the same way
    dismissed: bool = False
    started_at: datetime | None = None
    locked_until: datetime | None = None
    limit: timedelta | None = None
    attempts: int = 0
    finished_at: datetime | None = None
    locked_by: str | None = None
    last_failed_at: datetime | None = None

    @property
    def waiting(self) -> bool:
        return self.status in ("queued", "failed")


@dataclass(frozen=True)
class OccurrenceResult:
    """A ledger row for ``count`` occurrences. ``job`` is None if the row has no job, or if the job was pruned."""

    schedule_id: int
    first_for: datetime
    last_for: datetime
    outcome: str
    reason: str | None
    decided_at: datetime
    job_id: int | None
    job: JobNow | None = None
    count: int = 1

    @property
    def status(self) -> str | None:
        return None if self.job is None else self.job.status

    @property
    def failures(self) -> int:
        return 0 if self.job is None else self.job.failures

    @property
    def losses(self) -> int:
        return 0 if self.job is None else self.job.losses

    @property
    def dismissed(self) -> bool:
        return self.job is not None and self.job.dismissed

    @property
    def succeeded(self) -> bool:
        """Whether the occurrence ran and succeeded, or ended so long ago that its job was pruned."""
        return self.outcome in ("enqueued", "coalesced") and self.status in ("succeeded", None)

    @property
    def ran_early(self) -> bool:
        """Whether a wrong clock ran the occurrence early and successfully, so that nothing ran when it was due."""
        attempts, began_at = (None, None) if self.job is None else (self.job.attempts, self.job.started_at)
        return self.succeeded and ran_early(self.reason, self.first_for, attempts, began_at)

    @property
    def went_well(self) -> bool:
        return self.succeeded and not self.ran_early


@dataclass(frozen=True)
class ByHand:
    """A run that the person ``by`` triggered at the instant ``at``. ``job`` is None if the job was pruned."""

    at: datetime
    by: str | None
    job_id: int
    job: JobNow | None

    @property
    def unfinished(self) -> bool:
        return self.job is not None and (self.job.waiting or self.job.status == "running")


@dataclass(frozen=True)
class UnrunOccurrences:
    """Occurrences of a schedule since ``since`` that did not run, all of them for the reason ``why``."""

    since: datetime
    why: Why
    job: JobNow | None = None


@dataclass(frozen=True)
class JudgedRuns:
    """The judgement on ledger rows: an entry of ``not_run`` for each reason and job, the newest first.

    ``not_run`` is empty if every row had its run. ``ended`` says that a run succeeded, so that older rows do not
    matter.
    """

    not_run: tuple[UnrunOccurrences, ...]
    ended: bool

    @property
    def certain(self) -> bool:
        """Whether some entry is not about a waiting job. If a job waits, another finding may give the reason."""
        return any(each.job is None or not each.job.waiting for each in self.not_run)


def standing(
    rows: Sequence[OccurrenceResult],
    head: JobNow | None,
    now: datetime,
    grace: timedelta,
    covered_until: datetime | None = None,
) -> JudgedRuns:
    """Judge the ledger *rows* of one schedule. The rows are ordered, newest first, and are older than *now*.

    *head* is the schedule's unfinished job that its other jobs wait for, or None if they do not wait for each other
    (overlap: allow). *grace* counts from the occurrence. A run by hand makes up for all occurrences up to
    *covered_until*. None means that there was no such run.
    """
    found: dict[tuple[Why, int | None], UnrunOccurrences] = {}
    ended = False
    for row in rows:
        if row.went_well or (covered_until is not None and row.last_for <= covered_until):
            ended = True
            break
        if row.first_for + grace > now:
            continue
        why, job = _why(row, head, now, grace)
        if why is not None:
            begun = [row.first_for, *([job.scheduled_for] if job is not None and job.scheduled_for is not None else [])]
            key = (why, None if job is None else job.id)
            newer = [found[key].since] if key in found else []
            found[key] = UnrunOccurrences(min([*begun, *newer]), why, job)
    return JudgedRuns(tuple(found.values()), ended)


def _why(
    row: OccurrenceResult, head: JobNow | None, now: datetime, grace: timedelta
) -> tuple[Why, JobNow | None] | tuple[None, None]:
    """Return why the occurrences of *row* did not run, and the job that shows it. If all is well, both are None."""
    if row.outcome == "missed" or row.ran_early:
        return "missed", None
    if row.outcome == "skipped" and row.job_id is None:
        # A person decided that the pause skips occurrences, or left them to cron.
        reason = row.reason or ""
        return (None, None) if reason.startswith("paused") or reason == CRON_RAN else ("full", None)
    if row.job is None:
        return None, None
    job = waited_for(row.job, head)
    why = why_not_run(job, row.first_for, now, grace)
    return (None, None) if why is None else (why, job)


def waited_for(job: JobNow, head: JobNow | None) -> JobNow:
    """Return the job that decides about *job*: *head*, if *job* waits for the head of its schedule, else *job*."""
    return job if head is None or job.status != "queued" else head


def covered_by(triggered: Sequence[ByHand], now: datetime, grace: timedelta) -> datetime | None:
    """Return the instant up to which a run by hand makes up for occurrences, or None if no such run does.

    A triggered run makes up for them only if its job has succeeded, is running, or waits for a retry.
    """
    return max((each.at for each in triggered if _stands(each, now, grace)), default=None)


def _stands(run: ByHand, now: datetime, grace: timedelta) -> bool:
    """Return whether the run's job succeeded (or was pruned), runs within its time, or waits for a retry."""
    job = run.job
    if job is None or job.status == "succeeded":
        return True
    return job.status in ("running", "failed") and why_not_run(job, run.at, now, grace) is None


def why_not_run(job: JobNow, due: datetime, now: datetime, grace: timedelta) -> Why | None:
    """Return why *job* has not run the occurrence *due*, which was due a *grace* or more ago.

    Return None if it ran the occurrence, or may still run it in time.
    """
    match job.status:
        case "running":
            return _why_no_longer_run(job, now)
        case "failed" if job.run_at > now:
            # The retry policy waits until the next occurrence at most. So if *due* came after the last attempt, the
            # handler, a person or a wrong clock chose this wait.
            return None if job.last_failed_at is not None and due <= job.last_failed_at <= now else "put off"
        case "failed":
            return None if job.run_at + grace > now else "overdue"
        case "queued":
            return "put off" if job.run_at > now else "waits"
        case "dead":
            return None if job.dismissed else "dead"
    return None  # it succeeded, or a person cancelled it


def _why_no_longer_run(job: JobNow, now: datetime) -> Why | None:
    """Return why a running job no longer counts as a run, or None if it is within its lease and its timeout."""
    if job.locked_until is None or job.locked_until <= now:
        return "lease ran out"
    limit_s = None if job.limit is None else job.limit.total_seconds()
    return "overruns" if overrun_since(job.started_at, limit_s, now) is not None else None


def overrun_since(started_at: datetime | None, limit_s: float | None, now: datetime) -> datetime | None:
    """Return when an attempt's runner should have stopped it, or None if that is unknown or less than OVERRUN ago.

    A live runner stops an attempt at its time limit, *limit_s*. A runner that did not stop it is dead or hangs.
    """
    if started_at is None or limit_s is None or (now - started_at - OVERRUN).total_seconds() < limit_s:
        return None
    return started_at + timedelta(seconds=limit_s)


def failed_runs(rows: Sequence[OccurrenceResult], most: int) -> list[OccurrenceResult]:
    """Return the rows of failed runs since the last success, newest first. Return [] for fewer than *most* failures.

    Each try of a job counts as a run, even if it was lost.
    """
    found, failed = [], 0
    for row in rows:
        if row.outcome != "enqueued":
            continue
        if row.succeeded or row.dismissed or row.status == "cancelled":
            break
        tries = row.failures + row.losses
        # A job can be dead without a try, for example if its payload is unreadable.
        if not tries and row.status != "dead":
            continue  # the job waits or runs, so its result is not known yet
        failed += tries or 1
        found.append(row)
    return found if failed >= most else []
