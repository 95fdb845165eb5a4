"""Find exec runs that did not come or that overlapped, from the two newest runs of each name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import Connection

from cronjobs.desk.insight.explain_exec import LATE, next_due
from cronjobs.engine.store import exec_runs
from cronjobs.engine.store.exec_runs import LatestRun


@dataclass(frozen=True)
class ExecWatch:
    """``absent``: name → when the first run that did not come was due. ``overlapped``: name → when the later one began.

    ``ids``: the newest run of each name, which says when the next is due. ``absent_at``: when the first of the other
    names becomes absent unless its run comes, or None if none is expected. ``unwatched``: there are more names than are
    checked.
    """

    absent: Mapping[str, datetime] = field(default_factory=dict)
    overlapped: Mapping[str, datetime] = field(default_factory=dict)
    ids: Mapping[str, int] = field(default_factory=dict)
    absent_at: datetime | None = None
    unwatched: bool = False


def watch_exec(connection: Connection, now: datetime) -> ExecWatch:
    latest = sorted(exec_runs.latest(connection).items())
    watched = judge_runs([runs for _, runs in latest[: exec_runs.MOST_NAMES]], now)
    return replace(watched, unwatched=len(latest) > exec_runs.MOST_NAMES)


def judge_runs(runs_of_names: Iterable[Sequence[LatestRun]], now: datetime) -> ExecWatch:
    """Judge runs, up to two per name, newest first. Pure."""
    absent, overlapped, ids, limits = {}, {}, {}, []
    for runs in runs_of_names:
        newest, name = runs[0], runs[0].job_type.partition(":")[2]
        ids[name] = newest.id
        due = next_due(newest)
        if due is not None and due + LATE < now:
            absent[name] = due
        elif due is not None:
            limits.append(due + LATE)
        if len(runs) > 1 and _overlap(newest, runs[1]):
            overlapped[name] = newest.started_at
    return ExecWatch(absent, overlapped, ids, min(limits, default=None))


def _overlap(later: LatestRun, earlier: LatestRun) -> bool:
    """Whether the same host began the later run while the earlier one ran; another host has another crontab."""
    if later.meta.get("host") != earlier.meta.get("host"):
        return False
    return earlier.finished_at is None or earlier.finished_at > later.started_at
