"""The rows for ``cronjobs exec`` runs in the schedules table of ``status``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection

from cronjobs.desk.insight.explain_exec import LATE, next_due
from cronjobs.desk.insight.schedule_facts import STRIP, ScheduleFacts
from cronjobs.desk.store import exec_runs
from cronjobs.desk.store.exec_runs import LatestRun
from cronjobs.desk.store.schedule_runs import RunFacts
from cronjobs.model import Status


def rows(
    connection: Connection, now: datetime, limit: int | None, chosen: Callable[[str], bool] = lambda _name: True
) -> tuple[list[ScheduleFacts], int]:
    """Return one row for each name that *chosen* accepts, and the number of such names.

    Return at most *limit* rows, or all rows if *limit* is None. Names with an absent run come first, then names whose
    newest run is dead. The other names follow in the order of their next due time.
    """
    named = (runs for name, runs in exec_runs.run_by_cron(connection).items() if chosen(name))
    latest = sorted(named, key=lambda runs: _worst_first(runs[0], now))
    names = [runs[0].job_type for runs in latest[:limit]]
    lately = (exec_runs.begun_between(connection, name, None, None, STRIP) for name in names)
    return [_facts(runs) for runs in lately if runs], len(latest)


def _worst_first(newest: LatestRun, now: datetime) -> tuple[bool, bool, bool, datetime, str]:
    due = next_due(newest)
    absent = due is not None and due + LATE < now
    return (not absent, newest.status != Status.DEAD, due is None, due or now, newest.job_type)


def _facts(runs: Sequence[LatestRun]) -> ScheduleFacts:
    newest = runs[0]
    durations = (_took(each) for each in runs if each.status == Status.SUCCEEDED)
    return ScheduleFacts(
        id=newest.id,
        name=newest.job_type,
        status="run by cron",
        next_at=next_due(newest),
        paused=None,
        runs=tuple(_run(each) for each in runs),
        durations=tuple(each for each in durations if each is not None),
        running=_run(newest) if newest.status == Status.RUNNING else None,
    )


def _run(run: LatestRun) -> RunFacts:
    return RunFacts(run.status, run.finished_at or run.started_at, run.started_at, run.id, _took(run))


def _took(run: LatestRun) -> timedelta | None:
    return None if run.finished_at is None else max(timedelta(0), run.finished_at - run.started_at)
