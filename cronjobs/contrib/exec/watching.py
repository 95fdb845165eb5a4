"""Find absent and overlapping exec runs. Look at the two newest runs of each name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import Connection

from cronjobs.desk.insight.explain_exec import LATE, next_due
from cronjobs.desk.store import exec_runs
from cronjobs.desk.store.exec_runs import LatestRun


@dataclass(frozen=True)
class ExecWatch:
    """The names whose runs are absent or overlap.

    ``absent`` maps a name to the due time of its first absent run. ``overlapped`` maps a name to the start of the later
    run. ``ids`` maps each name to the id of its newest run. ``absent_at`` is the time at which the next expected run
    becomes absent, if it has not begun by then. ``absent_at`` is None if no run is expected. ``unwatched`` is true if
    there are too many names to check all of them.
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
    """Find absent and overlapping runs. *runs_of_names* holds one or two runs per name, newest first. Pure."""
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
    """Whether the later run began during the earlier one.

    Runs on different hosts never overlap, because each host has its own crontab.
    """
    if later.meta.get("host") != earlier.meta.get("host"):
        return False
    return earlier.finished_at is None or earlier.finished_at > later.started_at
