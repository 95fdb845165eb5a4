"""Explain runs of ``cronjobs exec``: one run, a run that never started, or all runs in a span."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk.insight.explain_facts import Explanation, JobLife
from cronjobs.desk.insight.explain_job import brief_job, explain_job
from cronjobs.desk.insight.explain_phrases import name
from cronjobs.desk.insight.formatting import LocalTimes
from cronjobs.desk.insight.job_evidence import job_life
from cronjobs.desk.insight.schedule_history import is_due
from cronjobs.desk.store import exec_runs
from cronjobs.desk.store.exec_runs import EXPECTED_FROM, LatestRun
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.crontime.timing import Timing, next_after, timing
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.schedules.planning import occurrences
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import CronjobsError
from cronjobs.reserved import EXEC_PREFIX
from cronjobs.text import one_line

# A run counts as absent if it is not recorded this long after it was due. Cron starts a run within its minute. If exec
# had to spool a run, the run counts as absent until the next run records it.
LATE: Final = timedelta(minutes=5)
_EARLY: Final = timedelta(minutes=1)  # tolerate this difference between the host's and the database's clock


def next_due(run: LatestRun) -> datetime | None:
    """Return when the run after this one was or is due, or None if unknown."""
    when = _timing(run)
    return None if when is None else next_after(when, _watched_from(run))


def _watched_from(run: LatestRun) -> datetime:
    """Return the instant after which the next run is expected: when this run began, or when its line came back."""
    try:
        came_back = datetime.fromisoformat(run.meta[EXPECTED_FROM]).astimezone(UTC)
    except (KeyError, ValueError, OverflowError):  # anyone may have written the row
        return run.started_at
    return max(run.started_at, came_back)


def _timing(run: LatestRun) -> Timing | None:
    cron = run.meta.get("cron")
    if not cron:
        return None
    try:
        when = timing(cron, None, run.meta.get("timezone", "UTC"))
        next_after(when, run.started_at)
    except (CronjobsError, ValueError, KeyError, OSError):
        # Anyone may have written the row, so its ``meta`` may be invalid.
        return None
    return when


class ExecEvidence:
    """The runs that exec has recorded under one name."""

    def __init__(
        self,
        connection: Connection,
        run_name: str,
        newest: LatestRun,
        settings: Settings,
        types: Callable[[], JobTypes],
    ) -> None:
        self.connection, self.name, self.newest = connection, run_name, newest
        self.settings, self.types = settings, types
        self.now = database_now(connection)
        self.timezone = newest.meta.get("timezone", "UTC") if _timing(newest) else settings.timezone

    def latest(self) -> Explanation:
        """Explain the newest run.

        If another run has come due since but did not start, describe the absent run first.
        """
        explanation, due = explain_job(self._life(self.newest)), next_due(self.newest)
        if due is None or due + LATE >= self.now:
            return explanation
        said = self._absent(self.newest, due, self.now)
        return replace(explanation, at=due, verdict="absent", sentences=(*said, *explanation.sentences))

    def at(self, at: datetime) -> Explanation:
        """Explain the run that began at about *at*, or its absence."""
        begun = self._between(at - _EARLY, at + LATE, 20)
        if begun:
            return explain_job(self._life(min(begun, key=lambda run: abs(run.started_at - at))))
        before = self._between(None, at, 1)
        by = before[0] if before else self.newest
        when = _timing(by)
        if when is not None and is_due(when, at):
            verdict, sentences = "absent", self._absent(by, at, at + LATE)
            if at + LATE > self.now:
                verdict, sentences = (
                    "pending",
                    [f"{name(self.name)} is due at {self._times(at).with_utc(at)}{_by(by)}."],
                )
        else:
            verdict = "not_due" if when is not None else "unknown"
            was = (
                f"; no run was due then{_by(by)}"
                if when is not None
                else "; nobody knows whether a run was due, because no cron expression is recorded"
            )
            said = f'"cronjobs exec" recorded no run of {name(self.name)} at {self._times(at).with_utc(at)}{was}.'
            sentences = [said]
        if before:
            life = self._life(before[0])
            ended = f": {brief_job(life.job)}" if life.job else ""
            began = self._times(at).clock(before[0].started_at)
            sentences.append(f"The previous run began at {began} (job {before[0].id}){ended}.")
        return Explanation(f"exec:{self.name}", at, verdict, tuple(sentences))

    def between(self, begin: datetime, end: datetime, limit: int) -> tuple[list[Explanation], bool]:
        """Explain each run and each absence from *begin* to *end*. Also return whether older runs were left out."""
        runs = self._between(begin, end, limit + 1)
        left_out = len(runs) > limit
        runs = runs[:limit][::-1]
        before = self._between(None, runs[0].started_at if runs else begin, 2)
        earlier = next((run for run in before if not runs or run.id != runs[0].id), None)
        explanations: list[Explanation] = []
        for run, following in zip([earlier, *runs], [*runs, None], strict=True):
            if run is not None and run is not earlier:
                life = self._life(run)
                brief = f"job {run.id}: {brief_job(life.job)}" if life.job else f"job {run.id}"
                explanations.append(replace(explain_job(life), at=run.started_at, brief=brief, facts={"count": 1}))
            if run is not None:
                until = (following.started_at - _EARLY) if following else min(end, self.now - LATE)
                explanations += self._missing(run, max(begin, _watched_from(run)), until)
        return explanations, left_out

    def _missing(self, run: LatestRun, after: datetime, until: datetime) -> list[Explanation]:
        when = _timing(run)
        due = occurrences(when, after, until) if when is not None and until > after else None
        if due is None:
            return []
        said = tuple(self._absent(run, due.last, until))
        facts = {"count": due.count, "first_for": due.first}
        brief = '"cronjobs exec" recorded no run'
        return [Explanation(f"exec:{self.name}", due.last, "absent", said, brief, facts=facts)]

    def _absent(self, run: LatestRun, due: datetime, until: datetime) -> list[str]:
        times = self._times(due)
        since = "since" if until >= self.now else f"until {times.clock(until)}"
        was = f"{name(self.name)} was due at {times.with_utc(due)}{_by(run)}"
        there = "checks whether a cron daemon runs and whether records wait for the database"
        why = "The line is no longer there, cron did not start it, or the run's record has not reached this database"
        return [
            f'{was}, but did not start: "cronjobs exec" recorded no run {since}.',
            f'{why}. On the host with the crontab, see whether the crontab still has the line ("crontab -l").',
            f'"cronjobs doctor" there {there}.',
        ]

    def _between(self, begin: datetime | None, end: datetime, limit: int) -> list[LatestRun]:
        return exec_runs.begun_between(self.connection, self.newest.job_type, begin, end, limit)

    def _life(self, run: LatestRun) -> JobLife:
        life = job_life(self.connection, run.id, self.settings, self.types)
        assert life is not None, "its row was read in this transaction"
        return life

    def _times(self, about: datetime) -> LocalTimes:
        return LocalTimes(about, self.timezone)


def _by(run: LatestRun) -> str:
    """Return text such as " by the crontab of web1 (15 2 * * *)"."""
    by = "the crontab" if run.meta.get("from") == "crontab" else "--cron"
    host = f" of {name(run.meta['host'])}" if run.meta.get("host") else ""
    return f" by {by}{host} ({one_line(run.meta.get('cron', ''), 100)})"


def exec_evidence(
    connection: Connection, named: str, settings: Settings, types: Callable[[], JobTypes]
) -> ExecEvidence | None:
    """Return the evidence for the run name or job type *named*, or None if exec recorded no such run."""
    run_name = named.removeprefix(EXEC_PREFIX)
    begun = exec_runs.begun_between(connection, EXEC_PREFIX + run_name, None, None, 1)
    return ExecEvidence(connection, run_name, begun[0], settings, types) if begun else None
