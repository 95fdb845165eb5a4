"""Find absent and overlapping runs of ``cronjobs exec``. The finding for dead jobs covers dead runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise, takewhile
from typing import Final

from sqlalchemy import Connection

from cronjobs.desk.insight.explain_exec import LATE, next_due
from cronjobs.desk.insight.finding import Finding, typed
from cronjobs.desk.insight.findings_of_extras import Findings
from cronjobs.desk.store import exec_runs
from cronjobs.desk.store.exec_runs import LatestRun
from cronjobs.engine.config.settings import Settings

MOST_RUNS: Final = 1500  # one day of runs, if cron starts the line each minute


def found(connection: Connection, _settings: Settings, now: datetime) -> Findings:
    """Look at the two newest runs of each name, and at more of them if these overlap."""
    latest: list[Sequence[LatestRun]] = []
    for job_type, runs in sorted(exec_runs.run_by_cron(connection).items()):
        overlaps = len(runs) > 1 and _overlap(*runs)
        latest.append(exec_runs.begun_between(connection, job_type, None, None, MOST_RUNS) if overlaps else runs)
    watched = judge_runs(latest[: exec_runs.MOST_NAMES], now)
    if len(latest) <= exec_runs.MOST_NAMES:
        return watched
    most = f"{exec_runs.MOST_NAMES:,}"
    text = f"cronjobs exec has run under more than {most} names; only the first {most} are watched"
    return watched._replace(findings=[*watched.findings, Finding("unwatched", text, command="cronjobs history")])


def judge_runs(runs_of_names: Iterable[Sequence[LatestRun]], now: datetime) -> Findings:
    """Find absent and overlapping runs. *runs_of_names* holds at least one run per name, newest first. Pure.

    If several of the newest runs each began during the run before, the overlap begins with the first of them.

    ``again_at`` of the result is the instant at which the next expected run becomes absent.
    """
    absent, overlapped, limits = [], [], []
    for runs in runs_of_names:
        newest, name = runs[0], runs[0].job_type.partition(":")[2]
        due = next_due(newest)
        if due is not None and due + LATE < now:
            text = f"{name} was due under cron, but exec has recorded no run of it"
            command = typed("cronjobs explain", newest.job_type)
            absent.append(Finding("absent", text, since=due, command=command, subject=name))
        elif due is not None:
            limits.append(due + LATE)
        overlapping = [later for later, _ in takewhile(lambda pair: _overlap(*pair), pairwise(runs))]
        if overlapping:
            text = f"the last run of {name} began while the previous run was still running"
            # Both runs may have succeeded, and history prints a line for each success only with --all.
            command = f"{typed('cronjobs history --type', newest.job_type)} --all"
            first = overlapping[-1]
            rows = (str(first.id),)
            overlapped.append(
                Finding("overlapped", text, since=first.started_at, command=command, subject=name, rows=rows)
            )
    return Findings([*absent, *overlapped], min(limits, default=None))


def _overlap(later: LatestRun, earlier: LatestRun) -> bool:
    """Whether the later run began during the earlier run.

    Runs on different hosts never overlap, because each host has its own crontab.
    """
    if later.meta.get("host") != earlier.meta.get("host"):
        return False
    return earlier.finished_at is None or earlier.finished_at > later.started_at
